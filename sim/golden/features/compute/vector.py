"""Golden model of the vector unit: its reads and writes, and cross-entropy of labelled rows.

Mirrors :mod:`hdl.features.compute.vector`.
"""

import dataclasses

import numpy as np
import numpy.typing as npt

from hdl.features.compute.layer_list import PADDING, VectorProgram
from sim.golden import summation

__all__ = ["CrossEntropy", "Job", "Read", "Write", "cross_entropy", "reads", "softmax", "writes"]

Bits = npt.NDArray[np.uint32]


@dataclasses.dataclass(frozen=True)
class CrossEntropy:
    """Result of a job as bit patterns: loss, gradient, and whether any label was invalid."""

    loss: int
    gradient: Bits
    wrong: bool


def cross_entropy(scores: Bits, labels: npt.NDArray[np.integer], *, sequences: bool = False) -> CrossEntropy:
    """Loss and gradient for rows of scores, as in :func:`sim.golden.summation.cross_entropy`.

    A label is invalid if it is not less than the number of columns: 1 is then not subtracted anywhere in its row of
    the gradient, and the row adds +0.0 to the loss. With ``sequences``, a row labelled
    :data:`~hdl.features.compute.layer_list.PADDING` is valid and has a gradient of +0.0.
    """
    values, chosen = np.asarray(scores, np.uint32).view(np.float32), np.asarray(labels)
    right, padding = chosen < values.shape[1], (chosen == PADDING) & sequences
    with np.errstate(all="ignore"):
        powers = summation.exp(values - summation.maxima(values))
        gradient = summation.canonical(powers / summation.row_sums(powers))
        loss, gradient[right] = summation.cross_entropy(values[right], chosen[right].astype(np.int64))
    gradient[padding] = 0
    wrong = not (right | padding).all()
    return CrossEntropy(int(np.float32(loss).view(np.uint32)), gradient.view(np.uint32), wrong)


def softmax(scores: Bits) -> Bits:
    """Softmax for rows of scores, as in :func:`sim.golden.summation.softmax`."""
    with np.errstate(all="ignore"):
        return summation.softmax(np.asarray(scores, np.uint32).view(np.float32)).view(np.uint32)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """Job for the vector unit, with the fields of :func:`hdl.features.compute.jobs.vector_job_layout`.

    Memories are identified by number; their rows start at 0. ``stride_source`` and ``stride_target`` are in rows, and
    ``stride_labels`` is in elements.
    """

    rows: int
    columns: int
    source: tuple[int, int] = (0, 0)
    labels: tuple[int, int] = (0, 0)
    target: tuple[int, int] = (0, 0)
    loss: tuple[int, int] = (0, 0)
    labels_lane: int = 0
    loss_lane: int = 0
    stride_source: int = 0
    stride_labels: int = 1
    stride_target: int = 0
    function: int = 0

    @property
    def softmax(self) -> bool:
        return bool(self.function == VectorProgram.SOFTMAX)

    def legal(self, most: int, *, sequences: bool = False) -> bool:
        """Whether a unit with at most ``most`` columns, and with or without sequences, accepts the job."""
        return self.function <= sequences and self.rows > 0 and 0 < self.columns <= most


@dataclasses.dataclass(frozen=True)
class Read:
    """Read of a memory row; ``column`` is its first matrix column, or -1 for a label in a single lane."""

    place: int
    row: int
    matrix_row: int
    column: int
    lane: int = 0


def reads(job: Job, lanes: int) -> list[Read]:
    """Reads in order: for each row, first its label (unless the job is a softmax), then its elements."""
    result = []
    for row in range(job.rows):
        address = job.labels[1] * lanes + job.labels_lane + row * job.stride_labels
        if not job.softmax:
            result.append(Read(job.labels[0], address // lanes, row, -1, address % lanes))
        start = job.source[1] + row * job.stride_source
        result += [Read(job.source[0], start + number, row, column)
                   for number, column in enumerate(range(0, job.columns, lanes))]
    return result


@dataclasses.dataclass(frozen=True)
class Write:
    """Write to a memory row; ``elements`` maps lanes to elements."""

    place: int
    row: int
    elements: dict[int, int]


def writes(job: Job, result: CrossEntropy, lanes: int) -> list[Write]:
    """Writes of a job in order: the gradient rows and then the loss; a softmax has only the rows."""
    listed = [
        Write(job.target[0], job.target[1] + row * job.stride_target + column // lanes,
              dict(enumerate(result.gradient[row, column:column + lanes].tolist())))
        for row in range(job.rows) for column in range(0, job.columns, lanes)]
    return listed if job.softmax else [*listed, Write(*job.loss, {job.loss_lane: result.loss})]
