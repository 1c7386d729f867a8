"""Extensions of a node: additions of a feature around the engines, one object for each feature of a node.

:class:`~hdl.node.Node` calls each extension in turn, in the order of the registry of features. An extension overrides
the methods that it needs, and by default adds nothing.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from hdl.control.source import Purpose, Source
from hdl.feature import objects_of

__all__ = ["NodeExtension", "NodeUnits", "node_extensions"]


@dataclasses.dataclass(kw_only=True)
class NodeUnits:
    """Units and signals of a node, for extensions during its elaboration."""

    #: The node itself, for its ports.
    node: Any
    host_port: Any
    registers: Any
    queue: Any
    #: Access of the host to memories.
    access: Any = None
    #: Engines: description and component of each.
    engines: list[tuple[Any, Any]] = dataclasses.field(default_factory=list)
    #: Outputs of engines, by their purposes.
    outputs: dict[Purpose, Any] = dataclasses.field(default_factory=dict)
    #: Number of updates of the weights.
    weight_version: Any = None
    #: Tenant that the node executes, and its windows (:func:`~hdl.control.tenancy.tenancy_layout`); None in a node
    #: without tenants.
    tenancy: Any = None
    #: Whether the command of each queue exceeds its budget, in a node with tenants.
    cuts: list[Any] = dataclasses.field(default_factory=list)
    #: Whether the far memory has answers for the tenant.
    far_owes: Any = None
    #: Accesses outside a window, for each queue.
    strays: list[list[Any]] = dataclasses.field(default_factory=list)

    def queue_of(self, engine: Any) -> int:
        """Queue with the commands of an engine."""
        last: int = self.queue.queues - 1
        return last if engine.queue is None else min(engine.queue, last)

    def ports(self, kind: str, space: Any) -> list[Any]:
        """Ports at a memory, ``read`` or ``write``: the engines', and the host's last."""
        return [*(port for engine, unit in self.engines for port in engine.ports(unit, kind, space.name)),
                getattr(self.access, f"{kind}_{space.number}")]

    def owners(self, space: Any) -> tuple[tuple[int, ...], ...]:
        """Queues of the engines' ports at a memory: of the read ports, and of the write ports."""
        return tuple(tuple(self.queue_of(engine) for engine, unit in self.engines
                           for _ in engine.ports(unit, kind, space.name)) for kind in ("read", "write"))


class NodeExtension:
    """Base of the extensions of a node.

    Parameters
    ----------
    config : Configuration
    """

    def __init__(self, config: Any) -> None:
        self._config = config

    def members(self) -> dict[str, Any]:
        """Ports of the node."""
        return {}

    def make_queue(self, m: Any, units: NodeUnits) -> Any:
        """Make units before the engines; return the command queue to be made a submodule, or None."""
        return None

    def memory_options(self, units: NodeUnits, space: Any) -> Mapping[str, Any]:
        """Options of a :class:`~hdl.memory.LanedMemory`."""
        return {}

    def connect_memory(self, m: Any, units: NodeUnits, space: Any, memory: Any) -> None:
        """Connect a memory."""

    def make_memories(self, m: Any, units: NodeUnits) -> None:
        """Make memories outside the node's own, and their ports."""

    def link(self, units: NodeUnits, port: str) -> Any:
        """Interface that a port of the node connects to instead of an engine's link, or None."""
        return None

    def completion(self, m: Any, units: NodeUnits, number: int) -> Any:
        """Stream that takes the events of a queue's commands instead of the queue, or None."""
        return None

    def replacement(self, units: NodeUnits, engine: Any, source: Source) -> Any:
        """Signal for an input of an engine that replaces its source's, or None."""
        return None

    def host(self, m: Any, units: NodeUnits) -> Any:
        """Component with the streams of the host instead of the node, or None."""
        return None

    def host_enable(self, m: Any, units: NodeUnits) -> Any:
        """Whether words of the host's packets move in a cycle, or None if they always do."""
        return None

    def connect(self, m: Any, units: NodeUnits) -> None:
        """Connect the rest."""


def node_extensions(config: Any) -> tuple[NodeExtension, ...]:
    """Extensions of a node, in the order of the registry of features."""
    return objects_of(config, "around")
