"""Errors of sums: ``python -m sim.bench.reproducible_errors`` prints the table of docs/reproducible.md.

For each number of addends, the table contains the relative squared error of sums of random numbers: the squared
distance from the exact sums, divided by the squared length of the exact sums. Apart from reproducible sums, the table
covers sums on a ring with its codecs.
"""

import functools
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import numpy.typing as npt

from sim.golden import ring
from sim.golden.codecs import CODECS
from sim.golden.features.reproducible.sums import sum_of

__all__ = ["COUNTS", "DISTRIBUTIONS", "WIDTHS", "errors", "line", "sums", "table"]

Addends = npt.NDArray[np.float32]

ELEMENTS = 1 << 17
COUNTS, WIDTHS, ON_RING = (2, 4, 8, 16, 32), (32, 24, 16, 12, 10), ("raw", "bf16", "mx9")


def _gaussian(generator: np.random.Generator, shape: tuple[int, int]) -> Addends:
    return generator.standard_normal(shape).astype(np.float32)


def _log_normal(generator: np.random.Generator, shape: tuple[int, int]) -> Addends:
    return _gaussian(generator, shape) * np.exp(1.5 * generator.standard_normal(shape)).astype(np.float32)


#: Generators of addends, keyed by distribution; log-normal numbers have sigma = 1.5 and random signs.
DISTRIBUTIONS: dict[str, Callable[[np.random.Generator, tuple[int, int]], Addends]] = {
    "Gaussian": _gaussian, "log-normal": _log_normal}


def _on_ring(codec: str, addends: Addends) -> npt.NDArray[np.uint32]:
    return ring.all_reduce(addends.view(np.uint32), gradient_codec=CODECS[codec],
                           residuals=np.zeros(addends.shape, np.uint32))[0]


def sums(addends: Addends) -> dict[str, Addends]:
    """Sums of the rows of ``addends``, by format."""
    functions = {**{codec: functools.partial(_on_ring, codec) for codec in ON_RING},
                 **{f"width {width}": functools.partial(_reproducible, width) for width in WIDTHS}}
    return {name: of(addends).view(np.float32) for name, of in functions.items()}


def errors(distribution: str, count: int) -> dict[str, float]:
    """Relative squared error of sums of ``count`` addends, by format."""
    addends = DISTRIBUTIONS[distribution](np.random.default_rng(count), (count, ELEMENTS))
    exact = addends.astype(np.float64).sum(axis=0)
    return {name: float(((total - exact) ** 2).sum() / (exact ** 2).sum()) for name, total in sums(addends).items()}


def _reproducible(width: int, addends: Addends) -> npt.NDArray[np.uint32]:
    return sum_of(addends.view(np.uint32), width=width)


def table() -> Iterator[str]:
    """Lines of the table of errors, in Markdown."""
    names = [*ON_RING, *(f"width {width}" for width in WIDTHS)]
    yield f"| numbers | addends | {' | '.join(names)} |"
    yield f"|---|---:|{'---:|' * len(names)}"
    for distribution in DISTRIBUTIONS:
        for count in COUNTS:
            yield line(distribution, count, errors(distribution, count))


def line(numbers: str, count: int, row: Mapping[str, float]) -> str:
    """Line of the table, for errors by format."""
    return f"| {numbers} | {count} | {' | '.join(f'{error:.1e}' for error in row.values())} |"


if __name__ == "__main__":
    print("\n".join(table()))
