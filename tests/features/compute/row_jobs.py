"""Random jobs for the row unit, with the memories that they use as numpy arrays."""

import dataclasses

import numpy as np

from hdl.features.compute.layer_list import RowFunction
from hdl.features.compute.row_pass import LOADS, STORES, Load, Store
from sim.golden.features.compute.row_unit import Job
from tests.features.compute.memories import PLACES
from tests.features.compute.terms import draw

#: Number of rows of each memory in these tests.
ROWS = 4096

_OPERANDS = ("x", "y", "start", "scale", "shift", "deviation", "target", "second", "third")
_STRIDES = ("x", "y", "start", "target", "second", "third")
_LOADED = {Load.X: "x", Load.Y: "y", Load.START: "start", Load.SCALE: "scale", Load.SHIFT: "shift",
           Load.DEVIATION: "deviation", Load.NUMBERS: "y", Load.TABLE: "x", Load.TARGET: "target"}
_STORED = {Store.TARGET: "target", Store.SECOND: "second", Store.THIRD: "third", Store.DEVIATION: "deviation",
           Store.SCATTERED: "target"}
_TABLES = {RowFunction.GATHER: "x", RowFunction.SCATTER: "target"}
_LINES = ("scale", "shift", "deviation")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowJob:
    """A job of the row unit, and the row numbers that it reads from memory."""

    job: Job
    numbers: np.ndarray

    def fields(self):
        fields = dataclasses.asdict(self.job)
        return fields | {name: {"place": fields[name][0], "row": fields[name][1]} for name in _OPERANDS}

    def place(self, memories):
        """Store the row numbers of a job in the memories."""
        job = self.job
        if job.function in _TABLES:
            flat = memories[job.y[0]].reshape(-1)
            address = job.y[1] * memories[0].shape[1] + job.y_lane
            flat[address + job.stride_numbers * np.arange(job.rows)] = self.numbers.astype(np.uint32)


def _bits(number):
    return int(np.float32(number).view(np.uint32))


def draw_job(generator, function, rows, columns, *, lanes, wrong=0.0, spread=None, in_place=False, started=None,
             free=None):
    """Draw a job with non-overlapping operands; fields that it does not use hold random bits.

    Row numbers are less than the number of table rows and, if given, less than ``spread``. With ``in_place``, the
    target and the third matrix overwrite x or start; otherwise, a single row may be the start of all rows. ``free``
    holds the first free row of each memory and is advanced past the operands.
    """
    started = bool(generator.integers(2)) if started is None else started
    width = -(-columns // lanes)
    count = int(generator.integers(1, 40))
    apart = int(generator.integers(1, 4))
    free = [0] * PLACES if free is None else free
    begun = started or function in (RowFunction.ADD, RowFunction.SCATTER)
    used = {_LOADED[load] for load in LOADS[function]} | {_STORED[store] for store in STORES[function]}
    used -= set() if begun else {"start", "third"}
    fields = {name: (int(generator.integers(PLACES)), int(generator.integers(ROWS))) for name in _OPERANDS}
    strides = {f"stride_{name}": int(generator.integers(ROWS)) for name in _STRIDES}
    for name in sorted(used):
        lines = count if name == _TABLES.get(function) else rows
        stride = width + int(generator.integers(3))
        if name in _LINES:
            extent = max(width, -(-rows // lanes))
        elif name == "y" and function in _TABLES:
            extent = rows * apart // lanes + 2
        else:
            strides[f"stride_{name}"], extent = stride, lines * stride
        space = int(np.argmin([top + generator.random() for top in free]))
        begin = free[space] + int(generator.integers(3))
        assert begin + extent <= ROWS, f"{function}, {rows} x {columns}"
        fields[name], free[space] = (space, begin), begin + extent
    if in_place and function not in _TABLES:
        for name in ("target", "third"):
            other = "start" if begun and generator.integers(2) else "x"
            if name in used and other in used and (name == "target" or fields["target"] != fields[other]):
                fields[name], strides[f"stride_{name}"] = fields[other], strides[f"stride_{other}"]
    elif begun and function != RowFunction.SCATTER and generator.integers(2):
        strides["stride_start"] = 0
    numbers = generator.integers(count if spread is None else min(spread, count), size=rows)
    far = generator.choice(np.array([count, count + 1, 4096, 1 << 16, (1 << 32) - 1]), rows)
    numbers = np.where(generator.random(rows) < wrong, far, numbers)
    factor = 1 / columns if columns and generator.random() < 0.8 else generator.standard_normal()
    return RowJob(numbers=numbers, job=Job(
        function=int(function), rows=rows, columns=columns, started=int(started),
        count=count if function in _TABLES else int(generator.integers(4096)),
        y_lane=int(generator.integers(lanes)), stride_numbers=apart, factor=_bits(factor), epsilon=_bits(1e-5),
        **fields, **strides))


def memories_of(generator, kind, *, lanes, jobs=()):
    """Fill memories of shape (rows, lanes) with random numbers and the row numbers of jobs."""
    memories = [draw(generator, kind, ROWS, lanes).astype(np.uint32) for _ in range(PLACES)]
    for job in jobs:
        job.place(memories)
    return memories
