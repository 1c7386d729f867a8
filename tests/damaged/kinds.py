"""Kinds of files that commands read, with functions that write an undamaged file and read it."""

import dataclasses
import functools
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from boards import bitstream, synth
from host import stage_times
from host.checkpoints.archive import STATE, pack_state, unpack_state
from host.checkpoints.checkpoint import Expectation, examine
from host.checkpoints.keys import read_key
from host.features.compute.tiling.searched import SearchedFactors
from host.features.quantization import experiment as quantize_experiment
from host.features.quantization import files as model_files
from host.features.quantization.network import FloatLayer, QuantizationConfig, quantize
from host.features.streaming.edits import Kind as EditKind
from host.features.streaming.edits import Structure, read_log
from host.features.streaming.node_run import StreamingCheckpointer
from host.features.streaming.run import GoldenStreaming
from host.gradients import files as gradients
from host.labs.centroids import lab as centroid_tables
from host.labs.late import lab as late
from host.labs.memory import lab as memory
from host.labs.predict import points
from host.labs.streaming import experiment as streaming_experiment
from host.labs.sweep import jobs
from host.labs.sweep.jobs import Job, JobKind
from host.migration.migrate import Entry, Ledger
from host.models.digits import Dataset, digits
from host.training import checkpoint, weight_files
from host.training.optimizers import SGD
from host.training.workloads import WorkloadName
from sim import json_files
from sim.verilated import cache, cache_folder
from sim.verilated.names import Encoding, _save, read_encodings
from tests.damaged import mutations
from tests.host.features.streaming.sets import do

IDENTITY = {"options": {"nodes": 4}, "versions": checkpoint.versions()}
KEY = bytes(range(32))


@dataclasses.dataclass(frozen=True)
class Kind:
    name: str  # name of the file to write and read
    write: Callable[[Path], object]  # function that writes an undamaged file
    read: Callable[[Path], Any]  # function that reads a file in the same way as the command
    mutations: list[Callable[..., bytes]]
    unchanged: bool = False  # whether a value read from a damaged file must be empty or equal to the original
    needs: str = ""  # optional package that this kind of file needs


@functools.cache
def few() -> Dataset:
    data = digits()
    return Dataset(data.train_x[:200], data.train_y[:200], data.test_x[:50], data.test_y[:50], data.classes)


def write_weights(path: Path) -> None:
    values = np.random.default_rng(0).standard_normal(65 * 8 + 9 * 10).astype(np.float32)
    weight_files.save(weight_files.TrainedWeights(
        workload=WorkloadName.DIGITS, hidden=(8,), seed=1, parameters=values), path)


def read_weights(path: Path) -> Any:
    _, weights = quantize_experiment.find_weights(path, path.parent)
    return quantize_experiment.layers_of(weights, few())


def network(**options: Any) -> Any:
    generator = np.random.default_rng(0)
    layers = [FloatLayer(generator.standard_normal((outputs, inputs)), generator.standard_normal(outputs))
              for inputs, outputs in ((64, 8), (8, 10))]
    return quantize(layers, few().train_x, QuantizationConfig(**options), input_scale=1 / 16)


def write_gradients(path: Path) -> None:
    gradients.save(path, [gradients.Sample(
        source="module0", parameter=f"{name}.weight", shape=(10, 10), step=4, rank=rank, ranks=2, runs=[(0, 64)],
        values=np.arange(64, dtype=np.float32)) for name in range(3) for rank in range(2)])


def write_onnx(path: Path) -> None:
    from host.features.quantization.onnx import export_onnx

    export_onnx(network(), path)


def read_onnx(path: Path) -> Any:
    from host.features.quantization.onnx import import_onnx

    return import_onnx(path)


def write_edits(path: Path) -> None:
    start = Structure(widths=(64, 16, 16, 10), formats=("raw",) * 3, count=2, rate=0.125, microbatch=4,
                      worker=streaming_experiment.WORKER)
    run = GoldenStreaming(few(), start, workers=2, optimizer=SGD(start.rate, momentum=streaming_experiment.MOMENTUM))
    run.propose(0, EditKind.MICROBATCHES, 1)
    do(run)
    run.propose(2, EditKind.REMOVE, 0)
    do(run)
    path.write_text(json.dumps(run.described()))


def write_checkpoint(path: Path) -> None:
    content = {"state": {"batches": {"number": 3, "generator": np.random.default_rng(0).bit_generator.state},
                         "weights": np.arange(100, dtype=np.uint32)}, "rows": [[1, 2.5], ["ä", None]]}
    checkpoint.save(path, IDENTITY, content)


def write_migration(path: Path) -> None:
    from host.checkpoints.checkpoint import ProcessFrame, Stamp, make

    path.write_bytes(make(ProcessFrame(state={"weights": np.arange(9)}), None, key=KEY, owner=KEY,
                          stamp=Stamp(sequence=5)))


def read_migration(path: Path) -> Any:
    with path.open("rb") as file:
        archive = examine(file, key=KEY, expected=Expectation(seen=4))
    archive.check_regions()
    return unpack_state(archive.regions)


def state() -> dict[str, bytes]:
    return pack_state({"a": [1, None, "x", {"b": 2.5}], "c": np.arange(6).reshape(2, 3), "large": 1 << 120})


def of_state(name: str, part: str, mutations: list[Callable[..., bytes]]) -> Kind:
    """One entry of a checkpoint's state."""
    def read(path: Path) -> Any:
        with path.open("rb") as file:
            return unpack_state({**state(), part: file.read(1 << 20)})

    return Kind(name, lambda path: path.write_bytes(state()[part]), read, mutations)


JOB = Job(kind=JobKind.RUN, name="run", parameters={"nodes": 2})
RESULT = {"loss": 1.25, "steps": 12, "bit_exact": True}


def write_result(path: Path) -> None:
    jobs.store(path.parent, JOB, RESULT, 1.0)
    path.symlink_to(JOB.file)


def read_result(path: Path) -> Any:
    assert jobs.history(path.parent, JOB) >= 0
    return jobs.load(path.parent, JOB)


def sealed(value: Callable[[], Any]) -> Callable[[Path], object]:
    """Write a value together with a digest of its content."""
    return lambda path: path.write_text(json.dumps(json_files.sealed(value())))


def plans() -> dict[str, Any]:
    return {"source": memory._digest(), "parts": {"checks": {"overlaps": 3}, "programs": [1.5]}}


def tilings() -> dict[str, Any]:
    return {"fp32 4x4x1 64x64x64": {"factors": {"depth": 4}, "cycles": 5, "default": 6, "evaluations": 7}}


def tables() -> dict[str, Any]:
    row = centroid_tables.Row(seed=0, dense=0.97, clustered=0.96, trained=0.97, dense_words=1, table_words=1, steps=1,
                              cycles=1, multiplications=16)
    return {"nodes": 4, "rows": [dataclasses.asdict(row)]}


def write_late(path: Path) -> None:
    runs = [{"skew": skew, "late": name, "seed": 0, "cycles": [10, 20, 30], "losses": [2.5, 1.5, 0.5],
             "measured": [[15, 0.5], [30, 0.75]]} for skew in (0.0, 0.9) for name in ("apply-late", "drop")]
    path.write_text(json.dumps(late.SCHEMA.report({"compute": "modelled", "runs": runs})))


def read_points(path: Path) -> Any:
    with mock.patch.object(points, "FILE", path):
        return points.load()


def in_cache(folder: Path) -> Any:
    return mock.patch.dict(os.environ, {cache_folder.VARIABLE: str(folder)})


def write_stages(path: Path) -> None:
    with in_cache(path.parent):
        cache_folder.make(cache_folder.folder("verilog"))
        stage_times.note("compile", 41.0)
        stage_times.note("train", 4.5)


def read_stages(path: Path) -> Any:
    with in_cache(path.parent):
        stage_times.note("run", 5.0)
        return stage_times.known("compile")


def write_manifest(path: Path) -> None:
    for name in ("product", "other"):
        (path.parent / name).write_text(name)
    cache._seal(path.parent)


def write_synthesis(path: Path) -> None:
    count = dict.fromkeys(("lut4", "ccu2c", "lut_ram", "ff", "dsp", "bram"), 12)
    path.write_text(json.dumps({
        "name": "floating.add", "part": "25k", **count, "seeds": 3, "wires_per_link": [36, 4],
        "fmax_mhz": {"median": 80.5, "min": 70.0, "max": 90.0}}))


def write_board(path: Path) -> None:
    path.write_text(json.dumps({
        "name": "ulx3s-85f", "board": "ulx3s-85f", "part": "LFE5U-85F", "nodes": 2, "lut4": 9, "clock_mhz": 25.0,
        "seeds": 1, "utilisation": {"TRELLIS_COMB": {"used": 12, "available": 83640}}, "wires_per_link": [36],
        "fmax_mhz": {"median": 30.5, "min": 30.5, "max": 30.5}}))


def read_synthesis(path: Path) -> Any:
    with mock.patch.object(synth, "RESULTS", path.parent), mock.patch.object(bitstream, "RESULTS", path.parent):
        return synth.table(), bitstream.table()


def write_names(path: Path) -> None:
    written = _save(path.parent, [Encoding(("ring", "node"), "state", 2, {0: "Idle", 1: "Run"}, True),
                                  Encoding((), "field.kind", 40, {2**39: "Top"}, False)])
    assert written == path


def write_wave(path: Path) -> None:
    from vcd import VCDWriter

    with path.open("w") as file, VCDWriter(file, timescale="1 ps") as writer:
        signals = [writer.register_var(f"node{node}", name, "wire", size=size)
                   for node in (0, 1) for name, size in (("ring_o__valid", 1), ("ring_o__payload", 32))]
        for time in range(20):
            for signal in signals:
                writer.change(signal, time, time % 2)


def read_wave(path: Path) -> Any:
    from host.reports.packets import Wave

    wave = Wave(path)
    return [wave.changes(f"node{node}.ring_o__valid") for node in range(wave.nodes)]


def searched(path: Path) -> Any:
    from hdl.config import NodeConfig

    return SearchedFactors(NodeConfig(), path)._kept


ANY, JSON, ARCHIVE = mutations.ANY, mutations.JSON, mutations.ARCHIVE

KINDS = {
    "weights": Kind("weights.npz", write_weights, read_weights, ARCHIVE),
    "quantised model": Kind("model.npz", lambda path: model_files.save(network(per_channel=True), path),
                            model_files.load, ARCHIVE),
    "recorded gradients": Kind("gradients.npz", write_gradients, lambda path: [
        dataclasses.asdict(sample) for sample in gradients.load(path)], ARCHIVE),
    "ONNX model": Kind("model.onnx", write_onnx, read_onnx, ANY, needs="onnx"),
    "log of edits": Kind("edits.json", write_edits, lambda path: streaming_experiment.replay_log(
        few(), read_log(path)),
                         JSON),
    "checkpoint of training": Kind(checkpoint.NAME, write_checkpoint, lambda path: checkpoint.load(path, IDENTITY),
                                   ANY, unchanged=True),
    "checkpoint of layer streaming": Kind(
        checkpoint.NAME, write_checkpoint, lambda path: StreamingCheckpointer(
            path, IDENTITY["options"], steps=1).load(), ANY,
        unchanged=True),
    "checkpoint of a migration": Kind("job.tar", write_migration, read_migration, ANY, unchanged=True),
    "state in a checkpoint": of_state("state.json", STATE, JSON),
    "array in a checkpoint": of_state("array.npy", "process/array/0000", ANY),
    "ledger": Kind("ledger.json", lambda path: Ledger(path).commit(Entry("source", 5)),
                   lambda path: Ledger(path).read(), JSON),
    "key": Kind("owner.key", lambda path: path.write_bytes(KEY), read_key, ANY),
    "result of a sweep's job": Kind("result", write_result, read_result, JSON, unchanged=True),
    "plans of memory": Kind("memory.json", sealed(plans), lambda path: memory.Parts(path).parts, JSON,
                            unchanged=True),
    "searched tilings": Kind("tilings.json", sealed(tilings), searched, JSON, unchanged=True),
    "tables of centroids": Kind("tables.json", sealed(tables), lambda path: centroid_tables._kept(path, {"nodes": 4}),
                                JSON, unchanged=True),
    "report of late gradients": Kind("late.json", write_late, lambda path: late.draw_report(path.parent), JSON),
    "measured points": Kind("points.csv", lambda path: path.write_bytes(
        b"\n".join(points.FILE.read_bytes().splitlines()[::20]) + b"\n"), read_points, ANY),
    "times of stages": Kind("stages.json", write_stages, read_stages, JSON),
    "manifest of the cache": Kind(cache.MANIFEST, write_manifest, lambda path: cache.complete(path.parent), JSON),
    "result of synthesis": Kind("unit.json", write_synthesis, read_synthesis, JSON),
    "result of a board": Kind("board.json", write_board, read_synthesis, JSON),
    "names of signals": Kind("names.json", write_names, lambda path: read_encodings(path.parent), JSON),
    "waveform": Kind("ring.vcd", write_wave, read_wave, ANY, needs="pywellen"),
}
