"""The device frame of a checkpoint: the nodes of a ring, read and written through their host ports.

A frame has what later commands depend on, and nothing of the fabric: a ring of other latencies, lanes, threads or
intervals of the optimizer goes on from it with the same bits. docs/checkpoints.md lists what is left out, and why.
"""

import dataclasses
import hashlib
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from hdl.config import Configuration, SettableVersion
from hdl.config.forms import name_of
from hdl.control.protocol import Operation
from hdl.control.registers import REGISTERS, Access, register
from hdl.ring.topology import RingTopology
from host.checkpoints.frame_programs import (
    forget_programs,
    load_programs,
    program_fields,
    program_regions,
    verify_programs,
)
from host.checkpoints.manifest import FAR, canonical, device_region
from host.checkpoints.rejections import ReadBackError
from host.checkpoints.update_counts import catch_up
from host.driver.command import Command
from host.driver.device import Device
from host.driver.far_contents import clear_far, far_words_of, read_far, write_far
from host.driver.ring import Ring

__all__ = ["CARRIED", "DeviceFrame", "Live", "Windows", "contracts_of", "digest", "load", "read", "scrub", "verify",
           "whole", "windows_of"]

#: Ranges of each memory space that are live: first element and number of elements, in order.
Windows: TypeAlias = Mapping[str, Sequence[tuple[int, int]]]

#: Windows of all nodes alike, or of each node.
Live: TypeAlias = Windows | Sequence[Windows]

#: Settings of the fabric, which a target keeps, and one that acts when it is written.
_LEFT = ("CONTROL", "TIMEOUT", "THROTTLE_LINK", "THROTTLE_MEMORY", "THROTTLE_COMPUTE", "THROTTLE_HOST", "DELAY_LINK",
         "RESUMED_SET")

#: Registers that a frame has.
CARRIED = tuple(entry.name for entry in REGISTERS if entry.access is Access.SETTING and entry.name not in _LEFT)

#: Bits of SLOT_n, "computing" and "taken" as busy, and of RESUMED_SET.
_PENDING, _BUSY, _SLOT, _READY = 1 << 17, 1 << 16 | 1 << 18, 1 << 16, 1 << 17


@dataclasses.dataclass(frozen=True)
class DeviceFrame:
    """Frame of all nodes of a ring.

    Members
    -------
    fields : dict
        Field ``device`` of the manifest.
    regions : dict of str to bytes
        Contents of windows, in little-endian words, and commands of programs, by the names of regions.
    """

    fields: dict[str, Any]
    regions: dict[str, bytes]

    @property
    def live_words(self) -> int:
        """Words of the windows of the node that has most."""
        return max(sum(int(count) for windows in node["windows"].values() for _, count in windows)
                   for node in self.fields["nodes"])

    @property
    def digest(self) -> str:
        """SHA-256 of the frame."""
        parts = canonical({name: hashlib.sha256(data).hexdigest() for name, data in self.regions.items()})
        return hashlib.sha256(canonical(self.fields) + parts).hexdigest()


def contracts_of(configs: Sequence[Configuration]) -> list[dict[str, bool | str]]:
    """Properties of each node of a ring that decide the bits of results.

    Lanes, segments, intervals and latencies are not among them: no sum depends on those. Roles, and whether weights
    can be fetched in formats, are among them where there are workers: elsewhere a server does what any node does.
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
    """Windows that cover all that a user of a node has of its memories, apart from the trace, which cannot be
    written."""
    spaces = {space.name: device.room(space.name) for space in device.config.memory_map if space.name != "trace"}
    spaces[FAR] = far_words_of(device.config)
    return {name: [(0, words)] for name, words in spaces.items() if words}


def windows_of(frame: DeviceFrame) -> list[Windows]:
    """Windows of each node of a frame."""
    return [{space: [(base, count) for base, count in found] for space, found in node["windows"].items()}
            for node in frame.fields["nodes"]]


def read(ring: Ring, live: Live | None = None) -> DeviceFrame:
    """Read the nodes of a ring, behind all commands that were queued before.

    Parameters
    ----------
    live : mapping or sequence of mapping, optional
        Windows of all nodes, or of each; by default all memories.

    Raises
    ------
    RingError
        A command before has failed.
    RuntimeError
        A program runs.
    """
    ring.commands.wait()
    ring.collectives.quiesce()
    epoch, collective = ring.commands.numbers
    topology = RingTopology(ring.nodes)
    peers = [[topology.predecessor(rank), topology.successor(rank)] for rank in range(ring.nodes)]
    devices, nodes = ring.devices, []
    regions, programs = program_regions(ring), program_fields(ring)
    windows: Sequence[Windows]
    if live is None:
        windows = [whole(device) for device in devices]
    else:
        windows = [live] * ring.nodes if isinstance(live, Mapping) else live
    contracts = contracts_of([device.config for device in devices])
    pending = [(device.submit_read_bits("STATUS", "SLOT_1"),
                [(device_region(rank, space, base),
                  device.submit_read_memory(device.config.memory_map[space].number, base, count))
                 for space, found in mine.items() if space != FAR for base, count in found])
               for rank, (device, mine) in enumerate(zip(devices, windows, strict=True))]
    for rank, (registers, contents) in enumerate(pending):
        bits = registers.result()
        slots = [bits["SLOT_0"], bits["SLOT_1"]]
        if bits["PROGRAM_STATUS"] & 1 or any(slot & _BUSY for slot in slots):
            raise RuntimeError(f"{devices[rank].name} must have ended its program and its rounds before it is read")
        regions |= {name: _bytes(words.result()) for name, words in contents}
        nodes.append({
            "rank": rank, "contract": contracts[rank], **programs.nodes[rank],
            "version": bits["WEIGHT_VERSION"], "flags": bits["FLAGS"],
            "registers": {name: bits[name] for name in CARRIED},
            "slots": [slot if slot & _PENDING else 0 for slot in slots],
            "windows": {space: [list(one) for one in found] for space, found in windows[rank].items()}})
    far = {rank: mine[FAR] for rank, mine in enumerate(windows) if FAR in mine}
    regions |= {device_region(rank, FAR, base): _bytes(words)
                for (rank, base), words in read_far(devices, far).items()}
    return DeviceFrame({
        "nodes": nodes,
        "ring": {"size": ring.nodes, "topology": "ring", "epoch": epoch, "collective": collective, "peers": peers},
        **programs.ring,
    }, regions)


def load(ring: Ring, frame: DeviceFrame) -> None:
    """Write a frame to the nodes of a ring that is in order and idle, whose links were reset since its last command.

    Nothing is started. Elements around the windows, and settings of the fabric, stay as they are.

    Raises
    ------
    ReadBackError
        A node has received other words of a program than it was sent.
    """
    devices = ring.devices
    catch_up(ring, frame.fields["nodes"])
    _take_flags(ring)
    ring.counters.clear()  # pending gradients are counted as computed
    write_far(devices, {(node["rank"], base): _words(frame.regions[device_region(node["rank"], FAR, base)])
                        for node in frame.fields["nodes"] for base, _ in node["windows"].get(FAR, [])})
    pending = []
    for device, node in zip(devices, frame.fields["nodes"], strict=True):
        rank = node["rank"]
        for space, windows in node["windows"].items():
            if space == FAR:
                continue
            pending += [device.submit_write_memory(device.config.memory_map[space].number, base,
                                                   _words(frame.regions[device_region(rank, space, base)]))
                        for base, _ in windows]
        for run in _runs(CARRIED):
            pending.append(device.submit_write_bits(run[0], [node["registers"][name] for name in run]))
        for slot, bits in enumerate(node["slots"]):
            if bits & _PENDING:
                tag = bits & 0xFFFF
                pending += [device.submit_write_bits("RESUMED_SET", [tag | slot * _SLOT | ready * _READY])
                            for ready in (1, 0)]
        if node["flags"]:
            pending.append(device.submit_write_bits("FLAGS", [node["flags"]]))
        if device.config.has(SettableVersion):
            pending.append(device.submit_write_bits("WEIGHT_VERSION", [node["version"]]))
    for one in pending:
        one.result()
    load_programs(ring, frame.fields, frame.regions)
    ring.commands.resume_from(frame.fields["ring"]["epoch"], frame.fields["ring"]["collective"])


def verify(ring: Ring, frame: DeviceFrame) -> None:
    """Read what :func:`load` has written, and compare; for programs see
    :func:`host.checkpoints.frame_programs.verify_programs`.

    Raises
    ------
    ReadBackError
        A node holds something else.
    """
    numbers = ring.commands.numbers
    found = read(ring, windows_of(frame))
    ring.commands.resume_from(*numbers)
    for node, expected in zip(found.fields["nodes"], frame.fields["nodes"], strict=True):
        rank = node["rank"]
        for space, windows in expected["windows"].items():
            for base, _ in windows:
                name = device_region(rank, space, base)
                if found.regions[name] != frame.regions[name]:
                    raise ReadBackError(rank, f"{space}/{base}", "must hold what was written to it")
        for field in ("registers", "flags", "version", "slots"):
            if node[field] != expected[field]:
                raise ReadBackError(rank, field, f"must hold {_difference(node[field], expected[field])}")
    verify_programs(ring, frame.fields)


def scrub(ring: Ring) -> None:
    """Leave nothing of a job on the nodes: zeros in all memories, registers as after reset, no program."""
    ring.recover()
    _take_flags(ring)
    clear_far(ring.devices, {rank: [(0, words)] for rank, device in enumerate(ring.devices)
                             if (words := far_words_of(device.config))})
    pending = []
    for device in ring.devices:
        for space, windows in whole(device).items():
            if space == FAR:
                continue
            pending += [device.submit_write_memory(device.config.memory_map[space].number, base,
                                                   np.zeros(count, np.uint32)) for base, count in windows]
        if not device.config.is_int16:
            pending += [device.submit_write_bits(run[0], [register(name).reset for name in run])
                        for run in _runs(CARRIED)]
        if device.config.has(SettableVersion):
            pending.append(device.submit_write_bits("WEIGHT_VERSION", [0]))
    for one in pending:
        one.result()
    forget_programs(ring)


def digest(ring: Ring, live: Live | None = None) -> str:
    """SHA-256 of everything that a frame has, by default of the whole nodes, but for numbers, which go on."""
    numbers = ring.commands.numbers
    found = read(ring, live)
    ring.commands.resume_from(*numbers)
    found.fields["ring"] |= {"epoch": 0, "collective": 0}
    if "banks" in found.fields:
        found.fields["banks"]["latest"] = 0  # numbers of edits are used once
    return found.digest


def _take_flags(ring: Ring) -> None:
    """Clear all flags: a command that waits for them takes them."""
    flags = {rank: int(device.read_register("FLAGS")) for rank, device in enumerate(ring.devices)}
    for rank, bits in flags.items():
        if bits:
            device = ring.devices[rank]
            device.push(device.named(Command(operation=Operation.QUIESCE, wait=bits)))
            event = device.pop_event(timeout=10_000)
            assert event is not None, "flags that are set are taken at once"


def _runs(names: Sequence[str]) -> list[list[str]]:
    """Names of registers in runs of consecutive addresses."""
    groups = itertools.groupby(enumerate(names), lambda one: register(one[1]).address - one[0])
    return [[name for _, name in group] for _, group in groups]


def _words(data: bytes) -> npt.NDArray[np.uint32]:
    return np.frombuffer(data, "<u4").astype(np.uint32)


def _bytes(words: npt.NDArray[np.uint32]) -> bytes:
    return words.astype("<u4").tobytes()


def _difference(found: Any, expected: Any) -> str:
    """Expected values that were not found, and those in their place."""
    if isinstance(found, dict):
        return ", ".join(f"{name} 0x{value:08x}, not 0x{found[name]:08x}" for name, value in expected.items()
                         if found[name] != value)
    return f"{expected!r}, not {found!r}"
