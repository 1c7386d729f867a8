"""Access from rank 0's host to a node through messages, with an answer cache for repeated requests."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from hdl.control.protocol import Opcode, header_layout
from hdl.control.source import Interface
from hdl.features.slots.messages import MessageGate
from hdl.streams.stream import connect_stream, word_layout

__all__ = ["MESSAGES", "ONCE", "AnswerCache", "MessageAccess", "messages_signature"]

#: Interface between the link ends and the access for rank 0's host (:func:`messages_signature`).
MESSAGES = Interface("messages")

#: Requests that must not be executed twice.
ONCE = (Opcode.PUSH_COMMAND, Opcode.POP_EVENT, Opcode.RUN, Opcode.EDIT)


def messages_signature():
    """Interface between the link ends and a node's messages, as seen by the link ends.

    Members
    -------
    i : In(stream of word_layout())
        Messages from this node.
    word : Out(word_layout())
    heard : Out(1)
        ``word`` belongs to a message for this node.
    rank : Out(4)
        Rank of the node.
    forget : Out(1)
        The node's position has changed, so messages in progress belong to a different ring.
    """
    return wiring.Signature({"i": In(stream.Signature(word_layout())), "word": Out(word_layout()), "heard": Out(1),
                             "rank": Out(4), "forget": Out(1)})


class AnswerCache(wiring.Component):
    """Execute a request received in messages only once, even if it is repeated.

    The answer to the latest request is stored if the request is in :data:`ONCE` and the answer has at most
    :attr:`words` words. If the next request has the same opcode and tag, it is dropped and receives the stored
    answer.

    The first word of a request is delayed by one cycle while the request is examined; all other words pass
    combinationally. A stored answer is offered from the cycle after the request's last word, at one word per cycle.

    Members
    -------
    i, o : In, Out(stream of word_layout())
        Requests, one at a time, and their answers.
    port_i, port_o : Out, In(stream of word_layout())
        To and from the host port.
    direct : In(1)
        Level: pass all requests, because they come from a host at this node and cannot be lost.
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
        index = Signal(range(self.words))
        drops = Signal()  # registered, because it selects between words
        passes, answers, moves = Signal(), Signal(), Signal()
        m.d.comb += [
            self.i.ready.eq(passes & (drops | self.port_i.ready)),
            self.port_i.valid.eq(self.i.valid & passes & ~drops), self.port_i.payload.eq(self.i.payload),
            write.addr.eq(index), read.addr.eq(index), write.data.eq(self.port_o.payload),
            write.en.eq(answers & keeps & ~drops),
            self.o.valid.eq(Mux(drops, answers, self.port_o.valid)), self.port_o.ready.eq(self.o.ready & ~drops),
            self.o.payload.eq(Mux(drops, read.data, self.port_o.payload)), moves.eq(self.o.valid & self.o.ready),
        ]
        with m.FSM():
            with m.State("Request"):
                m.d.sync += [drops.eq(0), index.eq(0)]
                with m.If(self.i.valid):
                    m.d.sync += keeps.eq(Cat(asked.opcode == opcode for opcode in ONCE).any())
                    m.next = "Words"
                    with m.If(known & ~self.direct & (Cat(asked.tag, asked.opcode) == latest)):
                        m.d.sync += drops.eq(1)
                    with m.Else():
                        m.d.sync += [latest.eq(Cat(asked.tag, asked.opcode)), known.eq(0)]
            with m.State("Words"):
                m.d.comb += passes.eq(1)
                with m.If(self.i.valid & self.i.ready & self.i.payload.last):
                    m.next = "Answer"
            with m.State("Answer"):
                m.d.comb += answers.eq(1)
                with m.If(moves):
                    m.d.sync += index.eq(index + 1)
                    with m.If(index == self.words - 1):
                        m.d.sync += keeps.eq(0)
                    with m.If(self.o.payload.last):
                        m.d.sync += known.eq(known | keeps)
                        m.next = "Request"
        return m


class MessageAccess(wiring.Component):
    """Connect the ring and an optional local host to the node's host port.

    Members
    -------
    i, o : In, Out(stream of word_layout())
        Streams of the host.
    host_i, host_o : Out, In(stream of word_layout())
        To and from the host port, named as in a node.
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
        m.submodules.answers = answers = AnswerCache()
        connect_stream(m, self.i, gate.host_i)
        connect_stream(m, gate.host_o, self.o)
        connect_stream(m, gate.port_i, answers.i)
        connect_stream(m, answers.o, gate.port_o)
        connect_stream(m, answers.port_i, self.host_i)
        connect_stream(m, self.host_o, answers.port_o)
        connect_stream(m, gate.message_o, self.ring.i)
        m.d.comb += [
            gate.word.eq(self.ring.word), gate.heard.eq(self.ring.heard), gate.rank.eq(self.ring.rank),
            gate.reset_link.eq(self.ring.forget), answers.direct.eq(gate.rank == 0),
        ]
        return m
