"""Programs of nodes in a checkpoint: those of the bank that runs, and those of the other bank.

A node cannot be asked for the words of its programs. The process keeps what nodes have confirmed, and that is what a
frame has. Nodes with two banks count a CRC-32 of the words that they receive for the idle one: so there a restore
loads each program into the idle bank, has the node compare the digest by an EDIT, and begins a set of no passes,
which makes the banks change.
"""

import contextlib
import dataclasses
import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from hdl.control.protocol import DESCRIPTOR_WORDS, Operation
from host.checkpoints.manifest import idle_region, program_region
from host.checkpoints.rejections import ReadBackError
from host.driver.command import Command
from host.driver.errors import WrongProgramError
from host.driver.ring import Ring

__all__ = ["ProgramFields", "commands", "forget_programs", "load_programs", "program_fields", "program_regions",
           "verify_programs"]

#: Commands of each queue of each node.
_Programs = list[list[list[Command]]]


@dataclasses.dataclass(frozen=True)
class ProgramFields:
    """Fields of a frame about programs: of each node, and of the ring."""

    nodes: list[dict[str, Any]]
    ring: dict[str, Any]


def commands(data: bytes) -> list[Command]:
    """Commands of the region of a program; a ``ValueError`` if they are none."""
    words = np.frombuffer(data, "<u4").astype(np.uint32).reshape(-1, DESCRIPTOR_WORDS)
    return [Command.from_words(one) for one in words]


def program_regions(ring: Ring) -> dict[str, bytes]:
    """Commands that nodes have confirmed, by the names of regions."""
    staged = ring.programs.staged
    kept = [(program_region, ring.programs.loaded[1]), (idle_region, [] if staged is None else staged[1])]
    return {region(rank, queue): b"".join(command.words().astype("<u4").tobytes() for command in mine)
            for region, programs in kept for rank, queues in enumerate(programs) for queue, mine in enumerate(queues)}


def program_fields(ring: Ring) -> ProgramFields:
    """Lengths and digests of programs, and the state of both banks."""
    regions, staged = program_regions(ring), ring.programs.staged

    def listed(programs: _Programs, rank: int, region: Any) -> list[list[Any]]:
        return [[len(mine), hashlib.sha256(regions[region(rank, queue)]).hexdigest()]
                for queue, mine in enumerate(programs[rank])] if programs else []

    nodes = [{"model": ring.programs.loaded[0], "programs": listed(ring.programs.loaded[1], rank, program_region)}
             for rank in range(ring.nodes)]
    if not _banked(ring):
        return ProgramFields(nodes, {})
    for rank, node in enumerate(nodes):
        node["idle"] = [] if staged is None else listed(staged[1], rank, idle_region)
    return ProgramFields(nodes, {"banks": {
        "set": ring.programs.next_set or 0, "latest": _latest(ring), "model": 0 if staged is None else staged[0],
        "due": None if staged is None else staged[2]}})


def load_programs(ring: Ring, fields: Mapping[str, Any], regions: Mapping[str, bytes]) -> None:
    """Load the programs of a frame; nodes with two banks compare both with their digests.

    Raises
    ------
    ReadBackError
        A node has received other words.
    """
    nodes = fields["nodes"]
    model = nodes[0]["model"]
    programs, idle = ([[commands(regions[region(node["rank"], queue)]) for queue in range(len(node.get(name, [])))]
                       for node in nodes] for name, region in (("programs", program_region), ("idle", idle_region)))
    if not any(programs) and not any(idle):
        return
    banks = fields.get("banks", {"set": 0, "latest": 0, "model": 0, "due": None})
    runs = all(map(any, programs))
    if not _banked(ring) or not (runs or any(idle)):
        ring.programs.load(programs, model=model)
        return
    first, due = banks["set"], banks["due"]
    # Later edits have numbers above those of the source, and of the target.
    number = max(_latest(ring), banks["latest"] - 2) + 1
    given = programs if runs else [[[Command(operation=Operation.QUIESCE)]]] * ring.nodes  # a set needs a program
    ring.programs.load(given, model=(model - 1) % 256)  # so that the two banks have different numbers
    _stage(ring, given, model=model)  # which takes back an edit that waits
    ring.programs.begin_set(first)
    _edit(ring, number=number, first=first, region="program")
    ring.programs.begin_set(first)
    if not runs:
        ring.programs.load(programs, model=model)
    if any(idle):
        _stage(ring, idle, model=banks["model"])
        if due is None:
            if all(map(any, idle)):  # an EDIT is for programs of all nodes
                with _compared(ring, "idle"):
                    ring.programs.compare_staged(number=number + 1)
            return
        if due != first:
            ring.programs.begin_set(due)
        _edit(ring, number=number + 1, first=due, region="idle")
        if due != first:  # the set is over, and the edit waits until it is run again
            ring.programs.begin_set(first)


def verify_programs(ring: Ring, fields: Mapping[str, Any]) -> None:
    """Compare the number of the program that nodes have with that of a frame, and whether they have one at all.

    Raises
    ------
    ReadBackError
    """
    for node, device in zip(fields["nodes"], ring.devices, strict=True):
        expected = bool(sum(length for length, _ in node["programs"]))
        if device.config.queues < 2 or not expected:
            continue
        found = device.read_fields("PROGRAM_STATUS")
        if (found["loaded"], found["model"]) != (1, node["model"]):
            raise ReadBackError(node["rank"], "program", f"must have number {node['model']}, not {found['model']}")


def forget_programs(ring: Ring) -> None:
    """Overwrite what was loaded, and leave no program."""
    idle = [] if ring.programs.staged is None else ring.programs.staged[1]
    for programs, other in ((ring.programs.loaded[1], False), (idle, True)):
        for rank, queues in enumerate(programs):
            device = ring.devices[rank]
            for queue, mine in enumerate(queues if device.config.queues > 1 else []):
                device.load_program(queue, [device.named(Command(operation=Operation.QUIESCE))] * len(mine),
                                    idle=other)
    if idle:
        ring.programs.drop_staged()
    if ring.programs.loaded[1]:
        ring.programs.load([[[] for _ in range(device.config.queues)] for device in ring.devices])


def _banked(ring: Ring) -> bool:
    """Whether all nodes have two banks."""
    return all(device.config.has_banks for device in ring.devices)


def _latest(ring: Ring) -> int:
    """Largest number of an edit that a node has accepted."""
    return max(device.read_fields("PROGRAM_SET")["latest"] for device in ring.devices)


def _stage(ring: Ring, programs: _Programs, *, model: int) -> None:
    for _ in ring.programs.stage(programs, model=model):
        pass


def _edit(ring: Ring, *, number: int, first: int, region: str) -> None:
    with _compared(ring, region):
        ring.programs.edit(number=number, set=first)


@contextlib.contextmanager
def _compared(ring: Ring, region: str) -> Iterator[None]:
    """Digests that nodes compare; one that differs is told with its node and region."""
    try:
        yield
    except WrongProgramError as error:
        rank = next(rank for rank, device in enumerate(ring.devices) if str(error).startswith(f"{device.name}:"))
        raise ReadBackError(rank, region, "must have the CRC-32 of what was sent to it") from None
