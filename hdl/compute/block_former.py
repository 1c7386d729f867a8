"""Blocks of operands: found among the beats of a matrix product, rounded, and read again sum by sum."""

from amaranth.hdl import C, Cat, Module, Mux, Signal, signed
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from hdl.compression.block.shared_exponent import SharedExponent
from hdl.compute.array import TILES, check_units, term_layout
from hdl.compute.multiply_accumulate import SLOTS
from hdl.compute.operands import MOST_BLOCK_UNITS
from hdl.floating.format import FP32
from hdl.floating.stages import register, shift_right

__all__ = ["BANKS", "TERMS", "BlockFormer", "block_layout", "check_block_units", "factor_bits", "opening_layout"]

#: Terms of a block.
TERMS = 16

#: Tiles that have numbers on their way: their initial values, or sums.
BANKS = 4

#: Cycles of a block: those of all its terms in all slots.
_CYCLES = TERMS * SLOTS


def check_block_units(rows, columns, codec):
    """Raise ValueError unless there can be an array of so many rows and columns of such blocks."""
    check_units(rows, columns)
    if rows * columns > MOST_BLOCK_UNITS:
        raise ValueError(f"Array of blocks must have at most {MOST_BLOCK_UNITS} units, not {rows} rows of {columns}")
    if not isinstance(codec, SharedExponent) or (
            codec.block, codec.subset, codec.exponent_bits, codec.difference_bits) != (TERMS, 2, 8, 1):
        raise ValueError(f"Blocks must be of {TERMS} elements, with exponents of 8 bits and differences of one bit "
                         f"for every two elements, not {codec!r}")


def factor_bits(codec):
    """Bits of a factor: a sign, a magnitude, and a place below it for elements of lower subsets."""
    return codec.mantissa_bits + 2


def block_layout():
    """Marks of a block: the bank of its tile, whether it is the tile's first one or its last one, whether sums begin
    with initial values, ``common`` ones for all rows, and the form of the tile."""
    return data.StructLayout({"bank": range(BANKS), "begins": 1, "ends": 1, "initial": 1, "common": 1,
                              "tile": range(TILES)})


def opening_layout(rows, columns):
    """Initial values of a row of units: one element per column."""
    return data.StructLayout({
        "elements": data.ArrayLayout(FP32.width, columns), "bank": range(BANKS), "slot": range(SLOTS),
        "row": range(max(rows, 2)), "valid": 1})


class BlockFormer(wiring.Component):
    """Round operands to blocks along k, and give the factors of each sum one after the other.

    A block is of :data:`TERMS` elements of a row of A, or of a column of B, from the first term of a sum on; the last
    one may have fewer, and zeros in their place. Beats are stored while the largest exponent of every block is found.
    Then they are read again: all terms of slot 0, then of slot 1, in :data:`TERMS` cycles each, however many there
    are. Two blocks of each slot are held, so that the next ones come in while these are read.

    Factors are integers, of which one is the square root of 2 ** (exponents of both - 254 - 2 * mantissa bits), by
    the rule of :mod:`hdl.compression.block.format`. What comes of a block of infinities or NaNs means nothing; its
    exponent has all ones.

    In a beat that is not ``initial`` all rows take part, whatever ``rows`` is, and every sum has one such beat at
    least. ``i.ready`` is a function of registers. Factors follow the decision to read a block by :attr:`latency`
    cycles, that can be made in the cycle after the block's last beat was taken, and else in the last cycle of the
    block before.

    Parameters
    ----------
    rows : int
        Rows of units: 1, 2 or 4.
    columns : int
        Columns of units: 2, 4 or 8, of at most 16 units in all.
    codec : SharedExponent
        MX9 or another format with its block, exponent and differences.

    Members
    -------
    i : In(stream of term_layout(rows, columns))
    room : In(1)
        A tile can begin.
    begins : Out(1)
        High for a cycle when one does.
    opening : Out(opening_layout(rows, columns))
    a, b : Out(arrays of signed factors)
    start, first : Out(1)
        These factors are the first ones of all slots of a block, and of a slot.
    a_exponents, b_exponents : Out(arrays of 8)
        Exponents of the slot's blocks.
    block : Out(block_layout())
        Held from ``start`` on.
    """

    latency = 7

    def __init__(self, *, rows, columns, codec):
        check_block_units(rows, columns, codec)
        self._rows, self._columns, self._codec = rows, columns, codec
        factor = signed(factor_bits(codec))
        super().__init__({
            "i": In(stream.Signature(term_layout(rows, columns))),
            "room": In(1),
            "begins": Out(1),
            "opening": Out(opening_layout(rows, columns)),
            "a": Out(data.ArrayLayout(factor, rows)),
            "b": Out(data.ArrayLayout(factor, columns)),
            "start": Out(1),
            "first": Out(1),
            "a_exponents": Out(data.ArrayLayout(8, rows)),
            "b_exponents": Out(data.ArrayLayout(8, columns)),
            "block": Out(block_layout()),
        })

    def elaborate(self, platform):
        m = Module()
        lanes = self._rows + self._columns
        width = FP32.exponent_bits + self._codec.mantissa_bits + 2
        m.submodules.elements = elements = Memory(
            shape=data.ArrayLayout(width, lanes), depth=2 * _CYCLES, init=[], attrs={"no_rw_check": 1})
        write, read = elements.write_port(), elements.read_port()
        peaks = []
        for lane in range(lanes):
            m.submodules[f"peaks_{lane}"] = peak = Memory(
                shape=8, depth=2 * SLOTS, init=[], attrs={"no_rw_check": 1, "ram_style": "distributed"})
            peaks.append((peak.write_port(), peak.read_port(domain="comb"), peak.read_port(domain="comb")))
        filled, blocks = self._elaborate_input(m, write, peaks)
        self._elaborate_reading(m, read, peaks, filled, blocks)
        return m

    def _elaborate_input(self, m, write, peaks):
        """Store beats; return for both halves of the memory whether it is full, its last term, and its block."""
        given = self.i.payload
        slot, term, half = Signal(range(SLOTS)), Signal(range(TERMS)), Signal()
        filled = Signal(2)
        taken, stores, complete = Signal(), Signal(), Signal()
        bank = Signal(range(BANKS))
        begun, initial, common = Signal(), Signal(), Signal()
        ending = Signal()
        m.d.comb += [
            self.i.ready.eq(~filled.bit_select(half, 1)),
            taken.eq(self.i.valid & self.i.ready),
            stores.eq(taken & ~given.initial),
            ending.eq((slot == SLOTS - 1) & given.last),
            complete.eq(stores & (slot == SLOTS - 1) & ((term == TERMS - 1) | given.last)),
        ]
        blocks = [(Signal(range(TERMS), name=f"terms_{number}", reset_less=True),
                   Signal(block_layout(), name=f"block_{number}", reset_less=True)) for number in range(2)]
        with m.If(taken):
            m.d.sync += slot.eq(slot + 1)
            with m.If(given.initial):
                m.d.sync += [initial.eq(1), common.eq(given.rows.all() if self._rows > 1 else 0)]
            with m.Elif(slot == SLOTS - 1):
                m.d.sync += [term.eq(Mux(complete, 0, term + 1)), half.eq(half ^ complete)]
                with m.If(complete):
                    m.d.sync += begun.eq(1)
            with m.If(ending):
                m.d.sync += [bank.eq(bank + 1), begun.eq(0), initial.eq(0), common.eq(0)]
        for number, (terms, block) in enumerate(blocks):
            with m.If(complete & (half == number)):
                m.d.sync += [
                    terms.eq(term), block.bank.eq(bank), block.begins.eq(~begun), block.ends.eq(given.last),
                    block.initial.eq(initial), block.common.eq(common), block.tile.eq(given.tile)]
                m.d.sync += filled[number].eq(1)

        opening = Signal.like(self.opening)
        m.d.comb += self.opening.eq(opening)
        row = sum((Mux(given.rows[number], number, 0) for number in range(1, self._rows)), C(0, 1))
        m.d.sync += [
            opening.valid.eq(taken & given.initial), opening.elements.eq(given.b), opening.bank.eq(bank),
            opening.slot.eq(slot), opening.row.eq(Mux(given.rows.all(), 0, row) if self._rows > 1 else 0)]

        m.d.comb += [write.en.eq(stores), write.addr.eq(Cat(slot, term, half))]
        kept = self._codec.mantissa_bits
        for lane, element in enumerate((*(given.a[row] for row in range(self._rows)),
                                        *(given.b[column] for column in range(self._columns)))):
            opened = data.View(FP32.layout, element)
            lost = FP32.fraction_bits - kept
            m.d.comb += write.data[lane].eq(Cat(
                opened.fraction[:lost].any(), opened.fraction[lost:], opened.sign, opened.exponent))
            store, known, _ = peaks[lane]
            m.d.comb += [
                known.addr.eq(Cat(slot, half)), store.addr.eq(Cat(slot, half)), store.en.eq(stores),
                store.data.eq(Mux((term == 0) | (opened.exponent > known.data), opened.exponent, known.data))]
        return filled, blocks

    def _elaborate_reading(self, m, read, peaks, filled, blocks):
        """Read blocks again, and round them in six stages."""
        active, half = Signal(), Signal()
        count = Signal(range(_CYCLES))
        term, slot = count[:TERMS.bit_length() - 1], count[TERMS.bit_length() - 1:]
        chosen = Signal(block_layout(), name="chosen")
        terms, reading = Signal(range(TERMS), reset_less=True), Signal(block_layout(), reset_less=True)
        current, final, go = Signal(), Signal(), Signal()
        m.d.comb += [
            final.eq(count.all()), chosen.eq(Mux(half, blocks[1][1], blocks[0][1])),
            go.eq((~active | final) & filled.bit_select(half, 1) & (self.room | ~chosen.begins)),
            self.begins.eq(go & chosen.begins)]
        with m.If(active):
            m.d.sync += count.eq(count + 1)
        with m.If(go):
            m.d.sync += [active.eq(1), half.eq(~half), current.eq(half), reading.eq(chosen),
                         terms.eq(Mux(half, blocks[1][0], blocks[0][0]))]
        with m.Elif(final):
            m.d.sync += active.eq(0)
        # The next beat is written behind the last read at the earliest, to another address.
        for number in range(2):
            with m.If(active & (count == _CYCLES - 2) & (current == number)):
                m.d.sync += filled[number].eq(0)
        m.d.comb += [read.en.eq(1), read.addr.eq(Cat(slot, term, current))]

        # 0: the element is read. 1: with the first one of a slot, the exponents of its blocks.
        lanes = len(peaks)
        shared = [Signal(8, name=f"shared_{lane}", reset_less=True) for lane in range(lanes)]
        asked = register(m, "asked", address=Cat(slot, current), opens=term == 0, present=term <= terms, odd=term[0])
        for lane, (_, _, known) in enumerate(peaks):
            m.d.comb += known.addr.eq(asked.address)
            with m.If(asked.opens):
                m.d.sync += shared[lane].eq(known.data)
        came = register(m, "came", present=asked.present, odd=asked.odd, elements=read.data)
        present, odd = came.present, came.odd
        width = len(came.elements) // lanes
        opens = [active & (term == 0), active & (count == 0)]
        marks = []
        for name, mark in zip(("first", "start"), opens, strict=True):
            delayed = [mark]
            for stage in range(1, self.latency):
                later = Signal(name=f"{name}_{stage}")
                m.d.sync += later.eq(delayed[-1])
                delayed.append(later)
            marks.append(delayed)
        first, start = marks
        m.d.comb += [self.first.eq(first[-1]), self.start.eq(start[-1])]

        kept = self._codec.mantissa_bits
        factors = []
        for lane in range(lanes):
            # 2: whether the element has the block's exponent.
            given = came.elements[lane * width:(lane + 1) * width]
            sticky, fraction, sign, exponent = given[0], given[1:kept + 1], given[kept + 1], given[kept + 2:]
            here = Signal(name=f"here_{lane}")
            m.d.comb += here.eq(present & (exponent == shared[lane]))
            opened = register(m, f"opened_{lane}", rest=Cat(sticky, fraction), sign=sign, exponent=exponent, top=here,
                              zero=~present | ~exponent.any(), shared=shared[lane], odd=odd)
            before = register(m, f"before_{lane}", top=opened.top)
            # 3: the difference is none where one of a pair of elements has it; how far to shift.
            lower = ~(opened.top | Mux(opened.odd, before.top, here))
            right = Signal(9, name=f"right_{lane}")
            m.d.comb += right.eq((Cat(C(0, 1), opened.shared) - Cat(lower, opened.exponent))[1:])
            places = (kept + 1).bit_length()
            aimed = register(m, f"aimed_{lane}", amount=right[:places],
                             zero=opened.zero | right[places:8].any(), rest=opened.rest, sign=opened.sign,
                             lower=lower)
            # 4: shift magnitude and guard bit.
            window, lost = shift_right(m, Cat(aimed.rest[1:], C(1, 1)), aimed.amount, width=kept + 1)
            shifted = register(m, f"shifted_{lane}", window=Mux(aimed.zero, 0, window),
                               sticky=~aimed.zero & (lost.any() | aimed.rest[0]), sign=aimed.sign, lower=aimed.lower)
            # 5: round, unless that would take one bit more, and move to the place of the subset.
            magnitude = Signal(kept, name=f"magnitude_{lane}")
            up = shifted.window[0] & (shifted.sticky | shifted.window[1]) & ~shifted.window[1:].all()
            m.d.comb += magnitude.eq(shifted.window[1:] + up)
            moved = Mux(shifted.lower, magnitude, Cat(C(0, 1), magnitude))
            factor = Signal(signed(kept + 2), name=f"factor_{lane}", reset_less=True)
            m.d.sync += factor.eq((Cat(moved, C(0, 1)) ^ shifted.sign.replicate(kept + 2)) + shifted.sign)
            factors.append(factor)
        exponents = [Signal(8, name=f"exponent_{lane}", reset_less=True) for lane in range(lanes)]
        block = Signal(block_layout(), reset_less=True)
        with m.If(first[-2]):
            m.d.sync += [later.eq(now) for later, now in zip(exponents, shared, strict=True)]
        with m.If(start[-2]):
            m.d.sync += block.eq(reading)
        m.d.comb += self.block.eq(block)
        for row in range(self._rows):
            m.d.comb += [self.a[row].eq(factors[row]), self.a_exponents[row].eq(exponents[row])]
        for column in range(self._columns):
            m.d.comb += [self.b[column].eq(factors[self._rows + column]),
                         self.b_exponents[column].eq(exponents[self._rows + column])]
