"""Driver of a ring: vectors in and out, collectives, and errors that name their cause.

Vectors are in buffers (:mod:`host.driver.buffers`); a vector that is named by its length is at the start of each
memory. Commands run one after the other on every node. Submitted commands are queued in order, and ``commands.wait``
waits for them.

Example
-------
::

    ring = Ring(devices)
    ring.connect()
    ring.memory.write_weights(weights)
    ring.memory.write_gradients([gradients_of_node_0, gradients_of_node_1])
    ring.settings.write(SGD(learning_rate=0.1).settings(1, gradient_scale=0.5))
    ring.collectives.fused_update(weights.size)
    weights = ring.memory.read_weights(weights.size)

Two vectors at the same time::

    first, second = (ring.memory.allocate(Allocation(length=1000)) for _ in range(2))
    ring.memory.write_gradients(gradients, second)
    pending = [ring.collectives.submit(Operation.ALL_REDUCE, vector) for vector in (first, second)]
    outcomes = ring.commands.wait(*pending)
"""

import functools
from collections.abc import Iterable

from host.driver.connected_nodes import ConnectedNodes
from host.driver.device import Device
from host.driver.devices import TIMEOUT
from host.driver.list_compute import ListCompute, PlannedLists
from host.driver.node_operations import NodeOperations
from host.driver.quorum_updates import QuorumUpdates
from host.driver.ring_collectives import RingCollectives
from host.driver.ring_memory import RingMemory
from host.driver.ring_partition import RingPartition
from host.driver.ring_programs import RingPrograms

__all__ = ["Ring"]


class Ring(ConnectedNodes):
    """Nodes in a ring, in the order of their ranks.

    Parameters
    ----------
    devices : iterable of Device
        The node at index r is of rank r; :class:`~hdl.ring.topology.RingTopology` gives its neighbours.
    timeout : int
        Cycles without a word on a node's links after which it abandons a command.
    """

    def __init__(self, devices: Iterable[Device], *, timeout: int = TIMEOUT):
        super().__init__(devices, timeout=timeout)
        self._planned = PlannedLists()
        self.partition = RingPartition(self.devices)
        self.memory = RingMemory(self.devices, self.partition)
        self.collectives = RingCollectives(self.partition, self.memory, self.settings, self.commands, self.formats)
        self.local = NodeOperations(self.devices, self.memory, self.settings, self.commands)
        self.programs = RingPrograms(self.devices, self.commands, self._planned)

    @functools.cached_property
    def quorum(self) -> QuorumUpdates:
        """Updates that wait for a quorum; a ``ValueError`` if nodes have no rounds."""
        return QuorumUpdates(self.devices, self.memory)

    @functools.cached_property
    def compute(self) -> ListCompute:
        """Lists of layers; a ``ValueError`` if nodes do not compute."""
        return ListCompute(self.devices, self.memory, self.commands, self._planned)
