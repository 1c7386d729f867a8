"""Golden model of the row unit's timing, for memories without wait cycles.

Mirrors :mod:`hdl.features.compute.row_unit` and its parts, down to the cycle of each read, element, result and write.
"""

import dataclasses
from collections.abc import Sequence

from hdl.features.compute.layer_list import RowFunction
from hdl.features.compute.row_pass import LOADS, PASSES, After, Load, Pass, Result, Store
from sim.golden.features.compute.row_unit import Block, Job

__all__ = ["RowCycles"]

#: Latency in cycles from a row number to its table row, through the result queue, and through an adder.
_KNOWN, _QUEUE, ADD = 3, 3, 7
_NUMBERED = (Load.TABLE, Load.TARGET)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowCycles:
    """Timing model of the row unit's jobs."""

    lanes: int = 4  # elements of a memory row
    latency: int = 23  # latency in cycles from the control of an element to its result
    #: Latency in cycles from a square to the reciprocal of its root, and interval between squares.
    roots: int = 60
    interval: int = 2
    answer: int = 5  # latency in cycles from a request to its answer
    settle: int = 2  # latency in cycles from accepting a write until the memory contains it

    #: Latency in cycles from accepting a job to raising ``bad``.
    CHECKED = 2

    def job(self, job: Job, blocks: Sequence[Block]) -> int:
        """Latency in cycles from accepting a job to ``done``, or to ``bad`` if the job is invalid."""
        if not blocks:
            return self.CHECKED
        return 2 + sum(_Block(self, job, block).cycles() for block in blocks)


class _Block:
    """Timing of one block of a job, in cycles from the start of the block."""

    def __init__(self, model: RowCycles, job: Job, block: Block) -> None:
        self.model, self.job, self.block = model, job, block
        self.groups = -(-job.columns // model.lanes)
        self.function = RowFunction(job.function)
        #: Cycles when the memory rows of operands, results and reciprocals are offered.
        self.there: dict[Load, list[int]] = {}
        self.results: list[int] = []
        self.reciprocals: list[int] = []

    def cycles(self) -> int:
        """Number of cycles until the next block begins, or until ``done``."""
        self._load()
        self._compute()
        return self._store()

    def _load(self) -> None:
        """Read the operands. ``there`` receives the cycles when they become available."""
        job, block = self.job, self.block
        size = block.rows * self.groups
        cycle, offered, known = 1, 0, 0
        turns: list[Load] = []
        for load in LOADS[self.function]:
            if load == Load.START and not job.begun:
                cycle += 1
                continue
            if load not in (Load.START, Load.NUMBERS):
                cycle = max(cycle, known)
            if job.paired and len(self.there) < 2:
                turns.append(load)
                self.there[load] = []
                if len(turns) < 2:
                    continue
                order = [operand for _ in range(self.groups) for operand in turns for _ in range(block.rows)]
            else:
                count = {Load.SCALE: self.groups, Load.SHIFT: self.groups, Load.DEVIATION: block.rows,
                         Load.NUMBERS: block.numbers}.get(load, size)
                self.there[load], order = [], [load] * count
            cycle += 1
            for number, operand in enumerate(order):
                read = operand not in _NUMBERED or block.right[number % block.rows]
                offered = max(offered, cycle + (self.model.answer if read else 0)) + 1
                self.there[operand].append(offered)
                cycle += 1
            known = offered + _KNOWN if load == Load.NUMBERS else known

    def _compute(self) -> None:
        """Compute the cycles of all passes of the function."""
        if self.function == RowFunction.GATHER and not self.job.begun:
            self.results = [cycle + _QUEUE for cycle in self.there[Load.TABLE]]
            return
        model, rows = self.model, self.block.rows
        chain = ADD * (model.lanes - 1)
        last, count, last_sum = 0, 0, 0
        for pass_ in PASSES[self.function]:
            cycle = last + 2
            if pass_.after == After.RESULTS:
                cycle = max(cycle, last + 1 + max(0, model.latency + 1 - count))
            elif pass_.after == After.SUMS:
                cycle = max(cycle, last_sum + 1 + max(0, model.latency + chain + 1 - rows))
            cycles = self._elements(pass_, cycle)
            last, count = cycles[-1], len(cycles)
            last_sum = last if pass_.summed else last_sum
            if pass_.result == Result.STORED or (pass_.result == Result.STORED_IF_STARTED and self.job.begun):
                self.results += [cycle + 1 + model.latency + chain + _QUEUE for cycle in cycles]
            if pass_.result == Result.ROOT:
                self.reciprocals = [cycle + 1 + model.latency + model.roots for cycle in cycles]

    def _elements(self, pass_: Pass, cycle: int) -> list[int]:
        """Cycles when the elements of a pass are issued. ``cycle`` is the earliest start of the pass."""
        model, rows = self.model, self.block.rows
        single = pass_.result in (Result.SCALAR, Result.ROOT)
        turns = rows * (2 if pass_.twice else 1)
        cycles: list[int] = []
        for number in range(turns * (1 if single else self.groups)):
            if pass_.needs != Load.END:
                words = self.there[pass_.needs]
                cycle = max(cycle, words[min(number, len(words) - 1)] + 1)
            if pass_.summed and number and number % turns == 0:
                cycle = max(cycle, cycles[-1] + 1 + max(0, ADD * model.lanes + 2 - turns))
            if pass_.after == After.ROOTS:
                cycle = max(cycle, self.reciprocals[number % rows] + 1)
            if pass_.result == Result.ROOT:
                cycle += -(cycle - 1) % model.interval
            cycles.append(cycle)
            cycle += 1
        return cycles

    def _store(self) -> int:
        """Write the results; return the cycle after the memories contain them."""
        job, model, rows = self.job, self.model, self.block.rows
        results = iter(self.results)
        cycle, written = 1, 0
        if Store.THIRD not in job.stores and self.function == RowFunction.NORM:
            cycle += 1
        for store in job.stores:
            cycle += 1
            if store == Store.DEVIATION:
                ends = [min(row + model.lanes, rows) - 1 for row in range(0, rows, model.lanes)]
                offers = [self.reciprocals[row] + 2 for row in ends]
            elif self.function == RowFunction.CLEAR:
                offers = [0] * (rows * self.groups)
            else:
                offers = [next(results) for _ in range(rows * self.groups)]
            for number, offer in enumerate(offers):
                cycle = max(cycle, offer) + 1
                if store != Store.SCATTERED or self.block.right[number % rows]:
                    written = cycle
        return max(cycle + 1, written + max(model.settle, 1)) + 1
