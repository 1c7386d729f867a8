# amaranth: UnusedElaboratable=no
"""Test readers, a writer and host accesses on memories with long latency."""

import numpy as np
import pytest
from amaranth.hdl import Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.control.protocol import access_layout
from hdl.features.far.memories import FarMemories
from hdl.features.streaming.feature import ServerConfig, ServerMemories
from hdl.host_access import HostAccess
from hdl.memory import job_layout
from hdl.row_transfer import LATE_READER, RowReader, RowWriter
from hdl.streams.stream import beat_layout, connect_stream, word_layout
from sim.streams import stall_array
from sim.verilated.vectors import Feed, Unit, pack
from tests.features.far.late_memory import LateMemory
from tests.traces import taken

ROWS, ELEMENTS = 64, 160


class Bench(wiring.Component):
    """A server's weights in far memory, accessed by two readers, a writer and the host."""

    def __init__(self, lanes, latency):
        self._lanes, self._latency = lanes, latency
        jobs, beats = stream.Signature(job_layout(ROWS, ELEMENTS)), stream.Signature(beat_layout(lanes))
        accesses, words = stream.Signature(access_layout()), stream.Signature(word_layout())
        super().__init__({
            "job_0": In(jobs), "o_0": Out(beats), "job_1": In(jobs), "o_1": Out(beats),
            "write_job": In(jobs), "written": In(beats), "done": Out(1),
            "host_read": In(accesses), "host_data": Out(words), "host_write": In(accesses), "host_words": In(words),
            "takes": In(1), "speaks": In(1),
        })

    def elaborate(self, platform):
        m = Module()
        lanes, shape = self._lanes, {"rows": ROWS, "lanes": self._lanes, "elements": ELEMENTS}
        config = ServerConfig(lanes=lanes, memories=ServerMemories(weight=ROWS * lanes, planes=0, far=ROWS * lanes))
        m.submodules.memories = memories = FarMemories(
            config=config, readers={"weights": (0, 0)}, writers={"weights": 1})
        m.submodules.far = far = LateMemory(rows=ROWS, lanes=lanes, latency=self._latency)
        wiring.connect(m, memories=memories.far, far=far.far)
        m.submodules.access = access = HostAccess(rows=(ROWS,), lanes=lanes, late=True)
        readers = []
        for n in range(2):
            m.submodules[f"reader_{n}"] = reader = RowReader(**shape, ahead=bool(n), **LATE_READER)
            connect_stream(m, getattr(self, f"job_{n}"), reader.job)
            connect_stream(m, reader.o, getattr(self, f"o_{n}"))
            readers.append(reader.port)
        m.submodules.writer = writer = RowWriter(**shape)
        connect_stream(m, self.write_job, writer.job)
        connect_stream(m, self.written, writer.i)
        for reader, port in zip((*readers, access.read_0), memories.weights_read, strict=True):
            wiring.connect(m, reader=reader, memory=port)
        for source, port in zip((writer.port, access.write_0), memories.weights_write, strict=True):
            wiring.connect(m, writer=source, memory=port)
        connect_stream(m, self.host_read, access.read.request)
        connect_stream(m, access.read.data, self.host_data)
        connect_stream(m, self.host_write, access.write.request)
        connect_stream(m, self.host_words, access.write.data)
        m.d.comb += [far.takes.eq(self.takes), far.speaks.eq(self.speaks), memories.timeout.eq(2000),
                     self.done.eq(writer.done)]
        return m


@pytest.fixture(scope="module", params=[(1, 16), (4, 16), (4, 1), (4, 40)])
def bench(request):
    """Number of lanes, latency of the far memory, and the Verilated test bench."""
    lanes, latency = request.param
    return lanes, latency, Unit(Bench(lanes, latency), name=f"LateBench{lanes}x{latency}")


def access(address, count):
    return Feed(pack(access_layout(), {"address": np.array([address]), "space": np.zeros(1),
                                       "count": np.array([count])}))


def host_write(unit, address, values):
    last = np.arange(len(values)) == len(values) - 1
    trace = unit.lockstep(
        sources={"host_write": access(address, len(values)),
                 "host_words": Feed(pack(word_layout(), {"data": values, "last": last}))},
        sinks={}, inputs={"takes": 1, "speaks": 1}, cycles=len(values) + 100)
    assert len(taken(trace, "host_words", word_layout())[0]) == len(values)


def kept(beats, lanes):
    return beats["elements"][(beats["keep"][:, None] >> np.arange(lanes) & 1).astype(bool)]


@pytest.mark.parametrize("pattern", ["none", "geometric", "alternating", "freeze"])
def test_contents(bench, pattern):
    """Readers and the host receive the written elements, whatever stalls occur."""
    lanes, _, unit = bench
    generator = np.random.default_rng(lanes)
    content = generator.integers(0, 1 << 32, ROWS * lanes, dtype=np.uint32)
    unit.reset()
    host_write(unit, 0, content)
    cycles = 6000
    jobs = []
    for _ in range(2):
        count = generator.integers(1, min(ELEMENTS, len(content) // 2) + 1, 12)
        jobs.append({"row": generator.integers(0, ROWS // 2, 12), "count": count})
    address, count = 5, len(content) - 9
    trace = unit.lockstep(
        sources={**{f"job_{n}": Feed(pack(job_layout(ROWS, ELEMENTS), job)) for n, job in enumerate(jobs)},
                 "host_read": access(address, count)},
        sinks={name: stall_array(pattern, cycles, seed=n) for n, name in enumerate(("o_0", "o_1", "host_data"))},
        inputs={"takes": stall_array(pattern, cycles, seed=4), "speaks": stall_array(pattern, cycles, seed=5)})
    for n, job in enumerate(jobs):
        _, beats = taken(trace, f"o_{n}", beat_layout(lanes))
        expected = [content[row * lanes:row * lanes + size]
                    for row, size in zip(job["row"], job["count"], strict=True)]
        assert (kept(beats, lanes) == np.concatenate(expected)).all(), pattern
        sizes = np.cumsum([int(keep).bit_count() for keep in beats["keep"]])
        assert (sizes[beats["last"].astype(bool)] == np.cumsum(job["count"])).all(), pattern
    _, words = taken(trace, "host_data", word_layout())
    assert (words["data"] == content[address:address + count]).all(), pattern


def test_pace(bench):
    """A reader delivers one full queue of rows per round trip (the memory's latency plus 4 cycles)."""
    lanes, latency, unit = bench
    unit.reset()
    count = min(ELEMENTS, ROWS * lanes)
    job = {"row": np.array([0]), "count": np.array([count])}
    trace = unit.lockstep(sources={"job_1": Feed(pack(job_layout(ROWS, ELEMENTS), job))}, sinks={"o_1": True},
                          inputs={"takes": 1, "speaks": 1}, cycles=2000)
    when, _ = taken(trace, "o_1", beat_layout(lanes))
    depth, way = LATE_READER["depth"], latency + FarMemories.latency + 2
    assert when[0] == RowReader.latency + latency + FarMemories.latency - 2, when
    rows = np.arange(len(when))
    assert (when - when[0] == rows // depth * max(way, depth) + rows % depth).all(), when


def test_reads_what_was_written(bench):
    """Rows changed by a writer are read with their new elements, even if the far memory stalls."""
    lanes, _, unit = bench
    generator = np.random.default_rng(7)
    unit.reset()
    host_write(unit, 0, np.zeros(ROWS * lanes, np.uint32))
    count = 32 * lanes
    values = generator.integers(0, 1 << 32, (32, lanes), dtype=np.uint32)
    job = Feed(pack(job_layout(ROWS, ELEMENTS), {"row": np.array([8]), "count": np.array([count])}))
    beats = {"elements": values, "keep": np.full(32, (1 << lanes) - 1), "last": np.arange(32) == 31}
    written = unit.lockstep(
        sources={"write_job": job, "written": Feed(pack(beat_layout(lanes), beats))}, sinks={},
        inputs={"takes": stall_array("freeze", 400, seed=1), "speaks": 1}, cycles=400)
    done = int(written["done"].argmax())
    assert written["done"][done]
    unit.reset()
    host_write(unit, 0, np.zeros(ROWS * lanes, np.uint32))
    wait = np.arange(4000) > done + 1  # the job begins after the last write has been granted
    trace = unit.lockstep(
        sources={"write_job": job, "written": Feed(pack(beat_layout(lanes), beats)),
                 "job_0": Feed(job.beats, willing=wait)},
        sinks={"o_0": True}, inputs={"takes": np.concatenate([stall_array("freeze", 400, seed=1), np.ones(3600)]),
                                     "speaks": 1})
    assert (kept(taken(trace, "o_0", beat_layout(lanes))[1], lanes) == values.reshape(-1)).all()
