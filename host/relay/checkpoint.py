"""Checkpoints of a relay's run: files with a :class:`~host.relay.node_run.NodeRun` and all of its nodes.

They are made between two sets, and restored into another relay that computes the same bits: with links and far
memories of another pace, and with whatever an earlier run has left in banks and places.
"""

import os
from pathlib import Path
from typing import Any

from host.checkpoints.checkpoint import restore
from host.checkpoints.device_frame import read
from host.checkpoints.keys import user_key
from host.checkpoints.rejections import RejectionError
from host.driver.ring import Ring
from host.output import write_bytes
from host.relay.node_run import NodeRun
from host.training import checkpoint

__all__ = ["RelayKeeper"]


class RelayKeeper:
    """The place of checkpoints, and the sets after which they are written.

    Parameters
    ----------
    path : Path
    options : dict
        Options of the run that its bits and its report depend on; versions are added here.
    sets : int
        Sets between checkpoints; 0 for none but when one is asked for.
    """

    def __init__(self, path: Path, options: dict[str, Any], *, sets: int):
        self.path, self.sets = path, sets
        self._identity = {"options": options, "versions": checkpoint.versions()}
        self._latest: bytes | None = None

    def keep(self, ring: Ring, run: NodeRun, rows: list[Any], *, last: bool) -> None:
        """Keep the state after the latest set, with figures of all sets, and write the file if it is due."""
        self._latest = checkpoint.packed(self._identity, {"state": run.state(), "rows": rows},
                                         device=read(ring, run.live()))
        if self.sets > 0 and (last or len(rows) % self.sets == 0):
            self.write()

    def write(self) -> None:
        """Write the file with the state after the latest set, if this run has completed a set."""
        if self._latest is not None:
            write_bytes(self.path, self._latest)

    def advice(self, sets: int) -> str:
        """Advice for a run that has ended early, after ``sets`` sets."""
        if not sets:
            return "there is no checkpoint, so that the next run begins at its first set"
        path = os.path.relpath(self.path) if self.path.is_relative_to(Path.cwd()) else self.path
        return (f"{path} holds {sets} sets: the same command with --resume (make: RESUME=1) goes on from there")

    def check(self) -> bool:
        """Whether there is a file; a ``CheckpointError`` unless it is of this run."""
        try:
            checkpoint.load(self.path, self._identity)
        except FileNotFoundError:
            return False
        return True

    def go_on(self, ring: Ring, run: NodeRun) -> list[Any]:
        """Bring nodes and run to the state of the file, and return the figures of all sets.

        Raises
        ------
        CheckpointError
            These nodes do not take it.
        """
        try:
            with self.path.open("rb") as file:
                state, _ = restore(file, ring, key=user_key())
        except RejectionError as error:
            raise checkpoint.CheckpointError(f"{self.path} must be one that these nodes can go on from: {error}; "
                                             f"{checkpoint.ADVICE}") from None
        content = state["content"]
        run.resume(content["state"])
        rows: list[Any] = content["rows"]
        return rows
