"""Errors of gradient formats for vectors of any kind, and for the gradients that ranks have recorded.

An error is a ratio of powers in decibels (QSNR): the sum of the squared numbers over the sum of the squared errors.
"""

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from hdl.group import GROUP
from host.gradients.files import Addends, Sample, addends_of
from sim.golden import ring
from sim.golden.codecs import CODECS, GRADIENT_CODECS

__all__ = ["CODED", "SUMMED", "Coding", "Gradients", "Numbers", "Vector", "by_parameter", "coding", "coding_of",
           "qsnr", "sum_qsnrs"]

Vector = npt.NDArray[np.float32]
Numbers = npt.NDArray[np.float64]

#: Maximum number of elements of a recording that are measured, on all ranks.
MAX_ELEMENTS = 1 << 20

#: Formats of sums, and formats that also round the gradients of single ranks.
SUMMED = tuple(name for name in GRADIENT_CODECS if not CODECS[name].codebook_words)
CODED = tuple(name for name in SUMMED if not (CODECS[name].exact or CODECS[name].agreed))


def qsnr(values: Numbers, errors: Numbers) -> Numbers:
    """Return ratios of powers in dB; without errors, a ratio is infinite."""
    with np.errstate(divide="ignore"):
        return np.asarray(10 * (np.log10(values) - np.log10(errors)))


class Gradients:
    """Recorded gradients that are measured together, except gradients that are all zeros or not finite.

    They are divided by the number of ranks, as DDP sends them. Each gradient begins a group of 32 elements, and is
    followed by zeros up to the next group.

    Parameters
    ----------
    samples : sequence of Sample
    scale : float
        Factor that all gradients are multiplied by.

    Members
    -------
    samples : list of Sample
        Gradients of single ranks that are measured.
    addends : list of Addends
        Gradients of all ranks that are measured, which all have the same number of ranks.
    ranks : int
        Number of ranks of the addends.
    left_out, not_finite : int
        Number of gradients that exceed the maximum number of elements, and of gradients with infinities or NaNs.
    """

    samples: list[Sample]
    addends: list[Addends]

    def __init__(self, samples: Sequence[Sample], *, scale: float = 1.0) -> None:
        self._scale = scale
        finite = [sample for sample in samples if np.isfinite(sample.values).all()]
        self.not_finite = len(samples) - len(finite)
        every = -(-sum(len(sample.values) for sample in finite) // MAX_ELEMENTS)
        keys = list(dict.fromkeys(sample.key[:3] for sample in finite))
        kept = set(keys[::max(every, 1)])
        measured = [sample for sample in finite if sample.key[:3] in kept]
        self.left_out = len(finite) - len(measured)
        self.samples = [sample for sample in measured if sample.values.any()]
        self.ranks = max((sample.ranks for sample in measured), default=0)
        self.addends = [each for each in addends_of(measured)
                        if len(each.values) == self.ranks and each.values.astype(np.float64).sum(axis=0).any()]

    def vector(self) -> tuple[Vector, list[int]]:
        """Return the elements of all samples, and the index at which each begins."""
        return _aligned([np.float32(self._scale / sample.ranks) * sample.values for sample in self.samples])

    def rows(self) -> tuple[Vector, list[int]]:
        """Return the elements of all addends, one row per rank, and the index at which each gradient begins."""
        return _aligned([np.float32(self._scale / self.ranks) * each.values for each in self.addends])


def _aligned(parts: Sequence[Vector]) -> tuple[Vector, list[int]]:
    """Concatenate arrays along the last axis, each from a multiple of 32 on."""
    padded = [np.pad(part, [*[(0, 0)] * (part.ndim - 1), (0, -part.shape[-1] % GROUP)]) for part in parts]
    starts = np.cumsum([0, *(part.shape[-1] for part in padded)])[:-1].tolist()
    return (np.concatenate(padded, axis=-1) if padded else np.zeros(0, np.float32)), starts


@dataclasses.dataclass(frozen=True)
class Coding:
    """Errors of encoding parts of a vector.

    Members
    -------
    qsnr : array of shape (parts,)
        QSNR of each part in dB.
    zeros : array of shape (parts,)
        Fraction of the nonzero elements of each part that become zero.
    lost : float
        The same fraction for the whole vector.
    """

    qsnr: Numbers
    zeros: Numbers
    lost: float


def coding(name: str, values: Vector, starts: Sequence[int] = (0,)) -> Coding:
    """Encode and decode a vector with a format, and measure the parts that begin at ``starts``."""
    codec = CODECS[name]
    decoded = codec.decode(codec.encode(values.view(np.uint32)), len(values)).view(np.float32)
    exact = values.astype(np.float64)
    nonzero, flushed = values != 0, (values != 0) & (decoded == 0)
    power, error, count, lost = (np.add.reduceat(terms, starts) for terms in (
        exact ** 2, (decoded - exact) ** 2, nonzero.astype(np.float64), flushed.astype(np.float64)))
    return Coding(qsnr(power, error), lost / np.maximum(count, 1), float(lost.sum() / max(count.sum(), 1)))


def coding_of(name: str, gradients: Gradients, *, seed: int = 0) -> tuple[Coding, Coding]:
    """Measure a format for recorded gradients, and for Gaussian numbers with the same power in each gradient."""
    values, starts = gradients.vector()
    noise = np.random.default_rng(seed).standard_normal(len(values)).astype(np.float32)
    noise[_padding(starts, gradients, len(values))] = 0
    scales = np.sqrt(np.add.reduceat(values.astype(np.float64) ** 2, starts)
                     / np.add.reduceat(noise.astype(np.float64) ** 2, starts))
    sizes = np.diff([*starts, len(values)])
    return coding(name, values, starts), coding(name, (noise * np.repeat(scales, sizes)).astype(np.float32), starts)


def _padding(starts: Sequence[int], gradients: Gradients, length: int) -> npt.NDArray[np.bool_]:
    """Return which elements of :meth:`Gradients.vector` are padding."""
    padding = np.ones(length, np.bool_)
    for start, sample in zip(starts, gradients.samples, strict=True):
        padding[start:start + len(sample.values)] = False
    return padding


def sum_qsnrs(name: str, rows: Vector, starts: Sequence[int] = (0,)) -> Numbers:
    """Sum vectors of several ranks on a ring with a format; return the QSNR of the sum of each part in dB.

    Parameters
    ----------
    name : str
        Name of the format.
    rows : array of shape (ranks, count)
    starts : sequence of int
        First element of each part.
    """
    codec = CODECS[name]
    residuals = None if codec.exact or codec.agreed else np.zeros(rows.shape, np.uint32)
    sums = ring.all_reduce(rows.view(np.uint32), gradient_codec=codec, residuals=residuals)[0].view(np.float32)
    exact = rows.astype(np.float64).sum(axis=0)
    return qsnr(np.add.reduceat(exact ** 2, starts), np.add.reduceat((sums - exact) ** 2, starts))


def by_parameter(name: str, gradients: Gradients) -> Iterator[tuple[str, str, float, float]]:
    """Yield the source and name of each parameter, its median QSNR, and the fraction of elements that become zero, in
    ascending order of QSNR."""
    recorded, _ = coding_of(name, gradients)
    keys: dict[tuple[str, str], list[int]] = {}
    for index, sample in enumerate(gradients.samples):
        keys.setdefault(sample.key[:2], []).append(index)
    rows = [(source, parameter, float(np.median(recorded.qsnr[indices])), float(recorded.zeros[indices].mean()))
            for (source, parameter), indices in keys.items()]
    yield from sorted(rows, key=lambda row: row[2])
