"""Choose the loop factors and loop order that minimize the modelled cycles of a matrix product."""

import dataclasses
import functools
import heapq
import itertools
from collections.abc import Iterator

from sim.golden.features.compute.gemm import ONES, GemmJob, Matrix
from sim.golden.features.compute.gemm_cycles import GemmCycles
from sim.golden.features.compute.gemm_estimate import bound, tail
from sim.golden.features.compute.loop_nest import ORDERS
from sim.golden.features.compute.mac_array import SLOTS

__all__ = ["best_factors", "candidates", "training_step"]

_SIZE_BITS = 12


def candidates(model: GemmCycles, job: GemmJob) -> Iterator[GemmJob]:
    """Yield the valid jobs with distinct loop factors and with panels no larger than the product requires."""
    for tile in range(4):
        at_once = {"m": model.rows << tile, "n": model.lanes * (SLOTS >> tile), "k": 1}
        most = {name: (-(-getattr(job, name) // size) - 1).bit_length() for name, size in at_once.items()}
        for row_tiles, column_tiles, rounds, order in itertools.product(
                range(min(most["m"], 7) + 1), range(min(most["n"], 7) + 1), range(min(most["k"], 15) + 1),
                range(len(ORDERS))):
            candidate = dataclasses.replace(
                job, tile=tile, row_tiles=row_tiles, column_tiles=column_tiles, rounds=rounds, order=order)
            if model.legal(candidate):
                yield candidate


@functools.lru_cache(maxsize=1024)
def best_factors(model: GemmCycles, job: GemmJob) -> GemmJob:
    """Return the job with the factors and loop order that take the fewest cycles; the first one on a tie.

    The number of beats is a lower bound on a candidate's cycles, the number of steps is a tighter bound, and the
    model gives the exact value. The candidate with the lowest value is refined until that value comes from the model.

    Raises ValueError if the sizes of the product are out of range.
    """
    if not all(0 < size < 1 << _SIZE_BITS for size in (job.m, job.n, job.k)):
        raise ValueError(f"Sizes of a product must be from 1 to 4095, not {job.m}, {job.n} and {job.k}")
    figures = (lambda trial: model.loops.cycles(trial.loops) + tail(model), functools.partial(bound, model),
               model.cycles)
    waiting = [(figures[0](trial), number, 0, trial) for number, trial in enumerate(candidates(model, job))]
    heapq.heapify(waiting)
    while True:
        _, number, known, trial = heapq.heappop(waiting)
        if known == len(figures) - 1:
            return trial
        heapq.heappush(waiting, (figures[known + 1](trial), number, known + 1, trial))


def training_step(share: int, widths: tuple[int, ...], lanes: int) -> dict[str, GemmJob]:
    """Matrix products of a training step of a perceptron with ReLU, in order; weights are (outputs, inputs).

    Each kind of operand starts at row 0 of its own memory, since only memories and strides matter here.
    """
    strides = [-(-width // lanes) for width in widths]
    last = len(widths) - 2
    jobs: dict[str, GemmJob] = {}

    def values(layer: int) -> Matrix:
        return Matrix(2, 0, strides[layer])

    for layer in range(last + 1):
        inputs, outputs = widths[layer:layer + 2]
        jobs[f"forward {layer}"] = GemmJob(
            m=share, n=outputs, k=inputs, transpose_b=1, initial=1, relu=int(layer < last), a=values(layer),
            b=Matrix(1, 0, strides[layer]), c=values(layer + 1), start=Matrix(1, 0, 0))
    for layer in reversed(range(last + 1)):
        inputs, outputs = widths[layer:layer + 2]
        jobs[f"weights {layer}"] = GemmJob(
            m=outputs, n=inputs, k=share, transpose_a=1, a=values(layer + 1), b=values(layer),
            c=Matrix(0, 0, strides[layer]))
        jobs[f"bias {layer}"] = GemmJob(
            m=1, n=outputs, k=share, a=Matrix(ONES, 0, 0), b=values(layer + 1), c=Matrix(0, 0, strides[layer + 1]))
        if layer:
            jobs[f"inputs {layer}"] = GemmJob(
                m=share, n=inputs, k=outputs, gated=1, a=values(layer + 1), b=Matrix(1, 0, strides[layer]),
                c=values(layer), gate=values(layer))
    return jobs
