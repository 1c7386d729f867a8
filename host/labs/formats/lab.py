"""Errors of gradient formats for Gaussian numbers and, next to them, for recorded gradients.

The first table of a recording has the errors of encoding the gradients of single ranks. The second table has the
errors of sums of all ranks on a golden ring. Residuals of earlier steps are zero. Without ``--gradients``, the lab
reads the recordings of two small models, digits.npz and text.npz in this folder.
"""

import functools
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np

from host.columns import Column, Table, show
from host.gradients.files import load
from host.labs.formats.measures import (
    CODED,
    SUMMED,
    Coding,
    Gradients,
    Numbers,
    Vector,
    by_parameter,
    coding,
    coding_of,
    sum_qsnrs,
)
from host.labs.kit import chosen_names
from host.options import Option, command
from sim.golden.codecs import CODECS, ZERO_VALUE

__all__ = ["RECORDED", "CodingRow", "SumRow", "coding_rows", "formats_lab", "sum_rows", "tables"]

#: Recordings in this folder, keyed by name.
RECORDED = {name: Path(__file__).with_name(f"{name}.npz") for name in ("digits", "text")}

#: Number of Gaussian numbers that are encoded, and number of sums of Gaussian numbers.
_LENGTH, _SUMS_LENGTH = 1 << 18, 1 << 16


@functools.cache
def _gaussian(rows: int = 1) -> Vector:
    length = _LENGTH if rows == 1 else _SUMS_LENGTH
    return np.random.default_rng(1).standard_normal((rows, length)).astype(np.float32)


def _lowest_tenth(values: Numbers) -> float:
    """The value that a tenth of the values are below."""
    return float(np.quantile(values, 0.1, method="lower"))


class CodingRow(NamedTuple):
    """Errors of a format: QSNR in dB, and fractions of nonzero elements that become zero."""

    format: str
    bits: float
    gaussian: float
    same_power: float
    median: float
    lowest_tenth: float
    zeros_gaussian: float
    zeros: float


def _bits(name: str, parts: Iterable[Vector]) -> float:
    """Number of bits per element of packets, each of which has one part."""
    words, count = 0, 0
    for part in parts:
        words += len(CODECS[name].encode(part.view(np.uint32)))
        count += len(part)
    return 32 * words / count


@functools.cache
def _gaussian_coding(name: str) -> Coding:
    return coding(name, _gaussian()[0])


def coding_rows(names: list[str], gradients: Gradients) -> list[CodingRow]:
    """Measure formats for recorded gradients, for Gaussian numbers with the same power in each gradient, and for
    Gaussian numbers with a standard deviation of 1."""
    rows = []
    for name in names:
        gaussian, (recorded, same) = _gaussian_coding(name), coding_of(name, gradients)
        rows.append(CodingRow(name, _bits(name, [_gaussian()[0, :256]]), float(gaussian.qsnr[0]),
                              float(np.median(same.qsnr)), float(np.median(recorded.qsnr)),
                              _lowest_tenth(recorded.qsnr), gaussian.lost, recorded.lost))
    return rows


class SumRow(NamedTuple):
    """QSNR in dB of sums in a format."""

    format: str
    gaussian: float
    median: float
    lowest_tenth: float


def sum_rows(names: list[str], gradients: Gradients) -> list[SumRow]:
    """Measure sums of recorded gradients, and of Gaussian numbers of as many ranks."""
    rows, starts = gradients.rows()
    measured = {name: sum_qsnrs(name, rows, starts) for name in names}
    return [SumRow(name, float(sum_qsnrs(name, _gaussian(gradients.ranks))[0]), float(np.median(each)),
                   _lowest_tenth(each)) for name, each in measured.items()]


_CODING = (Column("format"), Column("bits", ".2f", "bits"), Column("gaussian", ".1f", "Gaussian"),
           Column("same_power", ".1f", "Gaussian, same power"), Column("median", ".1f", "recorded"),
           Column("lowest_tenth", ".1f", "lowest tenth"), Column("zeros_gaussian", ".1%", "to zero, Gaussian"),
           Column("zeros", ".1%", "to zero, recorded"))
_SUMS = (Column("format"), Column("gaussian", ".1f", "Gaussian"), Column("median", ".1f", "recorded"),
         Column("lowest_tenth", ".1f", "lowest tenth"))


def tables(title: str, gradients: Gradients, names: list[str]) -> list[Table | str]:
    """Return the tables of a recording, and lines on its content, for formats in :data:`SUMMED`."""
    parts: list[Table | str] = [
        f"{title}: {len(gradients.samples):,} gradients of single ranks, and {len(gradients.addends):,} sums of "
        f"{gradients.ranks} ranks; QSNR in dB, median and lowest tenth"]
    if gradients.left_out:
        parts.append(f"{gradients.left_out:,} more gradients are not measured, since there are too many")
    if gradients.not_finite:
        parts.append(f"{gradients.not_finite:,} more gradients have infinities or NaNs")
    if not gradients.samples:
        return parts
    if coded := [name for name in names if name in CODED]:
        parts.append(Table(f"{title}: encoded gradients", _CODING, coding_rows(coded, gradients)))
    if gradients.addends:
        parts.append(Table(f"{title}: sums of {gradients.ranks} ranks", _SUMS, sum_rows(names, gradients)))
    if ZERO_VALUE in names:
        dense = _bits(ZERO_VALUE, [_gaussian()[0, :1024]])
        recorded = _bits(ZERO_VALUE, (sample.values for sample in gradients.samples))
        parts.append(f"{title}: {ZERO_VALUE} takes {dense:.1f} bits for a Gaussian number, and {recorded:.1f} bits "
                     f"for a recorded one")
    return parts


def _parameters(title: str, name: str, gradients: Gradients) -> Table:
    """Return the table of the parameters of a recording."""
    rows: list[dict[str, Any]] = [
        {"parameter": parameter, "source": source, "median": median, "zeros": zeros}
        for source, parameter, median, zeros in by_parameter(name, gradients)]
    return Table(f"{title}: gradients of each parameter in {name}", (
        Column("parameter"), Column("source"), Column("median", ".1f", "QSNR, dB"),
        Column("zeros", ".1%", "to zero")), rows)


@command
def formats_lab(
    *,
    gradients: Annotated[Path | None, Option(
        "Folder or file of recorded gradients, from 'gradring launch --record-gradients'.",
        shown_default="recordings of two small models")] = None,
    formats: Annotated[str | None, Option("Comma-separated formats.", shown_default="all")] = None,
    scale: Annotated[float, Option("Factor that recorded gradients are multiplied by, such as a loss scale.",
                                   minimum=1e-9, maximum=1e9)] = 1.0,
    parameters: Annotated[str | None, Option("Format for which the errors of each parameter are listed.",
                                             shown_default="none")] = None,
) -> None:
    """Compare errors of gradient formats for Gaussian numbers and for recorded gradients."""
    names = chosen_names("Format", formats, SUMMED)
    if parameters is not None:
        chosen_names("Format of --parameters", parameters, CODED)
    files = RECORDED if gradients is None else {str(gradients): gradients}
    for title, path in files.items():
        recorded = Gradients(load(path), scale=scale)
        show(*tables(title, recorded, names))
        if parameters is not None and recorded.samples:
            show(_parameters(title, parameters, recorded))
