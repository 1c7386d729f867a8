"""Checkpoints of a relay's run: files with a :class:`~host.relay.node_run.NodeRun` and all of its nodes.

They are made between two sets, and restored into another relay that computes the same bits: with links and far
memories of another pace, and with whatever an earlier run has left in banks and places.
"""

import copy
from pathlib import Path
from typing import Any

from host.checkpoints.checkpoint import restore
from host.checkpoints.device_frame import DeviceFrame, read
from host.checkpoints.keys import user_key
from host.checkpoints.rejections import RejectionError
from host.driver.ring import Ring
from host.output import write_bytes
from host.relay.node_run import NodeRun
from host.training import checkpoint
from host.training.trainer import Trainer

__all__ = ["RelayKeeper"]


class RelayKeeper:
    """The place of checkpoints, and the sets after which they are written.

    Parameters
    ----------
    options : dict
        Options of the run that its bits and its report depend on; versions are added here.
    sets : int
        Sets between checkpoints; 0 for none unless the run is interrupted.

    Members
    -------
    sets_kept : int
        Sets in the latest state that is kept, in memory or in the file.
    """

    def __init__(self, path: Path, options: dict[str, Any], *, sets: int):
        self.path, self.sets = path, sets
        self._identity = {"options": options, "versions": checkpoint.versions()}
        self._latest: tuple[dict[str, Any], DeviceFrame] | None = None
        self.sets_kept = 0

    def keep(self, ring: Ring, trainer: Trainer[NodeRun], rows: list[Any], *, last: bool) -> None:
        """Keep the state after the latest set, with figures of all sets, and write the file if it is due."""
        self._latest = copy.deepcopy({"state": trainer.state(), "rows": rows}), read(
            ring, trainer.executor.live())
        self.sets_kept = len(rows)
        if self.sets > 0 and (last or len(rows) % self.sets == 0):
            self.write()

    def write(self) -> None:
        """Write the file with the state after the latest set, unless it has that state, or no set has ended."""
        if self._latest is not None:
            content, frame = self._latest
            write_bytes(self.path, checkpoint.packed(self._identity, content, device=frame))
            self._latest = None

    def check(self) -> bool:
        """Whether there is a file; a ``CheckpointError`` unless it is of this run."""
        try:
            checkpoint.load(self.path, self._identity)
        except FileNotFoundError:
            return False
        return True

    def go_on(self, ring: Ring, trainer: Trainer[NodeRun]) -> list[Any]:
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
        trainer.resume(content["state"], restored=True)
        rows: list[Any] = content["rows"]
        self.sets_kept = len(rows)
        return rows
