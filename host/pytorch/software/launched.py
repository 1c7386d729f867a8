"""Requests of one rank to a ring in software under the launcher, which compares all ranks' requests."""

import time
from concurrent.futures import Future
from typing import Any

from host.pytorch.connection import Connection
from host.pytorch.messages import RING, AllReduce, Announce, Open, Request, Save, Step
from host.pytorch.norms import norms_of
from host.pytorch.software.client import SoftwareClient, contents_of
from host.pytorch.software.ring import RankRing

__all__ = ["LaunchedClient", "announcement"]


class LaunchedClient(SoftwareClient):
    """Operations of one rank, each of which begins after all ranks have announced it to the launcher.

    The launcher reports ranks that are late, differ or have ended, and writes the report. It may answer that it
    computes the sums itself, on simulated nodes: later requests are then sent to it.

    Parameters
    ----------
    launcher : Connection
        Connection to the launcher.
    codecs
        As for :class:`~host.pytorch.software.client.SoftwareClient`.
    """

    one_machine = True
    # Shards and groups of some ranks use gloo, since the launcher has no jobs for them.
    shards = False
    codes_weights = False

    def __init__(self, launcher: Connection, **codecs: Any) -> None:
        super().__init__(**codecs)
        self._launcher = launcher
        self.gloo = launcher.gloo
        self._on_nodes = False

    def join(self, rank: int, ranks: int, timeout: float, *, backend: str = RING) -> None:
        """Join the group of all ranks over a backend; repeated calls with the same backend have no effect."""
        self._launcher.join(rank, ranks, timeout, backend=backend)

    def of_some(self) -> None:  # type: ignore[override]
        """Return None: only the group of all ranks has a ring."""

    def begin(self, request: Request | Save) -> "Future[Any]":
        """Request an operation; return a future for its result."""
        # A process group that is not the first one has no ring in software.
        return self._launcher.begin(request) if self._ring is None else super().begin(request)

    def finish(self) -> None:
        """Wait until all requested operations have ended; their errors are for the script."""
        if self._thread is not None:
            ended: Future[None] = Future()
            self._requests.put((lambda: None, ended))
            ended.result()

    def _execute(self, ring: RankRing, request: Request | Save) -> Any:
        """Announce an operation, and do it unless the launcher does it, or raises an error on all ranks."""
        if not self._on_nodes:
            announced = announcement(request, ranks=ring.size, seconds=self._launcher.seconds)
            self._launcher.seconds = 0.0
            self._on_nodes = bool(self._launcher.begin(announced).result())
        if self._on_nodes:
            return self._launcher.begin(request).result()
        begun = time.perf_counter()
        try:
            return super()._execute(ring, request)
        finally:
            self._launcher.seconds = time.perf_counter() - begun

    def _compare(self, ring: RankRing, request: Request | Save) -> None:
        """Do nothing: the launcher has compared the requests."""

    def _note_nonfinite(self, ring: RankRing, request: Request) -> None:
        """Do nothing: the launcher reports it."""

    def _compare_weights(self, ring: RankRing, checksums: dict[str, int]) -> None:
        """Do nothing: the launcher has compared them."""


def announcement(request: Request | Save, *, ranks: int, seconds: float) -> Announce:
    """Announcement of a request of one rank, after ``seconds`` in operations since the previous one."""
    if isinstance(request, Save):
        return Announce(operation=request.title, kind="other", seconds=seconds)
    common: dict[str, Any] = {"operation": request.title, "made": request.made, "nonfinite": request.nonfinite,
                              "seconds": seconds}
    if isinstance(request, Open):
        return Announce(kind="open", lengths=request.lengths, optimizers=request.optimizers, **common)
    if isinstance(request, AllReduce):
        # A hook divides gradients by the number of ranks before they are summed.
        norm = None if request.made is None else norms_of([request.values], scale=ranks)[0]
        return Announce(kind="all_reduce", job=request.job, count=request.values.size, begin=request.begin,
                        weights=request.weights, norm=norm, **common)
    if isinstance(request, Step):
        return Announce(kind="step", job=request.job, optimizers=request.optimizers, present=request.present,
                        names=request.names, contents=contents_of(request), norm=norms_of([request.gradients])[0],
                        **common)
    return Announce(kind="other", **common)
