"""Operations of a program and the buffers that they read and write: from these follow the lifetimes of buffers.

A buffer lives from the first operation that writes it to the last one that touches it, which is included. What the
host gives before a pass, and takes behind it, are operations as well.
"""

import dataclasses
import functools
import hashlib
import json
from collections.abc import Mapping, Sequence

__all__ = ["Lifetime", "Operation", "Profile", "ProfileError", "live_words"]


class ProfileError(ValueError):
    """Operations cannot be those of a program: a buffer is read before it is written, or has no words."""


@dataclasses.dataclass(frozen=True)
class Operation:
    """Operation of a program.

    Members
    -------
    reads, writes : tuple of str
        Names of buffers.
    """

    name: str
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Lifetime:
    """Words that a buffer takes, and when.

    Members
    -------
    first, end : int
        Number of the operation that writes the buffer first, and of the one behind the last that touches it.
    """

    first: int
    end: int
    words: int
    name: str = ""

    def __post_init__(self) -> None:
        if self.first < 0 or self.end <= self.first:
            raise ValueError(f"Lifetime must begin at 0 or later and end behind its begin, not "
                             f"{(self.first, self.end)!r}")
        if self.words < 1:
            raise ValueError(f"Words of a buffer must be at least 1, not {self.words!r}")

    def meets(self, other: "Lifetime") -> bool:
        """Whether both buffers are alive at some operation."""
        return self.first < other.end and other.first < self.end


@dataclasses.dataclass(frozen=True)
class Profile:
    """Program whose buffers are known by name.

    Parameters
    ----------
    words : dict
        Words of each buffer, by name.

    Raises
    ------
    ProfileError
        An operation touches a buffer without words, or reads one that nothing has written; or a buffer is never
        touched.
    """

    words: Mapping[str, int]
    operations: Sequence[Operation]

    def __post_init__(self) -> None:
        written: set[str] = set()
        for operation in self.operations:
            for name in (*operation.reads, *operation.writes):
                if name not in self.words:
                    raise ProfileError(f"Buffer {name} of {operation.name} must have a number of words")
            for name in operation.reads:
                if name not in written:
                    raise ProfileError(f"Buffer {name} must be written before {operation.name} reads it")
            written |= set(operation.writes)
        for name in self.words:
            if name not in written:
                raise ProfileError(f"Buffer {name} must be written by some operation")

    @functools.cached_property
    def lifetimes(self) -> tuple[Lifetime, ...]:
        """Lifetimes of all buffers, in the order of :attr:`words`."""
        first: dict[str, int] = {}
        last: dict[str, int] = {}
        for number, operation in enumerate(self.operations):
            for name in operation.writes:
                first.setdefault(name, number)
            last |= dict.fromkeys((*operation.reads, *operation.writes), number)
        return tuple(Lifetime(first[name], last[name] + 1, words, name) for name, words in self.words.items())

    @property
    def naive(self) -> int:
        """Words of all buffers, each in a place of its own."""
        return sum(self.words.values())

    @property
    def live(self) -> int:
        """Most words that are alive at a time: no plan takes fewer."""
        return live_words(self.lifetimes)

    @functools.cached_property
    def digest(self) -> str:
        """SHA-256 of buffers and operations. Places do not change it, and neither do the names of operations."""
        text = json.dumps([list(self.words.items()), [[one.reads, one.writes] for one in self.operations]])
        return hashlib.sha256(text.encode()).hexdigest()


def live_words(lifetimes: Sequence[Lifetime]) -> int:
    """Most words that are alive at a time."""
    begins = {one.first for one in lifetimes}
    return max((sum(one.words for one in lifetimes if one.first <= time < one.end) for time in begins), default=0)
