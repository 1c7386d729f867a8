"""Places that stay where they are over edits: those of units in a server's memories, and of lists on its workers.

While a set runs, what the next one needs is written beside what the running one uses. A unit that is in both keeps
its place, so that its weights and state need not be written again.
"""

import itertools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from host.relay.edits import RefusedError
from host.relay.plan import RelayPlan

__all__ = ["first_bases", "free_base", "lists_base", "next_bases"]

Bits = npt.NDArray[np.uint32]
#: First element, and the one behind the last.
Span = tuple[int, int]


def first_bases(lengths: Sequence[int]) -> list[int]:
    """Places of units one behind the other."""
    return list(itertools.accumulate(lengths, initial=0))[:-1]


def free_base(length: int, taken: Sequence[Span], *, first: int = 0) -> int:
    """The lowest place from ``first`` on that meets none which is taken."""
    base = first
    for begin, end in sorted(taken):
        if begin < base + length and base < end:
            base = end
    return base


def next_bases(before: Sequence[Bits], bases: Sequence[int], after: Sequence[Bits], *, words: int) -> list[int]:
    """Places of the units behind an edit.

    Parameters
    ----------
    before : sequence of array
        Masters of the units that run.
    bases : sequence of int
        Their places.
    after : sequence of array
        Masters of the units behind the edit; those that it leaves are the same objects.
    words : int
        Elements of each memory of the server.

    Raises
    ------
    RefusedError
        There is no place for a new unit.
    """
    held = {id(master): base for master, base in zip(before, bases, strict=True)}
    taken = [(base, base + len(master)) for master, base in zip(before, bases, strict=True)]
    found = []
    for master in after:
        base = held.get(id(master))
        if base is None:
            base = free_base(len(master), taken)
            if base + len(master) > words:
                raise RefusedError(f"Edit must leave a place for a unit of {len(master):,} words among the {words:,} "
                                   f"of a server beside the {sum(map(len, before)):,} of the set that runs")
            taken.append((base, base + len(master)))
        found.append(base)
    return found


def lists_base(plan: RelayPlan, running: RelayPlan, base: int) -> int:
    """Place of a plan's lists beside those of the plan that runs, which begin at ``base``, and behind the buffers of
    both.

    Raises
    ------
    RefusedError
        There is none.
    """
    if plan.digest == running.digest:
        return base
    words = plan.end - plan.lists
    found = free_base(words, [(base, base + running.end - running.lists)], first=max(plan.lists, running.lists))
    if found + words > plan.worker.activation_words:
        raise RefusedError(f"Edit must leave a place for {words:,} elements of lists among the "
                           f"{plan.worker.activation_words:,} of a worker's activation memory, beside buffers and "
                           f"lists of the set that runs")
    return found
