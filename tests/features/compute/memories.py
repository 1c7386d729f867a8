"""Memories that can be stalled, for a unit of the compute engine, and their numpy model."""

import numpy as np
from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from hdl.features.compute.access import response_layout, write_layout
from hdl.streams.delay import DelayLine
from hdl.streams.stream import Queue
from sim.golden.features.compute import memory_pace
from sim.payload import pack, unpack
from sim.streams import stall_array
from sim.verilated.vectors import Feed, Unit

#: Number of memories in a node, and minimum latency from a request to its response, in cycles.
PLACES, LATENCY = 3, 2
#: Memory operations that can be stalled: the bits of ``paces`` and the fields of the model's memory.
PACES = ("request", "response", "write", "commit")
#: Names of a unit's flag outputs, by default.
FLAGS = ("done", "bad")


def _watched(payload):
    """Layout of a watched stream: its payload, and a flag that marks transfers."""
    return data.StructLayout({"moves": 1, "payload": payload})


class WithMemories(wiring.Component):
    """Connects memories to a unit with `job`, `request`, `response`, `write`, `settled` and some flags.

    Bits of ``paces`` allow requests, responses, writes, and the storing of writes. ``load`` writes a row; ``look``
    selects a row, which appears on ``seen`` one cycle later. Each stream named in ``watched`` has an output with
    ``moves`` and ``payload``. Responses come at least ``latency`` cycles after their requests.
    """

    def __init__(self, unit, *, rows, lanes, flags=FLAGS, watched=(), latency=LATENCY):
        self._unit, self._rows, self._lanes, self._flags = unit, rows, lanes, flags
        self._watched, self._latency = watched, latency
        super().__init__({
            "job": In(stream.Signature(unit.job.payload.shape())),
            "paces": In(len(PACES)),
            "load": In(stream.Signature(write_layout(rows, lanes))),
            "look": In(data.StructLayout({"row": range(rows), "place": 2})),
            "seen": Out(response_layout(lanes)),
            **{name: Out(1) for name in flags},
            **{f"{name}_seen": Out(_watched(getattr(unit, name).payload.shape())) for name in watched},
        })

    def elaborate(self, platform):
        m = Module()
        unit, lanes = self._unit, self._lanes
        m.submodules.unit = unit
        m.submodules.memory = memory = Memory(shape=32 * lanes, depth=4 * self._rows, init=[])
        write, read, look = memory.write_port(granularity=32), memory.read_port(), memory.read_port()
        m.submodules.answers = answers = Queue(shape=response_layout(lanes), depth=65)
        m.submodules.writes = writes = Queue(shape=write_layout(self._rows, lanes), depth=513, block=False)
        request_free, response_free, write_free, commit_free = self.paces
        m.submodules.delay = delay = DelayLine(shape=32 * lanes, cycles=self._latency - LATENCY)
        fetched = Signal(self._latency - LATENCY + 1)
        m.d.sync += fetched.eq(Cat(unit.request.valid & unit.request.ready, fetched))
        m.d.comb += [
            unit.job.valid.eq(self.job.valid), unit.job.payload.eq(self.job.payload),
            self.job.ready.eq(unit.job.ready),
            unit.request.ready.eq(request_free), read.en.eq(1),
            read.addr.eq(Cat(unit.request.p.row, unit.request.p.place)),
            delay.i.eq(read.data), answers.i.valid.eq(fetched[-1]), answers.i.payload.eq(delay.o),
            unit.response.valid.eq(answers.o.valid & response_free), unit.response.payload.eq(answers.o.payload),
            answers.o.ready.eq(unit.response.valid & unit.response.ready),
            writes.i.valid.eq(unit.write.valid & write_free), writes.i.payload.eq(unit.write.payload),
            unit.write.ready.eq(write_free & writes.i.ready),
            unit.settled.eq(writes.level == 0), writes.o.ready.eq(commit_free & ~self.load.valid),
            self.load.ready.eq(1), look.en.eq(1), look.addr.eq(Cat(self.look.row, self.look.place)),
            self.seen.eq(look.data), *(getattr(self, name).eq(getattr(unit, name)) for name in self._flags),
        ]
        for name in self._watched:
            port, seen = getattr(unit, name), getattr(self, f"{name}_seen")
            m.d.comb += [seen.moves.eq(port.valid & port.ready), seen.payload.eq(port.payload)]
        for source, moves in ((writes.o, commit_free), (self.load, self.load.valid)):
            with m.If(source.valid):
                m.d.comb += [write.addr.eq(Cat(source.p.row, source.p.place)), write.data.eq(source.p.elements),
                             write.en.eq(Mux(moves, source.p.keep, 0))]
        return m


def pace(kind, cycles, *, seed, rate=0.6):
    """Draw ``paces`` for each cycle; also return a model memory with the same stalls."""
    columns = [stall_array(kind, cycles, seed=seed + index, rate=rate) for index in range(len(PACES))]
    bits = sum(column.astype(np.uint8) << index for index, column in enumerate(columns))

    def free(column):
        return lambda cycle: cycle >= cycles or bool(column[cycle])

    return bits, memory_pace.Memory(latency=LATENCY, **{name: free(column)
                                                        for name, column in zip(PACES, columns, strict=True)})


def arrays(fields):
    return {name: arrays(value) if isinstance(value, dict) else np.array([value]) for name, value in fields.items()}


def compare_accesses(asked, written, reads, writes, *, lanes, note):
    """Check that recorded requests and writes, as arrays keyed by field, equal a model's, in the same order."""
    assert list(zip(asked["place"].tolist(), asked["row"].tolist(), strict=True)) == [
        (read.place, read.row) for read in reads], note
    actual = [(space, row, {lane: values[lane] for lane in range(lanes) if keep >> lane & 1})
              for space, row, values, keep in zip(*(written[name].tolist() for name in (
                  "place", "row", "elements", "keep")), strict=True)]
    for number, (access, write) in enumerate(zip(actual, writes, strict=False)):
        assert access == (write.place, write.row, write.elements), f"write {number} of {len(writes)}, {note}"
    assert len(actual) == len(writes), note


class Bench:
    """Verilated unit with watched streams and (rows, lanes) memories that answer in ``latency`` cycles."""

    def __init__(self, unit, *, rows, lanes, flags=FLAGS, watched=(), latency=LATENCY):
        self._component = WithMemories(unit, rows=rows, lanes=lanes, flags=flags, watched=watched, latency=latency)
        self._flags = flags
        self._watched = {name: getattr(self._component, f"{name}_seen").shape() for name in watched}
        self.seen = {}
        self._unit = Unit(self._component, name=f"{type(unit).__name__}WithMemories")
        self._rows, self._lanes = rows, lanes
        self._job = unit.job.payload.shape()

    def reset(self):
        """Reset the unit; memories keep their contents."""
        self._unit.reset()

    def load(self, contents):
        """Fill all memories from arrays of shape (rows, lanes)."""
        rows = len(contents[0])
        layout = write_layout(self._rows, self._lanes)
        beats = pack(layout, {
            "place": np.arange(PLACES).repeat(rows), "row": np.tile(np.arange(rows), PLACES),
            "elements": np.concatenate(contents), "keep": np.full(PLACES * rows, (1 << self._lanes) - 1)})
        self._unit.lockstep(sources={"load": Feed(beats)}, sinks={}, cycles=PLACES * rows + 1)

    def contents(self):
        count = PLACES * self._rows
        layout = data.StructLayout({"row": range(self._rows), "place": 2})
        look = pack(layout, {"place": np.arange(PLACES).repeat(self._rows),
                             "row": np.tile(np.arange(self._rows), PLACES)})
        seen = self._unit.run({"look": look}, drain=1)["seen"][1:]
        elements = unpack(response_layout(self._lanes), seen)["elements"]
        return list(elements.astype(np.uint32).reshape(PLACES, self._rows, self._lanes)[:, :count])

    def run(self, jobs, paces=None, *, cycles):
        """Run jobs; return the cycles in which jobs are accepted, and the cycles in which each flag is high.

        Afterwards ``seen`` holds the transfers of the watched streams, keyed by field.
        """
        columns = [pack(self._job, arrays(job.fields())) for job in jobs]
        pattern = np.full(cycles, (1 << len(PACES)) - 1, np.uint8)
        if paces is not None:
            pattern[:len(paces)] = paces[:cycles]
        trace = self._unit.lockstep(sources={"job": Feed(np.concatenate(columns))}, sinks={}, cycles=cycles,
                                    inputs={"paces": pattern})
        for name, layout in self._watched.items():
            signal = unpack(layout, trace[f"{name}_seen"])
            self.seen[name] = {field: values[signal["moves"] == 1] for field, values in signal["payload"].items()}
        return tuple(np.flatnonzero(signal).tolist() for signal in (
            trace["job__valid"] & trace["job__ready"], *(trace[name] for name in self._flags)))
