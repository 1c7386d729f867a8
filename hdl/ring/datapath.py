"""Datapath of collectives, with all units between a node's memories and its two ring ports.

Its parts are connected only by streams. The :class:`~hdl.ring.sequencer.Sequencer` controls each packet stream with a
queue of routes, one per packet, and sends jobs to readers and writers, which keeps the parts independent of each
other (:mod:`hdl.ring.parts.part`).
"""

from amaranth.hdl import Cat, Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.ring.header import expected_layout, header_layout
from hdl.ring.parts.part import Channel, extends, memory_ports, packet_inputs, pulses_layout, taken
from hdl.ring.parts.registry import parts
from hdl.ring.sequencer import Sent, Sequencer
from hdl.ring.setup import setup_layout
from hdl.streams.route import PacketDemux, PacketMux
from hdl.streams.stream import Queue, SkidBuffer, connect_stream, word_layout

__all__ = ["Datapath"]


class Datapath(wiring.Component):
    """Datapath of collectives. See the block diagram in docs/ring/collective/theory.md.

    Parameters
    ----------
    config : NodeConfig
        Determines which parts exist (:func:`hdl.ring.parts.registry.parts`).
    """

    def __init__(self, *, config):
        self._config = config
        self._parts = parts(config)
        super().__init__(
            {
                # Starts a command; ``setup`` must be stable from then until ``busy`` is low.
                "start": In(1),
                "setup": In(setup_layout(config)),
                # High from the cycle after ``start`` until all headers have been taken and all results are in memory.
                "busy": Out(1),
                # To the packetizer: headers and payloads.
                "header": Out(stream.Signature(header_layout())),
                # Whether the packet of the offered header has payload words in addition to its elements.
                "extra": Out(1),
                "egress": Out(stream.Signature(word_layout())),
                # To and from the depacketizer: expected packets, and their payloads once the header has matched.
                "expected": Out(stream.Signature(expected_layout(extended=extends(self._parts)))),
                "ingress": In(stream.Signature(word_layout())),
                # Events to count in a cycle.
                "pulses": Out(pulses_layout()),
                # Ports to all memories, in part order.
                **memory_ports(config, self._parts),
            }
        )

    def elaborate(self, platform):
        m = Module()
        config, setup = self._config, self.setup
        m.submodules.sequencer = sequencer = Sequencer(config=config, parts=self._parts)
        m.submodules.sent = sent = PacketMux(inputs=len(Sent))
        m.submodules.received = received = PacketDemux(outputs=len(packet_inputs(self._parts)))
        # All packets from the ingress pass through this buffer, so no combinational ready path passes it.
        m.submodules.arriving = arriving = SkidBuffer(shape=word_layout())
        # A packet to be forwarded can wait here for the previous one, so that the ingress need not wait.
        m.submodules.to_forward = to_forward = Queue(shape=word_layout(), depth=2 * config.segment, block=True)
        units = [(part, part.component(config=config, description=part)) for part in self._parts]
        for part, unit in units:
            m.submodules[part.name] = unit

        m.d.comb += [sequencer.start.eq(self.start), sequencer.setup.eq(setup), self.busy.eq(sequencer.busy)]
        connect_stream(m, sequencer.header, self.header)
        connect_stream(m, sequencer.expected, self.expected)
        connect_stream(m, sequencer.sent, sent.route)
        connect_stream(m, sequencer.received, received.route)
        connect_stream(m, arriving.o, received.i)
        connect_stream(m, to_forward.o, sent.i[Sent.FORWARD])
        m.d.comb += self.extra.eq(sequencer.extra)
        arrived, egress = self.ingress, sent.o
        for part, unit in units:
            if part.added_words is not None:
                connect_stream(m, arrived, unit.arrived)
                connect_stream(m, egress, unit.sent)
                arrived, egress = unit.passed, unit.completed
        connect_stream(m, arrived, arriving.i)
        connect_stream(m, egress, self.egress)

        self._command(m, sequencer, units)
        self._exchange(m, units, dict(zip(packet_inputs(self._parts), received.o, strict=True)), {
            Channel.ENCODED: sent.i[Sent.ENCODER], Channel.OWN: sent.i[Sent.OWN], Channel.FORWARD: to_forward.i})
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
            sources = [unit.pulses[name] for part, unit in units if name in part.pulses]
            if len(sources) == 1:
                m.d.comb += pulses[name].eq(sources[0])
            elif sources:
                m.d.comb += pulses[name].eq(Cat(sources).any())
        return m

    def _command(self, m, sequencer, units):
        """Connect each part to the command's setup and to its instructions."""
        for part, unit in units:
            m.d.comb += unit.start.eq(self.start)
            m.d.comb += [unit.setup[name].eq(self.setup[name]) for name in unit.setup.shape().members]
            for instruction in part.instructions:
                connect_stream(m, getattr(sequencer, instruction.name), getattr(unit, instruction.name))
                if instruction.awaited:
                    done = f"{instruction.name}_done"
                    m.d.comb += getattr(sequencer, done).eq(getattr(unit, done))

    def _exchange(self, m, units, packets, sinks):
        """Connect parts to each other: outputs to inputs, ``packets`` from the ring to the inputs of the same name,
        and channels toward the ring to ``sinks``."""
        sinks = {**sinks, **{port.channel: getattr(unit, port.name) for part, unit in units for port in part.inputs}}
        connect_stream(m, packets["transit"], sinks[Channel.TRANSIT])
        for part, unit in units:
            for port in part.inputs:
                if port.channel is Channel.INGRESS:
                    self._connect(m, packets[port.name], getattr(unit, port.name), port.during)
            for port in part.outputs:
                self._connect(m, getattr(unit, port.name), sinks[port.channel], port.during)

    def _connect(self, m, source, sink, during):
        """Connect two streams, either for all commands or only while ``during`` holds for the command's setup."""
        if during is None:
            connect_stream(m, source, sink)
        else:
            with m.If(during(self.setup)):
                connect_stream(m, source, sink)

    def _connect_memories(self, m, units):
        """Connect all parts' memory ports to the datapath's ports, and return the ports whose stalls are counted."""
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
