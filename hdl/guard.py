"""Guard of a memory port, which translates a tenant's row to a row of its window or rejects the access."""

from amaranth.hdl import Cat, Const, Module
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from hdl.group import GROUP

__all__ = ["Guard", "window_layout"]


def window_layout(words):
    """Layout of a window in a memory of ``words`` elements: its first group of 32 elements, and its groups."""
    return data.StructLayout({"base": range(max(words // GROUP, 2)), "size": range(words // GROUP + 1)})


class Guard(wiring.Component):
    """Translate a tenant's row to a memory row, and check that it is in the tenant's window.

    The guard is combinational, so it adds no latency. Row 0 of a tenant is at the base of its window.

    Parameters
    ----------
    rows, lanes : int
        Number of rows in the memory, and number of elements per row.

    Members
    -------
    window : In(window_layout(rows * lanes))
    row : In(range(rows))
    whole : In(1)
        The row is an address in the whole memory, so every row is allowed.
    allowed : Out(1)
        The row is in the window.
    place : Out(range(rows))
        Row in the memory; undefined unless ``allowed``.
    """

    latency = 0

    def __init__(self, *, rows, lanes):
        if rows * lanes % GROUP:
            raise ValueError(f"Elements of a guarded memory must be a multiple of {GROUP}, not {rows * lanes!r}")
        self._group = exact_log2(GROUP // lanes)  # number of address bits of a row within a group
        super().__init__({
            "window": In(window_layout(rows * lanes)),
            "row": In(range(rows)), "whole": In(1),
            "allowed": Out(1),
            "place": Out(range(rows)),
        })

    def elaborate(self, platform):
        m = Module()
        group, base, size = self.row[self._group:], self.window.base, self.window.size
        # One carry chain computes `allowed` and `place`: below a middle bit, the row minus the size; above it, the
        # row plus the base, plus one if the row is outside. Two short chains would be implemented with LUTs.
        middle = len(size)
        chain = Cat(group | Const(0, middle), ~self.whole, group) - Cat(
            size, Const(1, 1), ~base | self.whole.replicate(len(base)))
        m.d.comb += [
            self.allowed.eq(self.whole | chain[middle]),
            self.place.eq(Cat(self.row[:self._group], chain[middle + 1:])),
        ]
        return m
