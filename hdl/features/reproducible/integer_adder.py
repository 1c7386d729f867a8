"""Adder for packets of integers, which verifies and updates the checksums of packets from the ring.

The checksum of a packet is a word: the sum of its integers, plus twice the sum of their prefix sums, plus the hash of
the exponents with which they were formed (:mod:`hdl.features.reproducible.field_hash`), modulo 2**32. Integer i of n,
from zero, thus has the weight 1 + 2 * (n - i). Weights are odd, so every wrong bit changes the checksum; so do two
swapped integers, unless their difference times their distance is a multiple of 2**31. An infinity or a NaN counts
as its code. All integers of the last word count, including unused ones.
"""

import itertools

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.features.reproducible.field_hash import HASH, START, SUM_HASH, sum_hash
from hdl.features.reproducible.layout import check_width, integers_layout, integers_of, parity_of
from hdl.streams.delay import DelayLine
from hdl.streams.stream import SkidBuffer, word_layout

__all__ = ["IntegerAdder", "kind_layout"]


def kind_layout():
    """Layout of the kind of an addition: whether a packet from the ring is added, whether the sum is then complete,
    and whether the node is the first to add to this packet, so that no packet from the ring is added.
    """
    return data.StructLayout({"paired": 1, "final": 1, "first": 1})


def _slot_layout():
    """Layout of a pipeline slot, which contains a word of integers, a checksum or nothing."""
    return data.StructLayout({"integers": 1, "check": 1})


def _output_layout(width):
    members = {name: field.shape for name, field in integers_layout(width)}
    return data.StructLayout({**members, "final": 1})


def _register(m, step, value, name):
    """Return the value one stage later."""
    register = Signal(value.shape(), name=name, reset_less=True)
    with m.If(step):
        m.d.sync += register.eq(value)
    return register


def _delayed(m, step, value, stages, name):
    """Return the value ``stages`` stages later."""
    m.submodules[name] = line = DelayLine(shape=value.shape(), cycles=stages, paced=True)
    m.d.comb += [line.step.eq(step), line.i.eq(value)]
    return line.o


def _elements(words):
    """Return the integers of an array as signed values."""
    return [integer.as_signed() for integer in words]


class IntegerAdder(wiring.Component):
    """Add packets of a node's integers to packets from the ring, and check the checksums.

    Each packet at ``a`` has one word at ``kind``, its kind. If this is ``paired``, the next packet at ``b`` consists
    of as many words of codes, which are added to the words of ``a``, and then a checksum; otherwise, ``b`` is not
    used. Sums go to ``sent``, followed by their checksum, or to ``total`` if the kind is ``final``.

    The checksum sent is that of the packet from the ring, plus that of this node's changes: its own integers, and for
    elements that are infinite or NaN the difference of the codes. Changes are computed from ``a`` and ``b``, by
    adders of their own, so that a fault in an adder of integers makes packet and checksum disagree. The first node
    of a packet adds its hash to the checksum, and each later node compares the hash with its own.

    ``first`` is the opposite of ``paired``. If they are equal, ``added_wrong`` pulses for the packet: if the bit
    ``paired`` were wrong, the addends of earlier nodes would be missing, but the checksum would match.

    Both the sum and the changes are formed from the node's own integers, so words at ``a`` have a parity bit, and
    so does the register after it. If one of them is wrong, ``added_wrong`` pulses. ``total_hash`` is formed from
    the sums that are checked; a :class:`~hdl.features.reproducible.field_hash.SumHash` can later verify that they
    have not changed.

    Each packet is checked twice: as it was received, and after the addition. Both checks end in the same cycle. If
    only ``added_wrong`` pulses, this node has a fault. If ``received_wrong`` pulses, the fault is in an earlier node
    or between them, or this node's exponents are wrong, and ``added_wrong`` usually pulses with it. Packets of
    ``sent`` do not wait for checks: a wrong sum is sent with a checksum that does not match, and ``received_wrong``
    pulses in the next node. For this, a packet gets the checksum 0 if it was wrong when it was received, or if its
    kind or the register with the node's own integers is wrong. Otherwise, the checksum would match for the next node.

    The last word of a final packet is offered only after both checks. If one of them fails, it is never offered, and
    ``total`` remains silent until reset, since further words would continue this packet. Nothing else stops.

    Words at ``a`` and ``b`` are taken together, one per cycle. A further cycle takes the checksum and the hash; it is
    spent even if ``b`` is not used. There are no other bubbles. Without stalls, a sum is offered :attr:`latency`
    cycles after its word was taken. The last sum of a final packet and all pulses come :attr:`latency` cycles after
    the packet's last cycle. An output that stalls stops the unit, but all sums of earlier packets have then been
    offered. ``a.ready`` depends combinationally on ``kind`` and ``b.valid``, ``b.ready`` on ``kind``, ``a.valid`` and
    ``hash.valid``, ``kind.ready`` on ``kind``, ``b.valid`` and ``hash.valid``, and ``hash.ready`` on ``kind`` and
    ``b.valid``. Outputs depend only on registers.

    Parameters
    ----------
    width : int
        Width of integers in bits: 16 or 32.

    Members
    -------
    a : In(stream of integers_layout(width, parity=True))
        The node's own integers.
    b : In(stream of word_layout())
        Packets from the ring. Their ``last`` is ignored.
    kind : In(stream of kind_layout())
        One per packet. It must be offered for the packet to begin, and is taken in the packet's last cycle, together
        with the checksum.
    hash : In(stream of 32 bits)
        Hash of the exponents of the node's own integers, one per packet. The packet's last cycle waits for it.
    sent : Out(stream of word_layout())
    total : Out(stream of integers_layout(width))
    checked : Out(1)
        Pulse: the checks of a packet have ended; one for each packet, in the same cycle as the other pulses.
    received_wrong : Out(1)
        Pulse: a packet from the ring and the hash did not match its checksum.
    added_wrong : Out(1)
        Pulse: the sums of a packet and the hash did not match the received checksum plus the one of this node's
        changes.
    complete : Out(1)
        Whether the packet whose checks have ended is final; valid in the cycle of ``checked``.
    total_hash : Out(16)
        Hash of the sums of this packet; valid in the cycle of ``checked``.
    """

    def __init__(self, *, width):
        check_width(width)
        self._width = width
        words = stream.Signature(word_layout())
        integers = stream.Signature(integers_layout(width))
        super().__init__({
            "a": In(stream.Signature(integers_layout(width, parity=True))), "b": In(words),
            "kind": In(stream.Signature(kind_layout())), "hash": In(stream.Signature(HASH)), "sent": Out(words),
            "total": Out(integers), "checked": Out(1), "received_wrong": Out(1), "added_wrong": Out(1),
            "complete": Out(1), "total_hash": Out(SUM_HASH),
        })

    @property
    def _lanes(self):
        return 32 // self._width

    @property
    def _span(self):
        """Cycles until the checksum includes a word's integers. The integers of two lanes are added first."""
        return 1 + self._lanes

    @property
    def latency(self):
        return 5 + self._span

    def elaborate(self, platform):
        m = Module()
        span = self._span
        m.submodules.output = output = SkidBuffer(shape=_output_layout(self._width))
        # All stages, bubbles included, advance together whenever the output buffer has a free row.
        step = Signal()
        m.d.comb += step.eq(output.i.ready)
        # Stages are numbered by their distance from the inputs in cycles.
        slots = self._slots(m, step, 4 + span)
        own, removed, received, marks, differs = self._enter(m, step)  # stage 1
        begun, offset, unsure = self._begin(m, step)  # stage 1
        flipped = self._flipped(m, step, differs, slots[1])  # stage 1

        # Checksum test of the packet from the ring. If there is no such packet, the hash is used in place of the
        # received checksum.
        check = self._checksum(m, step, "received", _elements(received), slots[1:])
        without = _register(m, step, (begun - offset)[:HASH], "without")  # stage 2
        without = _delayed(m, step, without, span - 1, "without_hash")  # `span` cycles after stage 1
        received_unequal = _register(m, step, (check ^ without).any(), "received_unequal")
        spoiled = received_unequal  # `span` cycles after stage 2
        received_unequal = _register(m, step, received_unequal, "received_unequal_2")  # `span` cycles after stage 3
        received_differs = _register(m, step, received_unequal, "received_differs")  # `span` cycles after stage 4

        # Checksum of the sum, without and with the hash: the packet's checksum plus the checksum of this node's
        # changes.
        changes = [_register(m, step, self._change(own[lane], removed[lane], marks.special[lane]), f"change_{lane}")
                   for lane in range(self._lanes)]  # stage 2
        check = self._checksum(m, step, "changed", changes, slots[2:])
        without = _register(m, step, without, "received_check")  # `span` cycles after stage 2
        later = _delayed(m, step, Cat(begun, unsure | flipped), span + 1, "begun_checks")  # `span` after stage 2
        begun, unsure = later[:HASH], later[HASH]
        spoiled = _register(m, step, spoiled | unsure, "spoiled")  # `span` cycles after stage 3
        # The lowest bit of this sum only generates a carry, which makes the check fail.
        expected = (Cat(unsure, check) + Cat(unsure, without))[1:33]
        expected = _register(m, step, expected, "expected")  # `span` cycles after stage 3
        seal = _register(m, step, (check + begun)[:32], "seal")  # `span` cycles after stage 3

        # Sums, and their checksum.
        sums, marks = self._sums(m, step, own, received, marks)  # stage 3
        check = self._checksum(m, step, "added", _elements(sums), slots[3:])
        added_differs = _register(m, step, (check ^ expected).any(), "added_unequal")  # `span` cycles after stage 4
        total_hash = self._hash(m, step, sums, slots[3])  # stage 3
        m.d.sync += self.total_hash.eq(_delayed(m, step, total_hash, span + 1, "total_hash"))
        self._leave(m, step, slots[3 + span:], sums=_delayed(m, step, sums, span, "sums"),
                    seal=Mux(spoiled, 0, seal), marks=_delayed(m, step, marks, span, "marks"),
                    stored=output.i, differs=Cat(received_differs, added_differs))
        self._offer(m, output.o)
        return m

    def _slots(self, m, step, last):
        """Accept inputs, and return the pipeline slots of the stages 0 to ``last``."""
        slots = [Signal(_slot_layout(), name=f"slot_{stage}") for stage in range(last + 1)]
        with m.If(step):
            m.d.sync += [later.eq(slot) for slot, later in itertools.pairwise(slots)]
        entry = slots[0]
        there = Signal()
        check = Signal()  # the next word is the checksum
        paired = self.kind.payload.paired
        m.d.comb += [
            there.eq(self.kind.valid & (~paired | self.b.valid)),
            entry.integers.eq(there & self.a.valid & ~check),
            entry.check.eq(there & check & self.hash.valid),
            self.a.ready.eq(step & there & ~check),
            self.b.ready.eq(step & self.kind.valid & paired & Mux(check, self.hash.valid, self.a.valid)),
            self.kind.ready.eq(step & entry.check),
            self.hash.ready.eq(step & there & check),
        ]
        with m.If(step & (entry.integers | entry.check)):
            m.d.sync += check.eq(entry.integers & self.a.payload.last)
        return slots

    def _enter(self, m, step):
        """Return the input registers: the node's own integers, or the code of the sum where it is infinite or NaN;
        the received codes that these codes replace; the received words; the flags of the sum; and whether a parity is
        wrong. +infinity is stored with the code of NaN.
        """
        width, paired = self._width, self.kind.payload.paired
        a, word = self.a.payload, self.b.payload.data
        _, flags = integers_of(m, word, width)
        marks = Signal(data.StructLayout({"special": a.special.shape(), "last": 1, "final": 1}), reset_less=True)
        arrays = [Signal(data.ArrayLayout(width, self._lanes), name=name, reset_less=True)
                  for name in ("own", "removed", "received")]
        own, removed, received = arrays
        parities = []  # parity of each lane and its flags
        with m.If(step):
            m.d.sync += [
                own.eq(self._load(a.data)),
                removed.eq(word),
                received.eq(word),
                marks.last.eq(a.last),
                marks.final.eq(self.kind.payload.final),
            ]
        for lane, flag in enumerate(flags.word_select(n, 2) for n in range(self._lanes)):
            special = Signal(2, name=f"special_{lane}")
            m.d.comb += special.eq(a.special[lane] | Mux(paired, flag, 0))
            # The code of -infinity has an even number of ones, the code of NaN an odd number.
            parities.append(Mux(special.any(), special[1], a.data.word_select(lane, width).xor()))
            # Synchronous resets of flip-flops need no LUTs.
            with m.If(step):
                m.d.sync += marks.special[lane].eq(special)
            with m.If(step & special.any()):
                m.d.sync += own[lane].eq(Cat(special == 0b10, Const(0, width - 2), 1))
            with m.If(step & ~(paired & special.any())):
                m.d.sync += removed[lane].eq(0)
            with m.If(step & ~paired):
                m.d.sync += received[lane].eq(0)
        wrong = _register(m, step, a.parity ^ parity_of(a), "wrong_parity")
        parity = _register(m, step, Cat(parities).xor(), "parity")
        differs = own.as_value().xor() ^ marks.special.as_value().xor() ^ parity
        return own, removed, received, marks, wrong | differs

    def _flipped(self, m, step, differs, slot):
        """Return whether a word of the packet in this stage had the wrong parity; valid in the slot of the
        checksum."""
        flipped = Signal()
        with m.If(step & slot.integers & differs):
            m.d.sync += flipped.eq(1)
        with m.If(step & slot.check):
            m.d.sync += flipped.eq(0)
        return flipped

    def _load(self, word):
        """Return the word to store in the register of own integers. Tests override this to inject faults."""
        return word

    def _begin(self, m, step):
        """Return registers with the checksum to update, the hash that it contains, and whether ``paired`` and
        ``first`` contradict each other; they are valid in the slot of a checksum.
        """
        kind = self.kind.payload
        begun = Signal(HASH, reset_less=True)
        with m.If(step):
            m.d.sync += begun.eq(Mux(kind.paired, self.b.payload.data, self.hash.payload))
        return (begun, _register(m, step, self.hash.payload, "hash_1"),
                _register(m, step, kind.paired == kind.first, "unsure"))

    def _change(self, own, removed, special):
        """Return the difference of integers or codes. +infinity's code is 2**width - 1 more than NaN's code."""
        positive = special == 0b01
        difference = Cat(0, own, own[-1] & ~positive).as_signed() - Cat(positive, removed).as_signed()
        return difference[1:self._width + 2].as_signed()

    def _sums(self, m, step, own, received, marks):
        """Return the codes of sums after two stages, with their flags."""
        later = _register(m, step, marks, "marks_2")
        sums = Signal(data.ArrayLayout(self._width, self._lanes), reset_less=True)
        for lane in range(self._lanes):
            with m.If(step):
                m.d.sync += sums[lane].eq(self._add(own[lane], received[lane]))
            with m.If(step & marks.special[lane].any()):
                m.d.sync += sums[lane].eq(0)
        codes = _register(m, step, sums, "codes")
        for lane in range(self._lanes):
            # Only the ones in the code of a special element must be set, since its sum has been cleared.
            positive, negative = later.special[lane]
            with m.If(step & positive & ~negative):
                m.d.sync += codes[lane][1:-1].eq(~0)
            with m.If(step & (positive ^ negative)):
                m.d.sync += codes[lane][0].eq(1)
            with m.If(step & negative):
                m.d.sync += codes[lane][-1].eq(1)
        return codes, _register(m, step, later, "marks_3")

    def _add(self, own, received):
        """Return the sum of two integers. Tests override this to inject faults."""
        return own + received

    def _checksum(self, m, step, name, integers, slots):
        """Accumulate the checksum of the signed integers in ``slots[0]``; return it for the slot that arrives
        ``_span`` stages later.
        """
        total = Signal(32, name=f"{name}_total")
        check = Signal(32, name=f"{name}_check")
        # Each word adds to the checksum its integers and twice their prefix sums. This is a multiple of the total up
        # to and including this word, plus a term that depends on this word only.
        if self._lanes == 1:
            added = rest = integers[0]
        else:
            low, high = integers
            added = _register(m, step, low + high, f"{name}_pair")
            rest = _register(m, step, low - high, f"{name}_difference")
        rest = _register(m, step, rest, f"{name}_rest")
        share = _register(m, step, ((total << self._lanes) + rest)[:32], f"{name}_share")
        first, last = slots[self._span - 2], slots[self._span]
        with m.If(step & first.integers):
            m.d.sync += total.eq(total + added)
        with m.If(step & last.integers):
            m.d.sync += check.eq(check + share)
        # Each sum is cleared as soon as it has been used, since the next packet may follow immediately.
        with m.If(step & first.check):
            m.d.sync += total.eq(0)
        with m.If(step & last.check):
            m.d.sync += check.eq(0)
        return check

    def _hash(self, m, step, codes, slot):
        """Return the hash of the codes of the packet in this stage; valid in the slot of the checksum."""
        start = START % (1 << SUM_HASH)
        so_far = Signal(SUM_HASH, init=start)
        with m.If(step & slot.integers):
            m.d.sync += so_far.eq(sum_hash(so_far, codes.as_value()))
        with m.If(step & slot.check):
            m.d.sync += so_far.eq(start)
        return so_far

    def _leave(self, m, step, slots, *, sums, seal, marks, stored, differs):
        """Hold each word in the last stage, and the last word of a final packet until both checks are done."""
        width, (slot, last_slot) = self._width, slots
        held = Signal(_output_layout(width), reset_less=True)
        there = Signal()
        load = Signal()
        m.d.comb += load.eq(slot.integers | (~marks.final & slot.check))
        with m.If(step & load):
            m.d.sync += [
                held.data.eq(Mux(slot.integers, sums, seal)),
                held.special.eq(marks.special),
                held.last.eq(Mux(marks.final, marks.last, slot.check)),
                held.final.eq(marks.final),
            ]
        for lane in range(self._lanes):
            # Within the node, flags replace codes.
            with m.If(step & slot.integers & marks.final & marks.special[lane].any()):
                m.d.sync += held.data.word_select(lane, width).eq(0)

        waits = Signal()
        failed = Signal()
        m.d.comb += [
            waits.eq(held.final & held.last & ~last_slot.check),
            stored.valid.eq(there & ~waits & ~(held.final & (failed | (held.last & differs.any())))),
            stored.payload.eq(held),
        ]
        m.d.sync += [
            self.checked.eq(step & last_slot.check),
            self.complete.eq(held.final),
            self.received_wrong.eq(step & last_slot.check & differs[0]),
            self.added_wrong.eq(step & last_slot.check & differs[1]),
        ]
        with m.If(step):
            m.d.sync += there.eq(load | (there & waits))
            with m.If(last_slot.check & held.final & differs.any()):
                m.d.sync += failed.eq(1)

    def _offer(self, m, stored):
        """Offer the stored word at ``total`` if its packet is final, otherwise at ``sent``."""
        word = stored.payload
        m.d.comb += [
            self.sent.valid.eq(stored.valid & ~word.final),
            self.sent.payload.data.eq(word.data),
            self.sent.payload.last.eq(word.last),
            self.total.valid.eq(stored.valid & word.final),
            self.total.payload.data.eq(word.data),
            self.total.payload.special.eq(word.special),
            self.total.payload.last.eq(word.last),
            stored.ready.eq(Mux(word.final, self.total.ready, self.sent.ready)),
        ]
