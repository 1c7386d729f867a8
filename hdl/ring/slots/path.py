"""The way of packets in slots through a node: its own, those that pass, and those that come."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.ring.replay.signature import ReplayLinkSignature
from hdl.ring.slots.layouts import MESSAGE_TYPE, message_header_layout, mode_layout
from hdl.streams.stream import Queue, connect_stream, word_layout

__all__ = ["SlotPath", "SlotSender", "check_capacity"]


def check_capacity(words, role):
    """Raise ValueError unless a queue can have this depth."""
    if isinstance(words, bool) or not isinstance(words, int) or words < 5:
        raise ValueError(f"{role} must be an integer of at least 5, not {words!r}")


class SlotSender(wiring.Component):
    """Keep packets, and send one without a pause when told, if it is there as a whole.

    The first word is at ``o`` in the cycle behind ``start``, throughput is one word per cycle. ``o.valid`` and
    ``i.ready`` depend on registers alone.

    Parameters
    ----------
    depth : int
        Words that are kept; at least 5.

    Members
    -------
    i : In(stream of word_layout())
        Packets of at least two words.
    o : Out(stream of word_layout())
        Words, of which each is taken.
    start : In(1)
        Pulse, while nothing is being sent: send a packet.
    whole : Out(range(depth // 2 + 1))
        Packets that are there as a whole.
    left : Out(1)
        A packet begins to be sent.
    """

    def __init__(self, *, depth):
        check_capacity(depth, "Queue depth")
        self._depth = depth
        super().__init__({
            "i": In(stream.Signature(word_layout())),
            "o": Out(stream.Signature(word_layout(), always_ready=True)),
            "start": In(1), "whole": Out(range(depth // 2 + 1)), "left": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        m.submodules.queue = queue = Queue(shape=word_layout(), depth=self._depth, block=True)
        connect_stream(m, self.i, queue.i)
        sending, entered, goes = Signal(), Signal(), self.left
        m.d.comb += [
            goes.eq(self.start & (self.whole != 0) & ~sending),
            entered.eq(self.i.valid & self.i.ready & self.i.payload.last),
            queue.o.ready.eq(sending), self.o.valid.eq(sending & queue.o.valid), self.o.payload.eq(queue.o.payload),
        ]
        m.d.sync += self.whole.eq(self.whole + entered - goes)
        with m.If(goes):
            m.d.sync += sending.eq(1)
        with m.Elif(self.o.valid & self.o.payload.last):
            m.d.sync += sending.eq(0)
        return m


class SlotPath(wiring.Component):
    """Lead packets of slots between the wires of links with replay and the node, beside control words.

    Words of kind 0 are those of slots, which have no check; those of kind 1 are of replay's transmitter and to its
    receiver. An own word of a slot goes before one that passes, and this before one of the transmitter: what is lost
    of that is repeated like any word that is damaged, and ``lost`` tells of what is lost of packets that pass.

    An own packet is on the wires :attr:`latency` cycles behind ``starts``, if it was there as a whole one cycle
    before, and then word by word. A word that passes is on the wires :attr:`hop` cycle after it has come; so it is
    there in the same place of its slot as at the node before, whose slots begin earlier by the latency of the wires
    and of a hop. Whether a packet passes is decided by its first word, and it does until its last one, whatever slot
    comes. All wires to other nodes are registers: those of the transmitter take a cycle, and so does ``line``.

    A packet of slots that does not pass is ``arrived``. A message is ``heard`` if its header names this rank, whether
    it passes or not.

    Parameters
    ----------
    depth, message_depth : int
        Words of packets, and of messages, that are kept; at least 5.

    Members
    -------
    i, message_i : In(stream of word_layout())
        Packets and messages of this node.
    word : Out(word_layout())
        What comes; depends combinationally on ``ring_i``, as the next two do, and they on ``mode``.
    arrived, heard : Out(1)
        It is of a packet for this node; of a message for it.
    starts : In(1)
    mode : In(mode_layout())
        Those of :class:`~hdl.ring.slots.table.SlotTable`.
    rank : In(4)
    whole, message_whole : Out
        Packets and messages that are there as a whole.
    left : Out(1)
        A packet of this node begins to be sent.
    lost : Out(1)
        Pulse: a word that had to pass met an own one.
    ring_i, ring_o : In, Out(ReplayLinkSignature())
    transmitter : In(ReplayLinkSignature())
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
            "left": Out(1), "lost": Out(1),
            "ring_i": In(ReplayLinkSignature()), "ring_o": Out(ReplayLinkSignature()),
            "transmitter": In(ReplayLinkSignature()), "receiver": Out(ReplayLinkSignature()),
        })

    def elaborate(self, platform):
        m = Module()
        came, out, own = self.ring_i, self.ring_o, self.transmitter
        senders = [SlotSender(depth=depth) for depth in self._depths]
        m.submodules.packets, m.submodules.messages = packets, messages = senders
        connect_stream(m, self.i, packets.i)
        connect_stream(m, self.message_i, messages.i)
        due = Signal(len(senders))
        m.d.sync += due.eq(Mux(self.starts & self.mode.drives, Mux(self.mode.message, 2, 1), 0))
        m.d.comb += [Cat(sender.start for sender in senders).eq(due),
                     self.whole.eq(packets.whole), self.message_whole.eq(messages.whole), self.left.eq(packets.left)]

        # Words that come: of a packet, its first decides.
        word, header = Signal(), data.View(message_header_layout(), came.data)
        inside, passing, messaging, mine = Signal(), Signal(), Signal(), Signal()
        passes, message, meant = Signal(), Signal(), Signal()
        m.d.comb += [
            word.eq(came.valid & ~came.kind),
            passes.eq(Mux(inside, passing, self.mode.passes)),
            message.eq(Mux(inside, messaging, header.type == MESSAGE_TYPE)),
            meant.eq(Mux(inside, mine, header.destination == self.rank)),
        ]
        with m.If(word):
            m.d.sync += [inside.eq(~came.last), passing.eq(passes), messaging.eq(message), mine.eq(meant)]
        m.d.comb += [
            self.word.data.eq(came.data), self.word.last.eq(came.last),
            self.arrived.eq(word & ~message & ~passes), self.heard.eq(word & message & meant),
        ]

        # Words that leave; while none does, wires stand still.
        drives = packets.o.valid | messages.o.valid
        mine_first = Mux(messages.o.valid, messages.o.payload, packets.o.payload)
        given = data.View(word_layout(), mine_first)
        m.d.sync += [out.valid.eq(drives | (word & passes) | own.valid), self.lost.eq(drives & word & passes)]
        with m.If(drives):
            m.d.sync += [out.data.eq(given.data), out.last.eq(given.last), out.kind.eq(0)]
        with m.Elif(word & passes):
            m.d.sync += [out.data.eq(came.data), out.last.eq(came.last), out.kind.eq(0)]
        with m.Elif(own.valid):
            m.d.sync += [out.data.eq(own.data), out.last.eq(own.last), out.kind.eq(own.kind), out.check.eq(own.check)]

        # Control words and what leads back.
        m.d.comb += [
            self.receiver.valid.eq(came.valid & came.kind),
            *(getattr(self.receiver, name).eq(getattr(came, name)) for name in ("data", "last", "kind", "check")),
            own.line.eq(out.line),
        ]
        m.d.sync += came.line.eq(self.receiver.line)
        return m
