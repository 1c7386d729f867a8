"""Passes through a model, run side by side, that wait wherever a mask is due.

One call then masks the values of all of them.
"""

import dataclasses
import enum
from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeVar

from host.models.layers import Array, Labels

__all__ = ["Pass", "Request", "Use", "lockstep"]

T = TypeVar("T")


class Use(enum.Enum):
    """The values that a mask is for."""

    SCORES = "scores"
    """Scores of attention, masked as by :func:`~host.models.masks.mask`: later characters, and padding."""
    ROWS = "rows"
    """The loss's gradient with respect to the model's output, masked as by :func:`~host.models.masks.mask_rows`: rows
    of padding."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Request:
    """A pass's request for masked values.

    Members
    -------
    values : array
        Matrices to be masked, in shape (sequences, matrices, rows, columns).
    lengths : array of int64
        Length of each sequence.
    """

    use: Use
    values: Array
    lengths: Labels


#: A pass requests masks, is sent the masked values, and returns its result.
Pass = Generator[Request, Array, T]


def lockstep(passes: Sequence[Pass[T]], answer: Callable[[list[Request | None]], Sequence[Array | None]]) -> list[T]:
    """Results of passes that go on side by side; all that wait are answered at once.

    Parameters
    ----------
    answer : callable
        Makes the masked values of each pass from the requests of all, None for one that has ended.
    """
    results: dict[int, T] = {}
    answers: Sequence[Any] = [None] * len(passes)
    while len(results) < len(passes):
        requests: list[Request | None] = [None] * len(passes)
        for number, one in enumerate(passes):
            if number not in results:
                try:
                    requests[number] = one.send(answers[number])
                except StopIteration as end:
                    results[number] = end.value
        if any(requests):
            answers = answer(requests)
    return [results[number] for number in range(len(passes))]
