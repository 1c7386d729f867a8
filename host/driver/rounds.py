"""Rounds of gradients on the nodes of a ring: their rules, and each node's gradients and flags by itself."""

from typing import Any

import numpy as np
import numpy.typing as npt

from host.driver.buffers import Buffer
from host.driver.programs import RingPrograms

__all__ = ["RingRounds"]

#: Bits of register RESUMED_SET.
_SLOT, _READY = 16, 17


class RingRounds(RingPrograms):
    """Nodes in a ring, whose updates can be rounds of gradients.

    Parameters
    ----------
    devices, timeout
        Parameters of :class:`~host.driver.nodes.RingNodes`.
    """

    def write_rounds(self, registers: dict[str, int | float], scales: npt.NDArray[np.uint32]) -> None:
        """Write the rules of rounds, by register, and the table of scales.

        Raises
        ------
        ValueError
            The nodes have no rounds.
        """
        if not self._config.rounds:
            raise ValueError("Nodes must have rounds for gradients that may be late")
        for name, value in registers.items():
            self._write_register(name, value)
        self._write("scales", [scales] * self.nodes)

    def set_flags_of(self, rank: int, flags: int) -> None:
        """Set flags of one node."""
        self._devices[rank].write_register("FLAGS", flags)

    def write_gradient_of(self, rank: int, gradient: npt.NDArray[Any], buffer: Buffer) -> None:
        """Write the gradient of one node to a buffer of its gradient memory."""
        if len(gradient) != buffer.length:
            raise ValueError(f"Gradient must have the {buffer.length} elements of its buffer, not {len(gradient)}")
        self._devices[rank].write_memory(self._number(buffer.space, rank), buffer.base, self._to_words(gradient))

    def resume_set(self, rank: int, slot: int, tag: int, gradient: npt.NDArray[Any], buffer: Buffer) -> None:
        """Give a node a gradient again that it had computed for a round, in a slot whose buffer this is."""
        self.write_gradient_of(rank, gradient, buffer)
        device = self._devices[rank]
        for ready in (1, 0):
            device.write_register("RESUMED_SET", tag & 0xFFFF | slot << _SLOT | ready << _READY)

    def slots(self) -> list[list[dict[str, int]]]:
        """Slots of each node: number of the round, and whether it is computing, pending or taken."""
        return [[device.read_fields(f"SLOT_{slot}") for slot in range(2)] for device in self._devices]
