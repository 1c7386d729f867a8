"""Sequencer of the row unit: runs a function's passes over a block of rows, element by element."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from hdl.features.compute.layer_list import RowFunction
from hdl.features.compute.row_lane import control_layout
from hdl.features.compute.row_pass import FIRST_PASS, LOADS, PASSES, A, After, B, C, D, Load, Result

__all__ = ["RowSequencer"]

_ALL = [(function, number, row_pass) for function in RowFunction for number, row_pass in enumerate(PASSES[function])]
_STEPS = range(max(map(len, LOADS.values())) + 1)


class RowSequencer(wiring.Component):
    """Output the control inputs of all elements in all passes, at most one element per cycle.

    Latency from ``starts`` to the first output is :attr:`latency` cycles if there is nothing to wait for. Sums of a
    row are at least ``frame`` cycles apart. A pass starts as soon as every operand will be stored before it is read;
    between two passes there is one cycle without an element. All outputs are registered.

    Parameters
    ----------
    rows, groups : int
        Number of rows in a block, and of column blocks in a row.
    latency : int
        Latency in cycles from an element's control inputs to its result.
    sums : int
        Latency in cycles from an element's result to the sum of its row.
    frame : int
        Number of cycles from one sum to the next one of the same row.

    Members
    -------
    starts : In(1)
        Begin a block, described by the inputs below; high only while no pass is running.
    kind : In(8)
    started : In(1)
    rows : In(range(rows + 1))
    last_group : In(range(groups))
    step : In
        Number of the load being received.
    words : In
        Memory rows of that load received so far.
    roots : In(range(rows + 1))
        Number of reciprocals of deviations received so far.
    room : In(1)
        A result can be stored.
    asks : Out(1)
        The result of the element of this cycle will be stored. Depends combinationally on all inputs.
    turn : In(1)
        The square of a deviation can be accepted.
    valid : Out(1)
    control : Out(control_layout(rows, groups))
    """

    latency = 3

    def __init__(self, *, rows, groups, latency, sums, frame):
        self._most, self._latency, self._sums, self._frame = rows, latency, sums, frame
        super().__init__({
            "starts": In(1), "kind": In(8), "started": In(1), "rows": In(range(rows + 1)),
            "last_group": In(range(groups)), "step": In(_STEPS), "words": In(range(rows * groups + 1)),
            "roots": In(range(rows + 1)), "room": In(1), "turn": In(1), "asks": Out(1),
            "valid": Out(1), "control": Out(control_layout(rows, groups)),
        })

    def elaborate(self, platform):
        m = Module()
        number = Signal(range(len(_ALL) + 1), reset_less=True)
        layout = data.StructLayout({
            "a": A, "b": B, "c": C, "d": D, "needs": _STEPS, "waits": After, "summed": 1, "twice": 1, "kept": 1,
            "stored": 1, "scalar": 1, "root": 1, "final": 1})
        now = Signal(layout, reset_less=True)
        row, group = Signal.like(self.control.row), Signal.like(self.control.group)
        half, begun, go = Signal(), Signal(), Signal()
        count = Signal.like(self.words)
        last_row, last_half, last_group, edge = Signal(), Signal(), Signal(), Signal()
        m.d.comb += [
            last_row.eq(row + 1 == self.rows), last_half.eq(half | ~now.twice), edge.eq(group == self.last_group),
            last_group.eq(edge | now.scalar | now.root), self.asks.eq(go & now.stored),
        ]

        # Cycles since the last element, cycles since the last summed element, and elements in the last pass.
        after = self._latency + 1
        total = self._latency + self._sums + 1
        longest = max(after, self._frame)
        since, covered, since_sum = Signal(range(longest + 1)), Signal(range(after + 1)), Signal(range(total + 1))
        for counter, most in ((since, longest), (since_sum, total)):
            with m.If(counter != most):
                m.d.sync += counter.eq(counter + 1)
        with m.If(go):
            m.d.sync += [since.eq(0), covered.eq(Mux(begun, covered + (covered != after), 1))]
            with m.If(now.summed):
                m.d.sync += since_sum.eq(0)

        # A column block may start if its first sum will be ready in time. All of its other sums will then be ready in
        # time, too.
        there, free, timely, follows = Signal(), Signal(), Signal(), Signal()
        turns = Signal(range(2 * self._most + 1))
        m.d.comb += [
            there.eq((self.step > now.needs) | ((self.step == now.needs) & (self.words > count))),
            free.eq((~now.stored | self.room) & (~now.root | self.turn)),
            turns.eq(Mux(now.twice, self.rows << 1, self.rows)),
            timely.eq(~now.summed | (row != 0) | half | (group == 0) | (since + turns >= self._frame)),
        ]
        with m.Switch(now.waits):
            with m.Case(After.NOTHING):
                m.d.comb += follows.eq(1)
            with m.Case(After.RESULTS):
                m.d.comb += follows.eq(begun | (since + covered >= after))
            with m.Case(After.SUMS):
                m.d.comb += follows.eq(begun | (since_sum + self.rows >= total))
            with m.Case(After.ROOTS):
                m.d.comb += follows.eq(self.roots > row)

        m.d.sync += [
            self.valid.eq(go), self.control.row.eq(row), self.control.group.eq(group), self.control.half.eq(half),
            self.control.edge.eq(edge),
            *(self.control[name].eq(now[name]) for name in (
                "a", "b", "c", "d", "summed", "kept", "stored", "scalar", "root")),
        ]
        with m.FSM():
            with m.State("Idle"):
                with m.If(self.starts):
                    m.next = "Next"
                    with m.Switch(self.kind):
                        for function in RowFunction:
                            with m.Case(function):
                                m.d.sync += number.eq(FIRST_PASS[function])
                    with m.If((self.kind == RowFunction.CLEAR)
                              | ((self.kind == RowFunction.GATHER) & ~self.started)):
                        m.next = "Idle"
            with m.State("Next"):
                m.d.sync += [row.eq(0), group.eq(0), half.eq(0), count.eq(0), begun.eq(0), number.eq(number + 1)]
                with m.Switch(number):
                    for word, (function, index, row_pass) in enumerate(_ALL):
                        with m.Case(word):
                            m.d.sync += now.eq(self._word(layout, function, index, row_pass))
                            if row_pass.result == Result.STORED_IF_STARTED:
                                m.d.sync += now.stored.eq(self.started)
                m.next = "Walk"
            with m.State("Walk"):
                m.d.comb += go.eq(there & free & timely & follows)
                with m.If(go):
                    m.d.sync += [count.eq(count + 1), row.eq(row + 1), begun.eq(1)]
                    with m.If(last_row):
                        m.d.sync += [row.eq(0), half.eq(~half & now.twice)]
                        with m.If(last_half):
                            m.d.sync += group.eq(group + 1)
                            with m.If(last_group):
                                m.next = "Next"
                                with m.If(now.final):
                                    m.next = "Idle"
        return m

    @staticmethod
    def _word(layout, function, index, row_pass):
        """Return a pass as a constant."""
        return layout.const({
            "a": row_pass.a, "b": row_pass.b, "c": row_pass.c, "d": row_pass.d,
            "needs": 0 if row_pass.needs == Load.END else LOADS[function].index(row_pass.needs),
            "waits": row_pass.after, "summed": row_pass.summed, "twice": row_pass.twice, "kept": row_pass.kept,
            "stored": row_pass.result == Result.STORED, "scalar": row_pass.result == Result.SCALAR,
            "root": row_pass.result == Result.ROOT, "final": index == len(PASSES[function]) - 1})
