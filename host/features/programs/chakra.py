"""Execution traces in the MLCommons Chakra format, which ASTRA-sim accepts as workloads.

Each node has a file, ``PREFIX.RANK.et``, of Protocol Buffers messages: first the metadata, then one message per
command. Each message is preceded by its length as a varint. Only the fields that are written are defined here, with
the same numbers as in Chakra's schema (``schema/protobuf/et_def.proto`` of github.com/mlcommons/chakra).
"""

import dataclasses
import enum
import functools
import importlib.util
import pathlib
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from host.output import write_bytes

__all__ = ["CLOCK", "Command", "Kind", "needed", "write"]

#: Default clock frequency of the nodes in Hz, as used on the larger boards.
CLOCK = 62.5e6
#: Schema version written to traces for ASTRA-sim.
_VERSION = "0.0.4"


class Kind(enum.Enum):
    """Kinds of commands: computation on a node, and the collective types of the schema."""

    COMPUTE = None
    ALL_REDUCE = 0
    ALL_GATHER = 2
    REDUCE_SCATTER = 7


#: Numbers of node types in the schema.
_COMPUTE, _COLLECTIVE = 4, 7
#: Message fields, keyed by name, each with its number, its type, and whether it is repeated.
_MESSAGES: dict[str, dict[str, tuple[int, str, bool]]] = {
    "AttributeProto": {"name": (1, "string", False), "int64_val": (9, "int64", False),
                       "uint64_val": (13, "uint64", False), "bool_val": (27, "bool", False),
                       "string_val": (29, "string", False)},
    "GlobalMetadata": {"version": (1, "string", False), "attr": (2, "AttributeProto", True)},
    "Node": {"id": (1, "uint64", False), "name": (2, "string", False), "type": (3, "NodeType", False),
             "ctrl_deps": (4, "uint64", True), "data_deps": (5, "uint64", True),
             "start_time_micros": (6, "uint64", False), "duration_micros": (7, "uint64", False),
             "attr": (10, "AttributeProto", True)},
}
_NODE_TYPES = {"INVALID_NODE": 0, "COMP_NODE": _COMPUTE, "COMM_COLL_NODE": _COLLECTIVE}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command:
    """A command of a training step."""

    name: str
    kind: Kind
    #: First cycle of the command, and the cycle when it ends.
    start: int
    end: int

    #: Names of the commands that must end before this one starts.
    after: tuple[str, ...] = ()
    #: Elements of a collective's vector, and its size in bytes; in a prediction, the size of an uncompressed vector
    #: that takes the same number of words on the links of a ring.
    elements: int = 0
    size: int = 0


def needed() -> None:
    """Raise ``ValueError`` if execution traces cannot be written."""
    if importlib.util.find_spec("google") is None or importlib.util.find_spec("google.protobuf") is None:
        raise ValueError("Protocol Buffers must be installed for execution traces: pip install gradring[chakra], or "
                         "make .venv/.chakra in a clone")


@functools.cache
def _schema() -> SimpleNamespace:
    """Build the message classes, keyed by name."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    package = "ChakraProtoMsg"
    file = descriptor_pb2.FileDescriptorProto(name="gradring/et_def.proto", package=package, syntax="proto3")
    types = file.enum_type.add(name="NodeType")
    for name, number in _NODE_TYPES.items():
        types.value.add(name=name, number=number)
    proto = descriptor_pb2.FieldDescriptorProto
    for message, fields in _MESSAGES.items():
        described = file.message_type.add(name=message)
        if message == "AttributeProto":
            described.oneof_decl.add(name="value")
        for name, (number, kind, repeated) in fields.items():
            field = described.field.add(name=name, number=number,
                                        label=proto.LABEL_REPEATED if repeated else proto.LABEL_OPTIONAL)
            if kind in _MESSAGES or kind == "NodeType":
                field.type_name = f".{package}.{kind}"
                field.type = proto.TYPE_ENUM if kind == "NodeType" else proto.TYPE_MESSAGE
            else:
                field.type = getattr(proto, f"TYPE_{kind.upper()}")
            if name.endswith("_val"):
                field.oneof_index = 0
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return SimpleNamespace(**{
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}")) for name in _MESSAGES})


def _varint(number: int) -> bytes:
    """Encode a number as a varint: groups of seven bits, lowest group first."""
    groups = []
    while number > 0x7F:
        groups.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*groups, number])


def _node(number: int, command: Command, numbers: dict[str, int], clock: float) -> Any:
    def micros(cycles: int) -> int:
        return round(cycles / clock * 1e6)

    node = _schema().Node(id=number, name=command.name, data_deps=[numbers[name] for name in command.after],
                          type=_COMPUTE if command.kind is Kind.COMPUTE else _COLLECTIVE,
                          start_time_micros=micros(command.start),
                          duration_micros=max(1, micros(command.end - command.start)))
    node.attr.add(name="is_cpu_op", bool_val=False)
    if command.kind is not Kind.COMPUTE:
        node.attr.add(name="comm_type", int64_val=command.kind.value)
        node.attr.add(name="comm_size", int64_val=command.size)
        node.attr.add(name="elements", uint64_val=command.elements)
    node.attr.add(name="cycles", uint64_val=command.end - command.start)
    return node


def _content(commands: Sequence[Command], metadata: Any, clock: float) -> bytes:
    """Encode the messages of a trace, each preceded by its length."""
    numbers = {command.name: number for number, command in enumerate(commands)}
    messages = [metadata, *(_node(numbers[command.name], command, numbers, clock) for command in commands)]
    return b"".join(_varint(len(text)) + text for text in (message.SerializeToString() for message in messages))


def write(ranks: Sequence[Sequence[Command]], prefix: pathlib.Path, *, note: str, clock: float = CLOCK
          ) -> pathlib.Path:
    """Write a step's trace for each node; return the path of the first trace.

    The commands of a node have distinct names, and each one comes after the commands that it waits for. File names
    begin with ``prefix``, ``note`` describes the source of the times, and ``clock`` is in cycles per second.
    """
    metadata = _schema().GlobalMetadata(version=_VERSION)
    metadata.attr.add(name="source", string_val=note)
    paths = [prefix.with_name(f"{prefix.name}.{rank}.et") for rank in range(len(ranks))]
    content = b""
    for rank, path in enumerate(paths):
        if rank == 0 or ranks[rank] is not ranks[rank - 1]:
            content = _content(ranks[rank], metadata, clock)
        write_bytes(path, content)
    return paths[0]
