"""Form blocks of operands from the beats of a matrix product, round them, and read them sum by sum."""

from amaranth.hdl import C, Cat, Module, Mux, Signal, signed
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from hdl.features.block_operands.block_form import SubsetRounder, form_of
from hdl.features.compute.array import TILES, check_units, term_layout
from hdl.features.compute.feature import MAX_BLOCK_UNITS
from hdl.features.compute.multiply_accumulate import SLOTS
from hdl.floating.format import FP32
from hdl.floating.stages import register, wait

__all__ = ["BANKS", "BlockFormer", "block_layout", "check_block_units", "opening_layout"]

#: Maximum number of tiles in flight; the memories hold the initial values and sums of this many tiles.
BANKS = 4


def check_block_units(rows, columns, codec):
    """Raise ValueError unless an array can have ``rows`` x ``columns`` units for blocks of ``codec``."""
    check_units(rows, columns)
    if rows * columns > MAX_BLOCK_UNITS:
        raise ValueError(f"Array of blocks must have at most {MAX_BLOCK_UNITS} units, not {rows} rows of {columns}")
    form_of(codec)


def block_layout():
    """Layout of a block's properties: bank and form of its tile, whether it is the tile's first or last block,
    whether sums have initial values, and whether these are ``common`` to all rows."""
    return data.StructLayout({"bank": range(BANKS), "begins": 1, "ends": 1, "initial": 1, "common": 1,
                              "tile": range(TILES)})


def opening_layout(rows, columns):
    """Layout of the initial values of a row of units: one element per column."""
    return data.StructLayout({
        "elements": data.ArrayLayout(FP32.width, columns), "bank": range(BANKS), "slot": range(SLOTS),
        "row": range(max(rows, 2)), "valid": 1})


class BlockFormer(wiring.Component):
    """Round operands to blocks along k, and output the factors of one sum after another.

    A block is 16 or 32 elements of a row of A or a column of B, starting from the first term of a sum; a shorter last
    block is filled up with zeros. Beats are stored while the largest exponent of each block is determined. They are
    then read again: all terms of slot 0, then of slot 1, in 16 or 32 cycles each, whatever the number of terms. Two
    blocks of each slot are stored, so that the next blocks arrive while the current ones are read.

    Factors are integers in units of the format's :class:`~hdl.features.block_operands.block_form.BlockForm`. The
    factors of a block that contains infinities or NaNs are meaningless; its exponent is all ones.

    In a beat that is not ``initial``, all rows take part, regardless of its field ``rows``; every sum has at least
    one such beat. ``i.ready`` is a function of registers. The first factors are output :attr:`latency` cycles after
    the decision to read a block, which is made in the cycle after its last beat is taken or, if the previous block is
    still being read, in the last cycle of that read.

    Parameters
    ----------
    rows : int
        Number of rows of units: 1, 2 or 4.
    columns : int
        Number of columns of units: 2, 4 or 8, with at most 16 units in total.
    codec : BlockCodec
        A format supported by :func:`~hdl.features.block_operands.block_form.form_of`.

    Members
    -------
    i : In(stream of term_layout(rows, columns))
    room : In(1)
        A new tile can begin.
    begins : Out(1)
        High for a cycle when a tile begins.
    opening : Out(opening_layout(rows, columns))
    a, b : Out(arrays of signed factors)
    start, first : Out(1)
        These factors are the first of a block (``start``) or of a slot (``first``).
    a_scales, b_scales : Out(arrays of form.scale)
        Scales of the slot's blocks.
    block : Out(block_layout())
        Held from ``start`` on.
    """

    def __init__(self, *, rows, columns, codec):
        check_block_units(rows, columns, codec)
        self._rows, self._columns, self._form = rows, columns, form_of(codec)
        factor = signed(self._form.factor_bits)
        super().__init__({
            "i": In(stream.Signature(term_layout(rows, columns))),
            "room": In(1),
            "begins": Out(1),
            "opening": Out(opening_layout(rows, columns)),
            "a": Out(data.ArrayLayout(factor, rows)),
            "b": Out(data.ArrayLayout(factor, columns)),
            "start": Out(1),
            "first": Out(1),
            "a_scales": Out(data.ArrayLayout(self._form.scale, rows)),
            "b_scales": Out(data.ArrayLayout(self._form.scale, columns)),
            "block": Out(block_layout()),
        })

    @property
    def latency(self):
        """Latency in cycles from the decision to read a block until its first factors are output."""
        return 2 + self._form.lead + SubsetRounder.latency

    def elaborate(self, platform):
        m = Module()
        lanes = self._rows + self._columns
        m.submodules.elements = elements = Memory(
            shape=data.ArrayLayout(self._form.element, lanes), depth=2 * self._form.block * SLOTS, init=[],
            attrs={"no_rw_check": 1})
        write, read = elements.write_port(), elements.read_port()
        peaks = []
        for lane in range(lanes):
            m.submodules[f"peaks_{lane}"] = peak = Memory(
                shape=self._form.key_bits, depth=2 * SLOTS, init=[],
                attrs={"no_rw_check": 1, "ram_style": "distributed"})
            peaks.append((peak.write_port(), peak.read_port(domain="comb"), peak.read_port(domain="comb")))
        rounders = []
        for lane in range(lanes):
            m.submodules[f"rounder_{lane}"] = rounder = self._form.rounder()
            rounders.append(rounder)
        filled, blocks = self._elaborate_input(m, write, peaks)
        self._elaborate_reading(m, read, peaks, rounders, filled, blocks)
        return m

    def _elaborate_input(self, m, write, peaks):
        """Store beats. For each half of the memory, return whether it is full, the number of its last term, and the
        properties of its block."""
        beat = self.i.payload
        size = self._form.block
        slot, term, half = Signal(range(SLOTS)), Signal(range(size)), Signal()
        filled = Signal(2)
        taken, stores, complete = Signal(), Signal(), Signal()
        bank = Signal(range(BANKS))
        begun, initial, common = Signal(), Signal(), Signal()
        ending = Signal()
        m.d.comb += [
            self.i.ready.eq(~filled.bit_select(half, 1)),
            taken.eq(self.i.valid & self.i.ready),
            stores.eq(taken & ~beat.initial),
            ending.eq((slot == SLOTS - 1) & beat.last),
            complete.eq(stores & (slot == SLOTS - 1) & ((term == size - 1) | beat.last)),
        ]
        blocks = [(Signal(range(size), name=f"terms_{number}", reset_less=True),
                   Signal(block_layout(), name=f"block_{number}", reset_less=True)) for number in range(2)]
        with m.If(taken):
            m.d.sync += slot.eq(slot + 1)
            with m.If(beat.initial):
                m.d.sync += [initial.eq(1), common.eq(beat.rows.all() if self._rows > 1 else 0)]
            with m.Elif(slot == SLOTS - 1):
                m.d.sync += [term.eq(Mux(complete, 0, term + 1)), half.eq(half ^ complete)]
                with m.If(complete):
                    m.d.sync += begun.eq(1)
            with m.If(ending):
                m.d.sync += [bank.eq(bank + 1), begun.eq(0), initial.eq(0), common.eq(0)]
        for number, (terms, block) in enumerate(blocks):
            with m.If(complete & (half == number)):
                m.d.sync += [
                    terms.eq(term), block.bank.eq(bank), block.begins.eq(~begun), block.ends.eq(beat.last),
                    block.initial.eq(initial), block.common.eq(common), block.tile.eq(beat.tile)]
                m.d.sync += filled[number].eq(1)

        opening = Signal.like(self.opening)
        m.d.comb += self.opening.eq(opening)
        row = sum((Mux(beat.rows[number], number, 0) for number in range(1, self._rows)), C(0, 1))
        m.d.sync += [
            opening.valid.eq(taken & beat.initial), opening.elements.eq(beat.b), opening.bank.eq(bank),
            opening.slot.eq(slot), opening.row.eq(Mux(beat.rows.all(), 0, row) if self._rows > 1 else 0)]

        m.d.comb += [write.en.eq(stores), write.addr.eq(Cat(slot, term, half))]
        for lane, number in enumerate((*(beat.a[row] for row in range(self._rows)),
                                       *(beat.b[column] for column in range(self._columns)))):
            opened = data.View(FP32.layout, number)
            key = Signal(self._form.key_bits, name=f"key_{lane}")
            m.d.comb += [write.data[lane].eq(self._form.store(opened)), key.eq(self._form.key(opened))]
            store, known, _ = peaks[lane]
            m.d.comb += [
                known.addr.eq(Cat(slot, half)), store.addr.eq(Cat(slot, half)), store.en.eq(stores),
                store.data.eq(Mux((term == 0) | (key > known.data), key, known.data))]
        return filled, blocks

    def _elaborate_reading(self, m, read, peaks, rounders, filled, blocks):
        """Read blocks and pass them to the rounders."""
        active, half = Signal(), Signal()
        size = self._form.block
        count = Signal(range(size * SLOTS))
        term, slot = count[:size.bit_length() - 1], count[size.bit_length() - 1:]
        chosen = Signal(block_layout(), name="chosen")
        terms, reading = Signal(range(size), reset_less=True), Signal(block_layout(), reset_less=True)
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
        # The last reads may still wait for the scale, but the next beats are written to other addresses.
        for number in range(2):
            with m.If(active & (count == size * SLOTS - 2) & (current == number)):
                m.d.sync += filled[number].eq(0)
        # The keys of a slot's blocks are read when the slot begins; the elements of the slot are read once its scales
        # are known.
        asked = register(m, "asked", address=Cat(slot, current), opens=term == 0)
        spare = self._form.lead - 1
        m.d.comb += [read.en.eq(1), read.addr.eq(wait(m, "address", Cat(slot, term, current), spare))]
        there = Cat(term <= terms, term[0])
        came = register(m, "came", there=wait(m, "there", there, spare + 1), elements=read.data)
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
        elements = data.View(read.data.shape(), came.elements)
        for (_, _, known), rounder, element in zip(peaks, rounders, elements, strict=True):
            m.d.comb += [
                known.addr.eq(asked.address), rounder.opens.eq(asked.opens), rounder.key.eq(known.data),
                rounder.element.eq(element), rounder.present.eq(came.there[0]), rounder.odd.eq(came.there[1])]
        scales = [Signal(self._form.scale, name=f"scale_{lane}", reset_less=True) for lane in range(len(rounders))]
        block = Signal(block_layout(), reset_less=True)
        with m.If(first[-2]):
            m.d.sync += [scale.eq(rounder.scale) for scale, rounder in zip(scales, rounders, strict=True)]
        with m.If(start[-2]):
            m.d.sync += block.eq(reading)
        m.d.comb += self.block.eq(block)
        for row in range(self._rows):
            m.d.comb += [self.a[row].eq(rounders[row].factor), self.a_scales[row].eq(scales[row])]
        for column in range(self._columns):
            m.d.comb += [self.b[column].eq(rounders[self._rows + column].factor),
                         self.b_scales[column].eq(scales[self._rows + column])]
