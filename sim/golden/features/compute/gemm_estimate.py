"""Cycle estimate for matrix products that are too large to model, extrapolated from a few steps.

The steps of the outer loops repeat, so the model adds up beats and loads for two and for three panels along each
dimension, and assumes that each further panel takes the difference. docs/tiling.md gives the error of this
extrapolation relative to :mod:`sim.golden.features.compute.gemm_cycles`.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

from sim.golden.features.compute.gemm import ONES, GemmJob
from sim.golden.features.compute.gemm_cycles import GemmCycles
from sim.golden.features.compute.loop_nest import ORDERS
from sim.golden.features.compute.mac_array import SLOTS

__all__ = ["Load", "bound", "estimate", "loads", "tail"]

#: Latency in cycles from a job to its first request, and from a panel's last request to its first term.
_LEAD, _FILLED = 10, 8
#: Maximum number of operand rows that can wait for a panel.
_ROWS = 17
#: Number of panels along a dimension after which each further panel takes the same time.
_REPEATS = 3


@dataclasses.dataclass(frozen=True)
class Load:
    """Step of the outer loops: rows of A and rows of B to load, beats, and how many beats precede the first term."""

    a: int
    b: int
    beats: int
    initial: int


def loads(model: GemmCycles, job: GemmJob) -> Iterator[Load]:
    """List the steps of a valid job, in order."""
    loops = model.loops
    stride = loops.strides(job.loops)
    sizes = {"m": job.m, "n": job.n, "k": job.k}
    outer, middle, inner = tuple(ORDERS[job.order])
    holds = job.row_tiles == job.column_tiles == 0 and inner == "k"
    first = 1 if job.start.stride == 0 else model.rows
    before = dict.fromkeys("mnk", -1)
    for x in range(0, sizes[outer], stride[outer]):
        for y in range(0, sizes[middle], stride[middle]):
            for z in range(0, sizes[inner], stride[inner]):
                base = {outer: x, middle: y, inner: z}
                extent = {name: min(stride[name], sizes[name] - base[name]) for name in "mnk"}
                new = {name: base[name] != before[name] for name in "mnk"}
                before = base
                rows = [_rows(model.lanes, extent, name, along_k) if (new[name] or new["k"]) and memory != ONES else 0
                        for name, along_k, memory in (("m", not job.transpose_a, job.a.place),
                                                      ("n", job.transpose_b, job.b.place))]
                tiles = (-(-extent["m"] // (model.rows << job.tile))
                         * -(-extent["n"] // (model.lanes * (SLOTS >> job.tile))))
                begins = base["k"] == 0
                initial = job.initial * first if begins else 0 if holds else model.rows
                yield Load(rows[0], rows[1], SLOTS * tiles * (initial + extent["k"]), SLOTS * initial)


def _rows(lanes: int, extent: dict[str, int], name: str, along_k: int) -> int:
    """Number of memory rows in a panel."""
    lines, length = (extent[name], extent["k"]) if along_k else (extent["k"], extent[name])
    return lines * -(-length // lanes)


def bound(model: GemmCycles, job: GemmJob) -> int:
    """Lower bound on a job's cycles. Beats and panel loads are each sequential, and a panel is loaded before
    its beats."""
    read, ended = _LEAD, 0
    before = 0  # cycle when the beats of the step before the previous step ended
    latest = (0, 0)
    for step in loads(model, job):
        begun = ended + step.beats
        if step.a or step.b:
            read += step.a + step.b
            rows, last = (step.b, latest[1]) if step.b else (step.a, latest[0])
            if last:
                # The panel before the previous panel must be released; until then, the first rows wait in a queue.
                read = max(read, before + rows - _ROWS)
            begun = max(begun, read + _FILLED + step.beats - step.initial)
        latest = step.a, step.b
        before, ended = ended, begun
    return ended + tail(model)


def tail(model: GemmCycles) -> int:
    """Minimum latency in cycles from the last beat of a job to the end of the job."""
    return model.product + SLOTS * (model.rows + 1)


def _smaller(job: GemmJob, name: str, size: int) -> GemmJob:
    fields: dict[str, Any] = {name: size}
    return dataclasses.replace(job, **fields)


def estimate(model: GemmCycles, job: GemmJob) -> int:
    """Estimate the number of cycles of a valid job."""
    stride = model.loops.strides(job.loops)
    for name in "mnk":
        size: int = getattr(job, name)
        panels = -(-size // stride[name])
        if panels > _REPEATS:
            two, three = (estimate(model, _smaller(job, name, size - stride[name] * (panels - count)))
                          for count in (_REPEATS - 1, _REPEATS))
            return three + (panels - _REPEATS) * (three - two)
    return bound(model, job)
