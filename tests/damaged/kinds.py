"""Kinds of files that commands read: a whole one of each, and the function that the command calls with it."""

import contextlib
import dataclasses
import functools
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from boards import bitstream, synth
from host import stage_times
from host.checkpoints.archive import STATE, pack_state, unpack_state
from host.checkpoints.checkpoint import Expectation, examine
from host.checkpoints.keys import read_key
from host.features.compute.tiling.searched import SearchedFactors
from host.features.programs import chakra
from host.features.quantization import experiment as quantize_experiment
from host.features.quantization import files as model_files
from host.features.quantization.network import FloatLayer, QuantizationConfig, quantize
from host.features.streaming.edits import Kind as EditKind
from host.features.streaming.edits import Structure, read_log
from host.features.streaming.node_run import RelayKeeper
from host.features.streaming.run import RelayRun
from host.labs.centroids import lab as centroid_tables
from host.labs.late import picture as late
from host.labs.memory import report as memory
from host.labs.predict import points
from host.labs.relay import experiment as relay_experiment
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
    """A kind of files.

    Members
    -------
    write : callable
        Writes a whole file into a folder, and returns its path.
    read : callable
        Reads it as a command does.
    mutations : list of callable
    unchanged : bool
        Whether what was read must be the original's, or nothing.
    needs : str
        Package of an extra that it needs, or nothing.
    """

    write: Callable[[Path], Path]
    read: Callable[[Path], Any]
    mutations: list[Callable[..., bytes]]
    unchanged: bool = False
    needs: str = ""


@functools.cache
def few() -> Dataset:
    data = digits()
    return Dataset(data.train_x[:200], data.train_y[:200], data.test_x[:50], data.test_y[:50], data.classes)


def trained() -> weight_files.TrainedWeights:
    values = np.random.default_rng(0).standard_normal(65 * 8 + 9 * 10).astype(np.float32)
    return weight_files.TrainedWeights(workload=WorkloadName.DIGITS, hidden=(8,), seed=1, parameters=values)


def write_weights(folder: Path) -> Path:
    weight_files.save(trained(), folder / "weights.npz")
    return folder / "weights.npz"


def read_weights(path: Path) -> Any:
    _, weights = quantize_experiment.find_weights(path, path.parent)
    return quantize_experiment.layers_of(weights, few())


def network(**options: Any) -> Any:
    generator = np.random.default_rng(0)
    layers = [FloatLayer(generator.standard_normal((outputs, inputs)), generator.standard_normal(outputs))
              for inputs, outputs in ((64, 8), (8, 10))]
    return quantize(layers, few().train_x, QuantizationConfig(**options), input_scale=1 / 16)


def write_model(folder: Path) -> Path:
    model_files.save(network(per_channel=True), folder / "model.npz")
    return folder / "model.npz"


def write_onnx(folder: Path) -> Path:
    from host.features.quantization.onnx import export_onnx

    export_onnx(network(), folder / "model.onnx")
    return folder / "model.onnx"


def read_onnx(path: Path) -> Any:
    from host.features.quantization.onnx import import_onnx

    return import_onnx(path)


def write_edits(folder: Path) -> Path:
    start = Structure(widths=(64, 16, 16, 10), formats=("raw",) * 3, count=2, rate=0.125, microbatch=4,
                      worker=relay_experiment.WORKER)
    run = RelayRun(few(), start, workers=2, optimizer=SGD(start.rate, momentum=relay_experiment.MOMENTUM))
    run.propose(0, EditKind.MICROBATCHES, 1)
    do(run)
    run.propose(2, EditKind.REMOVE, 0)
    do(run)
    (folder / "edits.json").write_text(json.dumps(run.described()))
    return folder / "edits.json"


def read_edits(path: Path) -> Any:
    return relay_experiment.replay_log(few(), read_log(path))


def write_checkpoint(folder: Path) -> Path:
    content = {"state": {"batches": {"number": 3, "generator": np.random.default_rng(0).bit_generator.state},
                         "weights": np.arange(100, dtype=np.uint32)}, "rows": [[1, 2.5], ["ä", None]]}
    checkpoint.save(folder / checkpoint.NAME, IDENTITY, content)
    return folder / checkpoint.NAME


def read_relay_checkpoint(path: Path) -> Any:
    return RelayKeeper(path, IDENTITY["options"], steps=1).load()


def write_migration(folder: Path) -> Path:
    from host.checkpoints.checkpoint import ProcessFrame, Stamp, make

    (folder / "job.tar").write_bytes(make(ProcessFrame(state={"weights": np.arange(9)}), None, key=KEY, owner=KEY,
                                          stamp=Stamp(sequence=5)))
    return folder / "job.tar"


def read_migration(path: Path) -> Any:
    with path.open("rb") as file:
        archive = examine(file, key=KEY, expected=Expectation(seen=4))
    archive.check_regions()
    return unpack_state(archive.regions)


def state() -> dict[str, bytes]:
    return pack_state({"a": [1, None, "x", {"b": 2.5}], "c": np.arange(6).reshape(2, 3), "large": 1 << 120})


def write_state(folder: Path) -> Path:
    (folder / "state.json").write_bytes(state()[STATE])
    return folder / "state.json"


def read_state(path: Path) -> Any:
    with path.open("rb") as file:
        return unpack_state({**state(), STATE: file.read(1 << 20)})


def write_array(folder: Path) -> Path:
    (folder / "array.npy").write_bytes(state()["process/array/0000"])
    return folder / "array.npy"


def read_array(path: Path) -> Any:
    with path.open("rb") as file:
        return unpack_state({**state(), "process/array/0000": file.read(1 << 20)})


def write_ledger(folder: Path) -> Path:
    Ledger(folder / "ledger.json").commit(Entry("source", 5))
    return folder / "ledger.json"


def write_key(folder: Path) -> Path:
    (folder / "owner.key").write_bytes(KEY)
    return folder / "owner.key"


JOB = Job(kind=JobKind.RUN, name="run", parameters={"nodes": 2})
RESULT = {"loss": 1.25, "steps": 12, "bit_exact": True}


def write_result(folder: Path) -> Path:
    jobs.store(folder, JOB, RESULT, 1.0)
    return folder / JOB.file


def read_result(path: Path) -> Any:
    assert jobs.history(path.parent, JOB) >= 0
    return jobs.load(path.parent, JOB)


def write_plans(folder: Path) -> Path:
    value = {"source": memory._digest(), "parts": {"checks": {"overlaps": 3}, "programs": [1.5]}}
    (folder / "memory.json").write_text(json.dumps(json_files.sealed(value)))
    return folder / "memory.json"


def write_tilings(folder: Path) -> Path:
    (folder / "tilings.json").write_text(json.dumps(json_files.sealed(
        {"fp32 4x4x1 64x64x64": {"factors": {"depth": 4}, "cycles": 5, "default": 6, "evaluations": 7}})))
    return folder / "tilings.json"


def write_tables(folder: Path) -> Path:
    row = centroid_tables.Row(seed=0, dense=0.97, clustered=0.96, trained=0.97, dense_words=1, table_words=1, steps=1,
                              cycles=1, multiplications=16)
    value = {"nodes": 4, "rows": [dataclasses.asdict(row)]}
    (folder / "tables.json").write_text(json.dumps(json_files.sealed(value)))
    return folder / "tables.json"


def write_late(folder: Path) -> Path:
    runs = [{"skew": skew, "late": name, "seed": 0, "cycles": [10, 20, 30], "losses": [2.5, 1.5, 0.5],
             "measured": [[15, 0.5], [30, 0.75]]} for skew in (0.0, 0.9) for name in ("apply-late", "drop")]
    (folder / "late.json").write_text(json.dumps(late.SCHEMA.report({"compute": "modelled", "runs": runs})))
    return folder / "late.json"


def write_points(folder: Path) -> Path:
    (folder / "points.csv").write_bytes(b"\n".join(points.FILE.read_bytes().splitlines()[::20]) + b"\n")
    return folder / "points.csv"


def read_points(path: Path) -> Any:
    with _instead(points, "FILE", path):
        return points.load()


@contextlib.contextmanager
def _instead(module: Any, name: str, value: Any) -> Any:
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)


def write_trace(folder: Path) -> Path:
    commands = [chakra.Command(name="compute", kind=chakra.Kind.COMPUTE, start=0, end=3000),
                chakra.Command(name="sum", kind=chakra.Kind.REDUCE_SCATTER, start=3000, end=303_000, elements=5,
                               size=300, after=("compute",))]
    return chakra.write([commands], folder / "trace", clock=1e6, note="n")


@contextlib.contextmanager
def _cache(folder: Path) -> Any:
    before = os.environ.get(cache_folder.VARIABLE)
    os.environ[cache_folder.VARIABLE] = str(folder)
    try:
        yield
    finally:
        if before is None:
            del os.environ[cache_folder.VARIABLE]
        else:
            os.environ[cache_folder.VARIABLE] = before


def write_stages(folder: Path) -> Path:
    with _cache(folder / "cache"):
        cache_folder.make(cache_folder.folder("verilog"))
        stage_times.note("compile", 41.0)
        stage_times.note("train", 4.5)
    return folder / "cache" / "stages.json"


def read_stages(path: Path) -> Any:
    with _cache(path.parent):
        stage_times.note("run", 5.0)
        return stage_times.known("compile")


def write_manifest(folder: Path) -> Path:
    (folder / "product").write_text("product")
    (folder / "other").write_text("other")
    cache._seal(folder)
    return folder / cache.MANIFEST


def write_synthesis(folder: Path) -> Path:
    count = dict.fromkeys(("lut4", "ccu2c", "lut_ram", "ff", "dsp", "bram"), 12)
    (folder / "unit.json").write_text(json.dumps({
        "name": "floating.add", "part": "25k", **count, "seeds": 3, "wires_per_link": [36, 4],
        "fmax_mhz": {"median": 80.5, "min": 70.0, "max": 90.0}}))
    return folder / "unit.json"


def write_board(folder: Path) -> Path:
    (folder / "board.json").write_text(json.dumps({
        "name": "ulx3s-85f", "board": "ulx3s-85f", "part": "LFE5U-85F", "nodes": 2, "lut4": 9, "clock_mhz": 25.0,
        "seeds": 1,
        "utilisation": {"TRELLIS_COMB": {"used": 12, "available": 83640}}, "wires_per_link": [36],
        "fmax_mhz": {"median": 30.5, "min": 30.5, "max": 30.5}}))
    return folder / "board.json"


def read_synthesis(path: Path) -> Any:
    with _instead(synth, "RESULTS", path.parent), _instead(bitstream, "RESULTS", path.parent):
        return synth.table(), bitstream.table()


def write_names(folder: Path) -> Path:
    return _save(folder, [Encoding(("ring", "node"), "state", 2, {0: "Idle", 1: "Run"}, True),
                          Encoding((), "field.kind", 40, {2**39: "Top"}, False)])


def write_wave(folder: Path) -> Path:
    from vcd import VCDWriter

    with (folder / "ring.vcd").open("w") as file, VCDWriter(file, timescale="1 ps") as writer:
        signals = [writer.register_var(f"node{node}", name, "wire", size=size)
                   for node in (0, 1) for name, size in (("ring_o__valid", 1), ("ring_o__payload", 32))]
        for time in range(20):
            for signal in signals:
                writer.change(signal, time, time % 2)
    return folder / "ring.vcd"


def read_wave(path: Path) -> Any:
    from host.reports.packets import Wave

    wave = Wave(path)
    return [wave.changes(f"node{node}.ring_o__valid") for node in range(wave.nodes)]


def searched(path: Path) -> Any:
    from hdl.config import NodeConfig

    return SearchedFactors(NodeConfig(), path)._kept


KINDS = {
    "weights": Kind(write_weights, read_weights, mutations.ARCHIVE),
    "quantised model": Kind(write_model, model_files.load, mutations.ARCHIVE),
    "ONNX model": Kind(write_onnx, read_onnx, mutations.ANY, needs="onnx"),
    "log of edits": Kind(write_edits, read_edits, mutations.JSON),
    "checkpoint of training": Kind(write_checkpoint, lambda path: checkpoint.load(path, IDENTITY), mutations.ANY,
                                   unchanged=True),
    "checkpoint of a relay": Kind(write_checkpoint, read_relay_checkpoint, mutations.ANY, unchanged=True),
    "checkpoint of a migration": Kind(write_migration, read_migration, mutations.ANY, unchanged=True),
    "state in a checkpoint": Kind(write_state, read_state, mutations.JSON),
    "array in a checkpoint": Kind(write_array, read_array, mutations.ANY),
    "ledger": Kind(write_ledger, lambda path: Ledger(path).read(), mutations.JSON),
    "key": Kind(write_key, read_key, mutations.ANY),
    "result of a sweep's job": Kind(write_result, read_result, mutations.JSON, unchanged=True),
    "plans of memory": Kind(write_plans, lambda path: memory.Parts(path).parts, mutations.JSON, unchanged=True),
    "searched tilings": Kind(write_tilings, searched, mutations.JSON, unchanged=True),
    "tables of centroids": Kind(write_tables, lambda path: centroid_tables._kept(path, {"nodes": 4}), mutations.JSON,
                                unchanged=True),
    "report of late gradients": Kind(write_late, lambda path: late.draw_report(path.parent), mutations.JSON),
    "measured points": Kind(write_points, read_points, mutations.ANY),
    "trace of Chakra": Kind(write_trace, chakra.read, mutations.ANY, needs="google.protobuf"),
    "times of stages": Kind(write_stages, read_stages, mutations.JSON),
    "manifest of the cache": Kind(write_manifest, lambda path: cache.complete(path.parent), mutations.JSON),
    "result of synthesis": Kind(write_synthesis, read_synthesis, mutations.JSON),
    "result of a board": Kind(write_board, read_synthesis, mutations.JSON),
    "names of signals": Kind(write_names, lambda path: read_encodings(path.parent), mutations.JSON),
    "waveform": Kind(write_wave, read_wave, mutations.ANY, needs="pywellen"),
}
