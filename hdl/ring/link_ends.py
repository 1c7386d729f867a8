"""Both ends of links at a port of a node."""

from amaranth.hdl import Module
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.ring.header import packet_words
from hdl.ring.link import LinkReceiver, LinkTransmitter
from hdl.ring.ports import port_members
from hdl.streams.stream import connect_stream, word_layout

__all__ = ["LinkEnds", "moves_layout"]


def moves_layout(ports=1):
    """Words that move in a cycle: ``word`` of them, of which ``packet`` are the last of a packet."""
    return data.StructLayout({"word": range(ports + 1), "packet": range(ports + 1)})


class LinkEnds(wiring.Component):
    """The receiver of the link from the predecessor, and the transmitter of the link to the successor.

    Streams, latencies and throughput are those of :class:`~hdl.ring.link.LinkTransmitter` and
    :class:`~hdl.ring.link.LinkReceiver`.

    Parameters
    ----------
    config : NodeConfig
        It says how many packets a receiver holds, and how long they are.

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
        Words that leave for the successor, and that come from the predecessor.
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
        })

    def elaborate(self, platform):
        m = Module()
        segments, longest = self._config.ingress_segments, packet_words(self._config.segment)
        m.submodules.transmitter = transmitter = LinkTransmitter(segments=segments, egress_words=longest)
        m.submodules.receiver = receiver = LinkReceiver(segments=segments, packet_words=longest)
        connect_stream(m, self.i, transmitter.i)
        connect_stream(m, receiver.o, self.o)
        wiring.connect(m, node=wiring.flipped(self.ring_o), transmitter=transmitter.ring_o)
        wiring.connect(m, node=wiring.flipped(self.ring_i), receiver=receiver.ring_i)
        m.d.comb += [
            self.may_start.eq(transmitter.may_start),
            self.overrun.eq(receiver.overrun),
            transmitter.reset_link.eq(self.reset_link),
            receiver.reset_link.eq(self.reset_link),
            self.sent.word.eq(self.ring_o.valid),
            self.sent.packet.eq(self.ring_o.valid & self.ring_o.last),
            self.received.word.eq(self.ring_i.valid),
            self.received.packet.eq(self.ring_i.valid & self.ring_i.last),
        ]
        return m
