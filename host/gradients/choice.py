"""Selection of the steps and elements of gradients that are recorded. It is the same on all ranks."""

import hashlib
from collections.abc import Sequence

from hdl.group import GROUP

__all__ = ["MAX_RUNS", "RUN", "Run", "is_sampled", "runs_of"]

#: Number of elements in a run, and maximum number of runs of a parameter in a step.
RUN, MAX_RUNS = 8 * GROUP, 4

#: Index of the first element of a run in the flattened gradient, and number of elements.
Run = tuple[int, int]


def is_sampled(step: int) -> bool:
    """Return whether gradients of a step are recorded; these are the steps 1, 2, 4, 8, and so on."""
    return step > 0 and step & (step - 1) == 0


def runs_of(parameter: str, step: int, length: int, limit: int = MAX_RUNS * RUN) -> Sequence[Run]:
    """Select elements of a gradient in runs of consecutive elements, in ascending order.

    Runs begin at multiples of 32 elements and have whole groups, except at the end of the gradient. Each run is in
    an equal part of the gradient, at a position that depends only on the name and the step.

    Parameters
    ----------
    parameter : str
        Name of the parameter.
    step : int
    length : int
        Number of elements of the gradient.
    limit : int
        Maximum number of elements, a multiple of 32.
    """
    if length <= limit:
        return [(0, length)] if length else []
    run = min(RUN, limit)
    count = limit // run
    groups, size = -(-length // GROUP), run // GROUP
    selected = []
    for number in range(count):
        first, end = number * groups // count, (number + 1) * groups // count
        digest = hashlib.blake2b(f"{parameter}\0{step}\0{number}".encode(), digest_size=8).digest()
        start = GROUP * (first + int.from_bytes(digest, "little") % (end - first - size + 1))
        selected.append((start, min(run, length - start)))
    return selected
