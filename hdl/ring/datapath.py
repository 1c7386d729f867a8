"""The datapath of a collective: everything between a node's memories and its two ring ports.

It is a list of parts that meet only in streams. The :class:`~hdl.ring.sequencer.Sequencer` steers each stream of
packets by a queue of routes, one per packet, and gives the readers and writers their jobs, so no part knows of
another.
"""

from amaranth.hdl import Cat, Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.ring.header import expected_layout, header_layout
from hdl.ring.parts.chosen import parts
from hdl.ring.parts.part import Socket, memory_ports, pulses_layout, sinks_of, taken
from hdl.ring.sequencer import Sent, Sequencer
from hdl.ring.setup import setup_layout
from hdl.streams.route import PacketDemux, PacketMux
from hdl.streams.stream import Queue, SkidBuffer, connect_stream, word_layout

__all__ = ["Datapath"]


class Datapath(wiring.Component):
    """The datapath of a collective. See docs/ring/collective/theory.md for its picture.

    Parameters
    ----------
    config : NodeConfig
        Decides which parts there are (:func:`hdl.ring.parts.chosen.parts`).
    """

    def __init__(self, *, config):
        self._config = config
        self._parts = parts(config)
        super().__init__(
            {
                # Begins a command; ``setup`` must hold from then until ``busy`` is low.
                "start": In(1),
                "setup": In(setup_layout(config)),
                # High from the cycle after ``start`` until every header has been taken and everything is in the
                # memories.
                "busy": Out(1),
                # To the packetizer: headers, and the payloads behind them.
                "header": Out(stream.Signature(header_layout())),
                "egress": Out(stream.Signature(word_layout())),
                # To and from the depacketizer: the packets to come, and their payloads once the header has matched.
                "expected": Out(stream.Signature(expected_layout())),
                "ingress": In(stream.Signature(word_layout())),
                # What happens in a cycle.
                "pulses": Out(pulses_layout()),
                # Ports at all memories, in the order of the parts.
                **memory_ports(config, self._parts),
            }
        )

    def elaborate(self, platform):
        m = Module()
        config, setup = self._config, self.setup
        m.submodules.sequencer = sequencer = Sequencer(config=config, parts=self._parts)
        m.submodules.sent = sent = PacketMux(inputs=len(Sent))
        m.submodules.received = received = PacketDemux(outputs=len(sinks_of(self._parts)))
        # Here, where all ways out of the ingress meet, no ready goes further back.
        m.submodules.arriving = arriving = SkidBuffer(shape=word_layout())
        # What is passed on can wait for its turn, so that the ingress does not wait for the one before it.
        m.submodules.to_pass = to_pass = Queue(shape=word_layout(), depth=2 * config.segment, block=True)
        units = [(part, part.make(part)) for part in self._parts]
        for part, unit in units:
            m.submodules[part.name] = unit

        m.d.comb += [sequencer.start.eq(self.start), sequencer.setup.eq(setup), self.busy.eq(sequencer.busy)]
        connect_stream(m, sequencer.header, self.header)
        connect_stream(m, sequencer.expected, self.expected)
        connect_stream(m, sequencer.sent, sent.route)
        connect_stream(m, sequencer.received, received.route)
        connect_stream(m, self.ingress, arriving.i)
        connect_stream(m, arriving.o, received.i)
        connect_stream(m, to_pass.o, sent.i[Sent.PASSED])
        connect_stream(m, sent.o, self.egress)

        *places, onward = received.o  # in the order of sinks_of()
        self._command(m, sequencer, units)
        self._receive(m, places, units)
        self._exchange(m, units, {Socket.ONWARD: onward}, {
            Socket.ENCODED: sent.i[Sent.ENCODER], Socket.OWN: sent.i[Sent.OWN], Socket.PASSED: to_pass.i})
        counted = self._connect_memories(m, units)

        starved = sent.route.valid & self.egress.ready & ~self.egress.valid
        pulses = self.pulses
        m.d.comb += [
            pulses.compressed_words.eq(taken(self.egress) & (sequencer.scattering | setup.sum)),
            pulses.scatter_reduce.eq(self.busy & sequencer.scattering),
            pulses.stall_encoder.eq(starved & (sent.route.payload == Sent.ENCODER)),
            pulses.stall_optimizer.eq(starved & (sent.route.payload == Sent.OWN) & setup.fused),
            pulses.stall_memory.eq(Cat(port.valid & ~port.ready for port in counted).any()),
        ]
        for name in pulses.shape().members:
            seen = [unit.pulses[name] for part, unit in units if name in part.pulses]
            if len(seen) == 1:
                m.d.comb += pulses[name].eq(seen[0])
            elif seen:
                m.d.comb += pulses[name].eq(Cat(seen).any())
        return m

    def _command(self, m, sequencer, units):
        """Tell each part of the command, and give it its steps."""
        for part, unit in units:
            m.d.comb += unit.start.eq(self.start)
            m.d.comb += [unit.setup[name].eq(self.setup[name]) for name in unit.setup.shape().members]
            for step in part.steps:
                connect_stream(m, getattr(sequencer, step.name), getattr(unit, step.name))
                if step.awaited:
                    done = f"{step.name}_done"
                    m.d.comb += getattr(sequencer, done).eq(getattr(unit, done))

    def _receive(self, m, places, units):
        """Join the ways out of the ingress to the parts that take from them."""
        *names, _ = sinks_of(self._parts)
        for name, place in zip(names, places, strict=True):
            for part, unit in units:
                for sink in part.receives:
                    if sink.name == name:
                        self._connect(m, place, getattr(unit, name), sink.during)

    def _exchange(self, m, units, sources, sinks):
        """Join the streams that parts give to those that take them; ``sources`` and ``sinks`` are the datapath's."""
        sinks = {**sinks, **{socket: getattr(unit, name) for part, unit in units
                             for socket, name in part.takes.items()}}
        for socket, source in sources.items():
            connect_stream(m, source, sinks[socket])
        for part, unit in units:
            for given in part.gives:
                self._connect(m, getattr(unit, given.name), sinks[given.to], given.during)

    def _connect(self, m, source, sink, during):
        """Connect two streams, in all commands or only in some."""
        if during is None:
            connect_stream(m, source, sink)
        else:
            with m.If(during(self.setup)):
                connect_stream(m, source, sink)

    def _connect_memories(self, m, units):
        """Join the ports of all parts to the datapath's, and return those whose waiting is counted."""
        counted = []
        for memory in self._config.memory_map.names:
            for kind in ("read", "write"):
                name = f"{memory}_{kind}"
                inner = [(port, memory not in part.ahead) for part, unit in units
                         for port in getattr(unit, name, ())]
                for (port, counts), outer in zip(inner, getattr(self, name, ()), strict=True):
                    wiring.connect(m, part=port, memory=wiring.flipped(outer))
                    if counts:
                        counted.append(outer)
        return counted
