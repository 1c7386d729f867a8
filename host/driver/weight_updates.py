"""Updates of the weights of nodes in any rings, and the outcome of their collectives."""

from typing import Any

import numpy as np
import numpy.typing as npt

from hdl.compression.registry import RAW
from hdl.control.protocol import EventFlag
from host.driver.buffers import Where
from host.driver.command_queueing import CommandQueueing
from host.driver.formats import Formats
from host.driver.optimizer_settings import Rule, Settings
from host.driver.pending_command import PendingCommand
from host.driver.protocols import Updates
from host.driver.results import Outcome, slowest
from host.driver.ring_memory import RingMemory
from host.driver.ring_settings import RingSettings

__all__ = ["WeightUpdates", "outcome_of"]


def outcome_of(pending: PendingCommand[Outcome]) -> Outcome:
    """Outcome of a collective that has ended well on every node."""
    done = pending.events
    return Outcome(
        cycles=slowest(event.cycles for event in done.values()),
        local_nan=tuple(rank for rank, event in sorted(done.items()) if EventFlag.LOCAL_NAN in event.flags),
        not_finite=tuple(rank for rank, event in sorted(done.items()) if EventFlag.NOT_FINITE in event.flags))


class WeightUpdates(Updates):
    """Updates by collectives, and distribution of weights by updates, in any rings."""

    def __init__(self, memory: RingMemory, settings: RingSettings, commands: CommandQueueing, formats: Formats):
        self._memory = memory
        self._settings = settings
        self._commands = commands
        self._formats = formats

    def distribute(self, weights: npt.NDArray[Any], where: Where | None = None) -> None:
        vector = len(weights) if where is None else where
        if self._formats.has_residual:  # a residual would be added to those zeros
            self._memory.clear_residual(vector)
        if self._formats.has_master:
            self._memory.write_master(weights, vector)
        if self._formats.weight_codec == RAW:
            self._memory.write_weights(weights, vector)
            return
        self._memory.write_gradients([np.zeros(len(weights), dtype=np.uint32)] * self._commands.nodes, vector)
        self._settings.write(Settings(rule=Rule.SGD, gradient_scale=0.0, learning_rate=0.0))
        self.fused_update(vector)
