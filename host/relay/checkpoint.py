"""Checkpoints of a relay's run: files with a :class:`~host.relay.node_run.NodeRun` and all of its nodes.

They are made between two sets, and restored into another relay that computes the same bits: with links and far
memories of another pace, and with whatever an earlier run has left in banks and places.
"""

import copy
import dataclasses
from typing import Any

from host.checkpoints.checkpoint import restore
from host.checkpoints.device_frame import DeviceFrame, read
from host.checkpoints.keys import user_key
from host.checkpoints.rejections import RejectionError
from host.driver.ring import Ring
from host.relay.node_run import NodeRun
from host.training import checkpoint
from host.training.experiment import Keeper
from host.training.trainer import Trainer

__all__ = ["RelayKeeper"]


@dataclasses.dataclass
class RelayKeeper(Keeper):
    """The place of checkpoints of nodes, and the sets after which they are written; one also when a run is
    interrupted."""

    _latest: tuple[dict[str, Any], DeviceFrame] | None = None

    def keep(self, ring: Ring, trainer: Trainer[NodeRun], rows: list[Any]) -> None:
        """Keep the state after the latest set, with figures of all sets, and write the file if it is due."""
        self._latest = copy.deepcopy({"state": trainer.state(), "rows": rows}), read(
            ring, trainer.executor.live())
        if self.due(trainer):
            self.write()

    def write(self) -> None:
        """Write the file with the state after the latest set, unless it has that state, or no set has ended."""
        if self._latest is not None:
            content, frame = self._latest
            self.save(content, len(content["rows"]), device=frame)
            self._latest = None

    def resume(self, ring: Ring, trainer: Trainer[NodeRun]) -> list[Any]:
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
        self.kept = len(rows)
        return rows
