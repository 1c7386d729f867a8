"""Device frame of a checkpoint: the state of a ring's nodes, transferred through their host ports.

A frame contains all state that later commands need, but no properties of the fabric: a ring with different latencies,
lanes, threads or optimizer intervals continues from a frame bit-identically. docs/checkpoints.md explains what a
frame omits.
"""

import contextlib
import dataclasses
import hashlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from hdl.config import Configuration
from hdl.config.forms import name_of
from hdl.control.protocol import DESCRIPTOR_WORDS, Operation
from hdl.control.registers import REGISTERS, Access, register
from hdl.group import GROUP
from hdl.ring.topology import RingTopology
from host.checkpoints.archive import FAR, canonical, device_region, digests, idle_region, program_region
from host.checkpoints.rejections import ReadBackError, TooSmallError
from host.driver.command import Command
from host.driver.device import Device
from host.driver.errors import WrongProgramError
from host.driver.far_contents import clear_far, far_words_of, read_far, write_far
from host.driver.ring import Ring
from host.driver.transport import results_of

__all__ = ["CARRIED", "MOST", "DeviceFrame", "Live", "Windows", "commands", "contracts_of", "digest",
           "forget_programs", "load", "missing", "peers_of", "read", "scrub", "verify", "verify_programs", "whole",
           "windows_of"]

#: Ranges in use of each memory space, in ascending order: first element and number of elements.
Windows: TypeAlias = Mapping[str, Sequence[tuple[int, int]]]

#: Windows for all nodes, or separate windows for each node.
Live: TypeAlias = Windows | Sequence[Windows]

#: Registers omitted from a frame: settings of the fabric, which a target keeps, and one that triggers an action.
_LEFT = ("CONTROL", "TIMEOUT", "THROTTLE_LINK", "THROTTLE_MEMORY", "THROTTLE_COMPUTE", "THROTTLE_HOST", "DELAY_LINK",
         "RESUMED_SET")

#: Registers that a frame includes.
CARRIED = tuple(entry.name for entry in REGISTERS if entry.access is Access.SETTING and entry.name not in _LEFT)

#: Bits of the registers SLOT_n and RESUMED_SET. A slot is busy while it is being computed or after it was taken.
_PENDING, _BUSY, _SLOT, _READY = 1 << 17, 1 << 16 | 1 << 18, 1 << 16, 1 << 17


@dataclasses.dataclass(frozen=True)
class DeviceFrame:
    """Device frame: the state of all nodes of a ring."""

    fields: dict[str, Any]  # field ``device`` of the manifest
    # contents of windows as little-endian words, and commands of programs, keyed by region name
    regions: dict[str, bytes]

    @property
    def live_words(self) -> int:
        """Maximum number of words in the windows of any node."""
        return max(sum(int(count) for windows in node["windows"].values() for _, count in windows)
                   for node in self.fields["nodes"])

    @property
    def digest(self) -> str:
        """SHA-256 of the frame's fields and regions."""
        return hashlib.sha256(canonical(self.fields) + digests(self.regions)).hexdigest()


def contracts_of(configs: Sequence[Configuration]) -> list[dict[str, bool | str]]:
    """Return the properties of each node that affect the exact results.

    Lanes, segments, intervals and latencies do not affect any sum. Roles and support for BROADCAST formats are
    included only if there are workers; otherwise, a server behaves like any other node.
    """
    relay = any(config.role.streams and not config.is_server for config in configs)
    return [_contract_of(config) | ({"role": name_of(type(config.role)),
                                     "fetch_formats": config.role.broadcast_formats} if relay else {})
            for config in configs]


def _contract_of(config: Configuration) -> dict[str, bool | str]:
    return {"element": config.element, "weight_codec": config.weights.codec, "gradient_codec": config.gradients,
            "masters": bool(config.weights.has_master), "residuals": bool(config.has_residual),
            "rounds": config.has_quorum, "operands": config.compute.operands if config.compute else "none",
            "order": "ring, from the rank of each block"}


def whole(device: Device) -> Windows:
    """Return windows that cover all memories available to a node's user, except the read-only trace."""
    spaces = {space.name: device.room(space.name) for space in device.config.memory_map if space.name != "trace"}
    spaces[FAR] = far_words_of(device.config)
    return {name: [(0, words)] for name, words in spaces.items() if words}


def windows_of(frame: DeviceFrame) -> list[Windows]:
    """Return the memory windows that a frame contains, for each node."""
    return [{space: [(base, count) for base, count in ranges] for space, ranges in node["windows"].items()}
            for node in frame.fields["nodes"]]


def peers_of(nodes: int) -> list[list[int]]:
    """Return the predecessor and successor of each rank in a ring."""
    topology = RingTopology(nodes)
    return [[topology.predecessor(rank), topology.successor(rank)] for rank in range(nodes)]


def read(ring: Ring, live: Live | None = None) -> DeviceFrame:
    """Wait for all queued commands, then read windows of the nodes, by default all memories.

    Raises ``RingError`` if an earlier command has failed, and ``RuntimeError`` if a program is running.
    """
    ring.commands.wait()
    ring.collectives.quiesce()
    epoch, collective = ring.commands.numbers
    devices, nodes = ring.devices, []
    regions = _program_regions(ring)
    programs, banks = _program_fields(ring, regions)
    windows: Sequence[Windows]
    if live is None:
        windows = [whole(device) for device in devices]
    else:
        windows = [live] * ring.nodes if isinstance(live, Mapping) else live
    contracts = contracts_of([device.config for device in devices])
    pending = [(device.submit_read_bits("STATUS", "SLOT_1"),
                [(device_region(rank, space, base),
                  device.submit_read_memory(device.config.memory_map[space].number, base, count))
                 for space, ranges in own.items() if space != FAR for base, count in ranges])
               for rank, (device, own) in enumerate(zip(devices, windows, strict=True))]
    for rank, (registers, contents) in enumerate(pending):
        bits = registers.result()
        slots = [bits["SLOT_0"], bits["SLOT_1"]]
        if bits["PROGRAM_STATUS"] & 1 or any(slot & _BUSY for slot in slots):
            raise RuntimeError(f"{devices[rank].name} must have ended its program and its rounds before it is read")
        regions |= {name: _bytes(words.result()) for name, words in contents}
        nodes.append({
            "rank": rank, "contract": contracts[rank], **programs[rank],
            "version": bits["WEIGHT_VERSION"], "flags": bits["FLAGS"],
            "registers": {name: bits[name] for name in CARRIED},
            "slots": [slot if slot & _PENDING else 0 for slot in slots],
            "windows": {space: [list(bounds) for bounds in ranges] for space, ranges in windows[rank].items()}})
    far = {rank: own[FAR] for rank, own in enumerate(windows) if FAR in own}
    regions |= {device_region(rank, FAR, base): _bytes(words)
                for (rank, base), words in read_far(devices, far).items()}
    described = {"size": ring.nodes, "topology": "ring", "epoch": epoch, "collective": collective,
                 "peers": peers_of(ring.nodes)}
    return DeviceFrame({"nodes": nodes, "ring": described, **banks}, regions)


def load(ring: Ring, frame: DeviceFrame) -> None:
    """Write a frame to the nodes of a ring after its links were reset, without starting anything.

    The ring must be idle and without failures. Elements outside the windows and settings of the fabric are not
    changed. Raises ``ReadBackError`` if a node has received different program words than were sent.
    """
    devices = ring.devices
    _catch_up(ring, frame.fields["nodes"])
    _take_flags(ring)
    ring.counters.clear()  # pending gradients that are restored will be counted as computed
    write_far(devices, {(node["rank"], base): _words(frame.regions[device_region(node["rank"], FAR, base)])
                        for node in frame.fields["nodes"] for base, _ in node["windows"].get(FAR, [])})
    pending = []
    for device, node in zip(devices, frame.fields["nodes"], strict=True):
        pending += [device.submit_write_memory(device.config.memory_map[space].number, base,
                                               _words(frame.regions[device_region(node["rank"], space, base)]))
                    for space, windows in node["windows"].items() if space != FAR for base, _ in windows]
        pending += [device.submit_write_bits(run[0], [node["registers"][name] for name in run])
                    for run in _runs(CARRIED)]
        for slot, bits in enumerate(node["slots"]):
            if bits & _PENDING:
                tag = bits & 0xFFFF
                pending += [device.submit_write_bits("RESUMED_SET", [tag | slot * _SLOT | ready * _READY])
                            for ready in (1, 0)]
        if node["flags"]:
            pending.append(device.submit_write_bits("FLAGS", [node["flags"]]))
        if device.config.has("settable_version"):
            pending.append(device.submit_write_bits("WEIGHT_VERSION", [node["version"]]))
    results_of(pending)
    _load_programs(ring, frame.fields, frame.regions)
    ring.commands.resume_from(frame.fields["ring"]["epoch"], frame.fields["ring"]["collective"])


def verify(ring: Ring, frame: DeviceFrame) -> None:
    """Verify a frame written by :func:`load`; raise ``ReadBackError`` if a node's contents differ.

    Programs are compared by :func:`verify_programs`.
    """
    numbers = ring.commands.numbers
    present = read(ring, windows_of(frame))
    ring.commands.resume_from(*numbers)
    for node, expected in zip(present.fields["nodes"], frame.fields["nodes"], strict=True):
        rank = node["rank"]
        for space, windows in expected["windows"].items():
            for base, _ in windows:
                name = device_region(rank, space, base)
                if present.regions[name] != frame.regions[name]:
                    raise ReadBackError(rank, f"{space}/{base}", "must hold what was written to it")
        for field in ("registers", "flags", "version", "slots"):
            if node[field] != expected[field]:
                raise ReadBackError(rank, field, f"must hold {_difference(node[field], expected[field])}")
    verify_programs(ring, frame.fields)


def scrub(ring: Ring) -> None:
    """Clear the nodes after a job: zero memories, reset registers, and remove programs."""
    ring.recover()
    _take_flags(ring)
    clear_far(ring.devices, {rank: [(0, words)] for rank, device in enumerate(ring.devices)
                             if (words := far_words_of(device.config))})
    pending = []
    for device in ring.devices:
        pending += [device.submit_write_memory(device.config.memory_map[space].number, base,
                                               np.zeros(count, np.uint32))
                    for space, windows in whole(device).items() if space != FAR for base, count in windows]
        if device.config.has_ring:
            pending += [device.submit_write_bits(run[0], [register(name).reset for name in run])
                        for run in _runs(CARRIED)]
        if device.config.has("settable_version"):
            pending.append(device.submit_write_bits("WEIGHT_VERSION", [0]))
    results_of(pending)
    forget_programs(ring)


def digest(ring: Ring, live: Live | None = None) -> str:
    """Return the SHA-256 of the ring's frame, by default of all memories, ignoring the epoch and the numbers of
    collectives and edits."""
    numbers = ring.commands.numbers
    frame = read(ring, live)
    ring.commands.resume_from(*numbers)
    frame.fields["ring"] |= {"epoch": 0, "collective": 0}
    if "banks" in frame.fields:
        frame.fields["banks"]["latest"] = 0  # an edit number is used only once
    return frame.digest


def _take_flags(ring: Ring) -> None:
    """Clear all flags of the nodes by running a command that waits for them."""
    flags = {rank: int(device.read_register("FLAGS")) for rank, device in enumerate(ring.devices)}
    for rank, bits in flags.items():
        if bits:
            device = ring.devices[rank]
            device.push(device.named(Command(operation=Operation.QUIESCE, wait=bits)))
            event = device.pop_event(timeout=10_000)
            assert event is not None, "flags that are set are taken at once"


def _runs(names: Sequence[str]) -> list[list[str]]:
    """Group register names into runs of consecutive addresses."""
    groups = itertools.groupby(enumerate(names), lambda pair: register(pair[1]).address - pair[0])
    return [[name for _, name in group] for _, group in groups]


def _words(data: bytes) -> npt.NDArray[np.uint32]:
    return np.frombuffer(data, "<u4").astype(np.uint32)


def _bytes(words: npt.NDArray[np.uint32]) -> bytes:
    return words.astype("<u4").tobytes()


def _difference(actual: Any, expected: Any) -> str:
    """Describe the values that differ, each with its expected and actual value."""
    if isinstance(actual, dict):
        return ", ".join(f"{name} 0x{value:08x}, not 0x{actual[name]:08x}" for name, value in expected.items()
                         if actual[name] != value)
    return f"{expected!r}, not {actual!r}"


# Counts of weight updates.

#: Maximum number of broadcasts in a restore.
MOST = 1 << 16


def missing(devices: Sequence[Device], nodes: Sequence[Mapping[str, Any]]) -> int:
    """Number of broadcasts after which the nodes' update counts equal the counts in a frame. Raises ``TooSmallError``
    if there is no such number."""
    most = MOST if devices[0].config.has_ring else 0
    counts = {node["rank"]: (node["version"] - int(device.read_register("WEIGHT_VERSION"))) % (1 << 32)
              for device, node in zip(devices, nodes, strict=False)
              if node["version"] and not device.config.has("settable_version")}
    for rank, count in counts.items():
        if count > most or count != next(iter(counts.values())):
            raise TooSmallError(f"node {rank} must have a WEIGHT_VERSION that can be written, as nodes with "
                                f"SettableVersion have, or one that is as far from that of the checkpoint as on "
                                f"other nodes, and at most {most:,} below it")
    return next(iter(counts.values()), 0)


def _catch_up(ring: Ring, nodes: Sequence[Mapping[str, Any]]) -> None:
    """Raise the nodes' update counts to the counts in a frame, with broadcasts that keep all memories; reset the
    links.

    Nodes with SettableVersion need no broadcasts, because their WEIGHT_VERSION register can be written. All other
    nodes, such as bitstream nodes, must be the same number of updates away from the frame.
    """
    count = missing(ring.devices, nodes)
    if not count:
        return
    before = ring.devices.read_space("weights", 0, dict.fromkeys(range(ring.nodes), GROUP))
    try:
        for _ in range(count):
            ring.collectives.broadcast(GROUP, root=ring.nodes - 1)
    finally:
        ring.recover()
        ring.devices.write_space("weights", 0, before)


# Programs.

#: Commands for each queue of each node.
_Programs = list[list[list[Command]]]


def commands(data: bytes) -> list[Command]:
    """Decode the commands in a program's region; raise ``ValueError`` if they are invalid."""
    return [Command.from_words(words) for words in _words(data).reshape(-1, DESCRIPTOR_WORDS)]


def _program_regions(ring: Ring) -> dict[str, bytes]:
    """Return the programs acknowledged by nodes, as bytes of their commands, keyed by region name."""
    staged = ring.programs.staged
    kept = [(program_region, ring.programs.loaded[1]), (idle_region, [] if staged is None else staged[1])]
    return {region(rank, queue): b"".join(_bytes(command.words()) for command in own)
            for region, programs in kept for rank, queues in enumerate(programs) for queue, own in enumerate(queues)}


def _program_fields(ring: Ring, regions: Mapping[str, bytes]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the numbers, lengths and digests of each node's programs, and the state of both banks."""
    (model, loaded), staged = ring.programs.loaded, ring.programs.staged

    def listed(programs: _Programs, rank: int, region: Any) -> list[list[Any]]:
        return [[len(own), hashlib.sha256(regions[region(rank, queue)]).hexdigest()]
                for queue, own in enumerate(programs[rank])] if programs else []

    nodes = [{"model": model, "programs": listed(loaded, rank, program_region)} for rank in range(ring.nodes)]
    if not _banked(ring):
        return nodes, {}
    idle_model, idle, due = (0, [], None) if staged is None else staged
    for rank, node in enumerate(nodes):
        node["idle"] = listed(idle, rank, idle_region)
    return nodes, {"banks": {"set": ring.programs.next_set or 0, "latest": _latest(ring), "model": idle_model,
                             "due": due}}


def _load_programs(ring: Ring, fields: Mapping[str, Any], regions: Mapping[str, bytes]) -> None:
    """Load a frame's programs; nodes with two banks verify both banks by their digests.

    Programs cannot be read from nodes: a frame contains the words that nodes have acknowledged. Nodes with two banks
    compute a CRC-32 over the words received for the idle bank. A restore therefore loads each program into the idle
    bank, makes the node check the digest with an EDIT, and starts a set of zero passes, which swaps the banks.
    Raises ``ReadBackError`` if a node has received different words.
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
    # Later edits need numbers that exceed all numbers used by source and target.
    number = max(_latest(ring), banks["latest"] - 2) + 1
    active = programs if runs else [[[Command(operation=Operation.QUIESCE)]]] * ring.nodes  # a set requires a program
    ring.programs.load(active, model=(model - 1) % 256)  # so that the two banks have different numbers
    _stage(ring, active, model=model)  # cancels a pending edit
    ring.programs.begin_set(first)
    _edit(ring, number=number, first=first, region="program")
    ring.programs.begin_set(first)
    if not runs:
        ring.programs.load(programs, model=model)
    if any(idle):
        _stage(ring, idle, model=banks["model"])
        if due is None:
            if all(map(any, idle)):  # an EDIT needs programs for all nodes
                with _compared(ring, "idle"):
                    ring.programs.compare_staged(number=number + 1)
            return
        if due != first:
            ring.programs.begin_set(due)
        _edit(ring, number=number + 1, first=due, region="idle")
        if due != first:  # the set has ended, and the edit waits for its next run
            ring.programs.begin_set(first)


def verify_programs(ring: Ring, fields: Mapping[str, Any]) -> None:
    """Raise ``ReadBackError`` unless each node with a program in the frame has one with the same number."""
    for node, device in zip(fields["nodes"], ring.devices, strict=True):
        if device.config.queues < 2 or not any(length for length, _ in node["programs"]):
            continue
        status = device.read_fields("PROGRAM_STATUS")
        if (status["loaded"], status["model"]) != (1, node["model"]):
            raise ReadBackError(node["rank"], "program", f"must have number {node['model']}, not {status['model']}")


def forget_programs(ring: Ring) -> None:
    """Overwrite all loaded programs, leaving the nodes without programs."""
    idle = [] if ring.programs.staged is None else ring.programs.staged[1]
    for programs, other in ((ring.programs.loaded[1], False), (idle, True)):
        for rank, queues in enumerate(programs):
            device = ring.devices[rank]
            nothing = device.named(Command(operation=Operation.QUIESCE))
            for queue, own in enumerate(queues if device.config.queues > 1 else []):
                device.load_program(queue, [nothing] * len(own), idle=other)
    if idle:
        ring.programs.drop_staged()
    if ring.programs.loaded[1]:
        ring.programs.load([[[] for _ in range(device.config.queues)] for device in ring.devices])


def _banked(ring: Ring) -> bool:
    """Whether all nodes have two banks."""
    return all(device.config.has_banks for device in ring.devices)


def _latest(ring: Ring) -> int:
    """Return the number of the latest edit that any node has accepted."""
    return max(device.read_fields("PROGRAM_SET")["latest"] for device in ring.devices)


def _stage(ring: Ring, programs: _Programs, *, model: int) -> None:
    for _ in ring.programs.stage(programs, model=model):
        pass


def _edit(ring: Ring, *, number: int, first: int, region: str) -> None:
    with _compared(ring, region):
        ring.programs.edit(number=number, set=first)


@contextlib.contextmanager
def _compared(ring: Ring, region: str) -> Iterator[None]:
    """Add the rank and region to the error of a node that reports a different digest."""
    try:
        yield
    except WrongProgramError as error:
        rank = next(rank for rank, device in enumerate(ring.devices) if str(error).startswith(f"{device.name}:"))
        raise ReadBackError(rank, region, "must have the CRC-32 of what was sent to it") from None
