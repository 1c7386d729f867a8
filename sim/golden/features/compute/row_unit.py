"""Golden model of the row unit: memory rows that a job reads and writes, and their contents.

Mirrors :mod:`hdl.features.compute.row_unit`. The functions are in :mod:`sim.golden.features.compute.row_functions`.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from hdl.features.compute.layer_list import RowFunction
from hdl.features.compute.row_pass import LOADS, PAIRED, STORES, Load, Store
from hdl.features.compute.row_reader import SCATTERED
from sim.golden.features.compute import row_functions
from sim.golden.summation import canonical

__all__ = ["Access", "Block", "Job", "Run", "max_rows", "run"]

Array = npt.NDArray[np.float32]
Bits = npt.NDArray[np.uint32]
#: Memory row: memory number and row number.
Row = tuple[int, int]


def max_rows(lanes: int) -> int:
    """Maximum number of rows in a block of a row job."""
    return 8 * lanes


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """Job of the row unit, with the fields of :func:`hdl.features.compute.jobs.row_job_layout`; each operand is a
    pair (memory number, row)."""

    function: int
    rows: int
    columns: int
    started: int = 0
    count: int = 0
    x: Row = (0, 0)
    y: Row = (0, 0)
    start: Row = (0, 0)
    scale: Row = (0, 0)
    shift: Row = (0, 0)
    deviation: Row = (0, 0)
    target: Row = (0, 0)
    second: Row = (0, 0)
    third: Row = (0, 0)
    y_lane: int = 0
    stride_numbers: int = 1
    stride_x: int = 0
    stride_y: int = 0
    stride_start: int = 0
    stride_target: int = 0
    stride_second: int = 0
    stride_third: int = 0
    factor: int = 0
    epsilon: int = 0

    def legal(self, most: int) -> bool:
        """Whether a unit with at most ``most`` columns accepts the job."""
        return self.function in list(RowFunction) and self.rows > 0 and 0 < self.columns <= most

    @property
    def begun(self) -> bool:
        """Whether the job's results are added to existing values."""
        return bool(self.started) or self.function in (RowFunction.ADD, RowFunction.SCATTER)

    @property
    def loads(self) -> list[Load]:
        """Operands that the job reads, in order."""
        return [load for load in LOADS[RowFunction(self.function)] if load != Load.START or self.begun]

    @property
    def paired(self) -> bool:
        """Whether the reads of the first two operands alternate."""
        return self.function in PAIRED and self.loads[:2] == list(LOADS[RowFunction(self.function)][:2])

    @property
    def stores(self) -> list[Store]:
        """Results that the job writes, in order."""
        return [store for store in STORES[RowFunction(self.function)] if store != Store.THIRD or self.begun]


@dataclasses.dataclass(frozen=True)
class Access:
    """Read or write of a memory row; a write includes its elements, keyed by lane."""

    place: int
    row: int
    elements: dict[int, int] | None = None


@dataclasses.dataclass(frozen=True)
class Block:
    """Block of a job: number of rows, whether each row's number is valid, and count of numbers read."""

    rows: int
    right: tuple[bool, ...] = ()
    numbers: int = 0


@dataclasses.dataclass
class Run:
    """Reads, writes and blocks of a job, and whether it ends with ``bad``."""

    reads: list[Access] = dataclasses.field(default_factory=list)
    writes: list[Access] = dataclasses.field(default_factory=list)
    blocks: list[Block] = dataclasses.field(default_factory=list)
    bad: bool = False


def run(job: Job, memories: Sequence[Bits], *, columns: int = 64) -> Run:
    """Run a job on memories of shape (rows, lanes), which it modifies; the unit has ``columns`` columns."""
    result = Run()
    if not job.legal(columns):
        result.bad = True
        return result
    done = 0
    while done < job.rows:
        done += _Worked(job, memories, done, result).rows
    return result


class _Worked:
    """Block of a row job that starts at row ``begin``, and the values computed for it."""

    def __init__(self, job: Job, memories: Sequence[Bits], begin: int, result: Run) -> None:
        self.job, self.memories, self.begin, self.found = job, memories, begin, result
        self.lanes = memories[0].shape[1]
        self.groups = -(-job.columns // self.lanes)
        self.rows = min(job.rows - begin, max_rows(self.lanes))
        self.opened = len(result.reads)
        self.asked = 0
        self.numbers, self.right = np.zeros(0, np.int64), np.zeros(0, np.bool_)
        if Load.NUMBERS in job.loads:
            self._take_numbers()
        result.blocks.append(Block(self.rows, tuple(self.right.tolist()), self.asked))
        operands = {}
        for load in job.loads:
            if load != Load.NUMBERS:
                operands[load] = self._load(load)
        if job.paired:
            self._take_turns()
        with np.errstate(all="ignore"):
            results = self._results(operands)
        for store in job.stores:
            self._store(store, results[store])

    def _take_numbers(self) -> None:
        """Read the row numbers; a block of SCATTER ends before the first repeated number."""
        job = self.job
        scatters = job.function == RowFunction.SCATTER
        self.rows = min(self.rows, SCATTERED) if scatters else self.rows
        numbers = self._elements(job.y, job.y_lane, job.stride_numbers)
        self.asked = len(numbers)
        self.right = numbers < job.count
        self.found.bad |= not self.right.all()
        if scatters:
            seen: set[int] = set()
            for row, (number, right) in enumerate(zip(numbers.tolist(), self.right, strict=True)):
                if right and number in seen:
                    self.rows = row
                    break
                seen.add(number)
        self.numbers, self.right = numbers[:self.rows].astype(np.int64), self.right[:self.rows]

    def _elements(self, origin: Row, lane: int, stride: int) -> Bits:
        """Read one element for each row of the block."""
        taken = []
        for row in range(self.begin, self.begin + self.rows):
            address = origin[1] * self.lanes + lane + row * stride
            self.found.reads.append(Access(origin[0], address // self.lanes))
            taken.append(self.memories[origin[0]].reshape(-1)[address])
        return np.array(taken, np.uint32)

    def _lines(self, origin: Row, stride: int) -> npt.NDArray[np.int64]:
        """First memory row of each of the block's rows."""
        return origin[1] + stride * np.arange(self.begin, self.begin + self.rows)

    def _named(self, origin: Row, stride: int) -> npt.NDArray[np.int64]:
        """First memory row of each selected table row; 0 for invalid numbers."""
        return np.where(self.right, origin[1] + stride * self.numbers, 0)

    def _load(self, load: Load) -> Array:
        """Read an operand from memory."""
        job = self.job
        if load == Load.DEVIATION:
            return self._elements(job.deviation, 0, 1).view(np.float32)[:, None]
        origin, lines, right = job.x, np.zeros(1, np.int64), np.ones(self.rows, np.bool_)
        match load:
            case Load.SCALE | Load.SHIFT:
                origin = job.scale if load == Load.SCALE else job.shift
                lines, right = np.array([origin[1]]), np.ones(1, np.bool_)
            case Load.TABLE:
                lines, right = self._named(job.x, job.stride_x), self.right
            case Load.TARGET:
                origin, lines, right = job.target, self._named(job.target, job.stride_target), self.right
            case _:
                origin, stride = {Load.X: (job.x, job.stride_x), Load.Y: (job.y, job.stride_y),
                                  Load.START: (job.start, job.stride_start)}[load]
                lines = self._lines(origin, stride)
        taken = np.zeros((len(lines), self.groups, self.lanes), np.uint32)
        for group in range(self.groups):
            for number, line in enumerate(lines.tolist()):
                if right[number]:
                    self.found.reads.append(Access(origin[0], line + group))
                    taken[number, group] = self.memories[origin[0]][line + group]
        return taken.reshape(len(lines), -1)[:, :job.columns].view(np.float32)

    def _take_turns(self) -> None:
        """Interleave the reads of the first two operands, one column block at a time."""
        size = self.groups * self.rows
        turns = np.arange(2 * size).reshape(2, self.groups, self.rows).swapaxes(0, 1).ravel()
        reads = self.found.reads
        self.found.reads = [*reads[:self.opened], *(reads[self.opened + index] for index in turns.tolist()),
                            *reads[self.opened + 2 * size:]]

    def _results(self, operands: dict[Load, Array]) -> dict[Store, Array]:
        """Compute the results of the block."""
        job = self.job
        factor, epsilon = np.array([job.factor, job.epsilon], np.uint32).view(np.float32)
        x, start = operands.get(Load.X, np.zeros(0, np.float32)), operands.get(Load.START)
        match RowFunction(job.function):
            case RowFunction.ADD:
                return {Store.TARGET: canonical(x + operands[Load.START])}
            case RowFunction.SCALE:
                return {Store.TARGET: canonical(x * operands[Load.SCALE] + operands[Load.SHIFT])}
            case RowFunction.NORM:
                begun = x if start is None else canonical(start + x)
                normal, deviation = row_functions.norm(begun, epsilon, factor)
                return {Store.THIRD: begun, Store.DEVIATION: deviation, Store.SECOND: normal,
                        Store.TARGET: canonical(normal * operands[Load.SCALE] + operands[Load.SHIFT])}
            case RowFunction.NORM_BACK:
                y = operands[Load.Y]
                target = row_functions.norm_back(x, y, operands[Load.DEVIATION], operands[Load.SCALE], factor)
                return {Store.SECOND: canonical(x * y),
                        Store.TARGET: target if start is None else canonical(start + target)}
            case RowFunction.SOFTMAX_BACK:
                return {Store.TARGET: row_functions.softmax_back(x, operands[Load.Y], factor)}
            case RowFunction.GATHER:
                table = operands[Load.TABLE]
                return {Store.TARGET: table if start is None else canonical(start + table)}
            case RowFunction.SCATTER:
                return {Store.SCATTERED: canonical(operands[Load.TARGET] + x)}
            case _:
                return {Store.TARGET: np.zeros((self.rows, job.columns), np.float32)}

    def _store(self, store: Store, results: Array) -> None:
        """Write one of the block's results to memory."""
        job = self.job
        if store == Store.DEVIATION:
            first = job.deviation[1] + self.begin // self.lanes
            flat = np.ascontiguousarray(results).view(np.uint32)[:, 0]
            for number in range(0, self.rows, self.lanes):
                self._write(job.deviation[0], first + number // self.lanes, flat[number:number + self.lanes])
            return
        origin, stride = {Store.SECOND: (job.second, job.stride_second), Store.THIRD: (job.third, job.stride_third),
                          }.get(store, (job.target, job.stride_target))
        lines = self._named(origin, stride) if store == Store.SCATTERED else self._lines(origin, stride)
        bits = np.ascontiguousarray(results, np.float32).view(np.uint32)
        for group in range(self.groups):
            for number, line in enumerate(lines.tolist()):
                if store != Store.SCATTERED or self.right[number]:
                    self._write(origin[0], line + group, bits[number, group * self.lanes:][:self.lanes])

    def _write(self, memory: int, row: int, elements: Bits) -> None:
        self.memories[memory][row, :len(elements)] = elements
        self.found.writes.append(Access(memory, row, dict(enumerate(elements.tolist()))))
