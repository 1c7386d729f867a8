"""Golden model of the int16 node: updates, compression, sparsification and masks of 16-bit integers.

Elements are two's complement integers. The host accesses each as a 32-bit word: writes keep the low half, and reads
are sign-extended. Numbers are ``int64`` and words ``uint32``.

Gradients are sent with zero-value compression: a group of 32 elements becomes a 32-bit mask, with bit n for element
n, followed by the nonzero elements, two per word with the first in the low half. If their number is odd, the upper
half of the last word is zero. A partial group is padded with zeros; without elements, there are no words.
"""

import dataclasses

import numpy as np
import numpy.typing as npt

from sim.golden import fixed_point, masking
from sim.golden.optimizer import Rule

__all__ = ["GROUP", "INDEX_BITS", "JOB_ELEMENTS", "WIDTH", "Masked", "Sparsified", "Update", "decode", "encode",
           "from_words", "group_sizes", "job_elements", "mask", "saturate", "sparsify", "to_words", "update"]

Numbers = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint32]

#: Number of bits of an element.
WIDTH = 16
#: Number of elements covered by one mask word.
GROUP = 32
#: Number of bits in row and column numbers.
INDEX_BITS = 12
#: Number of elements that a job occupies in the weight memory.
JOB_ELEMENTS = 16

_KINDS = ("triangle", "triangle_inverse", "padding", "rectangle", "rectangle_inverse", "band", "external")
_PARAMETERS = ("length_rows", "length_columns", "first_row", "end_row", "first_column", "end_column", "width")


def from_words(words: npt.ArrayLike) -> Numbers:
    """Convert ``words`` written by the host to elements: the lower half of each word."""
    return fixed_point.from_bits(words, WIDTH)


def to_words(numbers: npt.ArrayLike) -> Words:
    """Convert elements to words as the host reads them, sign-extended."""
    return np.asarray(numbers, np.int64).astype(np.int32).view(np.uint32)


def saturate(numbers: npt.ArrayLike) -> Numbers:
    """Saturate numbers to the range of 16-bit elements."""
    return fixed_point.saturate(numbers, WIDTH)


# --- Compression


def encode(elements: npt.ArrayLike) -> Words:
    """Compress 16-bit elements to words."""
    values = np.asarray(elements, np.int64)
    words: list[int] = []
    for start in range(0, len(values), GROUP):
        group = values[start:start + GROUP]
        words.append(sum(1 << int(bit) for bit in np.flatnonzero(group)))
        halves = fixed_point.to_bits(group[group != 0], WIDTH).tolist()
        halves += [0] * (len(halves) % 2)
        words.extend(low | high << WIDTH for low, high in zip(halves[::2], halves[1::2], strict=True))
    return np.array(words, np.uint32)


def decode(words: npt.ArrayLike, count: int) -> Numbers:
    """Expand compressed words into ``count`` elements."""
    stream = np.asarray(words, np.uint32).tolist()
    elements = np.zeros(-(-count // GROUP) * GROUP, np.int64)
    position = 0
    for start in range(0, count, GROUP):
        if position == len(stream):
            raise ValueError(f"Stream must have {-(-count // GROUP)} groups, not {start // GROUP}")
        marks = stream[position]
        present = [n for n in range(GROUP) if marks >> n & 1]
        end = position + 1 + (len(present) + 1) // 2
        if end > len(stream):
            raise ValueError(f"Stream must end with a whole group, not inside of the one at word {position!r}")
        halves = [half for word in stream[position + 1:end] for half in (word & 0xFFFF, word >> WIDTH)]
        elements[[start + n for n in present]] = from_words(halves[:len(present)])
        position = end
    if position != len(stream):
        raise ValueError(f"Stream must have {position} words for {count} elements, not {len(stream)}")
    return elements[:count]


def group_sizes(elements: npt.ArrayLike) -> Numbers:
    """Return the number of words in each group of compressed elements, including its mask word."""
    values = np.asarray(elements, np.int64)
    padded = np.zeros(-(-len(values) // GROUP) * GROUP, np.int64)
    padded[:len(values)] = values
    sizes: Numbers = 1 + (np.count_nonzero(padded.reshape(-1, GROUP), axis=1).astype(np.int64) + 1) // 2
    return sizes


# --- Operations


@dataclasses.dataclass(frozen=True)
class Update:
    """Result of a fused update on int16 nodes."""

    weights: Numbers
    words: int  # number of compressed words, as added to COMPRESSED_WORDS


def update(gradients: npt.ArrayLike, weights: npt.ArrayLike, *, gradient_scale: int, learning_rate: int) -> Update:
    """FUSED_UPDATE with SGD: d = sat(round(gradient_scale * g)), w' = sat(w - round(learning_rate * d)).

    Scalars have 18 bits with 16 fraction bits; they may be numbers or the low bits of a register.
    """
    words = encode(gradients)
    settings = fixed_point.FixedSettings(Rule.SGD, gradient_scale, learning_rate)
    decoded = decode(words, len(np.asarray(gradients)))
    moved, _ = fixed_point.update(decoded, weights, [], settings, width=WIDTH)
    return Update(moved, len(words))


@dataclasses.dataclass(frozen=True)
class Sparsified:
    """Result of SPARSIFY. The event reports ``dropped`` as its detail, and ELEMENTS_MASKED increases by it."""

    gradients: Numbers
    errors: Numbers
    dropped: int


def sparsify(gradients: npt.ArrayLike, errors: npt.ArrayLike, threshold: int) -> Sparsified:
    """SPARSIFY: s = sat(g + e) becomes the gradient if |s| >= threshold, else the error.

    The threshold is an unsigned 16-bit number: 0 drops nothing, and values above 32768 drop everything.
    """
    sums = saturate(np.asarray(gradients, np.int64) + np.asarray(errors, np.int64))
    large = np.abs(sums) >= (int(threshold) & (1 << WIDTH) - 1)
    return Sparsified(np.where(large, sums, 0), np.where(large, 0, sums), int(np.count_nonzero(~large)))


def job_elements(job: masking.Job) -> Numbers:
    """Encode a job as elements in the weight memory: the half words of mask_job_layout(), low halves first.

    In order: kinds, count, rows, columns, elements (low, high), diagonal (low, high), length_rows, length_columns,
    first_row, end_row, first_column, end_column, width, and an ignored element.
    """
    job_mask = job.mask
    kinds = sum(getattr(job_mask, kind) << n for n, kind in enumerate(_KINDS))
    halves = [kinds, job.count, job.rows, job.columns, job.elements, job.elements >> WIDTH,
              job_mask.diagonal, job_mask.diagonal >> WIDTH, *(getattr(job_mask, name) for name in _PARAMETERS), 0]
    return from_words(np.array(halves, np.int64) & 0xFFFF)


@dataclasses.dataclass(frozen=True)
class Masked:
    """Result of a MASK command."""

    elements: Numbers
    #: Number of replaced elements; added to ELEMENTS_MASKED, and the event's detail on success.
    replaced: int
    #: Number of the first invalid job, which is the event's detail with BAD_MASK; earlier jobs are executed.
    bad: int | None = None


def mask(elements: npt.ArrayLike, jobs: npt.ArrayLike, alternative: int) -> Masked:
    """Apply MASK to the command's elements, which start at ``gradient_base``. ``jobs`` holds the weight memory from
    ``weight_base`` to its end, and begins with the jobs. Only the low 16 bits of the alternative are used.

    A job is invalid

    - if the memory ends before the end of the job;
    - if it has no rows, columns or matrices;
    - if a row or column count or any mask parameter, enabled or not, has more than 12 bits, or a diagonal more than
      12 bits plus sign;
    - if it is external, or its ``elements`` differ from count * rows * columns or exceed the remaining elements.
    """
    result = np.array(elements, np.int64)
    memory = np.asarray(jobs, np.int64)
    replaced = used = number = 0
    while used < len(result):
        job = _job(memory[JOB_ELEMENTS * number:JOB_ELEMENTS * (number + 1)])
        if job is None or job.elements > len(result) - used:
            return Masked(result, replaced, number)
        kept = masking.kept(job).reshape(-1)
        run = slice(used, used + job.elements)
        result[run] = np.where(kept, result[run], from_words(alternative))
        replaced += int(np.count_nonzero(~kept))
        used += job.elements
        number += 1
    return Masked(result, replaced)


def _job(elements: Numbers) -> masking.Job | None:
    """Decode a job from its elements in memory; None if any of its fields is invalid."""
    if len(elements) < JOB_ELEMENTS:
        return None
    halves = (elements & 0xFFFF).tolist()
    kinds, count, rows, columns, low, high, diagonal_low, diagonal_high, *parameters, _ = halves
    diagonal = int(fixed_point.from_bits(diagonal_low | diagonal_high << WIDTH, 2 * WIDTH))
    most = 1 << INDEX_BITS
    wide = max(rows, columns, *parameters) >= most or not -most <= diagonal < most
    enabled = {kind: bool(kinds >> n & 1) for n, kind in enumerate(_KINDS)}
    if not (count and rows and columns) or wide or enabled["external"]:
        return None
    job = masking.Job(rows=rows, columns=columns, count=count, mask=masking.Mask(
        **enabled, diagonal=diagonal, **dict(zip(_PARAMETERS, parameters, strict=True))))
    return job if job.elements == low | high << WIDTH else None
