"""Driver of a ring: vectors in and out, collectives, and errors that name their cause.

Vectors are in buffers (:mod:`host.driver.memory`); a vector that is named by its length is at the start of each
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
    from host.features.programs.ring_programs import RingPrograms
    from host.features.quantization.node_inference import NodeInference
    from host.features.quorum.quorum_updates import QuorumUpdates

__all__ = ["ConnectedNodes", "Ring"]


class ConnectedNodes:
    """Nodes with links between them, of the arguments of :class:`host.driver.devices.Devices`."""

    def __init__(self, devices: Iterable[Device], *, timeout: int = TIMEOUT):
        self.devices = Devices(devices, timeout=timeout)
        self.nodes = len(self.devices)
        self.config: Configuration = self.devices.config  # of the first node, for parameters that all have alike
        self.formats = self.devices.formats
        self.settings = RingSettings(self.devices)
        self.counters = RingCounters(self.devices)
        self.commands = CommandQueueing(self.devices, self.counters)

    def connect(self) -> None:
        """Check that every device is a node of the expected configuration, and put the ring in order, as a privileged
        host has already done for a tenant's own driver.

        Raises ``ConfigurationError`` if a device is another design, or a node of another configuration.
        """
        for device in self.devices:
            device.connect()
        self.devices.write_register("TIMEOUT", self.devices.timeout)
        if self.devices.privileged:
            self.recover()

    def recover(self) -> None:
        """Put the ring in order after a failure: stop all commands, drop all words on the links and all events.

        Memories and settings stay unchanged, and pending commands fail. Raises ``RingError`` if the devices are a
        tenant's: the privileged host must do it, also for the job of a tenant.
        """
        if not self.devices.privileged:
            raise RingError("The ring must be brought in order by the privileged host: Ring(host.devices(tenant))"
                            ".recover()", cause=None, events=[])
        self.commands.abandon()
        self.settings.forget()
        self.devices.write_register("CONTROL", 1)
        # With the links held in reset, the running command ends at once, and a queued one when it starts.
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
    """Part of a ring that a feature has, made when it is used."""
    return functools.cached_property(lambda ring: feature(name).part(ring))


class Ring(ConnectedNodes):
    """Nodes in a ring, in the order of their ranks; :class:`~hdl.ring.topology.RingTopology` has the neighbours."""

    def __init__(self, devices: Iterable[Device], *, timeout: int = TIMEOUT):
        super().__init__(devices, timeout=timeout)
        #: Lists that nodes may run.
        self.planned = PlannedLists()
        self.partition = RingPartition(self.devices)
        self.memory = RingMemory(self.devices, self.partition)
        self.collectives = RingCollectives(self.partition, self.memory, self.settings, self.commands, self.formats)
        self.local = NodeOperations(self.devices, self.memory, self.settings, self.commands)

    #: Programs; nodes without program memories are sent their commands.
    programs: "functools.cached_property[RingPrograms]" = _part("programs")
    #: Updates that wait for a quorum; a ``ValueError`` if nodes have no rounds.
    quorum: "functools.cached_property[QuorumUpdates]" = _part("quorum")
    #: Lists of layers; a ``ValueError`` if nodes do not compute.
    compute: "functools.cached_property[ListCompute]" = _part("compute")
    #: Quantized inference; a ``ValueError`` if nodes have none.
    inference: "functools.cached_property[NodeInference]" = _part("quantization")
