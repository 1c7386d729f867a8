"""Link ends of a node with replay links."""

from amaranth.hdl import Module, unsigned
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.features.replay.receiver import ReplayReceiver
from hdl.features.replay.transmitter import ReplayTransmitter
from hdl.ring.header import packet_words
from hdl.ring.link_ends import moves_layout, pace_of
from hdl.ring.ports import port_members
from hdl.streams.stream import connect_stream, word_layout

__all__ = ["WINDOW", "ReplayEnds", "repair_members", "repairs_layout", "repairs_of"]

#: Maximum number of unacknowledged words in flight on a link, enough for full throughput with 80 cycles of wire in
#: each direction.
WINDOW = 255


def repairs_layout(ports=1):
    """Increments of the link repair counters in a cycle, keyed by name; the receivers of both ports can detect
    errors."""
    return data.StructLayout({"link_restarts": 1, "words_repeated": 1, "checks_failed": range(ports + 1)})


def repair_members(ports=1):
    """Return the members of link ends that retransmit words."""
    control = stream.Signature(unsigned(32))
    return {"repairs": Out(repairs_layout(ports)), "control_i": In(control), "control_o": Out(control)}


def repairs_of(links, transmitter, receivers, reset):
    """Count the words and packets sent and received by link ends, counting repeated words once."""
    taken = transmitter.i.valid & transmitter.i.ready & ~reset

    def total(name):
        pulses = [getattr(receiver, name) for receiver in receivers]
        return sum(pulses) if len(pulses) > 1 else pulses[0]

    return [
        links.sent.word.eq(taken),
        links.sent.packet.eq(taken & transmitter.i.payload.last),
        links.received.word.eq(total("arrived")),
        links.received.packet.eq(total("ended")),
        links.repairs.link_restarts.eq(transmitter.restarted),
        links.repairs.words_repeated.eq(transmitter.repeated),
        links.repairs.checks_failed.eq(total("failed")),
        links.delay.eq(transmitter.delay),
    ]


class ReplayEnds(wiring.Component):
    """Receiver for the link from the predecessor and transmitter for the link to the successor.

    Streams, latencies and throughput are as in :class:`~hdl.features.replay.transmitter.ReplayTransmitter` and
    :class:`~hdl.features.replay.receiver.ReplayReceiver`.

    Parameters
    ----------
    config : NodeConfig
        Configuration, which gives the number and length of packets that the receiver can hold.

    Members
    -------
    ring_i, ring_o : In, Out(ReplayLinkSignature())
    i, o, may_start, overrun, reset_link, throttle, wire_delay
        As in :class:`~hdl.ring.link_ends.LinkEnds`.
    sent, received : Out(moves_layout())
        Packet words to the successor and from the predecessor, each counted once even if it is repeated.
    repairs : Out(repairs_layout())
    control_i, control_o : In, Out(stream of unsigned(32))
        Control words to the successor and from the predecessor. The sink of ``control_o`` should always have room:
        see :class:`~hdl.features.replay.receiver.ReplayReceiver`.
    delay : Out(32)
        Measured latency in cycles of the link to the successor.
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
            **repair_members(),
            "delay": Out(32),
            **pace_of(config).members(),
        })

    def elaborate(self, platform):
        m = Module()
        segments, pace = self._config.link.ingress, pace_of(self._config)
        m.submodules.transmitter = transmitter = ReplayTransmitter(
            segments=segments, egress_words=WINDOW + 1, window=WINDOW, throttled=pace.throttled)
        m.submodules.receiver = receiver = ReplayReceiver(
            segments=segments, packet_words=packet_words(self._config.segment))
        connect_stream(m, self.i, transmitter.i)
        connect_stream(m, receiver.o, self.o)
        connect_stream(m, self.control_i, transmitter.control)
        connect_stream(m, receiver.control, self.control_o)
        wiring.connect(m, node=wiring.flipped(self.ring_o), transmitter=pace.connect(m, self, transmitter))
        wiring.connect(m, node=wiring.flipped(self.ring_i), receiver=receiver.ring_i)
        m.d.comb += [
            *repairs_of(self, transmitter, [receiver], self.reset_link),
            self.may_start.eq(transmitter.may_start),
            self.overrun.eq(receiver.overrun),
            transmitter.reset_link.eq(self.reset_link),
            receiver.reset_link.eq(self.reset_link),
        ]
        return m
