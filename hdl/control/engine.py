"""Description of an engine, for a node and its command checker.

An engine executes commands of a node. Its description lists its operations, the memories that they use, and its
connections to memories and registers. :class:`~hdl.node.Node` is built from a list of descriptions, and
:class:`~hdl.control.command_checker.CommandChecker` from their operations, so that neither depends on any engine.
"""

import dataclasses
import enum
from collections.abc import Callable, Mapping
from typing import Any

from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.control.protocol import command_layout
from hdl.control.source import Purpose, Source

__all__ = ["BASES", "FAR", "EngineDescription", "Extent", "OperationDescription", "Reach", "at", "check_engines",
           "gate_signature", "operations_of"]

#: Fields of a command that are base addresses in memories, in checking order.
BASES = ("gradient_base", "weight_base", "state_base")

#: Value of ``Extent.memory`` for a memory that is accessed through the node's far port.
FAR = "far"


class Reach(enum.Enum):
    """Number of elements, from the base address on, that a command needs in a memory."""

    LENGTH = "length"
    """``length`` elements; on the ring, in groups of 32 that are ``stride`` groups apart."""
    DENSE = "dense"
    """``length`` contiguous elements, whatever the stride."""
    BLOCK = "block"
    """Largest of the ``size`` blocks that ``length`` elements are partitioned into."""
    START = "start"
    """No elements: the engine detects the end of its list."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Extent:
    """A memory that an operation uses.

    Parameters
    ----------
    base : str
        Field of the command with the base address: one of :data:`BASES`; an operation uses each at most once.
    memory : str
        Name of a space of the node's :class:`~hdl.memory_map.MemoryMap`, or :data:`FAR`.
    reach : Reach
    packs : bool
        Whether each word holds two elements while state is packed.
    used : callable, optional
        Function of the settings that a command is checked with (:func:`~hdl.control.registers.checked_layout`). It
        returns a Value that is 1 if the operation uses this memory with these settings. By default, it always does.
    """

    base: str
    memory: str
    reach: Reach = Reach.LENGTH
    packs: bool = False
    used: Callable[[Any], Any] | None = None

    def __post_init__(self):
        if self.base not in BASES:
            raise ValueError(f"Base must be one of {', '.join(BASES)}, not {self.base!r}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class OperationDescription:
    """One operation of an engine, with all information that the checker needs.

    Parameters
    ----------
    code : int
        ``operation`` of a command, 0 to 255.
    extents : tuple of Extent
        Memories that the operation uses; the checker compares each with its base address and the length. An operation
        that has no extents and needs no other node is never refused.
    on_ring : bool
        Whether other nodes take part, so that port, size and rank must describe a position in a ring.
    has_root : bool
        Whether ``root`` must be the rank of a node.
    is_root : bool, optional
        Whether the root must be this node, in a ring of two or more, or another node; by default it may be any node.
    owned : bool
        Whether ``root_reduce`` of a command makes ``root`` the owner of all groups, so that it must be a node's rank.
    least : int
        Minimum length.
    refused : callable, optional
        Function of the settings, like ``Extent.used``. It returns three things: a Value that is 1 if the command is
        refused, an EventStatus, and the detail.
    refused_fields : callable, optional
        Function of the command, with a result of the same form.
    queue : int, optional
        Queue that executes the operation, in a node with several queues: 0 computes, 1 communicates; by default, any.
    privileged : bool
        Whether the operation is forbidden to tenants.
    """

    code: int
    extents: tuple[Extent, ...] = ()
    on_ring: bool = False
    has_root: bool = False
    is_root: bool | None = None
    owned: bool = False
    least: int = 0
    refused: Callable[[Any], tuple[Any, int, Any]] | None = None
    refused_fields: Callable[[Any], tuple[Any, int, Any]] | None = None
    queue: int | None = None
    privileged: bool = False

    def __post_init__(self):
        if not 0 <= self.code < 256:
            raise ValueError(f"Code of an operation must be between 0 and 255, not {self.code!r}")
        if self.queue not in (None, 0, 1, 2):
            raise ValueError(f"Queue of an operation must be 0, 1, 2 or None, not {self.queue!r}")
        bases = [extent.base for extent in self.extents]
        if len(set(bases)) != len(bases):
            raise ValueError(f"Extents of an operation must have different bases, not {', '.join(bases)}")

    def extent(self, base):
        """Extent with the given base, or None if the operation does not use it."""
        return next((extent for extent in self.extents if extent.base == base), None)


@dataclasses.dataclass(frozen=True, kw_only=True)
class EngineDescription:
    """One engine of a node.

    Its component has ``command`` (In, stream of :func:`~hdl.control.protocol.command_layout`), ``event`` (Out, stream
    of :func:`~hdl.control.protocol.event_layout`, one for each command) and ``count`` (Out, a struct with a member
    for each counter that it adds to, with the register's name in lower case). A path identifies a member of the
    component: names and indices joined by dots, as in ``settings.clip`` or ``gradients_read.0``.

    Parameters
    ----------
    name : str
        Name of the submodule.
    make : callable
        Function that creates the component.
    operations : tuple of OperationDescription
    priority : int
        Priority among the writers of a memory: writers of engines with a lower number are served first.
    reads, writes : mapping of str to tuple of str
        Paths of its ports to each memory: a port, or an array of ports. Readers of all engines take turns; the host
        has the lowest priority.
    watches : mapping of str to str
        Path of its interface to a memory that reports each row written by any writer
        (:func:`~hdl.memory.written_signature`).
    inputs : mapping of str to Source
        Source of each additional input, keyed by the path of the input.
    outputs : mapping of Purpose to str
        Path of each additional output, keyed by its purpose: a source for the other engines, a status for the
        register file, or an interface to a unit of a feature. At most one engine serves each purpose.
    joins : mapping of str to str
        Path of its interface to another engine, keyed by a name that the other engine uses as well.
    gates : mapping of int to str
        Path of the gate (:func:`gate_signature`) that it inserts between a queue and the engines, keyed by queue
        number; at most one gate per queue.
    links : mapping of str to str
        Path of the engine's port for each port of the node: ``ring_i``, ``ring_o`` and so on, and ``far``.
    abandons : str, optional
        Path of an output that is high while the engine abandons its requests to memories with delayed answers. By
        default it takes all answers.
    """

    name: str
    make: Callable[[], Any]
    operations: tuple[OperationDescription, ...]
    priority: int = 0
    reads: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    writes: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    watches: Mapping[str, str] = dataclasses.field(default_factory=dict)
    inputs: Mapping[str, Source] = dataclasses.field(default_factory=dict)
    outputs: Mapping[Purpose, str] = dataclasses.field(default_factory=dict)
    joins: Mapping[str, str] = dataclasses.field(default_factory=dict)
    gates: Mapping[int, str] = dataclasses.field(default_factory=dict)
    links: Mapping[str, str] = dataclasses.field(default_factory=dict)
    abandons: str | None = None

    def ports(self, unit, kind, memory):
        """Yield the ports through which the component reads or writes a memory; ``kind`` is ``read`` or ``write``."""
        for path in getattr(self, f"{kind}s").get(memory, ()):
            ports = at(unit, path)
            yield from ports if isinstance(ports, (list, tuple)) else [ports]

    @property
    def queue(self):
        """Queue that executes the operations, in a node with several queues; None if any queue may."""
        return next((operation.queue for operation in self.operations if operation.queue is not None), None)


def gate_signature():
    """Gate between a command queue and its engines that can hold and change commands.

    Members
    -------
    i : In(stream of command_layout())
        Commands from the queue.
    o : Out(stream of command_layout())
        Commands to the engines. A command is taken from the queue when an engine takes it.
    ended, good : In(1)
        The queue takes the event of the latest command; the status of the event is OK.
    """
    commands = stream.Signature(command_layout())
    return wiring.Signature({"i": In(commands), "o": Out(commands), "ended": In(1), "good": In(1)})


def at(component, path):
    """Return the member of a component at a dotted path, such as ``gradients_read.0``."""
    value = component
    for step in path.split("."):
        value = value[int(step)] if step.isdecimal() else getattr(value, step)
    return value


def operations_of(engines):
    """Return the operations of all engines, sorted by code."""
    return tuple(sorted((operation for engine in engines for operation in engine.operations),
                        key=lambda operation: operation.code))


def check_engines(engines, config):
    """Raise ``ValueError`` unless the engines can be combined in a node with this configuration.

    Parameters
    ----------
    engines : sequence of EngineDescription
    config : Configuration
    """
    memories = config.memory_map.names
    codes = [operation.code for operation in operations_of(engines)]
    twice = sorted({code for code in codes if codes.count(code) > 1})
    if twice:
        raise ValueError(f"Operations of a node must have different codes, not {twice[0]} twice")
    names = [engine.name for engine in engines]
    if len(set(names)) != len(names):
        raise ValueError(f"Engines of a node must have different names, not {', '.join(names)}")
    for engine in engines:
        queues = {operation.queue for operation in engine.operations} - {None}
        if len(queues) > 1:
            raise ValueError(f"Operations of engine {engine.name} must be of one queue, not "
                             f"{' and '.join(map(str, sorted(queues)))}")
        used = {*engine.reads, *engine.writes, *engine.watches,
                *(extent.memory for operation in engine.operations for extent in operation.extents)}
        missing = sorted(used - {*memories, FAR})
        if missing:
            raise ValueError(f"Memory of engine {engine.name} must be one of {', '.join(memories)}, not "
                             f"{missing[0]!r}")
        for path, source in engine.inputs.items():
            if not isinstance(source, Source):
                raise ValueError(f"Input {path} of engine {engine.name} must have a source, not {source!r}")
            source.check(config, f"Input {path} of engine {engine.name}")
        for purpose, path in engine.outputs.items():
            purpose.check(config, f"Output {path} of engine {engine.name}")
    outputs = [purpose for engine in engines for purpose in engine.outputs]
    for purpose in outputs:
        if outputs.count(purpose) > 1:
            raise ValueError(f"Engines of a node must have one output {purpose}, not {outputs.count(purpose)}")
    joins = [name for engine in engines for name in engine.joins]
    for name in joins:
        if joins.count(name) != 2:
            raise ValueError(f"Interface {name} must join two engines of a node, not {joins.count(name)}")
