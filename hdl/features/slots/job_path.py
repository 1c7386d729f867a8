"""Path of two jobs' packets through a node, which handles its own job's packets and forwards the other job's."""

from amaranth.hdl import Cat, Module, Mux, ResetInserter, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from hdl.features.replay.signature import ReplayLinkSignature
from hdl.features.slots.job_table import JobFrame, slot_layout
from hdl.features.slots.path import SlotSender, check_capacity
from hdl.streams.stream import connect_stream, word_layout

__all__ = ["JobPath"]

#: Maximum number of cycles by which a slot is extended if TIME is set back during it.
_LONGER = 8


class JobPath(wiring.Component):
    """Route slot packets between the node and the wires of links with replay, alongside control words.

    How a word is handled depends only on the slot, never on the word itself: in a slot of its own job the node sends
    a packet, if it is complete, and accepts arriving words; in a slot of the other job it forwards them. A
    truncated or damaged packet therefore has no effect after its slot.

    A packet of the node is on the wires :attr:`latency` cycles after the start of its slot, one word per cycle. A
    passing word is on the wires :attr:`hop` cycle after it arrives. At rank 0, where slots return to their origin,
    words arrive later than the node's own slots. Passing packets are therefore stored there, and sent in a later slot
    of their job, each word in the same cycle of the slot.

    The node's own words have priority over passing words, which have priority over control words. All wires to
    other nodes are registers.

    Parameters
    ----------
    depth : int
        Capacity for packets in words; at least 5.
    frame : JobFrame

    Members
    -------
    i : In(stream of word_layout())
        Packets from this node.
    flush : In(1)
        Level: drop these packets. Passing words are not affected.
    clear : In(1)
        Level: drop stored words of passing packets.
    goes : In(1)
        A packet may be sent in the slot that starts.
    word : Out(word_layout())
        Arriving word; like ``arrived``, it depends combinationally on ``ring_i``.
    arrived : Out(1)
        The word is for this node.
    slot, coming : In(slot_layout())
        Current slot for sending, and for arriving words.
    wraps : In(1)
        ``slot`` and ``coming`` can differ, because this node is rank 0.
    whole : Out
        Number of complete packets.
    left : Out(1)
        A packet of this node starts to be sent.
    lost : Out(1)
        Pulse: a passing word met one of the node's words.
    ring_i, ring_o : In, Out(ReplayLinkSignature())
    transmitter : In(ReplayLinkSignature())
    receiver : Out(ReplayLinkSignature())
        Control words.
    """

    latency = 3
    hop = 1

    def __init__(self, *, depth, frame):
        check_capacity(depth, "Depth for packets")
        if not isinstance(frame, JobFrame):
            raise ValueError(f"Frame must be a JobFrame, not {frame!r}")
        self._depth, self._frame = depth, frame
        super().__init__({
            "i": In(stream.Signature(word_layout())), "flush": In(1), "clear": In(1), "goes": In(1),
            "word": Out(word_layout()), "arrived": Out(1),
            "slot": In(slot_layout()), "coming": In(slot_layout()), "wraps": In(1),
            "whole": Out(range(depth // 2 + 1)), "left": Out(1), "lost": Out(1),
            "ring_i": In(ReplayLinkSignature()), "ring_o": Out(ReplayLinkSignature()),
            "transmitter": In(ReplayLinkSignature()), "receiver": Out(ReplayLinkSignature()),
        })

    def elaborate(self, platform):
        m = Module()
        came, out, own = self.ring_i, self.ring_o, self.transmitter
        slot, coming = self.slot, self.coming
        packets = SlotSender(depth=self._depth)
        m.submodules.packets = ResetInserter(self.flush)(packets)
        connect_stream(m, self.i, packets.i)
        due, word = Signal(), Signal()
        m.d.sync += due.eq(slot.starts & slot.drives & self.goes)
        m.d.comb += [
            packets.start.eq(due), self.whole.eq(packets.whole), self.left.eq(packets.left),
            word.eq(came.valid & ~came.kind),
            self.word.data.eq(came.data), self.word.last.eq(came.last), self.arrived.eq(word & coming.drives),
        ]

        # Passing packets at rank 0: each of the most recent slot pairs has its own rows, one per cycle of a slot.
        row_bits, pairs = (self._frame.slot + _LONGER - 1).bit_length(), self._frame.kept
        into_pair, from_pair = Signal(range(pairs)), Signal(range(pairs))
        kept = data.StructLayout({"data": 32, "last": 1, "valid": 1})
        m.submodules.memory = memory = Memory(shape=kept, depth=pairs << row_bits, init=[], attrs={"no_rw_check": 1})
        write, read = memory.write_port(), memory.read_port()
        into, row, following = Signal(row_bits), Signal(row_bits), Signal(row_bits)
        m.d.comb += [
            into_pair.eq(coming.pair), from_pair.eq(slot.pair + 1),
            into.eq(Mux(coming.starts, 0, row)),
            write.en.eq(coming.passes), write.addr.eq(Cat(into, into_pair)),
            write.data.data.eq(came.data), write.data.last.eq(came.last), write.data.valid.eq(word),
            read.addr.eq(Cat(Mux(slot.soon, 0, following), from_pair)),
        ]
        m.d.sync += [row.eq(into + 1), following.eq(Mux(slot.soon, 1, following + 1))]

        # Outgoing words; without one, the wires do not change.
        passes, there = Signal(), Signal(pairs)  # slot pairs with rows that have not been sent
        with m.If(coming.starts & coming.passes):
            m.d.sync += there.bit_select(into_pair, 1).eq(1)
        with m.If(slot.starts & slot.drives):
            m.d.sync += there.bit_select(slot.pair[:len(from_pair)], 1).eq(0)
        with m.If(self.clear):
            m.d.sync += there.eq(0)
        m.d.comb += passes.eq(slot.passes & Mux(
            self.wraps, read.data.valid & there.bit_select(from_pair, 1), word))
        m.d.sync += [out.valid.eq(packets.o.valid | passes | own.valid), self.lost.eq(packets.o.valid & passes)]
        with m.If(packets.o.valid):
            m.d.sync += [out.data.eq(packets.o.payload.data), out.last.eq(packets.o.payload.last), out.kind.eq(0)]
        with m.Elif(passes):
            m.d.sync += [out.data.eq(Mux(self.wraps, read.data.data, came.data)),
                         out.last.eq(Mux(self.wraps, read.data.last, came.last)), out.kind.eq(0)]
        with m.Elif(own.valid):
            m.d.sync += [out.data.eq(own.data), out.last.eq(own.last), out.kind.eq(own.kind), out.check.eq(own.check)]

        # Connect control words and the return wires.
        m.d.comb += [
            self.receiver.valid.eq(came.valid & came.kind),
            *(getattr(self.receiver, name).eq(getattr(came, name)) for name in ("data", "last", "kind", "check")),
            own.line.eq(out.line),
        ]
        m.d.sync += came.line.eq(self.receiver.line)
        return m
