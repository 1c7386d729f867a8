"""The sequencer: the static order of a command, turned into headers, routes and jobs, segment by segment.

Participants follow the order of :mod:`hdl.ring.order` with a walk each (:mod:`hdl.ring.walks`). Two of them are here:
egress heads each packet that is sent and names the source of its payload, and ingress says which packet is expected
next and where its payload goes. All other routes and jobs are steps that the parts of the datapath describe
(:mod:`hdl.ring.parts.part`).

What follows from a record goes into queues, so that a walk may be ahead of the data. An empty segment has no payload,
and so it leaves no trace beyond its header.
"""

from amaranth.hdl import Array, Cat, Module, Mux, Signal
from amaranth.lib import data, enum, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.compression.registry import CODECS, FETCH_FORMATS, RAW
from hdl.ring.header import PacketType, expected_layout, header_layout
from hdl.ring.interleaved import InterleavedWalk
from hdl.ring.order import Phase, Walk, record_layout
from hdl.ring.parts.chosen import parts as chosen_parts
from hdl.ring.parts.part import Step, sinks_of
from hdl.ring.setup import longest_vector, setup_layout
from hdl.ring.walks import EGRESS, INGRESS, is_scatter, walks_of
from hdl.streams.route import Fork
from hdl.streams.stream import Queue, connect_stream

__all__ = ["Sent", "Sequencer"]

#: Headers, routes and jobs that a walk may be ahead of the data.
_AHEAD = 5


class Sent(enum.IntEnum):
    """Source of the payload of a packet to be sent."""

    ENCODER = 0
    OWN = 1
    PASSED = 2


def _packet_steps(parts):
    """Steps of the packets themselves: their sources on the way out, and their sinks on the way in."""
    encodes_all = any(part.encodes_all for part in parts)
    sinks = sinks_of(parts)

    def sent(at, setup):
        first = Mux(is_scatter(at), Sent.ENCODER, Mux(setup.relay, Sent.PASSED, Sent.OWN))
        return Mux(at.first | is_scatter(at) if encodes_all else at.first, first, Sent.PASSED)

    return (
        # Source of each payload.
        Step(name="sent", walk=EGRESS, shape=range(len(Sent)), payload=sent),
        # Sinks of each payload, a bit for each of those that parts have.
        Step(name="received", walk=INGRESS, shape=len(sinks), when=lambda at, setup: ~setup.alone,
             payload=lambda at, setup: Cat(when(at, setup) for when in sinks.values())),
    )


class Sequencer(wiring.Component):
    """Directs the datapath through a command.

    Every output stream is that of a queue, with registered outputs, to which ``header`` and ``expected`` add fields
    that hold for the whole command, and the codec that follows from the phase.

    Parameters
    ----------
    config : NodeConfig
    parts : sequence of PartDescription, optional
        The parts of the datapath; by default those of :func:`hdl.ring.parts.chosen.parts`.
    """

    def __init__(self, *, config, parts=None):
        self._config = config
        self._elements = longest_vector(config)
        parts = chosen_parts(config) if parts is None else parts
        self._steps = (*_packet_steps(parts), *(step for part in parts for step in part.steps))
        super().__init__(
            {
                # Begins a command; ``setup`` must hold from then until ``busy`` is low.
                "start": In(1),
                "setup": In(setup_layout(config, parts)),
                # High from the cycle after ``start`` until every header and record has been taken and every step
                # that is awaited is done.
                "busy": Out(1),
                # The header taken last was one of a scatter-reduce, or the first will be.
                "scattering": Out(1),
                # Headers of the packets that are sent.
                "header": Out(stream.Signature(header_layout())),
                # What is expected of the packets that come.
                "expected": Out(stream.Signature(expected_layout())),
                # For each step a stream, and for one that is awaited ``<name>_done``, high for a cycle when the part
                # has done it.
                **{name: port for step in self._steps for name, port in step.ports(Out).items()},
            }
        )

    def elaborate(self, platform):
        m = Module()
        # Terms of `busy`: high while there is something that has not reached a memory or a ring port.
        self._pending = []
        walks = {walk: self._walk(m, walk) for walk in walks_of(self._steps)}
        self._direct_egress(m, walks[EGRESS])
        self._direct_ingress(m, walks[INGRESS])
        for step in self._steps:
            self._follow(m, step, walks)
        for walk, followers in walks.items():
            self._fork(m, walk, followers)
        m.d.comb += self.busy.eq(Cat(self._pending).any())
        return m

    def _walk(self, m, description):
        """Make the walk of a participant, with nobody who follows it yet."""
        config, chained, lags = self._config, self._config.has_chains, self._config.role.root_reduce
        shape = {"elements": self._elements, "segment": config.segment, "nodes_max": config.topology.max_nodes}
        walk = InterleavedWalk(**shape) if config.role.interleaved else Walk(**shape, chained=chained, lags=lags)
        m.submodules[f"{description.name}_walk"] = walk
        m.d.comb += [walk.start.eq(self.start), walk.plan.eq(self.setup.plan)]
        if config.role.interleaved:
            m.d.comb += walk.both.eq(self.setup.both)
        if chained:
            m.d.comb += [walk.opens.eq(self.setup.opens), walk.closes.eq(self.setup.closes)]
        if lags:
            m.d.comb += walk.late.eq(self.setup.one_owner)
        for phase, tour in (("scatter", description.scatter), ("gather", description.gather)):
            if tour is not None:
                m.d.comb += getattr(walk, phase).eq(self.setup[f"{description.name}_{phase}"])
        self._pending.append(walk.busy)
        return _Followers(walk.o, record_layout(self._elements, config.segment, config.topology.max_nodes))

    def _fork(self, m, description, followers):
        """Give each record of a walk to those that follow it and ask for it."""
        fork = Fork(shape=followers.layout, outputs=len(followers.ports))
        m.submodules[f"{description.name}_fork"] = fork
        connect_stream(m, followers.source, fork.i)
        m.d.comb += fork.enable.eq(Cat(enable for _, enable in followers.ports))
        for inner, (port, _) in zip(fork.o, followers.ports, strict=True):
            m.d.comb += [port.valid.eq(inner.valid), inner.ready.eq(port.ready)]

    def _queue(self, m, name, port, shape, payload):
        """Queue of what follows from a record."""
        m.submodules[name] = queue = Queue(shape=shape, depth=_AHEAD)
        m.d.comb += [queue.i.valid.eq(port.valid), port.ready.eq(queue.i.ready), queue.i.payload.eq(payload)]
        return queue

    def _follow(self, m, step, walks):
        """Carry out a step: a queue of its payloads, for the records that it asks for."""
        setup = self.setup
        followers = walks[step.walk]
        at = followers.at
        port = followers.add(f"{step.name}_records", (at.length != 0) & step.when(at, setup))
        if step.instead is not None:
            port, at = self._choose(m, step, port, at, walks[step.instead.walk])
        payload = Signal(step.shape, name=f"{step.name}_payload")
        given = step.payload(at, setup)
        if isinstance(given, dict):
            m.d.comb += [payload[field].eq(value) for field, value in given.items()]
        else:
            m.d.comb += payload.eq(given)
        queue = self._queue(m, f"{step.name}_queue", port, step.shape, payload)
        connect_stream(m, queue.o, getattr(self, step.name))
        if step.awaited:
            unfinished = Signal(8, name=f"{step.name}_unfinished")
            done = getattr(self, f"{step.name}_done")
            m.d.sync += unfinished.eq(unfinished + (queue.i.valid & queue.i.ready) - done)
            self._pending.append(unfinished != 0)

    def _choose(self, m, step, port, at, others):
        """Follow another walk in some commands; a command has records of only one of both."""
        chosen = step.instead.chosen(self.setup)
        other = others.add(f"{step.name}_others", others.at.length != 0)
        both = stream.Signature(0).create(path=(f"{step.name}_both",))
        record = Signal(others.layout, name=f"{step.name}_record")
        m.d.comb += [
            both.valid.eq(Mux(chosen, other.valid, port.valid)),
            other.ready.eq(both.ready & chosen),
            port.ready.eq(both.ready & ~chosen),
            record.eq(Mux(chosen, others.at.as_value(), at.as_value())),
        ]
        return both, record

    def _packets(self, m, name, port, at, sink):
        """Headers, or what is expected of them, but for where packets come from and go to.

        The queue holds what differs from one packet to the next; the phase of the one on offer is returned.
        """
        setup, given = self.setup, sink.payload
        shape = data.StructLayout({
            "phase": Phase, "block": len(at.block), "segment": len(at.segment), "length": len(at.length)})
        queue = self._queue(m, name, port, shape, Cat(at.phase, at.block, at.segment, at.length))
        number = Signal.like(given.sequence, name=f"{name}_sequence")
        with m.If(self.start):
            m.d.sync += number.eq(0)
        with m.Elif(sink.valid & sink.ready):
            m.d.sync += number.eq(number + 1)
        packet = queue.o.payload
        m.d.comb += [
            sink.valid.eq(queue.o.valid),
            queue.o.ready.eq(sink.ready),
            given.codec.eq(self._codec(packet.phase == Phase.SCATTER)),
            given.epoch.eq(setup.epoch),
            given.sequence.eq(number),
            given.collective.eq(setup.collective),
            given.block.eq(packet.block),
            given.segment.eq(packet.segment),
            given.length.eq(packet.length),
        ]
        self._pending.append(queue.level != 0)
        return packet.phase

    def _codec(self, scatter):
        gradients, weights, raw = (
            CODECS[name].code for name in (self._config.gradients, self._config.weights.codec, RAW)
        )
        if self._config.role.broadcast_formats:
            raw = Array(CODECS[name].code for name in FETCH_FORMATS)[self.setup.format]
        return Mux(scatter | self.setup.sum, gradients, Mux(self.setup.coded, weights, raw))

    def _direct_egress(self, m, followers):
        """Head every packet that is sent, empty ones too."""
        setup, header = self.setup, self.header.payload
        phase = self._packets(m, "headers", followers.add("headed", 1), followers.at, self.header)
        m.d.comb += [
            header.type.eq(PacketType.DATA),
            header.source.eq(setup.rank),
            header.destination.eq(setup.successor),
        ]
        with m.If(self.start):
            m.d.sync += self.scattering.eq(setup.egress_scatter.steps != 0)
        with m.Elif(self.header.valid & self.header.ready):
            m.d.sync += self.scattering.eq(phase == Phase.SCATTER)

    def _direct_ingress(self, m, followers):
        """Expect every packet that comes; a ring of one expects nothing."""
        port = followers.add("expectations", ~self.setup.alone)
        self._packets(m, "expectations", port, followers.at, self.expected)
        m.d.comb += self.expected.payload.source.eq(self.setup.predecessor)


class _Followers:
    """All that follow one walk: a port for each, and whether it asks for the record on offer."""

    def __init__(self, source, layout):
        self.source = source
        self.layout = layout
        self.ports = []

    @property
    def at(self):
        """The record on offer."""
        return self.source.payload

    def add(self, name, enable):
        """Return a port that offers the records which ``enable`` chooses."""
        port = stream.Signature(0).create(path=(name,))
        self.ports.append((port, enable))
        return port
