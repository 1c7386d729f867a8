"""Launcher's record of the operations of a ring in software, with the costs that they would have on nodes."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from host.jobs import checks
from host.jobs.figures import Figures
from host.jobs.simulate import node_for
from host.pytorch.jobs import Operation, Operations, Options, present_on_any, used_optimizers
from host.pytorch.messages import Announce, Request, Save, contents_text, optimizers_text
from host.pytorch.software.costs import JobCosts

__all__ = ["AnnouncedOperations"]


class AnnouncedOperations(Operations):
    """Operations that ranks announce, and then do themselves."""

    def __init__(self, options: Options, say: Callable[[str], None] = lambda text: None) -> None:
        super().__init__(options, say)
        self._jobs: list[JobCosts] = []
        # index in _jobs of each job that the ranks have opened; a sum before the first one has a job of its own here
        self._opened: list[int] = []

    def __len__(self) -> int:
        return len(self._jobs)

    def answer(self, requests: Sequence[Request]) -> Any:
        """Record an operation that all ranks announce. Raises ``ValueError`` if their optimizers, weights or states
        differ, or if the job is impossible."""
        announcements = [request for request in requests if isinstance(request, Announce)]
        if len(announcements) < len(requests):
            raise ValueError("Process group of a ring in software must be the first one of the script")
        first = announcements[0]
        self.spend(max(request.seconds for request in announcements))
        self._note_nonfinite(announcements)
        self._compare_contents(announcements)
        if first.kind == "open":
            self._opened.append(self._open(first))
        elif first.kind == "all_reduce":
            self._compare_weights(announcements)
            if not self._jobs:
                self._open(dataclasses.replace(first, lengths=(first.count,)))
            self._add(announcements, self._jobs[self._number(first)].all_reduce(first.count, begin=first.begin))
        elif first.kind == "step":
            used = used_optimizers(first, present_on_any(announcements))
            self._add(announcements, self._jobs[self._number(first)].step(used))
        return None

    def save(self, request: Save) -> dict[str, Any]:
        """Raise ``ValueError``: ranks have the state of a job."""
        raise ValueError("State of a job must be asked of the ranks, which are a ring in software")

    def _number(self, announcement: Announce) -> int:
        """Number of the job of an operation; sums without a job count for the most recent one."""
        return len(self._jobs) - 1 if announcement.job is None else self._opened[announcement.job]

    def _open(self, announcement: Announce) -> int:
        shape, options = self._shape(announcement.optimizers), self._options
        formats = {name: shape[name] for name in ("packed_state", "gradients", "weights")}
        node = node_for(checks.groups_of(announcement.lengths)[-1].stop, nodes=options.nodes, **formats,
                        optimizer=announcement.optimizers[0] if announcement.optimizers else None)
        self._jobs.append(JobCosts(node, announcement.lengths, nodes=options.nodes, latency=options.link_latency,
                                   optimizers=announcement.optimizers, packed_state=shape["packed_state"]))
        return len(self._jobs) - 1

    def _add(self, announcements: Sequence[Announce], figures: Figures) -> None:
        first = announcements[0]
        norms = () if first.kind == "all_reduce" and first.made is None else tuple(
            request.norm for request in announcements)
        self.operations.append(Operation(kind=first.kind, job=self._number(first), figures=figures, norms=norms))

    def _compare_contents(self, announcements: Sequence[Announce]) -> None:
        """Raise ``ValueError`` if optimizers, weights or states differ between ranks."""
        first = announcements[0]
        for rank, request in enumerate(announcements):
            if request.optimizers != first.optimizers:
                raise ValueError(optimizers_text(rank, *(", ".join(map(str, each.optimizers))
                                                         for each in (request, first))))
            if request.contents != first.contents:
                raise ValueError(contents_text(rank))
