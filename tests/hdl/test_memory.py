# amaranth: UnusedElaboratable=no
"""Tests of memories, readers, writers and host access: hdl/memory.py, row_transfer.py, host_access.py."""

import numpy as np
import pytest
from amaranth.hdl import Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.control.protocol import access_layout
from hdl.group import GROUP
from hdl.host_access import HostAccess
from hdl.memory import LanedMemory, job_layout
from hdl.row_transfer import RowReader, RowWriter
from hdl.streams.stream import beat_layout, connect_stream, word_layout
from sim.golden.ring import canonical, places
from sim.streams import stall_array
from sim.verilated.vectors import Feed, Unit, pack
from tests.hdl.compression import packets
from tests.hdl.engines import fill, read
from tests.refusals import refused, refused_values
from tests.traces import taken

ROWS, ELEMENTS = 64, 40
PATTERNS = ["none", "geometric", "alternating", "freeze"]
#: Pitches of strided jobs; they are odd so that no job overlaps itself.
PITCHES = {"none": 3, "geometric": 1, "alternating": 7, "freeze": 15}


class Bench(wiring.Component):
    """A memory with a gradient reader, a second reader, a writer and host access.

    If ``strided``, jobs of the gradient reader and the writer have a pitch. With eight lanes, the gradient reader is
    the variant for guarded memories.
    """

    def __init__(self, lanes, depth=9, *, strided=False):
        sizes = {"rows": ROWS, "lanes": lanes, "elements": ELEMENTS}
        self._memory = LanedMemory(rows=ROWS, lanes=lanes, readers=3, writers=2)
        self._gradients = RowReader(**sizes, gradients=True, strided=strided, guarded=lanes == 8)
        self._weights = RowReader(**sizes, depth=depth, ahead=False)
        self._writer = RowWriter(**sizes, strided=strided)
        self._access = HostAccess(rows=(ROWS,), lanes=lanes)
        self._strided = strided
        jobs, beats, words, accesses = map(stream.Signature, (
            job_layout(ROWS, ELEMENTS), beat_layout(lanes), word_layout(), access_layout()))
        super().__init__({
            "gradient_job": In(jobs), "weight_job": In(jobs), "write_job": In(jobs), "gradient": Out(beats),
            "weight": Out(beats), "written": In(beats), "nan": Out(1), "done": Out(1), "pitch": In(8),
            "host_read": In(accesses), "host_data": Out(words), "host_write": In(accesses), "host_words": In(words),
        })

    def elaborate(self, platform):
        m = Module()
        m.submodules.memory = memory = self._memory
        m.submodules.gradients = gradients = self._gradients
        m.submodules.weights = weights = self._weights
        m.submodules.writer = writer = self._writer
        m.submodules.access = access = self._access
        for unit, port in zip((gradients.port, weights.port, access.read_0, writer.port, access.write_0),
                              (*memory.read, *memory.write), strict=True):
            wiring.connect(m, unit=unit, memory=port)
        for source, sink in (
                (self.gradient_job, gradients.job), (gradients.o, self.gradient), (self.weight_job, weights.job),
                (weights.o, self.weight), (self.write_job, writer.job), (self.written, writer.i),
                (self.host_read, access.read.request), (access.read.data, self.host_data),
                (self.host_write, access.write.request), (self.host_words, access.write.data)):
            connect_stream(m, source, sink)
        m.d.comb += [self.nan.eq(gradients.nan), self.done.eq(writer.done),
                     *(unit.pitch.eq(self.pitch) for unit in (gradients, writer) if self._strided)]
        return m


@pytest.fixture(scope="module", params=[1, 4, 8])
def bench(request):
    return request.param, Unit(Bench(request.param), name=f"MemoryBench{request.param}")


@pytest.fixture(scope="module", params=[(1, False), (4, False), (8, False), (1, True), (4, True), (8, True)])
def stepped(request):
    """Number of lanes, whether jobs are strided, and a test bench for these parameters."""
    lanes, strided = request.param
    name = f"MemoryBench{lanes}" + ("Strided" if strided else "")
    return lanes, strided, Unit(Bench(lanes, strided=strided), name=name)


def jobs(generator, lanes, count=30, *, strided=False):
    length = generator.integers(1, ELEMENTS + 1, count)
    row = generator.integers(0, ROWS - ELEMENTS // lanes, count)
    if strided:  # jobs may start at any group; row numbers wrap around at the end of memory
        row = generator.integers(0, ROWS * lanes // GROUP, count) * (GROUP // lanes)
    return {"row": row, "count": length}


def elements_of(job, lanes, pitch=1):
    """Return the memory addresses of the elements of each job."""
    return [(row * lanes + places(count, stride=pitch)) % (ROWS * lanes)
            for row, count in zip(job["row"], job["count"], strict=True)]


def feed(job, willing=None):
    return Feed(pack(job_layout(ROWS, ELEMENTS), job), willing=willing)


def check_reader(trace, name, content, job, lanes, pitch=1):
    """Check the elements that a reader outputs for its jobs; return the cycles of its beats."""
    outputs, rest, when = packets.taken(trace, lanes, name=name)
    assert not len(rest)
    assert len(when) == (-(-job["count"] // lanes)).sum()
    for got, index in zip(outputs, elements_of(job, lanes, pitch), strict=True):
        np.testing.assert_array_equal(got, content[index])
    return when


test_constructor_errors = refused(LanedMemory, {"rows": 8, "lanes": 4, "readers": 1, "writers": 1}, [
    ({"rows": 1}, "Row count must be an integer of at least 2, not 1"),
    ({"readers": 0}, "Reader count must be an integer of at least 1, not 0"),
    ({"writers": None}, "Writer count must be an integer of at least 1, not None"),
    ({"lanes": 3}, "Lane count must be 1, 2, 4 or 8, not 3"),
])
test_reader_holds_a_beat = refused_values(RowReader, {"rows": ROWS, "lanes": 4, "elements": ELEMENTS}, "depth",
                                          [0, -1, None], "Reader depth must be a positive integer")


def test_host_access(bench):
    lanes, unit = bench
    generator = np.random.default_rng(lanes)
    content = generator.integers(0, 1 << 32, ROWS * lanes, dtype=np.uint32)
    unit.reset()
    fill(unit, 0, content)
    for number, pattern in enumerate(PATTERNS * 3):
        address = int(generator.integers(0, len(content) - 1))
        count = int(generator.integers(1, len(content) - address + 1))
        words, cycles = read(unit, 0, address, count, stall_array(pattern, 3000, seed=number))
        assert (words == content[address:address + count]).all(), f"{pattern}, {address}, {count}"
        if pattern == "none":
            assert cycles[0] == HostAccess.latency + address % lanes
            assert cycles[-1] - cycles[0] == count - 1
        patch = generator.integers(0, 1 << 32, count, dtype=np.uint32)
        fill(unit, 0, patch, address)
        content[address:address + count] = patch
    assert (read(unit, 0, 0, len(content))[0] == content).all()


@pytest.mark.parametrize("pattern", PATTERNS)
def test_readers(stepped, pattern):
    lanes, strided, unit = stepped
    pitch = PITCHES[pattern] if strided else 1
    generator = np.random.default_rng(7)
    content = generator.integers(0, 1 << 32, ROWS * lanes, dtype=np.uint32)
    special = np.array([1 << 31, 0x7F800001, 0xFFC00000, 0x7F800000, 0xFF800000, 1, 0x80000001], np.uint32)
    content[generator.integers(0, len(content), len(content) // 4)] = generator.choice(special, len(content) // 4)
    unit.reset()
    fill(unit, 0, content)
    gradient, weight = jobs(generator, lanes, strided=strided), jobs(generator, lanes)
    cycles = 60000
    trace = unit.lockstep(
        sources={"gradient_job": feed(gradient), "weight_job": feed(weight)}, inputs={"pitch": pitch},
        sinks={"gradient": stall_array(pattern, cycles, seed=1), "weight": stall_array(pattern, cycles, seed=2)})
    when = check_reader(trace, "gradient", canonical(content), gradient, lanes, pitch)
    other = check_reader(trace, "weight", content, weight, lanes)
    if pattern == "none":
        # Accesses of the two ports alternate without idle cycles, both within jobs and between consecutive jobs.
        both = np.sort(np.concatenate([when, other]))
        shared = 2 * min(len(when), len(other))
        assert both[0] == RowReader.latency
        assert both[-1] - both[0] == len(both) - 1
        assert (np.isin(both[:shared], when).sum(), np.isin(both[:shared], other).sum()) == (shared // 2, shared // 2)


@pytest.mark.parametrize("depth", [1, 2, 3, 5])
def test_shallow_reader(depth):
    """A reader with a short queue outputs ``depth`` beats per four cycles, however fast they are accepted."""
    lanes = 4
    unit = Unit(Bench(lanes, depth), name=f"ShallowBench{depth}")
    generator = np.random.default_rng(depth)
    content = generator.integers(0, 1 << 32, ROWS * lanes, dtype=np.uint32)
    fill(unit, 0, content)
    job = jobs(generator, lanes)
    for seed, pattern in enumerate(PATTERNS):
        trace = unit.lockstep(
            sources={"weight_job": feed(job)}, sinks={"weight": stall_array(pattern, 60000, seed=seed)})
        when = check_reader(trace, "weight", content, job, lanes)
        if pattern == "none":
            numbers = np.arange(len(when))
            round_trips = numbers // depth * 4 + numbers % depth if depth < 4 else numbers
            assert (when == RowReader.latency + round_trips).all()


def test_nan_is_reported(bench):
    lanes, unit = bench
    unit.reset()
    fill(unit, 0, np.zeros(ROWS * lanes, np.uint32))
    job = feed({"row": np.array([0]), "count": np.array([8])})
    # A NaN after the last element is in a row that is read but not part of the job.
    for numbers, expected in (([0x7F800000], 0), ([0xFF800001], 1), ([0, 0, 0, 0x7FC00000], 0)):
        fill(unit, 0, np.array(numbers, np.uint32), 5)
        trace = unit.lockstep(sources={"gradient_job": job}, sinks={"gradient": True}, cycles=40)
        assert trace["nan"].sum() == expected


@pytest.mark.parametrize("pattern", PATTERNS)
def test_writer(stepped, pattern):
    lanes, strided, unit = stepped
    pitch = PITCHES[pattern] if strided else 1
    generator = np.random.default_rng(3)
    content = np.zeros(ROWS * lanes, np.uint32)
    unit.reset()
    fill(unit, 0, content)
    job = jobs(generator, lanes, strided=strided)
    elements, keep, last = [], [], []
    for index, count in zip(elements_of(job, lanes, pitch), job["count"], strict=True):
        extra = int(generator.integers(0, 3))  # extra whole beats, as a decoder may send
        rows = -(-count // lanes) + extra
        values = generator.integers(0, 1 << 32, rows * lanes, dtype=np.uint32)
        content[index] = values[:count]
        elements.append(values.reshape(rows, lanes))
        keep.append(np.full(rows, (1 << lanes) - 1))
        last.append(np.arange(rows) == rows - 1)
    beats = {"elements": np.concatenate(elements), "keep": np.concatenate(keep), "last": np.concatenate(last)}
    cycles = 60000
    trace = unit.lockstep(
        sources={
            "write_job": feed(job, stall_array(pattern, cycles, seed=5)),
            "written": Feed(pack(beat_layout(lanes), beats), stall_array(pattern, cycles, seed=6)),
        }, sinks={}, inputs={"pitch": pitch})
    assert trace["done"].sum() == len(job["row"])
    accepted, _ = taken(trace, "written", beat_layout(lanes))
    finished = np.flatnonzero(trace["done"])
    assert (finished == accepted[np.flatnonzero(beats["last"])] + RowWriter.latency + 1).all()
    assert (read(unit, 0, 0, len(content))[0] == content).all()
