"""Files of recorded gradients.

A file is an npz archive without pickles. Its array ``about`` is JSON as bytes, which describes each sample,
and its array ``values`` has the elements of all samples as float32. A folder has one file for each step, rank and
source, and every file can be read without the others.
"""

import dataclasses
import itertools
import math
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hdl.group import GROUP
from host.archives import Kind, read_arrays
from host.gradients.choice import Run
from host.output import OutputError, json_bytes, prepare, replacing
from host.printable import one_line
from sim import json_files
from sim.fields import integer, pair, record, several, text

__all__ = ["LIMIT", "Addends", "Sample", "addends_of", "check_folder", "file_name", "load", "merge",
           "recorded_files", "save"]

Vector = npt.NDArray[np.float32]

#: Maximum number of bytes that a run records, and of the elements that are read from a folder or a file.
LIMIT, _MAX_BYTES = 64_000_000, 256_000_000

_VERSION = 1
_FILE = re.compile(r"[a-z]+\d+-step\d{10,}-rank\d{4,}\.npz")
_COUNT = 1 << 40
_MAX_SAMPLES, _MAX_RUNS, _MAX_DIMENSIONS, _MAX_NAME = 1 << 16, 1 << 10, 64, 1000
_ABOUT = record(version=integer(_VERSION, _VERSION), samples=several(record(
    source=text(r"[a-z]+\d{1,6}"), parameter=lambda value: isinstance(value, str) and len(value) <= _MAX_NAME,
    shape=several(integer(0, _COUNT), 0, _MAX_DIMENSIONS), step=integer(1, _COUNT), rank=integer(0, 1 << 20),
    ranks=integer(1, 1 << 20), runs=several(pair(integer(0, _COUNT), integer(1, _COUNT)), 0, _MAX_RUNS)),
    0, _MAX_SAMPLES))


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Sample:
    """Elements of one parameter's gradient on one rank in one step, before it is encoded or summed.

    Members
    -------
    source : str
        Origin of the gradient: ``module0`` for the first DDP module, ``optimizer0`` for the first optimizer on the
        nodes that has parameters outside of such modules, or ``sums0`` for the script's own sums.
    parameter : str
        Name of the parameter.
    shape : tuple of int
        Shape of the whole gradient.
    step : int
        Number of the backward pass, or of the optimizer's step, from 1.
    rank, ranks : int
        The rank, and the number of ranks.
    runs : sequence of (int, int)
        First index and number of elements of each run in the flattened gradient, in ascending order. Elements are
        in the order in which the ring gets them: that of memory for a DDP module.
    values : array of shape (count,)
        Elements of all runs, one run after another.
    """

    source: str
    parameter: str
    shape: tuple[int, ...]
    step: int
    rank: int
    ranks: int
    runs: Sequence[Run]
    values: Vector

    @property
    def key(self) -> tuple[str, str, int, int]:
        """Source, parameter, step and rank."""
        return self.source, self.parameter, self.step, self.rank


def file_name(source: str, step: int, rank: int) -> str:
    """Return the name of the file with the samples of one source, step and rank."""
    return f"{source}-step{step:010}-rank{rank:04}.npz"


def recorded_files(folder: Path) -> list[Path]:
    """Return the files of recorded gradients in a folder, sorted by name."""
    return sorted(path for path in folder.iterdir() if _FILE.fullmatch(path.name))


def check_folder(folder: Path, name: str) -> None:
    """Create a folder for recorded gradients. ``name`` is the option or variable that the user has set.

    Raises ``ValueError`` with one line if files cannot be written there, or the folder has recorded gradients.
    """
    try:
        prepare(folder)
    except OutputError as error:
        raise ValueError(str(error).replace("--output", name)) from None
    if recorded_files(folder):
        raise ValueError(f"{name} must be a folder without recorded gradients, not {folder}: remove its files, or "
                         f"choose another folder")


def save(path: Path, samples: Iterable[Sample], *, compressed: bool = False) -> None:
    """Write samples to a file, completely or not at all. Raises ``OutputError`` if the file cannot be written."""
    samples = list(samples)
    about = {"version": _VERSION, "samples": [
        {"source": sample.source, "parameter": sample.parameter, "shape": [*sample.shape], "step": sample.step,
         "rank": sample.rank, "ranks": sample.ranks, "runs": [[*run] for run in sample.runs]} for sample in samples]}
    data = json_bytes(about, indent=None)
    values = np.concatenate([np.zeros(0, np.float32), *(sample.values for sample in samples)])
    with replacing(path) as file:
        (np.savez_compressed if compressed else np.savez)(file, about=np.frombuffer(data, np.uint8), values=values)


def load(path: Path | str) -> list[Sample]:
    """Read the samples of a folder, or of one file, in order of source, parameter, step and rank.

    Raises
    ------
    ValueError
        There are no recorded gradients, or a file is damaged or of another kind. The message names the file.
    OSError
        A file cannot be read.
    """
    path = Path(path)
    if not path.exists():
        raise ValueError(f"Recorded gradients must be in a folder or a file, and {path} does not exist: record them "
                         f"by gradring launch --record-gradients {path}")
    files = recorded_files(path) if path.is_dir() else [path]
    if not files:
        raise ValueError(f"{path} must have files of recorded gradients: record them by gradring launch "
                         f"--record-gradients {path}")
    samples: list[Sample] = []
    left = _MAX_BYTES
    for file in files:
        read = _read(file, left)
        samples += read
        left -= sum(sample.values.nbytes for sample in read)
    if len({sample.key for sample in samples}) < len(samples):
        raise ValueError(f"{path} must have each parameter once for each step and rank: it has the files of several "
                         f"recordings, or one that is damaged")
    return sorted(samples, key=lambda sample: sample.key)


def _read(path: Path, largest: int) -> list[Sample]:
    """Read a file of at most ``largest`` bytes."""
    arrays = read_arrays(path, {"about": Kind(np.uint8, 1), "values": Kind(np.float32, 1)}, largest=largest)
    try:
        return _samples(arrays)
    except ValueError as error:
        raise ValueError(f"{path} must have recorded gradients, not damaged or other arrays: "
                         f"{one_line(error)}") from None


def _samples(arrays: dict[str, npt.NDArray[Any]]) -> list[Sample]:
    """Make samples from the arrays of a file; raise ``ValueError`` unless all fields are valid."""
    if arrays.keys() != {"about", "values"}:
        raise ValueError("it must have the arrays about and values")
    about = json_files.parse(arrays["about"].tobytes())
    if not _ABOUT(about):
        raise ValueError(f"its array about must have version {_VERSION} and samples with the fields of Sample")
    samples, first, values = [], 0, arrays["values"]
    for entry in about["samples"]:
        runs = [(start, count) for start, count in entry["runs"]]
        _check_runs(runs, math.prod(entry["shape"]))
        if entry["rank"] >= entry["ranks"] or not entry["parameter"].isprintable():
            raise ValueError("samples must have printable names, and ranks below the number of ranks")
        count = sum(count for _, count in runs)
        samples.append(Sample(**{**entry, "runs": runs, "shape": tuple(entry["shape"])},
                              values=values[first:first + count]))
        first += count
    if first != len(values):
        raise ValueError(f"its runs must have {len(values):,} elements, not {first:,}")
    return samples


def _check_runs(runs: Sequence[Run], length: int) -> None:
    """Raise ``ValueError`` unless runs consist of groups of a gradient of ``length`` elements, in order."""
    ends = [0, *(start + count for start, count in runs)]
    for (start, _), before, end in zip(runs, ends, ends[1:], strict=False):
        if start < before or start % GROUP or end > length or (end % GROUP and end != length):
            raise ValueError(f"runs must be groups of {GROUP} elements in ascending order")


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Addends:
    """Elements of one parameter's gradient on all ranks in one step.

    Members
    -------
    source, parameter, step
        As in :class:`Sample`.
    values : array of shape (ranks, count)
    """

    source: str
    parameter: str
    step: int
    values: Vector


def addends_of(samples: Iterable[Sample]) -> list[Addends]:
    """Return the gradients that ranks sum. A gradient that lacks a rank, as after a run was stopped, is omitted."""
    result = []
    ordered = sorted(samples, key=lambda sample: sample.key)
    for (source, parameter, step), group in itertools.groupby(ordered, key=lambda sample: sample.key[:3]):
        ranks = list(group)
        if [sample.rank for sample in ranks] != list(range(ranks[0].ranks)) or len(
                {(tuple(sample.runs), sample.shape) for sample in ranks}) > 1:
            continue
        result.append(Addends(source=source, parameter=parameter, step=step,
                              values=np.stack([sample.values for sample in ranks])))
    return result


def merge(source: Path, target: Path, *, steps: Sequence[int] | None = None, runs: int | None = None) -> None:
    """Write the samples of a folder to one compressed file.

    Parameters
    ----------
    source, target : Path
        Folder to read, and file to write.
    steps : sequence of int, optional
        Steps to keep.
    runs : int, optional
        Maximum number of runs to keep of each sample.
    """
    samples = []
    for sample in load(source):
        if steps is None or sample.step in steps:
            kept = list(sample.runs)[:runs]
            samples.append(dataclasses.replace(sample, runs=kept,
                                               values=sample.values[:sum(count for _, count in kept)]))
    save(target, samples, compressed=True)
