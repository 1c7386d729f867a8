"""Masks of a training run, done by the nodes and compared with the golden model.

Nodes that compute mask within the products of their lists. What the host computes beside them, to compare or to
measure with, is masked by the golden model alone.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from host.driver.masking import MaskJob, Matrices
from host.driver.memory import errors_base
from host.driver.node_operations import NodeOperations
from host.driver.results import Cycles, total
from host.training.record import NODE, DivergenceError, TrainingConfig
from host.training.reference import Reference, words_of

__all__ = ["Masks", "no_masks"]


def no_masks(jobs: Sequence[Sequence[MaskJob]], alternative: float) -> list[list[Matrices]]:
    """Masks of a workload that has none."""
    raise ValueError("Workload must be one without masks")


class Masks:
    """Masks on the nodes, whose results are compared with the golden model."""

    def __init__(self, local: NodeOperations, reference: Reference, config: TrainingConfig):
        length = reference.weights.size
        self._local = local
        self._reference = reference
        self._check = config.check
        self._apart = config.compute == NODE
        self._behind = length if config.density is None else errors_base(length) + length
        #: Number of the step that is masked for.
        self.number = 0
        #: Sum over all commands so far of the cycles on the node where each took longest.
        self.cycles: Cycles = 0
        #: Elements that became the alternative so far; all elements; and words of external masks.
        self.replaced = self.elements = self.words = 0

    def __call__(self, jobs: Sequence[Sequence[MaskJob]], alternative: float) -> list[list[Matrices]]:
        if self._apart:
            return [[self._reference.masked(job, alternative) for job in mine] for mine in jobs]
        outcome = self._local.mask(jobs, alternative=alternative, behind=self._behind)
        self.cycles = total([self.cycles, outcome.cycles])
        self.replaced += sum(outcome.replaced)
        self.elements += sum(job.matrices.size for mine in jobs for job in mine)
        self.words += sum(-(-job.matrices.size // 32) for mine in jobs for job in mine if job.mask.external)
        if self._check:
            for rank, (mine, results) in enumerate(zip(jobs, outcome.results, strict=True)):
                replaced = sum(self._compare(rank, number, job, result, alternative)
                               for number, (job, result) in enumerate(zip(mine, results, strict=True)))
                if outcome.replaced[rank] != replaced:
                    raise DivergenceError(f"Step {self.number}: node {rank} has replaced {outcome.replaced[rank]} "
                                          f"elements, and must have replaced {replaced}")
        return outcome.results

    def _compare(self, rank: int, number: int, job: MaskJob, result: Matrices, alternative: float) -> int:
        """Compare the result of a job, and return the number of elements that had to be replaced."""
        expected, replaced = self._reference.mask(job, alternative)
        found = words_of(result)
        wrong = np.argwhere(found != expected)
        if len(wrong):
            place = tuple(wrong[0].tolist())
            raise DivergenceError(
                f"Step {self.number}: {len(wrong)} of {found.size} masked elements of job {number} of node {rank} "
                f"differ from the golden model, first matrix {place[0]}, row {place[1]}, column {place[2]}, which is "
                f"0x{found[place]:08x} and must be 0x{expected[place]:08x}")
        return replaced

    def state(self) -> dict[str, Any]:
        """Counts so far."""
        return {"cycles": self.cycles, "replaced": self.replaced, "elements": self.elements, "words": self.words}

    def restore(self, state: dict[str, Any]) -> None:
        """Go back or on to other counts."""
        vars(self).update(state)
