"""Driver of a ring: vector transfers, collectives, and errors that name their cause.

Vectors are stored in buffers (:mod:`host.driver.memory`). A vector given by its length is at the start of each
memory. Every node runs its commands one after another. Submitted commands are queued, and ``commands.wait`` waits for
them.

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
from typing import TYPE_CHECKING, Any

from hdl.config import Configuration
from host.driver.command_queueing import CommandQueueing
from host.driver.device import Device
from host.driver.devices import TIMEOUT, Devices
from host.driver.diagnosis import RingError
from host.driver.node_operations import NodeOperations
from host.driver.planned_lists import PlannedLists
from host.driver.ring_collectives import RingCollectives
from host.driver.ring_memory import RingMemory, RingPartition
from host.driver.ring_registers import RingCounters, RingSettings
from host.feature import feature, features_of

if TYPE_CHECKING:
    from host.features.compute.list_compute import ListCompute
    from host.features.microbatches.ring_microbatches import RingMicrobatches
    from host.features.programs.ring_programs import RingPrograms
    from host.features.quantization.node_inference import NodeInference
    from host.features.quorum.quorum_updates import QuorumUpdates

__all__ = ["ConnectedNodes", "Ring"]


class ConnectedNodes:
    """Nodes with links between them; the arguments are as for :class:`host.driver.devices.Devices`."""

    def __init__(self, devices: Iterable[Device], *, timeout: int = TIMEOUT):
        self.devices = Devices(devices, timeout=timeout)
        self.nodes = len(self.devices)
        self.config: Configuration = self.devices.config  # of rank 0, for parameters that are equal on all nodes
        self.formats = self.devices.formats
        self.settings = RingSettings(self.devices)
        self.counters = RingCounters(self.devices)
        self.commands = CommandQueueing(self.devices, self.counters)

    def connect(self) -> None:
        """Check that every device is a node of the expected configuration. Then recover the ring, except in a
        tenant's driver, since the privileged host has already done so.

        Raises ``ConfigurationError`` if a device has a different design, or a node has a different configuration.
        """
        for device in self.devices:
            device.connect()
        self.devices.write_register("TIMEOUT", self.devices.timeout)
        if self.devices.privileged:
            self.recover()

    def recover(self) -> None:
        """Recover the ring after a failure: stop all commands, and discard events and words on the links.

        Memories and settings are kept; pending commands fail. Raises ``RingError`` if the devices belong to a tenant:
        only the privileged host can recover the ring.
        """
        if not self.devices.privileged:
            raise RingError("The ring must be recovered by the privileged host: Ring(host.devices(tenant))"
                            ".recover()", cause=None, events=[])
        self.commands.abandon()
        self.settings.forget()
        self.devices.write_register("CONTROL", 1)
        # While the links are held in reset, the running command ends immediately, and queued commands end as soon as
        # they start.
        self.commands.drain()
        present = features_of(self.config)
        for present_feature in present:
            present_feature.in_reset(self.devices)
        self.devices.write_register("CONTROL", 0)
        self.commands.drain()
        for present_feature in present:
            present_feature.after_reset(self.devices)
        self.counters.mark()
        self.commands.begin_epoch()


def _part(name: str) -> Any:
    """Descriptor that creates the driver of a feature on first use."""
    return functools.cached_property(lambda ring: feature(name).part(ring))


class Ring(ConnectedNodes):
    """Nodes in a ring, in rank order. :class:`~hdl.ring.topology.RingTopology` defines the neighbours."""

    def __init__(self, devices: Iterable[Device], *, timeout: int = TIMEOUT):
        super().__init__(devices, timeout=timeout)
        #: Lists of layers that nodes may run.
        self.planned = PlannedLists()
        self.partition = RingPartition(self.devices)
        self.memory = RingMemory(self.devices, self.partition)
        self.collectives = RingCollectives(self.partition, self.memory, self.settings, self.commands, self.formats)
        self.local = NodeOperations(self.devices, self.memory, self.settings, self.commands)

    #: Programs of the nodes. For nodes without program memory, the driver sends the commands one by one.
    programs: "functools.cached_property[RingPrograms]" = _part("programs")
    #: Driver for quorum updates. Accessing it raises ``ValueError`` if the nodes do not support rounds.
    quorum: "functools.cached_property[QuorumUpdates]" = _part("quorum")
    #: Driver for layer lists. Accessing it raises ``ValueError`` if the nodes do not support them.
    compute: "functools.cached_property[ListCompute]" = _part("compute")
    #: Driver for several gradients per node. Accessing it raises ``ValueError`` if the nodes do not support them.
    microbatches: "functools.cached_property[RingMicrobatches]" = _part("microbatches")
    #: Driver for quantized inference. Accessing it raises ``ValueError`` if the nodes do not support it.
    inference: "functools.cached_property[NodeInference]" = _part("quantization")
