"""Masks for matrices, and the layout of the matrices to mask in a node's memories.

A mask command masks one region of a node's gradient memory, where each row of each matrix starts at a new memory row.
The weight memory contains a list of jobs, with shapes and masks, followed by the words of external masks.
:func:`plan` lays out the regions that all jobs need.

Nodes with 16-bit integer elements mask integer matrices and do not support external masks. Their lists store each
word of a job as two elements, low half first.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from hdl.config import FP32, INT16
from hdl.masking.job_list import MASK_JOB_WORDS, mask_job_layout
from hdl.masking.mask import COUNT_BITS, INDEX_BITS, KINDS
from hdl.memory_map import BASE_ALIGNMENT
from host.driver.words import Words, pack, places
from sim.golden import masking as golden

__all__ = ["BOUNDS", "Mask", "MaskJob", "Matrices", "Region", "plan", "unpack"]

Matrices = npt.NDArray[np.float32] | npt.NDArray[np.int16]

_WORD = 32
_LAYOUT = places(mask_job_layout())
_JOB_ELEMENTS = {FP32: MASK_JOB_WORDS, INT16: 2 * MASK_JOB_WORDS}
_TYPES: dict[str, type[np.generic]] = {FP32: np.float32, INT16: np.int16}

#: Names of mask parameters that must be unsigned numbers.
BOUNDS = ("length_rows", "length_columns", "first_row", "end_row", "first_column", "end_column", "width")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mask(golden.Mask):
    """Mask of a matrix, as executed by nodes: see :class:`sim.golden.masking.Mask` and docs/masking/masking.md.

    Raises ``ValueError`` if a parameter has more bits than a job list can hold.
    """

    def __post_init__(self) -> None:
        for name in BOUNDS:
            if not 0 <= getattr(self, name) < 1 << INDEX_BITS:
                raise ValueError(f"Mask's {name} must be a number of {INDEX_BITS} bits, not {getattr(self, name)!r}")
        if not -(1 << INDEX_BITS) <= self.diagonal < 1 << INDEX_BITS:
            raise ValueError(f"Mask's diagonal must be between {-(1 << INDEX_BITS)} and {(1 << INDEX_BITS) - 1}, not "
                             f"{self.diagonal!r}")


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class MaskJob:
    """Matrices of the same shape with the same mask."""

    matrices: Matrices  # matrices as an array of shape (count, rows, columns)
    mask: Mask
    # external masks only: array of the same shape, True for each element to keep
    external: npt.NDArray[np.bool_] | None = None

    def __post_init__(self) -> None:
        shape = self.matrices.shape
        if self.matrices.dtype not in _TYPES.values() or len(shape) != 3 or 0 in shape:
            raise ValueError(f"Matrices must be float32 or int16 of shape (count, rows, columns), each at least 1, "
                             f"not {self.matrices.dtype} of {shape!r}")
        if max(shape[1:]) >= 1 << INDEX_BITS:
            raise ValueError(f"Rows and columns must be at most {(1 << INDEX_BITS) - 1}, not {shape[1:]!r}")
        if self.mask.external != (self.external is not None):
            actual = "none" if self.external is None else "one"
            raise ValueError(f"External mask must be given where the mask is external, and only there, not {actual}")
        if self.external is not None and (self.external.dtype != np.bool_ or self.external.shape != shape):
            raise ValueError(f"External mask must be bool of shape {shape!r}, not {self.external.dtype} of "
                             f"{self.external.shape!r}")

    @property
    def count(self) -> int:
        return len(self.matrices)

    @property
    def rows(self) -> int:
        return int(self.matrices.shape[1])

    @property
    def columns(self) -> int:
        return int(self.matrices.shape[2])


@dataclasses.dataclass(frozen=True)
class _Piece:
    """Consecutive matrices of a job that are in the same region."""

    job: int
    first: int
    count: int
    elements: int


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Region:
    """Matrices masked by one command, and their contents in the gradient and weight memories."""

    pieces: list[_Piece]  # matrices in the region, grouped by job
    data: Words  # contents of the gradient memory
    words: Words  # contents of the weight memory: the job list and the words of external masks
    externals: int  # offset of the external mask words, a multiple of 32


def _up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def plan(jobs: Sequence[MaskJob], *, lanes: int, elements: int, words: int, element: str = FP32) -> list[Region]:
    """Lay out jobs in regions, in order; a job that does not fit is split between two matrices.

    Memory rows have ``lanes`` elements; a region holds up to ``elements`` matrix elements, and ``words`` words of the
    job list and external masks. Raises ``ValueError`` if one matrix does not fit, or if nodes with this ``element``
    type, fp32 or int16, do not support the job.
    """
    for job in jobs:
        if job.matrices.dtype != _TYPES[element]:
            raise ValueError(f"Matrices must be {np.dtype(_TYPES[element])} for {element} nodes, not "
                             f"{job.matrices.dtype}")
        if job.mask.external and element == INT16:
            raise ValueError("Mask must not be external for int16 nodes, which have only those that are generated")
    each_job = _JOB_ELEMENTS[element]
    regions: list[Region] = []
    pieces: list[_Piece] = []
    used = external = 0  # number of matrix elements and of external mask words in ``pieces`` so far
    for number, job in enumerate(jobs):
        each = job.rows * _up(job.columns, lanes)
        first = 0
        while first < job.count:
            left = words - _up((len(pieces) + 1) * each_job, BASE_ALIGNMENT) - external
            count = min(job.count - first, (elements - used) // each, (1 << COUNT_BITS) - 1)
            if job.mask.external:
                count = min(count, _WORD * left // (job.rows * job.columns))
            if count > 0 and left >= 0:
                pieces.append(_Piece(number, first, count, count * each))
                used += count * each
                external += -(-count * job.rows * job.columns // _WORD) if job.mask.external else 0
                first += count
            elif pieces:
                regions.append(_region(jobs, pieces, lanes, element))
                pieces, used, external = [], 0, 0
            else:
                raise ValueError(_no_room(job, each, elements, words, each_job))
    if pieces:
        regions.append(_region(jobs, pieces, lanes, element))
    return regions


def _no_room(job: MaskJob, each: int, elements: int, words: int, each_job: int) -> str:
    shape = f"{job.rows} x {job.columns}"
    if each > elements:
        return (f"Matrix of {shape} must take at most the {elements:,} elements of a node's gradient memory, not "
                f"{each:,}: take shorter sequences, or nodes with more gradient memory")
    needed = _up(each_job, BASE_ALIGNMENT) + (-(-job.rows * job.columns // _WORD) if job.mask.external else 0)
    return (f"Job and external mask of a matrix of {shape} must take at most the {words:,} words of weight memory "
            f"that are free, not {needed:,}: take a smaller model, or nodes with more weight memory")


def _region(jobs: Sequence[MaskJob], pieces: list[_Piece], lanes: int, element: str) -> Region:
    data, listed, externals = [], [], []
    for piece in pieces:
        job = jobs[piece.job]
        part = slice(piece.first, piece.first + piece.count)
        flat = np.pad(job.matrices[part], ((0, 0), (0, 0), (0, -job.columns % lanes))).reshape(-1)
        data.append((flat.astype(np.int32) if element == INT16 else flat).view(np.uint32))
        words = _job_words(job, piece)
        listed.append(words.astype("<u4").view("<u2").astype(np.uint32) if element == INT16 else words)
        if job.external is not None:
            externals.append(_bits(job.external[part]))
    list_words = np.concatenate(listed)
    gap = np.zeros(-len(list_words) % int(BASE_ALIGNMENT), np.uint32)
    return Region(pieces=list(pieces), data=np.concatenate(data), words=np.concatenate([list_words, gap, *externals]),
                  externals=len(list_words) + len(gap))


def _job_words(job: MaskJob, piece: _Piece) -> Words:
    """Encode a job as words in memory."""
    values = {**vars(job.mask), "count": piece.count, "rows": job.rows, "columns": job.columns,
              "elements": piece.elements, "kinds": sum(getattr(job.mask, kind) << n for n, kind in enumerate(KINDS)),
              "diagonal": job.mask.diagonal & (1 << _LAYOUT["diagonal"][1]) - 1}  # encoded in two's complement
    return pack(_LAYOUT, values, "Job's")


def _bits(mask: npt.NDArray[np.bool_]) -> Words:
    """Pack a mask into one bit per element without gaps; the last word is padded with zeros."""
    padded = np.pad(mask.reshape(-1), (0, -mask.size % _WORD))
    return np.packbits(padded, bitorder="little").view("<u4").astype(np.uint32)


def unpack(jobs: Sequence[MaskJob], regions: Sequence[Region], data: Sequence[Words]) -> list[Matrices]:
    """Unpack the matrices of each job. ``data`` contains the contents of each region in the gradient memory, and
    ``regions`` is the result of :func:`plan`."""
    results: list[Matrices] = [np.empty_like(job.matrices) for job in jobs]
    for region, words in zip(regions, data, strict=True):
        start = 0
        for piece in region.pieces:
            job = jobs[piece.job]
            part = words[start:start + piece.elements]
            halves = job.matrices.dtype == np.int16
            values = part.astype(np.uint16).view(np.int16) if halves else part.view(np.float32)
            rows = values.reshape(piece.count, job.rows, -1)
            results[piece.job][piece.first:piece.first + piece.count] = rows[..., :job.columns]
            start += piece.elements
    return results
