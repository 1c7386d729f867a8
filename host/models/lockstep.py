"""Passes through a model that wait where something is to be masked, run side by side.

One call then masks what all of them wait for.
"""

import dataclasses
import enum
from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeVar

from host.models.layers import Array, Labels

__all__ = ["Pass", "Request", "Use", "lockstep"]

T = TypeVar("T")


class Use(enum.Enum):
    """What is to be masked."""

    SCORES = "scores"
    """Scores of attention, as by :func:`mask`: what is to come, and padding."""
    ROWS = "rows"
    """The loss's gradient with respect to the model's output, as by :func:`mask_rows`: rows of padding."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Request:
    """What a pass waits for.

    Members
    -------
    use : Use
    values : array
        Of shape (sequences, matrices, rows, columns).
    lengths : array of int64
        Of the sequences.
    """

    use: Use
    values: Array
    lengths: Labels


#: Requests what is to be masked, is sent the masked values, and returns its result.
Pass = Generator[Request, Array, T]


def lockstep(passes: Sequence[Pass[T]], answer: Callable[[list[Request | None]], Sequence[Array | None]]) -> list[T]:
    """Results of passes that go on side by side: where they wait, all are answered at once.

    Parameters
    ----------
    passes : sequence of Pass
    answer : callable
        Of the request of each pass, None from one that has ended, makes the masked values of each.
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
