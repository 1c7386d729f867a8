"""Access of rank 0's host to a node by messages: the gate, and answers for requests that come twice."""

from amaranth.hdl import Cat, Module, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from hdl.control.protocol import Opcode, header_layout
from hdl.ring.slots.messages import MessageGate
from hdl.streams.stream import connect_stream, word_layout

__all__ = ["ONCE", "AnswerKeeper", "MessageAccess", "messages_signature"]

#: Requests that must not be executed twice.
ONCE = (Opcode.PUSH_COMMAND, Opcode.POP_EVENT, Opcode.RUN, Opcode.EDIT)


def messages_signature():
    """Interface of the ends of links to the messages of a node, as the ends see it.

    Members
    -------
    i : In(stream of word_layout())
        Messages of this node.
    word : Out(word_layout())
    heard : Out(1)
        The word is of a message for this node.
    rank : Out(4)
        Rank of the node.
    forget : Out(1)
        The place of the node has changed: messages are of another ring.
    """
    return wiring.Signature({"i": In(stream.Signature(word_layout())), "word": Out(word_layout()), "heard": Out(1),
                             "rank": Out(4), "forget": Out(1)})


class AnswerKeeper(wiring.Component):
    """Execute a request of messages once, however often it comes.

    The answer to the latest request is kept if that is one of :data:`ONCE` and the answer has at most :attr:`words`.
    If the next request has the same opcode and tag, it is dropped, and has the answer that is kept.

    Words pass without a register. An answer that is kept is offered from the cycle after the request's last word on,
    a word per cycle.

    Members
    -------
    i, o : In, Out(stream of word_layout())
        Requests, one at a time, and their answers.
    port_i, port_o : Out, In(stream of word_layout())
        To and from the host port.
    direct : In(1)
        Level: hand all requests on, since they are of a host at this node, and none is lost.
    """

    words = 8

    i: In(stream.Signature(word_layout()))
    o: Out(stream.Signature(word_layout()))
    port_i: Out(stream.Signature(word_layout()))
    port_o: In(stream.Signature(word_layout()))
    direct: In(1)

    def elaborate(self, platform):
        m = Module()
        m.submodules.answer = answer = Memory(shape=word_layout(), depth=self.words, init=[])
        write, read = answer.write_port(), answer.read_port(domain="comb")
        asked = data.View(header_layout(), self.i.payload.data)
        latest, known, keeps = Signal(16), Signal(), Signal()
        place = Signal(range(self.words))
        once, drops, plays = Signal(), Signal(), Signal()
        m.d.comb += [
            once.eq(Cat(asked.opcode == one for one in ONCE).any()),
            self.i.ready.eq(drops | self.port_i.ready), self.port_i.valid.eq(self.i.valid & ~drops),
            self.port_i.payload.eq(self.i.payload),
            write.addr.eq(place), read.addr.eq(place), write.data.eq(self.port_o.payload),
            self.o.valid.eq(plays | self.port_o.valid), self.port_o.ready.eq(self.o.ready & ~plays),
            self.o.payload.eq(self.port_o.payload),
        ]
        with m.If(plays):
            m.d.comb += self.o.payload.eq(read.data)
        with m.FSM():
            with m.State("Request"):
                m.d.comb += drops.eq(known & ~self.direct & (Cat(asked.tag, asked.opcode) == latest))
                m.d.sync += place.eq(0)
                with m.If(self.i.valid & self.i.ready):
                    m.d.sync += keeps.eq(once)
                    with m.If(~drops):
                        m.d.sync += [latest.eq(Cat(asked.tag, asked.opcode)), known.eq(0)]
                    with m.If(~self.i.payload.last):
                        m.next = "Words"
                        with m.If(drops):
                            m.next = "Again"
                    with m.Elif(drops):
                        m.next = "Play"
                    with m.Else():
                        m.next = "Answer"
            with m.State("Words"):
                with m.If(self.i.valid & self.i.ready & self.i.payload.last):
                    m.next = "Answer"
            with m.State("Answer"):
                m.d.comb += write.en.eq(keeps)
                with m.If(self.port_o.valid & self.port_o.ready):
                    m.d.sync += place.eq(place + 1)
                    with m.If(place == self.words - 1):
                        m.d.sync += keeps.eq(0)
                    with m.If(self.port_o.payload.last):
                        m.d.sync += known.eq(known | keeps)
                        m.next = "Request"
            with m.State("Again"):
                m.d.comb += drops.eq(1)
                with m.If(self.i.valid & self.i.payload.last):
                    m.next = "Play"
            with m.State("Play"):
                m.d.comb += plays.eq(1)
                with m.If(self.o.ready):
                    m.d.sync += place.eq(place + 1)
                    with m.If(self.o.payload.last):
                        m.next = "Request"
        return m


class MessageAccess(wiring.Component):
    """Stand between the ring, the host at a node, if there is one, and the node's host port.

    Members
    -------
    i, o : In, Out(stream of word_layout())
        The host's.
    host_i, host_o : Out, In(stream of word_layout())
        To and from the host port, named as those of a node.
    ring : In(messages_signature())
    """

    i: In(stream.Signature(word_layout()))
    o: Out(stream.Signature(word_layout()))
    host_i: Out(stream.Signature(word_layout()))
    host_o: In(stream.Signature(word_layout()))
    ring: In(messages_signature())

    def elaborate(self, platform):
        m = Module()
        m.submodules.gate = gate = MessageGate()
        m.submodules.keeper = keeper = AnswerKeeper()
        connect_stream(m, self.i, gate.host_i)
        connect_stream(m, gate.host_o, self.o)
        connect_stream(m, gate.port_i, keeper.i)
        connect_stream(m, keeper.o, gate.port_o)
        connect_stream(m, keeper.port_i, self.host_i)
        connect_stream(m, self.host_o, keeper.port_o)
        connect_stream(m, gate.message_o, self.ring.i)
        m.d.comb += [
            gate.word.eq(self.ring.word), gate.heard.eq(self.ring.heard), gate.rank.eq(self.ring.rank),
            gate.reset_link.eq(self.ring.forget), keeper.direct.eq(gate.rank == 0),
        ]
        return m
