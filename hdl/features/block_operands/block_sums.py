# amaranth: UnusedElaboratable=no
# ``latency`` uses the adder's latency even if this component is not elaborated.
"""Sums of dot products of blocks in binary32, and the results of tiles."""

from amaranth.hdl import C, Cat, Module, Mux, Signal, signed
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from hdl.features.block_operands.block_form import form_of
from hdl.features.block_operands.block_former import BANKS, block_layout, check_block_units, opening_layout
from hdl.features.compute.array import TILES, result_layout
from hdl.features.compute.feature import MAX_BLOCK_UNITS
from hdl.features.compute.multiply_accumulate import SLOTS
from hdl.floating.add import FloatAdder
from hdl.floating.format import FP32
from hdl.floating.stages import leading_zeros, register, shift_left
from hdl.streams.stream import SkidBuffer, connect_stream, step_count

__all__ = ["BlockSums"]

_UNIT_BITS = MAX_BLOCK_UNITS.bit_length() - 1
#: Number of cycles to convert a dot product to binary32, and to add the result to its sum.
_CONVERT = 4
_ADD = FloatAdder.latency


class BlockSums(wiring.Component):
    """Accumulate dot products, given as integers with exponents, and output the sums of each tile.

    From ``start`` on, one dot product arrives per cycle, unit by unit, then row by row and slot by slot. A slot takes
    one cycle per element of a block; cycles after the last unit have no dot product. Each dot product is converted to
    binary32 without rounding, or to a zero or infinity of its sign if it is too small to be normal or too large, and
    is added to the sum of its slot and unit, which starts at +0.0 or an initial value. The memory of sums can hold
    :data:`~hdl.features.block_operands.block_former.BANKS` tiles; ``room`` is high if another tile can start.

    The first element of a complete tile is read :attr:`latency` cycles after its last ``start``, and then one per
    cycle, as long as results are taken. All stages that wait for ``o.ready`` move together; a skid buffer follows.

    Parameters
    ----------
    rows, columns, codec
        As in :class:`~hdl.features.block_operands.block_former.BlockFormer`.

    Members
    -------
    start : In(1)
        The first dot product of a block arrives, in slot 0.
    block : In(block_layout())
        The block, read together with ``start``.
    total : In(signed)
        Dot product, as an integer computed from factors and scales.
    exponent : In(9)
        Sum of both exponents.
    nan : In(1)
        Whether either block contains an infinity or a NaN.
    begins : In(1)
        The factors of a tile begin to arrive; its ``start`` follows later.
    room : Out(1)
    opening : In(opening_layout(rows, columns))
    o : Out(stream of result_layout(rows, columns))
    """

    def __init__(self, *, rows, columns, codec):
        check_block_units(rows, columns, codec)
        self._rows, self._columns, self._form = rows, columns, form_of(codec)
        self._cycles = self._form.block * SLOTS
        super().__init__({
            "start": In(1), "block": In(block_layout()), "total": In(signed(self._form.scaled_bits)),
            "exponent": In(9), "nan": In(1), "begins": In(1), "room": Out(1),
            "opening": In(opening_layout(rows, columns)),
            "o": Out(stream.Signature(result_layout(rows, columns))),
        })

    @property
    def latency(self):
        """Latency in cycles from ``start`` of a tile's last block to the read of its first element."""
        return self._cycles + _CONVERT + _ADD

    def elaborate(self, platform):
        m = Module()
        m.submodules.sums = sums = Memory(
            shape=FP32.width, depth=BANKS * SLOTS * MAX_BLOCK_UNITS, init=[], attrs={"no_rw_check": 1})
        m.submodules.openings = openings = Memory(
            shape=data.ArrayLayout(FP32.width, self._columns), depth=BANKS * SLOTS * self._rows, init=[],
            attrs={"no_rw_check": 1})
        m.submodules.adder = adder = FloatAdder()
        m.d.comb += adder.a.eq(self._number(m))
        tiles, complete = self._elaborate_sums(m, adder, sums, openings)
        self._elaborate_drain(m, sums, tiles, complete)
        return m

    def _number(self, m):
        """Convert the dot product to binary32 in four pipeline stages."""
        # Stage 1: take the magnitude.
        sign, magnitude = self.total[-1], Signal(len(self.total) - 1)
        width = len(magnitude)
        m.d.comb += magnitude.eq((self.total ^ sign.replicate(width + 1)) + sign)
        split = register(m, "split", magnitude=magnitude, sign=sign, exponent=self.exponent, nan=self.nan)
        # Stage 2: count the leading zeros.
        amount, none = leading_zeros(m, split.magnitude)
        counted = register(m, "counted", magnitude=split.magnitude, amount=amount, none=none, sign=split.sign,
                           exponent=split.exponent, nan=split.nan)
        # Stage 3: normalise and compute the exponent field.
        offset = width - 1 - FP32.bias - 2 * self._form.places
        field = Signal(signed(len(counted.exponent) + 2))
        m.d.comb += field.eq(counted.exponent + offset - counted.amount)
        placed = register(m, "placed", fraction=shift_left(m, counted.magnitude, counted.amount)[:-1], field=field,
                          zero=counted.none, sign=counted.sign, nan=counted.nan)
        # Stage 4: handle zeros, infinities and NaNs.
        number = Signal(FP32.layout, reset_less=True)
        m.d.sync += [
            number.fraction.eq(Cat(C(0, FP32.fraction_bits - width + 1), placed.fraction)),
            number.exponent.eq(placed.field), number.sign.eq(placed.sign & ~placed.nan)]
        with m.If(placed.nan | (~placed.field[-1] & (placed.field >= FP32.exponent_ones) & ~placed.zero)):
            m.d.sync += [number.exponent.eq(FP32.exponent_ones),
                         number.fraction.eq(placed.nan.shift_left(FP32.fraction_bits - 1))]
        with m.Elif(placed.zero | placed.field[-1] | ~placed.field.any()):
            m.d.sync += [number.exponent.eq(0), number.fraction.eq(0)]
        return number

    def _positions(self, m, name, start):
        """Return whether a dot product arrives, and its position in the block, counted from ``start``."""
        following, running = Signal(range(self._cycles), name=f"{name}_following"), Signal(name=f"{name}_running")
        position, there = Signal(range(self._cycles), name=f"{name}_position"), Signal(name=f"{name}_there")
        m.d.comb += [position.eq(Mux(start, 0, following)), there.eq(start | running)]
        m.d.sync += [following.eq(position + 1), running.eq(there & ~position.all())]
        return there, position

    def _split(self, position):
        """Split a position into slot and unit; there may be fewer units than cycles in a slot."""
        bits = self._form.block.bit_length() - 1
        return position[bits:], position[:bits]

    def _elaborate_sums(self, m, adder, sums, openings):
        """Read the sums, write them back, and track the shape of each tile and whether it is complete."""
        starts = [self.start]
        for stage in range(_CONVERT + _ADD):
            later = Signal(name=f"start_{stage}")
            m.d.sync += later.eq(starts[-1])
            starts.append(later)

        # Sums are read three cycles before the addition.
        read = sums.read_port()
        first = openings.read_port()
        block = Signal(block_layout(), name="block_read", reset_less=True)
        with m.If(starts[_CONVERT - 4]):
            m.d.sync += block.eq(self.block)
        _, position = self._positions(m, "read", starts[_CONVERT - 3])
        slot, unit = self._split(position)
        column_bits, row_bits = self._columns.bit_length() - 1, self._rows.bit_length() - 1
        column, row = unit[:column_bits], unit[column_bits:column_bits + row_bits]
        m.d.comb += [
            read.addr.eq(Cat(unit[:_UNIT_BITS], slot, block.bank)),
            first.addr.eq(Cat(Mux(block.common, 0, row)[:row_bits], slot, block.bank))]
        asked = register(m, "asked", begins=block.begins, initial=block.initial, column=column)
        chosen = register(m, "chosen", **vars(asked), known=read.data, initials=first.data)
        initials = data.View(first.data.shape(), chosen.initials)
        before = Signal(FP32.width, reset_less=True)
        m.d.comb += adder.b.eq(before)
        with m.If(~chosen.begins):
            m.d.sync += before.eq(chosen.known)
        with m.Elif(chosen.initial):
            m.d.sync += before.eq(initials[chosen.column])
        with m.Else():
            m.d.sync += before.eq(0)
        store, opening = openings.write_port(), self.opening
        m.d.comb += [store.en.eq(opening.valid), store.data.eq(opening.elements),
                     store.addr.eq(Cat(opening.row[:row_bits], opening.slot, opening.bank))]

        write = sums.write_port()
        written = Signal(block_layout(), name="block_written", reset_less=True)
        with m.If(starts[_CONVERT + _ADD - 1]):
            m.d.sync += written.eq(block)
        there, position = self._positions(m, "write", starts[_CONVERT + _ADD])
        slot, unit = self._split(position)
        m.d.comb += [
            write.en.eq(there & (unit < self._rows * self._columns)), write.data.eq(adder.o),
            write.addr.eq(Cat(unit[:_UNIT_BITS], slot, written.bank))]
        complete = Signal()
        m.d.comb += complete.eq(there & position.all() & written.ends)
        tiles = [Signal(range(TILES), name=f"tile_{number}", reset_less=True) for number in range(BANKS)]
        for number, tile in enumerate(tiles):
            with m.If(complete & (written.bank == number)):
                m.d.sync += tile.eq(written.tile)
        return tiles, complete

    def _elaborate_drain(self, m, sums, tiles, complete):
        """Read the elements of complete tiles one at a time and assemble them into rows."""
        m.submodules.results = results = SkidBuffer(shape=self.o.payload.shape())
        connect_stream(m, results.o, self.o)
        move = results.i.ready
        held, waiting = Signal(range(BANKS + 1)), Signal(range(BANKS + 1))
        bank = Signal(range(BANKS))
        column_bits, row_bits = self._columns.bit_length() - 1, self._rows.bit_length() - 1
        number = Signal(column_bits + row_bits + SLOTS.bit_length() - 1)
        reads, freed = Signal(), Signal()
        m.d.comb += [
            reads.eq(move & (waiting != 0)), freed.eq(reads & number.all()), self.room.eq(held != BANKS)]
        step_count(m, held, up=self.begins, down=freed)
        step_count(m, waiting, up=complete, down=freed)
        with m.If(reads):
            m.d.sync += number.eq(number + 1)
        with m.If(freed):
            m.d.sync += bank.eq(bank + 1)

        # Fields of an element's number, lowest first: column of units, group of columns, row of units, group of rows.
        column, rest = number[:column_bits], number[column_bits:]
        marks = data.StructLayout({"row": range(SLOTS * self._rows), "group": range(SLOTS), "last": 1})
        selected, slot = Signal(marks), Signal(range(SLOTS))
        row = Signal(max(row_bits, 1))
        m.d.comb += selected.last.eq(number.all())
        form = Signal(range(TILES))
        with m.Switch(bank):
            for index, tile in enumerate(tiles):
                with m.Case(index):
                    m.d.comb += form.eq(tile)
        with m.Switch(form):
            for tile in range(TILES):
                group_bits = TILES - 1 - tile
                with m.Case(tile):
                    m.d.comb += [
                        selected.row.eq(rest[group_bits:]), selected.group.eq(rest[:group_bits]),
                        slot.eq(Cat(rest[:group_bits], rest[group_bits + row_bits:])),
                        row.eq(rest[group_bits:group_bits + row_bits])]
        read = sums.read_port()
        unit = Signal(_UNIT_BITS)
        m.d.comb += [unit.eq(Cat(column, row[:row_bits])), read.en.eq(move), read.addr.eq(Cat(unit, slot, bank))]

        there, whole = Signal(), Signal()
        index = Signal(column_bits, reset_less=True)
        read_marks, marked = (Signal(marks, name=name, reset_less=True) for name in ("read_marks", "marked"))
        elements = Signal(results.i.p.elements.shape(), reset_less=True)
        with m.If(move):
            m.d.sync += [there.eq(waiting != 0), index.eq(column), read_marks.eq(selected),
                         elements[index].eq(read.data), whole.eq(there & index.all()), marked.eq(read_marks)]
        m.d.comb += [results.i.valid.eq(whole), results.i.p.elements.eq(elements),
                     *(results.i.p[name].eq(marked[name]) for name in marks.members)]
