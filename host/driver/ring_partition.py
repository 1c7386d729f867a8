"""Partition of vectors into blocks, each with a rank that owns it."""

import numpy as np
import numpy.typing as npt

from hdl.ring.topology import RingTopology
from host.driver.devices import Devices
from host.driver.vector_protocols import Partition
from sim.golden.ring import block_indices, largest_block

__all__ = ["RingPartition"]


class RingPartition(Partition):
    """Owners of the elements of vectors."""

    def __init__(self, devices: Devices):
        self._devices = devices
        self._topology = RingTopology(len(devices))
        self._root: int | None = None

    @property
    def root(self) -> int | None:
        return self._root

    def set_root(self, root: int | None) -> None:
        if root is not None:
            self.check_root(root)
        self._root = root

    def check_root(self, root: int) -> None:
        """Raise ``ValueError`` unless one rank, this one, can own all groups."""
        if not 0 <= root < len(self._devices):
            raise ValueError(f"Owner must be a rank below {len(self._devices)}, not {root!r}")
        if not self._devices.config.role.root_reduce:
            raise ValueError("Nodes must have role RootReduce(), for one of them to own all groups")

    def block_of(self, rank: int) -> int:
        """Number of the block that a rank owns if each rank owns one."""
        return int(self._topology.owned_block(rank))

    def largest_block(self, length: int) -> int:
        """Largest number of elements that a rank owns."""
        return length if self._root is not None else largest_block(length, len(self._devices))

    def owned(self, length: int) -> list[npt.NDArray[np.int64]]:
        ranks = range(len(self._devices))
        if self._root is not None:
            return [np.arange(length if rank == self._root else 0) for rank in ranks]
        blocks = block_indices(length, len(self._devices))
        return [blocks[self.block_of(rank)] for rank in ranks]

    def owner(self, element: int, length: int) -> int:
        return next(rank for rank, owned in enumerate(self.owned(length)) if element in owned)
