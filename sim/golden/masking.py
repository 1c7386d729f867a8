"""Golden model of masks: definition, masked values and their softmax, and beats of masks and data.

Masks are arrays of bool, one per matrix element. The cycle models are recurrences over beats: a register loads beat k
when its predecessor offers it and beat k - 1 has left::

    load(k) = max(offer(k), depart(k - 1)),  next offer(k) = load(k) + 1
"""

import dataclasses
import enum
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from sim.golden import conversion, exponential, floating

__all__ = ["Beats", "Element", "Flags", "Indices", "Job", "Mask", "Numbers", "Words", "alternative", "apply",
           "bits", "data_beats", "exists", "kept", "mask_beats", "softmax", "sparsify", "words", "words_fetched"]

Flags = npt.NDArray[np.bool_]

Words = npt.NDArray[np.uint32]

Numbers = npt.NDArray[np.uint64]

Indices = npt.NDArray[np.int64]

_WORD = 32


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mask:
    """Enabled kinds of masks and their parameters; an element is kept if all enabled kinds keep it.

    Parameters
    ----------
    triangle, triangle_inverse, padding, rectangle, rectangle_inverse, band, external : bool
        Kinds that are enabled.
    diagonal : int
        Diagonal of the triangles: column j of row i is kept if j <= i + diagonal; the inverse keeps the rest.
    length_rows, length_columns : int
        Number of leading rows and columns kept by padding.
    first_row, end_row, first_column, end_column : int
        Bounds of the rectangles.
    width : int
        Width of the band: column j of row i is kept if abs(i - j) <= width.
    """

    triangle: bool = False
    triangle_inverse: bool = False
    padding: bool = False
    rectangle: bool = False
    rectangle_inverse: bool = False
    band: bool = False
    external: bool = False
    diagonal: int = 0
    length_rows: int = 0
    length_columns: int = 0
    first_row: int = 0
    end_row: int = 0
    first_column: int = 0
    end_column: int = 0
    width: int = 0

    def generated(self, rows: int, columns: int) -> Flags:
        """Return the mask of a matrix, combined from all enabled kinds except the external mask."""
        i, j = np.indices((rows, columns))
        inside = ((i >= self.first_row) & (i < self.end_row) & (j >= self.first_column) & (j < self.end_column))
        result = np.ones((rows, columns), np.bool_)
        for enabled, keeps in (
            (self.triangle, j <= i + self.diagonal), (self.triangle_inverse, j > i + self.diagonal),
            (self.padding, (i < self.length_rows) & (j < self.length_columns)),
            (self.rectangle, inside), (self.rectangle_inverse, ~inside), (self.band, np.abs(i - j) <= self.width),
        ):
            if enabled:
                result &= keeps
        return result


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """Masking job: a batch of matrices of the same shape, with the same mask."""

    rows: int
    columns: int
    count: int = 1
    mask: Mask = Mask()

    @property
    def elements(self) -> int:
        return self.rows * self.columns * self.count

    def beats(self, lanes: int) -> int:
        return self.count * self.rows * -(-self.columns // lanes)


def words(mask: npt.ArrayLike) -> Words:
    """Pack an external mask into words, one bit per element without gaps, padded with zeros."""
    flat = np.asarray(mask, np.bool_).reshape(-1)
    padded = np.zeros(-(-len(flat) // _WORD) * _WORD, np.bool_)
    padded[:len(flat)] = flat
    return np.packbits(padded, bitorder="little").view("<u4").astype(np.uint32)


def bits(job: Job, external: npt.ArrayLike) -> Flags:
    """Unpack a mask from words: the inverse of :func:`words`."""
    packed = np.asarray(external, np.uint32)
    if len(packed) != -(-job.elements // _WORD):
        raise ValueError(f"External mask must be {-(-job.elements // _WORD)} words, not {len(packed)!r}")
    flat = np.unpackbits(packed.astype("<u4").view(np.uint8), bitorder="little")[:job.elements]
    return flat.astype(np.bool_).reshape(job.count, job.rows, job.columns)


def kept(job: Job, external: npt.ArrayLike | None = None) -> Flags:
    """Return the elements kept by a job's mask, with shape (count, rows, columns)."""
    generated = np.broadcast_to(job.mask.generated(job.rows, job.columns), (job.count, job.rows, job.columns))
    if not job.mask.external:
        return generated.copy()
    if external is None:
        raise ValueError("Words must be given for an external mask, not None")
    return generated & bits(job, external)


def apply(values: npt.ArrayLike, mask: npt.ArrayLike, alternative: int) -> npt.NDArray[np.generic]:
    """Apply a mask to bit patterns: masked elements are replaced by the alternative."""
    array = np.asarray(values)
    return np.where(np.asarray(mask, np.bool_), array, array.dtype.type(alternative))


def words_fetched(job: Job) -> int:
    """Number of external mask words that a job consumes; none unless its mask is external."""
    return -(-job.elements // _WORD) if job.mask.external else 0

_MAGNITUDE = np.uint32(0x7FFF_FFFF)


def sparsify(gradients: npt.ArrayLike, errors: npt.ArrayLike, threshold: int) -> tuple[Words, Words]:
    """Apply a magnitude mask; return the values to send and the remaining errors as binary32 bit patterns.

    The sum of gradient and error is kept if its bits without the sign bit, as an integer, are at least the bits of
    the threshold; otherwise the sum becomes the new error. A dropped gradient and the error of a kept gradient are
    +0.0.
    """
    sums = floating.add(gradients, errors)
    large = (sums & _MAGNITUDE) >= (np.uint32(threshold) & _MAGNITUDE)
    return np.where(large, sums, np.uint32(0)), np.where(large, np.uint32(0), sums)


class Element(enum.Enum):
    """Element formats of scores: width in bits, and the number that replaces masked elements."""

    FP32 = 32, 0xC61C4000  # -10000
    BF16 = 16, 0xC61C  # -9984, the number nearest to -10000
    FP16 = 16, 0xF0E2  # -10000
    INT8 = 8, 0x80  # -128

    @property
    def width(self) -> int:
        width: int = self.value[0]
        return width

    def round(self, values: npt.ArrayLike) -> npt.NDArray[np.float32]:
        """Round binary32 numbers to a floating-point format."""
        single = np.asarray(values, np.float32)
        if self is Element.FP32:
            return single
        if self is Element.FP16:
            return conversion.from_half(conversion.to_half(single.view(np.uint32))).view(np.float32)
        if self is Element.BF16:
            return conversion.from_bfloat16(conversion.to_bfloat16(single.view(np.uint32))).view(np.float32)
        raise ValueError(f"Element format must be of floating point, not {self!r}")

    def decode(self, encodings: npt.ArrayLike) -> npt.NDArray[np.float32]:
        """Decode encodings of a floating-point format to numbers."""
        codes = np.asarray(encodings)
        if self is Element.FP32:
            return codes.astype(np.uint32).view(np.float32)
        if self is Element.FP16:
            return conversion.from_half(codes).view(np.float32)
        if self is Element.BF16:
            return conversion.from_bfloat16(codes).view(np.float32)
        raise ValueError(f"Element format must be of floating point, not {self!r}")


def alternative(format: Element) -> int:
    """Return the encoding of the number that replaces a masked element before a softmax.

    It is -10000 or the nearest representable number; for INT8, it is the most negative code. If a row's maximum is
    finite and at least -9000, every masked element has a softmax weight of exactly zero.
    """
    encoding: int = format.value[1]
    return encoding


def softmax(scores: npt.ArrayLike, format: Element) -> npt.NDArray[np.float32]:
    """Softmax of encoded scores along the last axis, computed in a floating-point format.

    The row's maximum is subtracted, and the difference, its exponential and the quotient by the row's sum are each
    rounded to the format; the sum is formed in binary32, from left to right. Numbers must be finite.

    A row with all elements masked has equal scores and therefore equal weights of 1 / columns.
    """
    numbers = format.decode(scores)
    with np.errstate(all="ignore"):
        differences = format.round(numbers - numbers.max(axis=-1, keepdims=True))
        powers = format.round(exponential.exp(differences))
        total = np.add.accumulate(powers, axis=-1, dtype=np.float32)[..., -1:]
        return format.round(powers / total)


@dataclasses.dataclass(frozen=True)
class Beats:
    """Mask beats: ``mask`` and ``keep`` have shape (beats, lanes); the rest have one value per beat.

    Members
    -------
    word : array of bool
        Whether this is the first beat to use a new word of the external mask.
    """

    mask: Flags
    keep: Flags
    row_end: Flags
    external: Flags
    last: Flags
    word: Flags

    def __len__(self) -> int:
        return len(self.last)


def exists(job: Job, lanes: int) -> Flags:
    """Return flags for the lanes that hold an element in each beat of a job, with shape (beats, lanes)."""
    row = (np.arange(-(-job.columns // lanes) * lanes) < job.columns).reshape(-1, lanes)
    return np.tile(row, (job.count * job.rows, 1))


def mask_beats(jobs: Iterable[Job], lanes: int, masks: Iterable[npt.ArrayLike] | None = None) -> Beats:
    """Return the mask beats of consecutive jobs.

    Parameters
    ----------
    jobs : iterable of Job
    lanes : int
        Number of elements per beat.
    masks : iterable of arrays or None
        Masks from :func:`kept`, one per job; the default is each job's generated mask.
    """
    jobs = list(jobs)
    parts = []
    all_masks = [None] * len(jobs) if masks is None else list(masks)
    for job, mask in zip(jobs, all_masks, strict=True):
        keep = exists(job, lanes)
        beats = len(keep)
        if not beats:
            continue
        bits = np.zeros((beats, lanes), np.bool_)
        generated = kept(dataclasses.replace(job, mask=dataclasses.replace(job.mask, external=False)))
        bits[keep] = np.asarray(generated if mask is None else mask, np.bool_).reshape(-1)
        after = np.cumsum(keep.sum(axis=1))
        before = after - keep.sum(axis=1)
        numbers = np.arange(1, beats + 1)
        parts.append(Beats(
            mask=bits, keep=keep, row_end=numbers % -(-job.columns // lanes) == 0,
            external=np.full(beats, job.mask.external), last=numbers == beats,
            word=job.mask.external & (-(-after // _WORD) > -(-before // _WORD))))
    empty = Beats(*(np.zeros(shape, np.bool_) for shape in ((0, lanes), (0, lanes), 0, 0, 0, 0)))
    return Beats(*(np.concatenate([getattr(part, field.name) for part in [empty, *parts]])
                   for field in dataclasses.fields(Beats)))


def data_beats(values: npt.ArrayLike, lanes: int, fill: int = 0) -> npt.NDArray[np.generic]:
    """Convert elements of shape (count, rows, columns) to beats. Each row starts a new beat; its last beat is
    padded with ``fill``."""
    array = np.asarray(values)
    columns = array.shape[-1]
    padded = np.full((*array.shape[:-1], -(-columns // lanes) * lanes), fill, array.dtype)
    padded[..., :columns] = array
    return padded.reshape(-1, lanes)
