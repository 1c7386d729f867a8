"""Quorum updates on the nodes of a ring: rules, flags and gradients."""

from typing import Any

import numpy as np
import numpy.typing as npt

from host.driver.devices import Devices
from host.driver.memory import Buffer
from host.driver.ring_memory import RingMemory

__all__ = ["QuorumUpdates"]

#: Bits of register RESUMED_SET.
_SLOT, _READY = 16, 17


class QuorumUpdates:
    """Updates that wait for a quorum of gradients. Raises ``ValueError`` if nodes do not support rounds."""

    def __init__(self, devices: Devices, memory: RingMemory):
        if not devices.config.has_quorum:
            raise ValueError("Nodes must have rounds for gradients that may be late")
        self._devices = devices
        self._memory = memory

    def write_rules(self, registers: dict[str, int | float], scales: npt.NDArray[np.uint32]) -> None:
        """Write the rules of quorum updates, keyed by register, and the table of scales to all nodes."""
        for name, value in registers.items():
            self._devices.write_register(name, value)
        self._memory.write_space("scales", [scales] * len(self._devices))

    def set_flags_of(self, rank: int, flags: int) -> None:
        """Set flags of one node."""
        self._devices[rank].write_register("FLAGS", flags)

    def write_gradient_of(self, rank: int, gradient: npt.NDArray[Any], buffer: Buffer) -> None:
        """Write one node's gradient to a buffer in its gradient memory."""
        if len(gradient) != buffer.length:
            raise ValueError(f"Gradient must have the {buffer.length} elements of its buffer, not {len(gradient)}")
        words = self._devices.formats.elements.to_words(gradient)
        self._devices.write_space(buffer.space, buffer.base, {rank: words})

    def resume_set(self, rank: int, slot: int, tag: int, gradient: npt.NDArray[Any], buffer: Buffer) -> None:
        """Restore a gradient that a node has computed for a round, in the slot that the buffer belongs to."""
        self.write_gradient_of(rank, gradient, buffer)
        device = self._devices[rank]
        for ready in (1, 0):
            device.write_register("RESUMED_SET", tag & 0xFFFF | slot << _SLOT | ready << _READY)

    def slots(self) -> list[list[dict[str, int]]]:
        """Read each node's gradient slots: round, and whether the gradient is being computed, pending or taken."""
        return [[device.read_fields(f"SLOT_{slot}") for slot in range(2)] for device in self._devices]
