"""Guard at a memory port: a tenant's row becomes one of its window, or is refused."""

from amaranth.hdl import Cat, Const, Module
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from hdl.group import GROUP

__all__ = ["Guard", "window_layout"]


def window_layout(words):
    """Window in a memory of so many elements: its first group of 32, and its number of groups."""
    return data.StructLayout({"base": range(max(words // GROUP, 2)), "size": range(words // GROUP + 1)})


class Guard(wiring.Component):
    """Translate a row of a tenant to a row of the memory, and say whether it is in the tenant's window.

    Combinational: an access passes in the cycle in which it would without a guard. Rows of the tenant begin with 0
    at the base of its window.

    Parameters
    ----------
    rows, lanes : int
        Rows of the memory, and elements in each.

    Members
    -------
    window : In(window_layout(rows * lanes))
    row : In(range(rows))
    allowed : Out(1)
        Whether the row is in the window.
    place : Out(range(rows))
        Its row in the memory; without meaning if it is not.
    """

    latency = 0

    def __init__(self, *, rows, lanes):
        if rows * lanes % GROUP:
            raise ValueError(f"Elements of a guarded memory must be a multiple of {GROUP}, not {rows * lanes!r}")
        self._group = exact_log2(GROUP // lanes)  # bits of a row in its group
        super().__init__({
            "window": In(window_layout(rows * lanes)),
            "row": In(range(rows)),
            "allowed": Out(1),
            "place": Out(range(rows)),
        })

    def elaborate(self, platform):
        m = Module()
        group = self.row[self._group:]
        m.d.comb += [
            self.allowed.eq(group < self.window.size),
            self.place.eq(self.row + Cat(Const(0, self._group), self.window.base)),
        ]
        return m
