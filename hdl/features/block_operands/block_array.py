# amaranth: UnusedElaboratable=no
# The constructor creates the submodules because their latencies are needed even without elaboration.
"""Array of block dot products with shared exponents, as an alternative to multiply-accumulate units."""

from amaranth.hdl import C, Cat, Module, Mux, Signal, signed
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.features.block_operands.block_form import form_of
from hdl.features.block_operands.block_former import BlockFormer
from hdl.features.block_operands.block_sums import BlockSums
from hdl.features.compute.array import delays, result_layout, term_layout
from hdl.streams.stream import connect_stream

__all__ = ["BlockArray"]


class BlockArray(wiring.Component):
    """Compute exact dot products of blocks of A's rows and B's columns, and add them up in binary32.

    A dot product is a sum of integers; if scales have fractions, these are multiplied by each other and then
    by the sum, in one multiplier for all units. The result is exact in binary32 in every format.

    Streams are as in :class:`~hdl.features.compute.array.MacArray`, which this array replaces. A unit multiplies
    integers and adds them up, one term per cycle, and starts after the previous unit, so that one converter and one
    binary32 adder serve all units. Dot products of blocks are added in ascending order of k, and each sum is rounded.

    For each slot, a block takes one cycle per element of the format's blocks, even if it has fewer terms. If the sink
    is always ready, units are busy in every cycle, and pauses of the source cost nothing as long as stored operands
    remain. Latency is :attr:`latency` cycles from the acceptance of a tile's last beat to the offer of its first
    results, if the array was empty before.

    Parameters
    ----------
    rows, columns, codec
        As in :class:`~hdl.features.block_operands.block_former.BlockFormer`.

    Members
    -------
    i : In(stream of term_layout(rows, columns))
    o : Out(stream of result_layout(rows, columns))
    """

    def __init__(self, *, rows, columns, codec):
        self._rows, self._columns, self._form = rows, columns, form_of(codec)
        self._former = BlockFormer(rows=rows, columns=columns, codec=codec)
        self._sums = BlockSums(rows=rows, columns=columns, codec=codec)
        super().__init__({
            "i": In(stream.Signature(term_layout(rows, columns))),
            "o": Out(stream.Signature(result_layout(rows, columns))),
        })

    @property
    def rows(self):
        """Number of rows of units."""
        return self._rows

    @property
    def columns(self):
        """Number of columns of units."""
        return self._columns

    @property
    def shortest(self):
        """Minimum number of rounds per sum for which the array never stalls its source; multiples of it work, too."""
        return self._form.block

    @property
    def _dot(self):
        """Latency in cycles from a slot's first factors to the first unit's dot product and scales."""
        return self._form.block + 4 + self._form.scaling

    @property
    def latency(self):
        """Latency in cycles from the last beat of a tile to its first results."""
        return 1 + self._former.latency + self._dot + self._sums.latency + self._columns + 2

    def elaborate(self, platform):
        m = Module()
        m.submodules.former = former = self._former
        m.submodules.sums = sums = self._sums
        connect_stream(m, self.i, former.i)
        connect_stream(m, sums.o, self.o)
        m.d.comb += [former.room.eq(sums.room), sums.begins.eq(former.begins), sums.opening.eq(former.opening),
                     sums.block.eq(former.block)]

        # Unit (row, column) starts row * columns + column cycles after the first unit.
        columns, units = self._columns, self._rows * self._columns
        a = [delays(m, f"a_{row}", former.a[row], (row + 1) * columns + 1) for row in range(self._rows)]
        b = [delays(m, f"b_{column}", former.b[column], (self._rows - 1) * columns + column + 2)
             for column in range(columns)]
        first = delays(m, "first", former.first, units + 2)
        start = delays(m, "start", former.start, self._dot + 1, reset_less=False)
        totals = []
        for unit in range(units):
            row, column = divmod(unit, columns)
            product = Signal(signed(2 * self._form.factor_bits), name=f"product_{unit}", reset_less=True)
            total = Signal(signed(self._form.total_bits), name=f"total_{unit}", reset_less=True)
            m.d.sync += [product.eq(a[row][unit + 1] * b[column][unit + 1]),
                         total.eq(Mux(first[unit + 2], 0, total) + product)]
            totals.append(total)
        m.d.comb += sums.start.eq(start[-1])

        # Select the current unit's column first, then its row.
        turn = Signal(range(self._form.block))
        m.d.sync += turn.eq(Mux(start[self._form.block + 1], 0, turn + 1))
        column_bits = columns.bit_length() - 1
        chosen = []
        for row in range(self._rows):
            of_row = Signal.like(totals[0], name=f"of_row_{row}", reset_less=True)
            with m.Switch(turn[:column_bits]):
                for column in range(columns):
                    with m.Case(column):
                        m.d.sync += of_row.eq(totals[row * columns + column])
            chosen.append(of_row)
        selected = Signal(range(max(self._rows, 2)), reset_less=True)
        total = Signal.like(totals[0], name="total", reset_less=True)
        m.d.sync += selected.eq(turn[column_bits:])
        with m.Switch(selected):
            for row, of_row in enumerate(chosen):
                with m.Case(row):
                    m.d.sync += total.eq(of_row)

        # Select the scales of the unit's blocks while the first factors of the blocks pass.
        passing = Signal(range(self._form.block))
        m.d.sync += passing.eq(Mux(former.first, 1, passing + 1))
        now = Mux(former.first, 0, passing)
        left, right = Signal(self._form.scale), Signal(self._form.scale)
        with m.Switch(now[column_bits:]):
            for row in range(self._rows):
                with m.Case(row):
                    m.d.comb += left.eq(former.a_scales[row])
        with m.Switch(now[:column_bits]):
            for column in range(columns):
                with m.Case(column):
                    m.d.comb += right.eq(former.b_scales[column])
        added = Signal(10, reset_less=True)  # the sum of exponents, and whether either of them is all ones
        m.d.sync += added.eq((left.exponent + right.exponent) | ((left.exponent.all() | right.exponent.all()) << 9))
        later = delays(m, "added", added, self._dot)[-1]
        m.d.comb += [sums.exponent.eq(later[:9]), sums.nan.eq(later[9]),
                     sums.total.eq(self._scaled(m, total, left, right) if self._form.scaling else total)]
        return m

    def _scaled(self, m, total, left, right):
        """Multiply the dot product by the product of both significands, which is computed earlier."""
        passed = Signal(6, reset_less=True)
        m.d.sync += passed.eq(Cat(left.fraction, right.fraction))
        fractions = delays(m, "fractions", passed, self._dot - 2)[-1]
        both = Signal(8, reset_less=True)
        scaled = Signal(signed(self._form.scaled_bits), reset_less=True)
        m.d.sync += [both.eq(Cat(fractions[:3], C(1, 1)) * Cat(fractions[3:], C(1, 1))), scaled.eq(total * both)]
        return scaled
