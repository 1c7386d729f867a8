"""Path of slot packets through a node: packets that it sends, forwards or receives."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from hdl.features.replay.signature import ReplayLinkSignature
from hdl.features.slots.layouts import MESSAGE_TYPE, check_after, message_header_layout, mode_layout
from hdl.streams.stream import connect_stream, word_layout

__all__ = ["SlotPath", "SlotSender", "check_capacity"]


def check_capacity(words, role):
    """Raise ValueError unless ``words`` is a valid queue depth."""
    if isinstance(words, bool) or not isinstance(words, int) or words < 5:
        raise ValueError(f"{role} must be an integer of at least 5, not {words!r}")


class SlotSender(wiring.Component):
    """Store packets, and send a complete one without a pause on request.

    The first word is at ``o`` in the cycle after ``start``; throughput is one word per cycle. ``o`` is registered,
    and all bits are 0 while there is no word; ``i.ready`` depends only on registers.

    Parameters
    ----------
    depth : int
        Number of words that can be stored, not counting the one at ``o``; at least 5.
    least : int
        Minimum number of words of a packet: 1, or at least 2.

    Members
    -------
    i : In(stream of word_layout())
    o : Out(stream of word_layout())
        Words of packets; the receiver must accept every word.
    start : In(1)
        Pulse, while nothing is being sent: send a packet.
    whole : Out(range(depth // 2 + 1))
        Number of complete packets; each is counted in the cycle after its last word, or one cycle later if packets
        may have only one word.
    left : Out(1)
        A packet starts to be sent.
    follows : Out(1)
        ``o`` has a word in the next cycle.
    """

    def __init__(self, *, depth, least=2):
        check_capacity(depth, "Queue depth")
        self._depth, self._least = depth, least
        super().__init__({
            "i": In(stream.Signature(word_layout())),
            "o": Out(stream.Signature(word_layout(), always_ready=True)),
            "start": In(1), "whole": Out(range(depth // 2 + 1)), "left": Out(1), "follows": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        bits = (self._depth - 1).bit_length()
        m.submodules.memory = memory = Memory(shape=word_layout(), depth=1 << bits, init=[],
                                              attrs={"no_rw_check": 1, "ram_style": "block"})
        write, read = memory.write_port(), memory.read_port()
        # Write and read addresses. The first word of a packet is prefetched into the memory's output latch.
        enters, leaves, after, level = (Signal(bits + 1, name=name) for name in (
            "enters", "leaves", "after", "level"))
        ended, goes, follows = Signal(), self.left, self.follows
        m.d.comb += [
            goes.eq(self.start & (self.whole != 0) & ~self.o.valid),
            follows.eq(goes | (self.o.valid & ~self.o.payload.last)),
            after.eq(leaves + follows), level.eq(enters - leaves), self.i.ready.eq(level != self._depth),
            write.addr.eq(enters), write.data.eq(self.i.payload), write.en.eq(self.i.ready),
            read.addr.eq(after), read.en.eq(1),
        ]
        m.d.sync += [leaves.eq(after), enters.eq(enters + (self.i.valid & self.i.ready)),
                     self.o.valid.eq(follows), self.o.payload.eq(read.data)]
        with m.If(~follows):
            m.d.sync += self.o.payload.eq(0)
        now = self.i.valid & self.i.ready & self.i.payload.last
        if self._least == 1:
            m.d.sync += ended.eq(now)
        else:
            m.d.comb += ended.eq(now)
        m.d.sync += self.whole.eq(self.whole + ended - goes)
        return m


class SlotPath(wiring.Component):
    """Route slot packets between the node and the wires of links with replay, alongside control words.

    Words of kind 0 belong to slots and have no CRC; words of kind 1 are sent and received by the replay link ends.
    The node's own slot words have priority over passing words, which have priority over words of the replay
    transmitter. The transmitter is notified one cycle before the node sends a slot word; words that it loses are
    retransmitted, like damaged ones. ``lost`` reports lost words of passing packets.

    A packet of the node is on the wires from :attr:`latency` cycles after ``starts``, one word per cycle, if it was
    complete one cycle before ``starts`` (two cycles for a message). A passing word is on the wires :attr:`hop`
    cycle after it arrives, and thus has the same position in its slot as at the previous node, where slots begin
    earlier by the latency of the wires and of a hop. The first word decides whether a packet passes; it then passes
    up to its last word, in any slot. All wires to other nodes are driven by registers, which delay the
    transmitter's words and ``line`` by one cycle.

    Words of a slot packet that does not pass are marked by ``arrived``. Words of a message whose header contains this
    rank are marked by ``heard``, whether the message passes or not. The last word of the node's own message is
    followed by a cycle without a word, and then by the message's CRC
    (:func:`~hdl.features.slots.layouts.check_after`).

    Parameters
    ----------
    depth, message_depth : int
        Capacity for packets and for messages, in words; at least 5.

    Members
    -------
    i, message_i : In(stream of word_layout())
        This node's packets of at least two words, and its messages without CRC.
    word : Out(word_layout())
        Arriving word; depends combinationally on ``ring_i``. ``arrived`` and ``heard`` also depend on ``mode``.
    arrived, heard : Out(1)
        The word belongs to a packet, or to a message, for this node; the last word of a message is its CRC.
    starts : In(1)
    mode : In(mode_layout())
        As in :class:`~hdl.features.slots.table.SlotTable`.
    rank : In(4)
    whole, message_whole : Out
        Number of complete packets, and of complete messages.
    lost : Out(1)
        Pulse: a passing word met one of the node's words.
    ring_i, ring_o : In, Out(ReplayLinkSignature())
    transmitter : In(ReplayLinkSignature())
        Wires from the replay transmitter, which are 0 while it has no word.
    hush : Out(1)
        The transmitter must have no word in the next cycle.
    receiver : Out(ReplayLinkSignature())
    """

    latency = 3
    hop = 1

    def __init__(self, *, depth, message_depth=128):
        check_capacity(depth, "Depth for packets")
        check_capacity(message_depth, "Depth for messages")
        self._depths = (depth, message_depth)
        words = stream.Signature(word_layout())
        super().__init__({
            "i": In(words), "message_i": In(words), "word": Out(word_layout()), "arrived": Out(1), "heard": Out(1),
            "starts": In(1), "mode": In(mode_layout()), "rank": In(4),
            "whole": Out(range(depth // 2 + 1)), "message_whole": Out(range(message_depth // 2 + 1)),
            "lost": Out(1), "hush": Out(1),
            "ring_i": In(ReplayLinkSignature()), "ring_o": Out(ReplayLinkSignature()),
            "transmitter": In(ReplayLinkSignature()), "receiver": Out(ReplayLinkSignature()),
        })

    def elaborate(self, platform):
        m = Module()
        came, out, own = self.ring_i, self.ring_o, self.transmitter
        m.submodules.packets = packets = SlotSender(depth=self._depths[0])
        m.submodules.messages = messages = SlotSender(depth=self._depths[1], least=1)
        connect_stream(m, self.i, packets.i)
        connect_stream(m, self.message_i, messages.i)
        due = Signal(2)
        m.d.sync += due.eq(Mux(self.starts & self.mode.drives, Mux(self.mode.message, 2, 1), 0))
        m.d.comb += [Cat(packets.start, messages.start).eq(due), self.whole.eq(packets.whole),
                     self.message_whole.eq(messages.whole)]

        # The first arriving word of a packet determines how the packet is handled.
        word, header = Signal(), data.View(message_header_layout(), came.data)
        inside, passing, messaging, addressed = Signal(), Signal(), Signal(), Signal()
        passes, message, meant = Signal(), Signal(), Signal()
        m.d.comb += [
            word.eq(came.valid & ~came.kind),
            passes.eq(Mux(inside, passing, self.mode.passes)),
            message.eq(Mux(inside, messaging, header.type == MESSAGE_TYPE)),
            meant.eq(Mux(inside, addressed, header.destination == self.rank)),
        ]
        with m.If(word):
            m.d.sync += [inside.eq(~came.last), passing.eq(passes), messaging.eq(message), addressed.eq(meant)]
        m.d.comb += [self.word.data.eq(came.data), self.word.last.eq(came.last),
                     self.arrived.eq(word & ~message & ~passes), self.heard.eq(word & message & meant)]

        # Outgoing words. Words of this node are 0 while none is sent, so they can be ORed.
        check, checked, counts, ends, checks = Signal(32), Signal(32), Signal(), Signal(), Signal()
        drives, takes = Signal(), Signal()
        m.d.comb += [
            drives.eq(packets.o.valid | messages.o.valid | checks),
            takes.eq(word & passes & ~drives),
            self.hush.eq(packets.follows | messages.follows | messages.o.valid | ends),
        ]
        m.d.sync += [
            out.valid.eq(drives | (word & passes) | own.valid), self.lost.eq(drives & word & passes),
            out.data.eq(Mux(takes, came.data, packets.o.payload.data | messages.o.payload.data | checked | own.data)),
            out.last.eq(Mux(takes, came.last, packets.o.payload.last | checks | own.last)),
            out.kind.eq(own.kind & ~takes & ~drives), out.check.eq(own.check),
        ]

        # CRC of the message on the wires; the last word of the message precedes it by one cycle.
        after = check_after(check, out.data)
        m.d.sync += [check.eq(after), checked.eq(after), counts.eq(messages.o.valid),
                     ends.eq(messages.o.payload.last), checks.eq(ends)]
        with m.If(~counts):
            m.d.sync += check.eq(0)
        with m.If(~ends):
            m.d.sync += checked.eq(0)

        # Connect control words and the return wires.
        m.d.comb += [
            self.receiver.valid.eq(came.valid & came.kind),
            *(getattr(self.receiver, name).eq(getattr(came, name)) for name in ("data", "last", "kind", "check")),
            own.line.eq(out.line),
        ]
        m.d.sync += came.line.eq(self.receiver.line)
        return m
