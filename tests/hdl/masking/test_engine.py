# amaranth: UnusedElaboratable=no
"""Masking as commands of a node, between memories: hdl/masking/engine.py."""

import dataclasses
import functools

import numpy as np
import pytest
from amaranth.hdl import Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.config import NodeConfig
from hdl.control.protocol import EventStatus, Operation, access_layout, command_layout, event_layout, mask_job_layout
from hdl.masking.circuit import MaskCircuit
from hdl.masking.engine import INDEX_BITS, JobReader, MaskEngine, counts_layout, mask_cycles, sparsify_cycles
from hdl.masking.magnitude import MagnitudeMask
from hdl.masking.mask import KINDS
from hdl.memory import HostAccess, LanedMemory, RowReader
from hdl.stream import connect_stream, word_layout
from sim.golden import masking as model
from sim.payload import to_int
from sim.streams import stall_array
from sim.verilated.vectors import Feed, Unit, pack, unpack
from tests.hdl.masking import masks

LANES = (1, 2, 4, 8)
WORDS = {"gradient_words": 2048, "weight_words": 1024}
ALTERNATIVE = 0xC61C4000
THRESHOLD = int(np.float32(0.5).view(np.uint32))


class Bench(wiring.Component):
    """The engine with its two memories, and the host behind it."""

    def __init__(self, config):
        self._config = config
        words = stream.Signature(word_layout())
        accesses = stream.Signature(access_layout())
        super().__init__({
            "command": In(stream.Signature(command_layout())), "event": Out(stream.Signature(event_layout())),
            "alternative": In(32), "threshold": In(32), "weight_version": In(32), "count": Out(counts_layout()),
            "host_read": In(accesses), "host_data": Out(words), "host_write": In(accesses), "host_words": In(words),
        })

    def elaborate(self, platform):
        m = Module()
        config = self._config
        rows = config.gradient_words // config.lanes, config.weight_words // config.lanes
        m.submodules.engine = engine = MaskEngine(config=config)
        m.submodules.access = access = HostAccess(rows=rows, lanes=config.lanes)
        for name, count, readers, writers in (
            ("gradients", rows[0], (engine.gradient_read, access.read_0), (engine.gradient_write, access.write_0)),
            ("weights", rows[1], (*engine.weight_read, access.read_1), (engine.weight_write, access.write_1)),
        ):
            m.submodules[name] = memory = LanedMemory(
                rows=count, lanes=config.lanes, readers=len(readers), writers=len(writers))
            for reader, port in zip(readers, memory.read, strict=True):
                wiring.connect(m, reader=reader, memory=port)
            for writer, port in zip(writers, memory.write, strict=True):
                wiring.connect(m, writer=writer, memory=port)
        for outer, inner in ((self.command, engine.command), (self.host_read, access.read.request),
                             (self.host_write, access.write.request), (self.host_words, access.write.data)):
            connect_stream(m, outer, inner)
        connect_stream(m, engine.event, self.event)
        connect_stream(m, access.read.data, self.host_data)
        m.d.comb += [
            engine.alternative.eq(self.alternative), engine.threshold.eq(self.threshold),
            engine.weight_version.eq(self.weight_version), self.count.eq(engine.count),
        ]
        return m


@functools.cache
def unit(lanes):
    return Unit(Bench(NodeConfig(lanes=lanes, update_lanes=1, **WORDS)), name=f"MaskBench{lanes}")


def taken(trace, port, layout):
    when = np.flatnonzero(trace[f"{port}__valid"].astype(bool) & trace[f"{port}__ready"].astype(bool))
    return when, unpack(layout, trace[f"{port}__payload"][when])


def fill(bench, space, values):
    """Write a whole memory."""
    last = np.arange(len(values)) == len(values) - 1
    access = {"address": np.zeros(1), "space": np.array([space]), "count": np.array([len(values)])}
    trace = bench.lockstep(cycles=len(values) + 8, sinks={}, sources={
        "host_write": Feed(pack(access_layout(), access)),
        "host_words": Feed(pack(word_layout(), {"data": values, "last": last}))})
    assert len(taken(trace, "host_words", word_layout())[0]) == len(values)


def content(bench, space, count):
    access = {"address": np.zeros(1), "space": np.array([space]), "count": np.array([count])}
    trace = bench.lockstep(cycles=count + 20, sinks={"host_data": True}, sources={
        "host_read": Feed(pack(access_layout(), access))})
    return taken(trace, "host_data", word_layout())[1]["data"].astype(np.uint32)


def command(**fields):
    names = [name for name, _ in command_layout()]
    return {name: int(fields.get(name, 0)) for name in names}


def run(bench, *commands, cycles=None, pattern="none", seed=0, reading=None):
    """Commands one behind the other: their events, and the sums of the counters. ``reading`` is a space which the
    host reads all the while."""
    cycles = cycles or 3_000
    rows = pack(command_layout(), {name: np.array([each[name] for each in commands]) for name in commands[0]})
    sources = {"command": Feed(rows, stall_array(pattern, cycles, seed=seed))}
    sinks = {"event": stall_array(pattern, cycles, seed=seed + 1), "host_data": True}
    if reading is not None:
        access = {"address": np.zeros(99), "space": np.full(99, reading), "count": np.full(99, 1000)}
        sources["host_read"] = Feed(pack(access_layout(), access))
    inputs = {"alternative": ALTERNATIVE, "threshold": THRESHOLD, "weight_version": 77}
    trace = bench.lockstep(sources=sources, sinks=sinks, cycles=cycles, inputs=inputs)
    _, events = taken(trace, "event", event_layout())
    count = unpack(counts_layout(), trace["count"])
    assert len(events["tag"]) == len(commands), f"{len(events['tag'])} of {len(commands)} events, seed {seed}"
    return [{name: int(values[n]) for name, values in events.items()} for n in range(len(commands))], {
        name: int(values.sum()) for name, values in count.items()}


# --- jobs in memory


def taken_elements(job, lanes):
    """Elements of memory that a job takes."""
    return job.beats(lanes) * lanes


def job_words(job, lanes, **wrong):
    """The eight words of a job, some fields of them wrong."""
    mask = job.mask
    fields = {
        "kinds": sum(getattr(mask, kind) << n for n, kind in enumerate(KINDS)), "reserved": 0x155,
        "count": job.count, "rows": job.rows, "columns": job.columns, "elements": taken_elements(job, lanes),
        "diagonal": mask.diagonal & 0xFFFFFFFF, "reserved_end": 0xABCD,
        **{name: getattr(mask, name) for name in (
            "length_rows", "length_columns", "first_row", "end_row", "first_column", "end_column", "width")},
    } | wrong
    bits = to_int(mask_job_layout(), fields)
    return np.frombuffer(bits.to_bytes(32, "little"), "<u4").astype(np.uint32)


def padded(values, job, lanes):
    """Rows of matrices as they lie in memory, and which elements of memory are theirs."""
    columns = -(-job.columns // lanes) * lanes
    shape = job.count, job.rows, columns
    result, real = np.zeros(shape, values.dtype), np.zeros(shape, bool)
    result[..., :job.columns] = values
    real[..., :job.columns] = True
    return result.reshape(-1), real.reshape(-1)


@dataclasses.dataclass
class Case:
    """Memories and the command that masks, and what it makes of them."""

    lanes: int
    jobs: list
    seed: int
    gradient_base: int = 96
    jobs_base: int = 64
    wrong: dict = dataclasses.field(default_factory=dict)

    def __post_init__(self):
        generator = np.random.default_rng(self.seed)
        self.gradients = generator.integers(0, 1 << 32, WORDS["gradient_words"], dtype=np.uint32)
        self.weights = generator.integers(0, 1 << 32, WORDS["weight_words"], dtype=np.uint32)
        words, kept = masks.external_all(generator, self.jobs)
        listed = [job_words(job, self.lanes, **self.wrong.get(n, {})) for n, job in enumerate(self.jobs)]
        listed = np.concatenate([*listed, np.zeros(0, np.uint32)])
        self.state_base = -(-(self.jobs_base + len(listed)) // 32) * 32
        self.weights[self.jobs_base:self.jobs_base + len(listed)] = listed
        self.weights[self.state_base:self.state_base + len(words)] = words
        self.kept, self.fetched = kept, len(words)
        self.length = sum(taken_elements(job, self.lanes) for job in self.jobs)

    def command(self, **options):
        return command(**{
            "operation": Operation.MASK, "gradient_base": self.gradient_base, "weight_base": self.jobs_base,
            "state_base": self.state_base, "length": self.length, "tag": 9, "rank": 200, "size": 0, "port": 3,
        } | options)

    def expected(self, jobs=None):
        """The gradient memory after so many jobs, and elements masked."""
        result, place, masked = self.gradients.copy(), self.gradient_base, 0
        for job, kept in list(zip(self.jobs, self.kept, strict=True))[:jobs]:
            keep, real = padded(kept, job, self.lanes)
            region = result[place:place + len(keep)]
            region[real & ~keep] = ALTERNATIVE
            masked += int((real & ~keep).sum())
            place += len(keep)
        return result, masked

    def cycles(self):
        """Cycles of the command: what MaskEngine says."""
        return mask_cycles([(job.rows, job.columns, job.count) for job in self.jobs], lanes=self.lanes)

    def fill(self, bench):
        bench.reset()
        fill(bench, 0, self.gradients)
        fill(bench, 1, self.weights)

    def check(self, bench, jobs=None):
        """Nothing but the elements of the jobs has changed."""
        np.testing.assert_array_equal(content(bench, 0, len(self.gradients)), self.expected(jobs)[0])
        np.testing.assert_array_equal(content(bench, 1, len(self.weights)), self.weights)


def some_jobs(seed, lanes, *, count=6, kinds=0.3):
    """Jobs that fit into the memories."""
    generator = np.random.default_rng(seed)
    while True:
        jobs = masks.jobs(generator, count, kinds=kinds)
        if sum(taken_elements(job, lanes) for job in jobs) <= WORDS["gradient_words"] - 96:
            return jobs


def event(status, detail, cycles, tag=9):
    return {"tag": tag, "status": status, "flags": 0, "detail": detail, "cycles": cycles, "weight_version": 77}


# --- construction


def test_constructor_errors():
    with pytest.raises(ValueError, match=r"^Node must have masking or error feedback, not NodeConfig\(lanes=4, .*\)$"):
        MaskEngine(config=NodeConfig(masking=False, error_feedback=False))


# --- MASK


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("seed", range(6))
def test_mask(lanes, seed):
    """Random jobs and masks: memories, event, counters, and cycles to the cycle."""
    case = Case(lanes, some_jobs(seed, lanes), seed)
    bench = unit(lanes)
    case.fill(bench)
    (found,), counts = run(bench, case.command())
    case.check(bench)
    masked = case.expected()[1]
    assert found == event(EventStatus.OK, masked, case.cycles())
    # The readers of jobs and words may meet at their memory.
    assert counts.pop("stall_memory") == 0 or case.fetched
    assert counts == {"mask_words_fetched": case.fetched, "elements_masked": masked, "command_cycles": case.cycles()}
