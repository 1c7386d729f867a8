"""Messages between rank 0's host and the host ports of all nodes."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from hdl.control.protocol import RESPONSE
from hdl.features.slots.layouts import MESSAGE_OPCODE, MESSAGE_TYPE, MESSAGE_WORDS, check_after, message_header_layout
from hdl.streams.stream import word_layout

__all__ = ["MessageGate", "MessageStore"]

_ROWS = 128  # memory rows per message; a power of two
_OFFSET_BITS = 7


class MessageStore(wiring.Component):
    """Store arriving messages, and output the ones with a correct CRC.

    A message can be read :attr:`latency` cycles after its last word. A message that arrives while :attr:`messages`
    messages are stored is dropped as a whole. Words are read one per cycle: the word at ``offset`` is on ``read`` in
    the next cycle.

    Members
    -------
    word : In(word_layout())
    heard : In(1)
        ``word`` belongs to a message for this node.
    there : Out(1)
        A message is available.
    offset : In(7)
    read : Out(word_layout())
        Word at ``offset`` in the oldest message, one cycle later: the header, the payload, or the CRC with
        ``last``.
    drop : In(1)
        Pulse: the oldest message is no longer needed.
    reset_link : In(1)
        Level: drop a message that is not yet complete.
    """

    latency = 2
    messages = 4

    word: In(word_layout())
    heard: In(1)
    there: Out(1)
    offset: In(_OFFSET_BITS)
    read: Out(word_layout())
    drop: In(1)
    reset_link: In(1)

    def elaborate(self, platform):
        m = Module()
        m.submodules.memory = memory = Memory(shape=word_layout(), depth=self.messages * _ROWS, init=[],
                                              attrs={"no_rw_check": 1})
        write, read = memory.write_port(), memory.read_port()
        kept = Signal(range(self.messages + 1))
        into, oldest = Signal(range(self.messages)), Signal(range(self.messages))
        position, check, ended, refused, accepts = Signal(_OFFSET_BITS), Signal(32), Signal(), Signal(), Signal()
        full = kept == self.messages
        next_oldest = Signal.like(oldest)
        m.d.comb += [
            write.en.eq(self.heard & ~full & ~ended), write.addr.eq(position | into << _OFFSET_BITS),
            write.data.eq(self.word),
            next_oldest.eq(oldest + self.drop),
            read.en.eq(1), read.addr.eq(self.offset | next_oldest << _OFFSET_BITS), self.read.eq(read.data),
            accepts.eq(ended & (check == 0) & ~refused),
            self.there.eq(kept != 0),
        ]
        m.d.sync += [ended.eq(self.heard & self.word.last), oldest.eq(next_oldest), into.eq(into + accepts),
                     kept.eq(kept + accepts - self.drop)]
        with m.If(self.heard):
            m.d.sync += [check.eq(check_after(check, self.word.data)),
                         position.eq(Mux(self.word.last, 0, position + 1)), refused.eq(refused | full)]
        # Messages must be at least one cycle apart; otherwise, the second one would have a wrong CRC.
        with m.If(ended):
            m.d.sync += [check.eq(0), refused.eq(0)]
        with m.If(self.reset_link):
            m.d.sync += [position.eq(0), check.eq(0), refused.eq(0), ended.eq(0)]
        return m


class MessageGate(wiring.Component):
    """Route messages between the slots, the host, and the host port of a node.

    At rank 0, a host packet that starts with a message header is sent in the message slots; words after the 64th
    are dropped. Each arriving message becomes a packet for the host, with header and CRC. The path appends a CRC to
    an outgoing message.

    At other ranks, the messages of a request are joined into one packet for the host port, and its response is split
    into messages of at most 64 words. Each correct message of a request is answered by one message: an empty one if
    more messages of the request follow, otherwise the first one of the response. The next message of a response
    waits for an empty message from rank 0, or for the first message of another request. A request that begins while
    another one is incomplete ends the incomplete request, with a word that has ``last`` set. A message that is not
    the next one of an incomplete request is dropped.

    The host's own requests go to the port one at a time, as in a node without messages: the next one enters after the
    response to the previous one, even if that request came in messages.

    A word is forwarded in the cycle in which it arrives. ``host_i.ready``, ``host_o``, ``port_i``, ``port_o.ready``
    and ``message_o`` depend combinationally on the streams on the other side. A correct message is offered
    :attr:`latency` cycles after its last word, one word per cycle; only rank 0 also gets the header.

    Members
    -------
    rank : In(4)
        A change to or from 0 takes effect one cycle later.
    host_i, host_o : In, Out(stream of word_layout())
    port_i, port_o : Out, In(stream of word_layout())
        To and from the :class:`~hdl.control.host_port.HostPort`.
    word : In(word_layout())
    heard : In(1)
        See :class:`~hdl.features.slots.path.SlotPath`.
    message_o : Out(stream of word_layout())
        To ``message_i`` of the path; the path's ``message_whole`` is not 0 while the node wants to send.
    reset_link : In(1)
        Level: drop messages that have not been completely received or formed.
    """

    latency = 4

    rank: In(4)
    host_i: In(stream.Signature(word_layout()))
    host_o: Out(stream.Signature(word_layout()))
    port_i: Out(stream.Signature(word_layout()))
    port_o: In(stream.Signature(word_layout()))
    word: In(word_layout())
    heard: In(1)
    message_o: Out(stream.Signature(word_layout()))
    reset_link: In(1)

    def elaborate(self, platform):
        m = Module()
        m.submodules.store = store = MessageStore()
        master = Signal(init=1)  # registered, because it selects between words
        m.d.sync += master.eq(self.rank == 0)
        host, port, message = self.host_i, self.port_o, self.message_o
        asked = data.View(message_header_layout(), host.payload.data)
        head = data.View(message_header_layout(), store.read.data)
        # Whether `store.read` holds a header, a word for the host, or a word for the port.
        heads, gives, reads = Signal(), Signal(), Signal()
        heading, filling = Signal(), Signal()  # the header, or another word, of a message is being formed
        # A request from the host is at the port, or is entering it; a request in messages is at the port, or is
        # incomplete.
        local, entering, remote, open_ = Signal(), Signal(), Signal(), Signal(name="open")
        responding, owes = Signal(), Signal()
        held = Signal()  # set while the rest of a response waits or, at rank 0, the rest of a packet is dropped
        fresh = Signal(init=1)  # no message of the current response has been sent yet

        # The host sends a message, or a request for this node.
        offers, takes_local, takes_message = Signal(), Signal(), Signal()
        m.d.comb += [
            offers.eq(master & (asked.type == MESSAGE_TYPE) & (asked.opcode == MESSAGE_OPCODE)),
            takes_local.eq(entering | ~(local | remote | offers | (master & (held | ~heading)))),
            takes_message.eq(master & ~entering & ~held & ((heading & offers) | filling)),
            host.ready.eq((takes_local & self.port_i.ready) | (takes_message & message.ready & ~self.reset_link)
                          | (master & heading & held)),
        ]
        with m.If(takes_local & host.valid & self.port_i.ready):
            m.d.sync += [entering.eq(~host.payload.last), local.eq(1)]

        # Words to the host port and to the host.
        position, length, number, ends = Signal(_OFFSET_BITS), Signal(_OFFSET_BITS), Signal(3), Signal()
        final, cuts, taken, closes = Signal(), Signal(), Signal(), Signal()
        m.d.comb += [
            final.eq(store.read.last | (reads & (position == length))),
            # While `remote` is set, nothing is accepted from the host.
            self.port_i.valid.eq(Mux(remote, reads | cuts, takes_local & host.valid)),
            self.port_i.payload.data.eq(Mux(remote, store.read.data, host.payload.data)),
            closes.eq(cuts | store.read.last | (final & ends)),
            self.port_i.payload.last.eq(Mux(remote, closes, host.payload.last)),
            self.host_o.valid.eq(gives | (port.valid & ~remote)),
            self.host_o.payload.eq(Mux(gives, store.read, port.payload)),
            taken.eq(Mux(gives, self.host_o.ready, reads & self.port_i.ready)),
            port.ready.eq(Mux(remote, filling & message.ready & ~self.reset_link, self.host_o.ready & ~gives)),
        ]
        with m.If(port.valid & port.ready & ~remote):
            m.d.sync += responding.eq(~port.payload.last)
            with m.If(port.payload.last):
                m.d.sync += local.eq(0)

        # Handle arriving messages.
        starts = Signal()
        m.d.sync += position.eq(store.offset)
        m.d.comb += store.reset_link.eq(self.reset_link)
        m.d.comb += [store.word.eq(self.word), store.heard.eq(self.heard)]
        with m.FSM(name="reader"):
            with m.State("Empty"):
                with m.If(store.there):
                    m.next = "Head"
            with m.State("Head"):
                m.d.comb += heads.eq(1)
                m.d.sync += [length.eq(head.count), ends.eq(head.end)]
                with m.If(master):
                    m.d.comb += starts.eq(~responding & ~port.valid)
                with m.Elif(head.count == 0):
                    m.d.comb += store.drop.eq(1)
                with m.Elif(head.begin):
                    m.d.comb += [cuts.eq(open_), starts.eq(~(remote | local | entering | host.valid))]
                with m.Elif(open_ & (head.number == number)):
                    m.d.comb += starts.eq(~owes)
                with m.Else():
                    m.d.comb += store.drop.eq(1)
                with m.If(starts):
                    m.d.comb += store.offset.eq(~master)
                    m.d.sync += [remote.eq(~master), number.eq(head.number + 1), gives.eq(master), reads.eq(~master)]
                    m.next = "Read"
                with m.Elif(store.drop):
                    m.next = "Empty"
                with m.If(cuts & self.port_i.ready):
                    m.d.sync += open_.eq(0)
            with m.State("Read"):
                m.d.comb += store.offset.eq(position + taken)
                with m.If(taken & final):
                    m.d.comb += store.drop.eq(1)
                    m.d.sync += [open_.eq(reads & ~closes), owes.eq(reads & ~closes), gives.eq(0), reads.eq(0)]
                    m.next = "Empty"
        with m.If(heads & ~master & ((head.count == 0) | head.begin)):
            m.d.sync += held.eq(0)

        # Handle outgoing messages.
        made, count, full = Signal(message_header_layout()), Signal(range(MESSAGE_WORDS)), Signal()
        source_valid, source_last, fires = Signal(), Signal(), Signal()
        m.d.comb += [
            made.type.eq(MESSAGE_TYPE), made.source.eq(self.rank), made.begin.eq(fresh & ~owes),
            made.opcode.eq(MESSAGE_OPCODE | RESPONSE),
            source_valid.eq(Mux(master, host.valid, port.valid)),
            source_last.eq(Mux(master, host.payload.last, port.payload.last)),
            full.eq(count == MESSAGE_WORDS - 1),
            message.valid.eq(~self.reset_link & (
                (filling & source_valid)
                | (heading & Mux(master, takes_message & host.valid, owes | (port.valid & remote & ~held))))),
            message.payload.last.eq(Mux(filling, source_last | full, Mux(master, host.payload.last, owes))),
            # Each source is 0 unless it is selected.
            message.payload.data.eq((host.payload.data & master.replicate(32))
                                    | (port.payload.data & (~master & filling).replicate(32))
                                    | (made.as_value() & (~master & heading).replicate(32))),
            fires.eq(message.valid & message.ready),
        ]
        with m.FSM(name="maker"):
            with m.State("Header"):
                m.d.comb += heading.eq(1)
                m.d.sync += count.eq(0)
                with m.If(fires):
                    with m.If(~message.payload.last):
                        m.next = "Words"
                    with m.If(~master):
                        m.d.sync += owes.eq(0)
                with m.If(master & held & host.valid & host.payload.last):
                    m.d.sync += held.eq(0)
            with m.State("Words"):
                m.d.comb += filling.eq(1)
                with m.If(fires):
                    m.d.sync += count.eq(count + 1)
                    with m.If(message.payload.last):
                        m.next = "Header"
                    with m.If(source_last):
                        m.d.sync += [remote.eq(0), fresh.eq(1)]
                    with m.Elif(full):
                        m.d.sync += [held.eq(1), fresh.eq(0)]
                with m.If(self.reset_link):
                    m.d.sync += [held.eq(1), fresh.eq(0)]
                    m.next = "Header"
        return m
