"""Text data set from Python's documentation, as character sequences of various lengths, and a bigram model.

The text is :mod:`pydoc_data.topics`, which ``help()`` shows: each line is converted to lower case, runs of spaces are
collapsed, and outer spaces are removed. Duplicate lines are used only once, so that no line is in both the training
and the test data.
"""

import dataclasses
import string
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from sim.arithmetic.functions import log

__all__ = ["ALPHABET", "REPLACEMENT", "Batch", "Bigram", "Text", "collate", "cut", "decode", "encode",
           "lines", "topics"]

Characters = npt.NDArray[np.int64]

#: Replacement for every character outside the alphabet.
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
#: Characters of the alphabet, indexed by their number.
ALPHABET = REPLACEMENT + " " + string.ascii_lowercase + string.digits + "!\"#%'()*+,-./:;<=>[\\]_{|}~"

_NUMBERS = {character: number for number, character in enumerate(ALPHABET)}
_HELD_OUT = 10  # the last of every ten lines is held out
_SMOOTHING = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)


def encode(text: str) -> Characters:
    """Convert text to an array of character numbers."""
    return np.array([_NUMBERS.get(character, 0) for character in text], dtype=np.int64)


def decode(characters: Iterable[int]) -> str:
    """Convert character numbers to text."""
    return "".join(ALPHABET[character] for character in characters)


def lines(topics: Mapping[str, str]) -> list[str]:
    """Return the distinct lines of at least two characters, in order of first occurrence in the sorted topics."""
    lower = (" ".join(line.split()).lower() for name in sorted(topics) for line in topics[name].splitlines())
    return list(dict.fromkeys(line for line in lower if len(line) >= 2))


def cut(line: str, context: int) -> list[str]:
    """Split a line into pieces of at most ``context`` + 1 characters.

    Each piece starts with the last character of the previous one, so that every character of the line except the
    first is predicted exactly once.
    """
    if context < 1:
        raise ValueError(f"Context must be at least 1, not {context!r}")
    return [line[start:start + context + 1] for start in range(0, len(line) - 1, context)]


@dataclasses.dataclass(frozen=True)
class Text:
    """Data set of character sequences for training and for testing, each of at least two characters."""
    train: list[Characters]
    test: list[Characters]


def topics(*, context: int) -> Text:
    """Split lines of :mod:`pydoc_data.topics` into pieces with at most ``context`` predicted characters.

    Every tenth line is reserved for testing. The text differs slightly between versions of Python.
    """
    from pydoc_data.topics import topics as source

    parts: tuple[list[Characters], list[Characters]] = ([], [])
    for number, line in enumerate(lines(source)):
        parts[number % _HELD_OUT == _HELD_OUT - 1].extend(encode(piece) for piece in cut(line, context))
    return Text(*parts)


@dataclasses.dataclass(frozen=True)
class Batch:
    """Batch of sequences, stored as rows of arrays. Shorter sequences are padded with zeros at the end."""
    #: Each character, and the character that follows it. Both arrays have the shape (sequences, longest length).
    inputs: Characters
    targets: Characters
    lengths: Characters  # number of predicted characters in each sequence


def collate(sequences: Sequence[Characters]) -> Batch:
    """Combine sequences of at least two characters each into a batch, which may be empty."""
    short = [len(sequence) for sequence in sequences if len(sequence) < 2]
    if short:
        raise ValueError(f"Sequence must be of at least 2 characters, not {short[0]!r}")
    lengths = np.array([len(sequence) - 1 for sequence in sequences], dtype=np.int64)
    shape = (len(sequences), int(lengths.max(initial=0)))
    inputs, targets = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
    for row, (sequence, length) in enumerate(zip(sequences, lengths, strict=True)):
        inputs[row, :length] = sequence[:-1]
        targets[row, :length] = sequence[1:]
    return Batch(inputs, targets, lengths)


class Bigram:
    """Bigram model: the probability of a character given the previous one, from smoothed counts.

    ``smoothing`` is added to each count. By default, it is chosen from several values to minimize the loss on every
    tenth sequence, with counts from the remaining sequences.
    """

    def __init__(self, sequences: Sequence[Characters], *, smoothing: float | None = None):
        if smoothing is None:
            rest = [sequence for n, sequence in enumerate(sequences) if n % _HELD_OUT != _HELD_OUT - 1]
            judges = sequences[_HELD_OUT - 1::_HELD_OUT]
            if not judges:
                raise ValueError(
                    f"Sequences must be at least {_HELD_OUT} to choose smoothing, not {len(sequences)!r}")
            smoothing = min(_SMOOTHING, key=lambda k: Bigram(rest, smoothing=k).loss(judges))
        if not smoothing > 0:
            raise ValueError(f"Smoothing must be greater than zero, not {smoothing!r}")
        counts = np.full((len(ALPHABET), len(ALPHABET)), float(smoothing))
        for sequence in sequences:
            np.add.at(counts, (sequence[:-1], sequence[1:]), 1)
        self.smoothing = smoothing
        totals = counts.cumsum(axis=1)[:, -1:]
        #: Logarithms of the probabilities. Rows are previous characters, and columns are next characters.
        self.logarithms = -log((totals / counts).astype(np.float32))

    def loss(self, sequences: Sequence[Characters]) -> float:
        """Compute the mean of -log(probability), in nats, over all characters except the first of each sequence."""
        terms = np.concatenate([self.logarithms[sequence[:-1], sequence[1:]] for sequence in sequences])
        return float(-terms.astype(np.float64).cumsum()[-1] / len(terms))
