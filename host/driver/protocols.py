"""Interfaces (typing protocols) of a single ring or the rings of a grid.

Accessing an attribute for a function that the nodes do not support raises ``ValueError``.
"""

from typing import TYPE_CHECKING, Protocol

from hdl.config import Configuration
from host.driver.command_queueing import CommandQueueing
from host.driver.devices import Formats
from host.driver.node_operations import NodeOperations
from host.driver.ring_collectives import RingCollectives, WeightUpdates
from host.driver.ring_memory import RingMemory, RingPartition
from host.driver.ring_registers import RingCounters, RingSettings

if TYPE_CHECKING:
    from host.features.compute.list_compute import ListCompute
    from host.features.microbatches.ring_microbatches import RingMicrobatches
    from host.features.programs.ring_programs import RingPrograms
    from host.features.quantization.node_inference import NodeInference
    from host.features.quorum.quorum_updates import QuorumUpdates

__all__ = ["FlatRing", "TrainingRing", "VectorRing"]


class VectorRing(Protocol):
    """Nodes that hold vectors in their memories, with an owner for each element."""

    @property
    def nodes(self) -> int:
        """Number of nodes."""

    @property
    def config(self) -> Configuration:
        """Configuration of the first node, for parameters that are equal on all nodes."""

    @property
    def formats(self) -> Formats:
        """Formats of elements, memory rows, segments and codecs."""

    @property
    def memory(self) -> RingMemory: ...

    @property
    def partition(self) -> RingPartition: ...


class TrainingRing(VectorRing, Protocol):
    """Nodes for training: a single ring or the rings of a grid."""

    @property
    def settings(self) -> RingSettings: ...

    @property
    def counters(self) -> RingCounters: ...

    @property
    def commands(self) -> CommandQueueing: ...

    @property
    def collectives(self) -> WeightUpdates: ...

    @property
    def local(self) -> NodeOperations: ...

    @property
    def programs(self) -> "RingPrograms": ...

    @property
    def quorum(self) -> "QuorumUpdates": ...

    @property
    def microbatches(self) -> "RingMicrobatches": ...

    @property
    def compute(self) -> "ListCompute": ...

    @property
    def inference(self) -> "NodeInference": ...

    def recover(self) -> None:
        """Recover the ring after a failure, so that it can run commands again."""


class FlatRing(TrainingRing, Protocol):
    """Nodes in one ring."""

    @property
    def collectives(self) -> RingCollectives: ...
