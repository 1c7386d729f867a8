# amaranth: UnusedElaboratable=no
# The units are created in the constructor, which checks the number of DSP blocks.
"""Array of multiply-accumulate units, which computes an outer product of a row and a column in every cycle."""

import functools
import operator

from amaranth.hdl import C, Cat, Module, Mux, Signal, unsigned
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.features.compute.feature import FP32 as BINARY32
from hdl.features.compute.multiply_accumulate import PLACES, SLOTS, MultiplyAccumulate, product_latency, sum_latency
from hdl.features.compute.operands import scalar_of
from hdl.floating.format import FP32
from hdl.streams.stream import SkidBuffer, connect_stream, step_count

__all__ = ["ONE", "TILES", "MacArray", "check_units", "delays", "result_layout", "term_layout"]

#: Encoding of 1.0 in binary32.
ONE = FP32.bias << FP32.fraction_bits

#: Number of forms that a register tile can take.
TILES = SLOTS.bit_length()

#: Maximum number of tiles with stored results.
_BANKS = 2


def check_units(rows, columns):
    """Raise ValueError unless an array may have ``rows`` rows and ``columns`` columns."""
    if not isinstance(rows, int) or rows not in (1, 2, 4):
        raise ValueError(f"Row count must be 1, 2 or 4, not {rows!r}")
    if not isinstance(columns, int) or columns not in (2, 4, 8):
        raise ValueError(f"Column count must be 2, 4 or 8, not {columns!r}")


def term_layout(rows, columns):
    """Payload of the operands of one slot: ``a`` for each row and ``b`` for each column.

    The eight beats of a round use slots 0 to 7 in order, with the same ``first``, ``last`` and ``tile``. ``rows``
    selects the active rows; all other rows add a bubble. In an ``initial`` beat, the term is ``b`` itself instead of
    the product. Sums begin in a round with ``first``, at -0.0 if it is also ``initial`` and otherwise at +0.0. They
    become results after a round with ``last``; its ``tile`` is the base-2 logarithm of the number of row groups. With
    n column groups, n = 8 >> ``tile``, slot s belongs to row group s // n and to column group s % n.
    """
    return data.StructLayout({
        "a": data.ArrayLayout(unsigned(FP32.width), rows), "b": data.ArrayLayout(unsigned(FP32.width), columns),
        "rows": rows, "initial": 1, "first": 1, "last": 1, "tile": range(TILES)})


def result_layout(rows, columns):
    """Payload of results: one element per column, for one row and one column group of the tile."""
    return data.StructLayout({
        "elements": data.ArrayLayout(unsigned(FP32.width), columns), "row": range(SLOTS * rows),
        "group": range(SLOTS), "last": 1})


def delays(m, name, value, count, *, reset_less=True):
    """Return the value delayed by 0, 1, … ``count`` - 1 registers."""
    delayed = [value]
    for number in range(1, count):
        later = Signal(value.shape(), name=f"{name}_{number}", reset_less=reset_less)
        m.d.sync += later.eq(delayed[-1])
        delayed.append(later)
    return delayed


class MacArray(wiring.Component):
    """Accumulate outer products: every cycle adds ``a[row] * b[column]`` to one of eight sums of each unit.

    Elements are binary32 numbers. With any other operand format, they are rounded once as they enter the array,
    except for the elements of an ``initial`` beat, which are added unrounded.

    Operands pass from unit to unit through a register in each one: a row of A along its row of units, a column of B
    along its column. No wire is therefore longer than the distance to the next unit. Results are read in arrival
    order, and the last units of a tile have finished before their first result is read.

    Terms are added in arrival order, and every product and sum is rounded. A beat waits in the operand register until
    the cycle of its slot: a source that pauses for one cycle loses :data:`SLOTS` cycles, unless it pauses between a
    round with ``last`` and the next round. Pauses do not affect results.

    Results leave in ascending order of rows and, within each row, of column groups. The results of two tiles can be
    stored; the last round of a third tile waits. A source that never pauses is never stalled if sums have at least
    :attr:`shortest` rounds and the sink is always ready.

    ``i.ready`` is a function of registers. Results pass two stages, which move together, and a skid buffer: no path
    leads from ``o.ready`` to the units. Latency is :attr:`latency` cycles from the acceptance of a tile's last beat
    to the offer of its first results, if no results of the previous tile are left.

    Parameters
    ----------
    rows : int
        Number of rows of units: 1, 2 or 4.
    columns : int
        Number of columns of units, which is the number of lanes of a memory row: 2, 4 or 8.
    dsps : int
        Number of DSP blocks that each unit may use: 4, 2 or 1.
    operands : str
        Format of the operands; must not be a block format.

    Members
    -------
    i : In(stream of term_layout(rows, columns))
    o : Out(stream of result_layout(rows, columns))
    """

    def __init__(self, *, rows, columns, dsps=4, operands=BINARY32):
        check_units(rows, columns)
        self._form = scalar_of(operands)
        self._units = [[MultiplyAccumulate(dsps=dsps, operands=operands) for _ in range(columns)]
                       for _ in range(rows)]
        self._rows = rows
        self._columns = columns
        self._latencies = product_latency(dsps, operands), sum_latency(dsps, operands)
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
    def product_latency(self):
        """Cycles from elements to their product."""
        return self._latencies[0]

    @property
    def latency(self):
        """Latency in cycles from the last beat of a tile to its first results."""
        return self._latencies[1] + 5

    @property
    def shortest(self):
        """Minimum number of rounds per sum for which the array never stalls its source."""
        held = SLOTS - 1 + self._latencies[1] + 2 + SLOTS * self._rows
        return max(-(-held // (_BANKS * SLOTS)), self._rows)

    def elaborate(self, platform):
        m = Module()
        for row, units in enumerate(self._units):
            for column, unit in enumerate(units):
                m.submodules[f"unit_{row}_{column}"] = unit
        freed = Signal()
        operands, issue, tiles = self._elaborate_issue(m, freed)
        complete = self._elaborate_controls(m, operands, issue)
        self._elaborate_drain(m, complete, tiles, freed)
        return m

    def _elaborate_issue(self, m, freed):
        """Create the registers that hold a beat until the cycle of its slot; return them and the ``issue`` signal."""
        operands = Signal(self.i.payload.shape(), reset_less=True)
        held = Signal()
        # Slot of the next beat, and whether this is the cycle of that slot; any cycle is while no sum is in progress.
        slot = Signal(range(SLOTS))
        fresh = Signal(init=1)
        aligned = Signal(init=1)
        lag = Signal(range(SLOTS))
        # The first beat of a tile's last round reserves a bank for all results of that round.
        banks = Signal(range(_BANKS + 1))
        # Registers that indicate in advance whether the next beat starts a round and whether no bank is free for it.
        opening = Signal(init=1)
        full = Signal()
        issue = Signal()
        begins = Signal()
        ends = Signal()
        m.d.comb += [
            issue.eq(held & aligned & ~(operands.last & opening & full)),
            self.i.ready.eq(~held | issue),
            begins.eq(issue & operands.last & opening),
            ends.eq(issue & operands.last & (slot == SLOTS - 1)),
        ]
        with m.If(freed & ~begins):
            m.d.sync += full.eq(0)
        with m.Elif(begins & ~freed):
            m.d.sync += full.eq(banks == _BANKS - 1)
        with m.If(self.i.ready):
            m.d.sync += [held.eq(self.i.valid), operands.eq(self.i.payload)]
            if self._form.rounder is None:
                with m.If(self.i.payload.initial):
                    m.d.sync += [operands.a[row].eq(ONE) for row in range(self._rows)]
        with m.If(issue):
            m.d.sync += [slot.eq(slot + 1), opening.eq(slot == SLOTS - 1), lag.eq(0), aligned.eq(1), fresh.eq(ends)]
        with m.Else():
            m.d.sync += [lag.eq(lag + 1), aligned.eq(fresh | (lag == SLOTS - 1))]
        step_count(m, banks, up=begins, down=freed)
        bank = Signal()
        tiles = [Signal(range(TILES), name=f"tile_{number}") for number in range(_BANKS)]
        with m.If(ends):
            m.d.sync += bank.eq(~bank)
        for number, tile in enumerate(tiles):
            with m.If(begins & (bank == number)):
                m.d.sync += tile.eq(operands.tile)
        return operands, issue, tiles

    def _elaborate_controls(self, m, operands, issue):
        """Pass operands and controls from unit to unit; return a signal that is high when a tile is complete.

        Unit (row, column) receives each beat row + column cycles after unit (0, 0).
        """
        diagonals = self._rows + self._columns - 1
        # These registers have a reset, unlike the factor registers of the multipliers. This keeps synthesis from
        # merging them, so that each unit keeps its own registers next to its multiplier.
        a = [delays(m, f"a_{row}", self._factor(m, f"row_{row}", operands.a[row], operands.initial, exact=False),
                     row + self._columns, reset_less=False) for row in range(self._rows)]
        b = [delays(m, f"b_{column}",
                     self._factor(m, f"column_{column}", operands.b[column], operands.initial, exact=True),
                     column + self._rows, reset_less=False) for column in range(self._columns)]
        bubble = [delays(m, f"bubble_{row}", ~(issue & operands.rows[row]), self.product_latency + diagonals)
                  for row in range(self._rows)]
        first = delays(m, "first", issue & operands.first, self.product_latency + diagonals)
        negative = delays(m, "negative", operands.initial, self.product_latency + diagonals)
        # Sums are stored in beat order, so a counter addresses them.
        latency = self._latencies[1]
        stores = Signal(latency + diagonals - 1)
        address = Signal(range(PLACES))
        complete = Signal()
        m.d.sync += stores.eq(Cat(issue & operands.last, stores))
        with m.If(stores[latency - 1]):
            m.d.sync += address.eq(address + 1)
        m.d.comb += complete.eq(stores[latency - 1] & address[:-1].all())
        addresses = delays(m, "place", address, diagonals)
        for row, units in enumerate(self._units):
            for column, unit in enumerate(units):
                diagonal = row + column
                m.d.comb += [
                    unit.a.eq(a[row][diagonal]), unit.b.eq(b[column][diagonal]),
                    unit.bubble.eq(bubble[row][self.product_latency + diagonal]),
                    unit.first.eq(first[self.product_latency + diagonal]),
                    unit.negative.eq(negative[self.product_latency + diagonal]),
                    unit.store.eq(stores[latency - 1 + diagonal]), unit.place.eq(addresses[diagonal])]
        return complete

    def _factor(self, m, name, element, opens, *, exact):
        """Convert an element to a factor, if the format requires rounding."""
        if self._form.rounder is None:
            return element
        m.submodules[f"rounder_{name}"] = rounder = self._form.rounder(exact=exact)
        m.d.comb += [rounder.i.eq(element), rounder.opens.eq(opens)]
        return rounder.o

    def _elaborate_drain(self, m, complete, tiles, freed):
        """Drain complete tiles through two stages, for a row's address and its result, which advance together."""
        waiting = Signal(range(_BANKS + 1))
        bank = Signal()
        number = Signal(range(SLOTS * self._rows))
        final = Signal()
        m.submodules.results = results = SkidBuffer(shape=self.o.payload.shape())
        connect_stream(m, results.o, self.o)
        move = results.i.ready
        m.d.comb += final.eq(move & (waiting != 0) & number.all())
        step_count(m, waiting, up=complete, down=final)
        with m.If(final):
            m.d.sync += bank.eq(~bank)
        with m.If(move & (waiting != 0)):
            m.d.sync += number.eq(number + 1)

        # From the lowest bit up, a result row's number consists of column group, row of units and row group.
        row_bits = self._rows.bit_length() - 1
        marks = data.StructLayout({"row": range(SLOTS * self._rows), "group": range(SLOTS), "last": 1})
        chosen = Signal(marks, name="chosen")
        slot = Signal(range(SLOTS))
        unit_row = Signal(range(self._rows)) if row_bits else C(0, 1)
        tile = Mux(bank, tiles[1], tiles[0])
        m.d.comb += chosen.last.eq(number.all())
        with m.Switch(tile):
            for form in range(TILES):
                group_bits = TILES - 1 - form
                with m.Case(form):
                    m.d.comb += [
                        chosen.row.eq(number[group_bits:]), chosen.group.eq(number[:group_bits]),
                        slot.eq(Cat(number[:group_bits], number[group_bits + row_bits:]))]
                    if row_bits:
                        m.d.comb += unit_row.eq(number[group_bits:group_bits + row_bits])

        valid = [Signal(name=f"valid_{stage}") for stage in ("place", "result")]
        travelling = [Signal(marks, name=f"marks_{stage}", reset_less=True) for stage in ("place", "result")]
        fetch = Signal(range(PLACES), reset_less=True)
        select = Signal(self._rows, reset_less=True)
        m.d.comb += freed.eq(move & valid[0] & travelling[0].last)
        with m.If(move):
            m.d.sync += [
                valid[0].eq(waiting != 0), travelling[0].eq(chosen), fetch.eq(Cat(slot, bank)),
                select.eq(1 << unit_row),
                valid[1].eq(valid[0]), travelling[1].eq(travelling[0])]
        for row, units in enumerate(self._units):
            for unit in units:
                m.d.comb += [unit.fetch.eq(fetch), unit.move.eq(move), unit.select.eq(select[row])]
        m.d.comb += [
            results.i.valid.eq(valid[1]), *(results.i.p[name].eq(travelling[1][name]) for name in marks.members)]
        for column in range(self._columns):
            joined = functools.reduce(operator.or_, (units[column].o for units in self._units))
            m.d.comb += results.i.p.elements[column].eq(joined)
