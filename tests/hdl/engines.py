"""Test bench for a node's engines, with two memories and host access to them."""

import numpy as np
from amaranth.hdl import Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.control.protocol import access_layout, command_layout, event_layout
from hdl.host_access import HostAccess
from hdl.memory import LanedMemory
from hdl.streams.stream import connect_stream, word_layout
from sim.streams import stall_array
from sim.verilated.vectors import Feed, pack, unpack
from tests.traces import taken

VERSION = 77


class Bench(wiring.Component):
    """An engine connected to memories.

    Parameters
    ----------
    engine : wiring.Component
        Engine with the streams ``command`` and ``event``, with ``link_reset``, ``weight_version`` and ``count``, and
        with any of ``gradient_read``, ``gradient_write``, ``weight_read`` and ``weight_write``, as single ports or as
        arrays.
    config : NodeConfig
    settings : tuple of str
        Other 32-bit inputs of the engine.
    """

    def __init__(self, engine, config, *, settings=()):
        self._engine = engine
        self._config = config
        self._settings = (*settings, "weight_version")
        words = stream.Signature(word_layout())
        accesses = stream.Signature(access_layout())
        super().__init__({
            "command": In(stream.Signature(command_layout())), "event": Out(stream.Signature(event_layout())),
            "link_reset": In(1), **dict.fromkeys(self._settings, In(32)), "count": Out(engine.count.shape()),
            "host_read": In(accesses), "host_data": Out(words), "host_write": In(accesses), "host_words": In(words),
        })

    def elaborate(self, platform):
        m = Module()
        config = self._config
        rows = config.memories.gradient // config.lanes, config.memories.weight // config.lanes
        m.submodules.engine = engine = self._engine
        m.submodules.access = access = HostAccess(rows=rows, lanes=config.lanes)

        def ports(name):
            port = getattr(engine, name, [])
            return port if isinstance(port, list) else [port]

        for name, count, reader, writer in (("gradient", rows[0], access.read_0, access.write_0),
                                            ("weight", rows[1], access.read_1, access.write_1)):
            readers, writers = [*ports(f"{name}_read"), reader], [*ports(f"{name}_write"), writer]
            m.submodules[name] = memory = LanedMemory(
                rows=count, lanes=config.lanes, readers=len(readers), writers=len(writers))
            for access_port, port in zip(readers, memory.read, strict=True):
                wiring.connect(m, reader=access_port, memory=port)
            for access_port, port in zip(writers, memory.write, strict=True):
                wiring.connect(m, writer=access_port, memory=port)
        for outer, inner in ((self.command, engine.command), (self.host_read, access.read.request),
                             (self.host_write, access.write.request), (self.host_words, access.write.data)):
            connect_stream(m, outer, inner)
        connect_stream(m, engine.event, self.event)
        connect_stream(m, access.read.data, self.host_data)
        m.d.comb += [self.count.eq(engine.count), engine.link_reset.eq(self.link_reset), *(
            getattr(engine, name).eq(getattr(self, name)) for name in self._settings)]
        return m


def fill(bench, space, values, address=0):
    """Write words to a memory, starting at an address, one word per cycle."""
    last = np.arange(len(values)) == len(values) - 1
    access = {"address": np.array([address]), "space": np.array([space]), "count": np.array([len(values)])}
    trace = bench.lockstep(cycles=len(values) + 8, sinks={}, sources={
        "host_write": Feed(pack(access_layout(), access)),
        "host_words": Feed(pack(word_layout(), {"data": values, "last": last}))})
    when, _ = taken(trace, "host_words", word_layout())
    assert when.tolist() == list(range(when[0], when[0] + len(values)))


def read(bench, space, address, count, ready=True):
    """Read words from a memory, starting at an address; return the words and the cycles in which they arrive."""
    access = {"address": np.array([address]), "space": np.array([space]), "count": np.array([count])}
    trace = bench.lockstep(cycles=count + 20 if ready is True else None, sinks={"host_data": ready}, sources={
        "host_read": Feed(pack(access_layout(), access))})
    when, words = taken(trace, "host_data", word_layout())
    assert len(when) == count
    return words["data"].astype(np.uint32), when


def content(bench, space, count):
    """Return the contents of a memory."""
    return read(bench, space, 0, count)[0]


def command(**fields):
    """Command with the given fields; all other fields are zero."""
    return {name: int(fields.get(name, 0)) for name, _ in command_layout()}


def run(bench, *commands, counts, cycles=3_000, pattern="none", seed=0, reading=None, **settings):
    """Run commands one at a time; return their events and the sums of the counters.

    ``counts`` is the layout of the counters. Meanwhile, the host reads 5,000 elements of the memory ``reading``.
    """
    rows = pack(command_layout(), {name: np.array([each[name] for each in commands]) for name in commands[0]})
    sources = {"command": Feed(rows, stall_array(pattern, cycles, seed=seed))}
    sinks = {"event": stall_array(pattern, cycles, seed=seed + 1), "host_data": True}
    if reading is not None:
        access = {"address": np.zeros(5), "space": np.full(5, reading), "count": np.full(5, 1000)}
        sources["host_read"] = Feed(pack(access_layout(), access))
    trace = bench.lockstep(sources=sources, sinks=sinks, cycles=cycles,
                           inputs={"weight_version": VERSION, **settings})
    _, events = taken(trace, "event", event_layout())
    assert len(events["tag"]) == len(commands), f"{len(events['tag'])} of {len(commands)} events, seed {seed}"
    return [{name: int(values[n]) for name, values in events.items()} for n in range(len(commands))], {
        name: int(values.sum()) for name, values in unpack(counts, trace["count"]).items()}
