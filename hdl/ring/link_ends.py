"""Both ends of links at a port of a node, of the kind that its configuration names."""

from amaranth.hdl import Cat, Module, unsigned
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.node_features import Throttles
from hdl.ring.header import packet_words
from hdl.ring.link import LinkReceiver, LinkTransmitter
from hdl.ring.ports import link_signature, port_members
from hdl.ring.replay.receiver import ReplayReceiver
from hdl.ring.replay.transmitter import ReplayTransmitter
from hdl.ring.wire_delay import DELAY_BITS, WireDelay
from hdl.streams.stream import connect_stream, word_layout
from hdl.throttle import RATE_BITS, Throttle

__all__ = ["LinkEnds", "add_pace", "moves_layout", "pace_members", "repairs_layout"]

#: Words that a link with replay has on its way and not acknowledged: it hides 80 cycles of wire in each direction.
WINDOW = 255


def moves_layout(ports=1):
    """Words of packets that move in a cycle: ``word`` of them, of which ``packet`` are the last of a packet."""
    return data.StructLayout({"word": range(ports + 1), "packet": range(ports + 1)})


def repairs_layout(ports=1):
    """Repairs of links in a cycle, by the names of the counters; a receiver at each port can have a failed check."""
    return data.StructLayout({"link_restarts": 1, "words_repeated": 1, "checks_failed": range(ports + 1)})


def pace_members(config):
    """Members of the links of a node with throttles: ``throttle``, words in 65,536 cycles, and ``wire_delay``, cycles
    by which words come later (:class:`~hdl.ring.wire_delay.WireDelay`)."""
    return {"throttle": In(RATE_BITS), "wire_delay": In(DELAY_BITS)} if config.has(Throttles) else {}


def add_pace(m, links, transmitter, config):
    """Throttle a transmitter of a node with throttles and delay its words; returns the wires behind that."""
    if not config.has(Throttles):
        return transmitter.ring_o
    m.submodules.throttle = throttle = Throttle()
    m.submodules.wires = wires = WireDelay(signature=link_signature(config))
    wiring.connect(m, transmitter=transmitter.ring_o, wires=wires.i)
    m.d.comb += [throttle.rate.eq(links.throttle), transmitter.enable.eq(throttle.enable),
                 wires.delay.eq(links.wire_delay)]
    return wires.o


class LinkEnds(wiring.Component):
    """The receiver of the link from the predecessor, and the transmitter of the link to the successor.

    Streams, latencies and throughput are those of :class:`~hdl.ring.link.LinkTransmitter` and
    :class:`~hdl.ring.link.LinkReceiver`.

    Parameters
    ----------
    config : NodeConfig
        It says how many packets a receiver holds, how long they are, and whether links repeat words.

    Members
    -------
    ring_i, ring_o : In, Out(link_signature(config))
    i : In(stream of word_layout())
        Packets for the successor.
    o : Out(stream of word_layout())
        Packets of the predecessor.
    may_start : Out(1)
        A packet may be started at ``i``.
    overrun : Out(1)
        The predecessor has sent more than it may.
    reset_link : In(1)
    sent, received : Out(moves_layout())
        Words of packets for the successor and of the predecessor: each once, however often it was repeated.
    repairs : Out(repairs_layout())
        With replay alone.
    control_i, control_o : In, Out(stream of unsigned(32))
        With replay alone: control words for the successor, and of the predecessor. Those of the predecessor should
        not have to wait: see :class:`~hdl.ring.replay.receiver.ReplayReceiver`.
    delay : Out(32)
        Cycles of the link to the successor, as it was measured; zero without replay.
    throttle, wire_delay
        With throttles alone: see :func:`pace_members`.
    """

    def __init__(self, *, config):
        self._config = config
        super().__init__({
            **port_members(config),
            "i": In(stream.Signature(word_layout())),
            "o": Out(stream.Signature(word_layout())),
            "may_start": Out(1),
            "overrun": Out(1),
            "reset_link": In(1),
            "sent": Out(moves_layout()),
            "received": Out(moves_layout()),
            **({"repairs": Out(repairs_layout()), "control_i": In(stream.Signature(unsigned(32))),
                "control_o": Out(stream.Signature(unsigned(32)))} if config.link.replay else {}),
            "delay": Out(32),
            **pace_members(config),
        })

    def elaborate(self, platform):
        m = Module()
        segments, longest = self._config.link.ingress, packet_words(self._config.segment)
        if self._config.link.replay:
            transmitter = ReplayTransmitter(
                segments=segments, egress_words=WINDOW + 1, window=WINDOW, throttled=self._config.has(Throttles))
            receiver = ReplayReceiver(segments=segments, packet_words=longest)
            self._repair(m, transmitter, receiver)
        else:
            transmitter = LinkTransmitter(
                segments=segments, egress_words=longest, throttled=self._config.has(Throttles))
            receiver = LinkReceiver(segments=segments, packet_words=longest)
            m.d.comb += [
                Cat(self.sent.word, self.sent.packet).eq(_word(self.ring_o)),
                Cat(self.received.word, self.received.packet).eq(_word(self.ring_i)),
            ]
        m.submodules.transmitter = transmitter
        m.submodules.receiver = receiver
        connect_stream(m, self.i, transmitter.i)
        connect_stream(m, receiver.o, self.o)
        wiring.connect(m, node=wiring.flipped(self.ring_o),
                       transmitter=add_pace(m, self, transmitter, self._config))
        wiring.connect(m, node=wiring.flipped(self.ring_i), receiver=receiver.ring_i)
        m.d.comb += [
            self.may_start.eq(transmitter.may_start),
            self.overrun.eq(receiver.overrun),
            transmitter.reset_link.eq(self.reset_link),
            receiver.reset_link.eq(self.reset_link),
        ]
        return m

    def _repair(self, m, transmitter, receiver):
        """Words are counted where they go in and come out, whatever happens to them in between."""
        connect_stream(m, self.control_i, transmitter.control)
        connect_stream(m, receiver.control, self.control_o)
        taken = transmitter.i.valid & transmitter.i.ready & ~self.reset_link
        m.d.comb += [
            self.sent.word.eq(taken),
            self.sent.packet.eq(taken & transmitter.i.payload.last),
            self.received.word.eq(receiver.arrived),
            self.received.packet.eq(receiver.ended),
            self.repairs.link_restarts.eq(transmitter.restarted),
            self.repairs.words_repeated.eq(transmitter.repeated),
            self.repairs.checks_failed.eq(receiver.failed),
            self.delay.eq(transmitter.delay),
        ]


def _word(wires):
    return Cat(wires.valid, wires.valid & wires.last)
