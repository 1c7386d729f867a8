"""Router for control words, from the link to the unit for their type, and from all units to the link."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal, unsigned
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.features.replay.control_word import (
    SINGLE,
    SINGLE_IN_SLOTS,
    ControlType,
    control_layout,
    mark,
    marked,
    message_layout,
)

__all__ = ["ControlHub"]


class ControlHub(wiring.Component):
    """Route each message to the unit for its type, and send the messages of all units.

    The first word of a message contains the number of further words, which follow the same route. A message without a
    unit is skipped with all its words; a first word with nonzero reserved bits is taken as damaged, and only this
    word is skipped.

    If several units have a message, the first one in the list has priority, and a message is never interrupted. A
    word passes to a unit combinationally, and to the register ``o`` in :attr:`latency` cycle; throughput is one
    word per cycle in each direction. ``i.ready`` depends combinationally on ``i`` and on the unit's ``ready``, and
    ``give.ready`` on ``o.ready`` and ``give.valid``.

    With tenants, the first word of each message on a link carries the mark of the tenant that the node is executing
    (:func:`~hdl.features.replay.control_word.mark`); units do not see it. Messages of a different tenant are skipped
    with all their words. The tenant changes only while ``reset_link`` is held.

    Parameters
    ----------
    takes : sequence of sequence of ControlType
        Message types that each unit receives; no type belongs to two units.
    tenants : bool
        Whether messages carry tenant marks.

    Members
    -------
    i : In(stream of unsigned(32))
        Control words of the link from the predecessor.
    o : Out(stream of unsigned(32))
        Control words for the link to the successor.
    take : Out(array of streams of message_layout())
        Words for each unit.
    give : In(array of streams of message_layout())
        Words from each unit.
    reset_link : In(1)
        Level: the next word at ``i``, and at each unit, is the first of a message.
    tenant : In(2), with ``tenants``
    """

    latency = 1

    def __init__(self, *, takes, tenants=False):
        takes = [tuple(types) for types in takes]
        every = [type for types in takes for type in types]
        if not every or len(set(every)) != len(every) or any(not isinstance(type, ControlType) for type in every):
            raise ValueError(f"Types must be of {ControlType.__name__}, one at least, and each of one unit, not "
                             f"{takes!r}")
        self._takes = takes
        self._tenants = tenants
        message = stream.Signature(message_layout())
        super().__init__({
            "i": In(stream.Signature(unsigned(32))),
            "o": Out(stream.Signature(unsigned(32))),
            "take": Out(message).array(len(takes)),
            "give": In(message).array(len(takes)),
            "reset_link": In(1),
            **({"tenant": In(2)} if tenants else {}),
        })

    @property
    def takes(self):
        """Message types that each unit receives."""
        return list(self._takes)

    def elaborate(self, platform):
        m = Module()
        units = range(len(self._takes))

        # Words from the link: the type in a message's first word selects the unit for all of its words.
        left = Signal(control_layout()["words"].shape)  # number of remaining words of this message
        incoming = self.i.payload
        if self._tenants:  # units see words without tenant marks
            incoming = Mux(left == 0, marked(self.i.payload, self.tenant, own=True), self.i.payload)
        word = data.View(control_layout(), incoming)
        kept, chosen = Signal(len(self._takes)), Signal(len(self._takes))
        first, whole = Signal(), Signal()
        ours = mark(self.i.payload) == self.tenant if self._tenants else whole  # a valid mark sets `whole`, too
        follow = Signal.like(word.words)
        singles = SINGLE_IN_SLOTS if any(ControlType.RECORD in types for types in self._takes) else SINGLE
        single = Cat(word.type == type for type in singles).any()
        matches = Cat(Cat(word.type == type for type in types).any() for types in self._takes)
        m.d.comb += [
            first.eq(left == 0),
            whole.eq(single | (word.reserved == 0)),
            follow.eq(Mux(~first, left - 1, Mux(single | ~whole, 0, word.words))),
            chosen.eq(Mux(first, Mux(ours, matches, 0), kept)),
            self.i.ready.eq(Cat(self.take[n].ready | ~chosen[n] for n in units).all()),
        ]
        for n in units:
            m.d.comb += [
                self.take[n].valid.eq(self.i.valid & chosen[n]),
                self.take[n].payload.data.eq(incoming),
                self.take[n].payload.first.eq(first),
                self.take[n].payload.last.eq(follow == 0),
            ]
        with m.If(self.i.valid & self.i.ready):
            m.d.sync += [left.eq(follow), kept.eq(chosen)]

        # Words to the link.
        within = Signal()  # a message has begun
        holder = Signal(len(self._takes))
        offers = Cat(self.give[n].valid for n in units)
        ahead = Const(0, 1)
        turns = []
        for n in units:
            turns.append(offers[n] & ~ahead)
            ahead = ahead | offers[n]
        sender = Signal(len(self._takes))
        m.d.comb += sender.eq(Mux(within, holder, Cat(*turns)))
        with m.If(self.o.ready | ~self.o.valid):
            m.d.sync += self.o.valid.eq((sender & offers).any())
            for n in units:
                m.d.comb += self.give[n].ready.eq(sender[n])
                outgoing = self.give[n].payload.data
                if self._tenants:
                    outgoing = Mux(self.give[n].payload.first, marked(outgoing, self.tenant, own=False), outgoing)
                with m.If(sender[n] & offers[n]):
                    m.d.sync += [
                        self.o.payload.eq(outgoing),
                        within.eq(~self.give[n].payload.last), holder.eq(sender),
                    ]
        with m.If(self.reset_link):
            m.d.sync += [left.eq(0), within.eq(0), self.o.valid.eq(0)]
        return m
