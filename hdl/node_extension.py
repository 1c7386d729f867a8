"""Extensions of a node, with which features add units outside the engines; each feature has one object.

:class:`~hdl.node.Node` calls the extensions in the order of the feature registry. An extension overrides the methods
that it needs; the defaults add nothing.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from hdl.control.source import Purpose, Source
from hdl.feature import objects_of

__all__ = ["NodeExtension", "NodeUnits", "node_extensions"]


@dataclasses.dataclass(kw_only=True)
class NodeUnits:
    """Units and signals of a node that extensions can use during its elaboration."""

    #: The node itself, which gives access to its ports.
    node: Any
    host_port: Any
    registers: Any
    queue: Any
    #: Unit through which the host accesses memories.
    access: Any = None
    #: Pairs of description and component, one for each engine.
    engines: list[tuple[Any, Any]] = dataclasses.field(default_factory=list)
    #: Outputs of engines, keyed by purpose.
    outputs: dict[Purpose, Any] = dataclasses.field(default_factory=dict)
    #: Counter of weight updates.
    weight_version: Any = None
    #: Tenant that the node is executing, and its memory windows (:func:`~hdl.control.tenancy.tenancy_layout`); None
    #: in a node without tenants.
    tenancy: Any = None
    #: For each queue, whether its command is over budget; only in nodes with tenants.
    cuts: list[Any] = dataclasses.field(default_factory=list)
    #: Whether responses for the tenant are pending in the far memory.
    far_owes: Any = None
    #: For each queue, whether its command accesses a row outside its memory window.
    strays: list[list[Any]] = dataclasses.field(default_factory=list)

    def queue_of(self, engine: Any) -> int:
        """Return the number of the queue with the commands of an engine."""
        last: int = self.queue.queues - 1
        return last if engine.queue is None else min(engine.queue, last)

    def ports(self, kind: str, space: Any) -> list[Any]:
        """Return a memory's ports of kind ``read`` or ``write``: the engines' ports, followed by the host port."""
        return [*(port for engine, unit in self.engines for port in engine.ports(unit, kind, space.name)),
                getattr(self.access, f"{kind}_{space.number}")]

    def owners(self, space: Any) -> tuple[tuple[int, ...], ...]:
        """Return the queues of the engines with ports to a memory: one tuple for read, one for write ports."""
        return tuple(tuple(self.queue_of(engine) for engine, unit in self.engines
                           for _ in engine.ports(unit, kind, space.name)) for kind in ("read", "write"))


class NodeExtension:
    """Base class of all node extensions.

    Parameters
    ----------
    config : Configuration
    """

    def __init__(self, config: Any) -> None:
        self._config = config

    def members(self) -> dict[str, Any]:
        """Return the ports that the extension adds to the node."""
        return {}

    def make_queue(self, m: Any, units: NodeUnits) -> Any:
        """Create units before the engines; return a command queue that the node adds as a submodule, or None."""
        return None

    def memory_options(self, units: NodeUnits, space: Any) -> Mapping[str, Any]:
        """Return additional options of a :class:`~hdl.memory.LanedMemory`."""
        return {}

    def connect_memory(self, m: Any, units: NodeUnits, space: Any, memory: Any) -> None:
        """Connect additional signals of a memory."""

    def make_memories(self, m: Any, units: NodeUnits) -> None:
        """Create memories that a feature adds to the node's own memories, including their ports."""

    def link(self, units: NodeUnits, port: str) -> Any:
        """Return an interface to connect to a port of the node in place of an engine's link, or None."""
        return None

    def completion(self, m: Any, units: NodeUnits, number: int) -> Any:
        """Return a stream that accepts the events of a queue's commands in place of the queue, or None."""
        return None

    def replacement(self, units: NodeUnits, engine: Any, source: Source) -> Any:
        """Return a signal that drives an engine's input in place of the usual source, or None."""
        return None

    def host(self, m: Any, units: NodeUnits) -> Any:
        """Return a component that provides the host's streams in place of the node, or None."""
        return None

    def host_enable(self, m: Any, units: NodeUnits) -> Any:
        """Return a signal that enables transfers of host packet words in a cycle, or None to enable all."""
        return None

    def connect(self, m: Any, units: NodeUnits) -> None:
        """Connect everything else; called after the other methods."""


def node_extensions(config: Any) -> tuple[NodeExtension, ...]:
    """Return the extensions of a node, in the order of the feature registry."""
    return objects_of(config, "around")
