"""Programs in the idle banks of nodes with two, and the digests by which nodes compare them."""

import dataclasses
import zlib
from collections.abc import Sequence
from typing import TypeAlias

from hdl.control.program_memory import program_header_layout
from host.driver.command import Command
from host.driver.device import Device
from host.driver.words import pack, places

__all__ = ["NodeProgram", "Staged", "commands_of", "digest", "end_slot", "named"]

#: Commands of each queue of a node.
NodeProgram: TypeAlias = Sequence[Sequence[Command]]

#: Header of a load for the idle bank.
_HEADER = places(program_header_layout(banks=2))


@dataclasses.dataclass(kw_only=True)
class Staged:
    """Programs in the idle banks.

    Members
    -------
    model : int
        Their number.
    set : int, optional
        Set that they hold from, once all nodes have acknowledged that.
    comparisons : int
        Comparisons without an edit that stays.
    """

    programs: list[list[list[Command]]]
    model: int
    set: int | None = None
    comparisons: int = 0


def commands_of(program: NodeProgram, queue: int) -> list[Command]:
    """Commands of a queue; a program may have fewer queues than a node."""
    return list(program[queue]) if queue < len(program) else []


def named(device: Device, program: NodeProgram, queue: int) -> list[Command]:
    """Commands of a queue in the name of the tenant that asks."""
    return [device.named(command) for command in commands_of(program, queue)]


def end_slot(device: Device, program: NodeProgram) -> int:
    """Slot after the last command of a node's last queue."""
    return len(commands_of(program, device.config.queues - 1))


def digest(device: Device, program: NodeProgram, staged: Staged) -> int:
    """Digest of loads of all queues for the idle bank of a node, and of loads that took back an edit."""
    value, queues = 0, int(device.config.queues)
    for queue in range(queues):
        value = _header(value, staged, queue=queue)
        for command in named(device, program, queue):
            value = zlib.crc32(command.words().tobytes(), value)
    for _ in range(staged.comparisons):
        value = _header(value, staged, queue=queues - 1, slot=end_slot(device, program))
    return value


def _header(before: int, staged: Staged, **fields: int) -> int:
    """Digest after the header of a load."""
    return zlib.crc32(pack(_HEADER, {**fields, "idle": 1, "model": staged.model}, "Program's").tobytes(), before)
