"""Link ends (receiver and transmitter) of a node that uses credits."""

from amaranth.hdl import Cat, Module
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.feature import objects_of
from hdl.ring.header import packet_words
from hdl.ring.link import LinkReceiver, LinkTransmitter
from hdl.ring.ports import port_members
from hdl.streams.stream import connect_stream, word_layout

__all__ = ["LinkEnds", "Pace", "moves_layout", "pace_of"]

def moves_layout(ports=1):
    """Layout of the packet words moved in a cycle: the number of words, and the number of last words of packets."""
    return data.StructLayout({"word": range(ports + 1), "packet": range(ports + 1)})


class Pace:
    """Pace of a transmitter: one word per cycle, unless a feature of the node slows it down."""

    #: Whether a transmitter with this pace has an input ``enable``.
    throttled = False

    def members(self):
        """Return additional signature members for the link ends."""
        return {}

    def connect(self, m, links, transmitter):
        """Connect the transmitter of the link ends; return the wires to the successor."""
        return transmitter.ring_o


def pace_of(config):
    """Return the pace of a node's links."""
    return next(iter(objects_of(config, "pace")), Pace())


class LinkEnds(wiring.Component):
    """Receiver for the link from the predecessor and transmitter for the link to the successor.

    Streams, latencies and throughput are as in :class:`~hdl.ring.link.LinkTransmitter` and
    :class:`~hdl.ring.link.LinkReceiver`.

    Parameters
    ----------
    config : NodeConfig
        Node configuration, which determines the receiver's capacity in packets and the maximum packet length.

    Members
    -------
    ring_i, ring_o : In, Out(LinkSignature())
    i : In(stream of word_layout())
        Packets for the successor.
    o : Out(stream of word_layout())
        Packets from the predecessor.
    may_start : Out(1)
        Whether a packet may start at ``i``.
    overrun : Out(1)
        Whether the predecessor has sent more than its credits allow.
    reset_link : In(1)
    sent, received : Out(moves_layout())
        Packet words to the successor and from the predecessor. Each word counts once, even if it is sent repeatedly.
    delay : Out(32)
        Always zero, since this link does not measure its latency.
    throttle, wire_delay
        With throttles only: see :class:`~hdl.features.throttles.pace.ThrottledPace`.
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
            "delay": Out(32),
            **pace_of(config).members(),
        })

    def elaborate(self, platform):
        m = Module()
        segments, longest, pace = self._config.link.ingress, packet_words(self._config.segment), pace_of(self._config)
        transmitter = LinkTransmitter(segments=segments, egress_words=longest, throttled=pace.throttled)
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
                       transmitter=pace.connect(m, self, transmitter))
        wiring.connect(m, node=wiring.flipped(self.ring_i), receiver=receiver.ring_i)
        m.d.comb += [
            self.may_start.eq(transmitter.may_start),
            self.overrun.eq(receiver.overrun),
            transmitter.reset_link.eq(self.reset_link),
            receiver.reset_link.eq(self.reset_link),
        ]
        return m


def _word(wires):
    return Cat(wires.valid, wires.valid & wires.last)
