"""The manifest of a checkpoint: canonical JSON, and a check of every field before any of them is used.

Canonical means that the same value has the same bytes: keys are sorted, there is no blank, and every character is of
ASCII. A manifest that is not in this form is refused, so nothing can be hidden in it, such as a key that is there
twice.
"""

import json
import re
from typing import Any

from hdl.control.registers import REGISTERS
from hdl.memory_map import BASE_ALIGNMENT, MOST_SPACES
from host.checkpoints.rejections import BadVersionError, MalformedError
from sim import json_files
from sim.fields import integer, mapping, optional, pair, record, several, text

__all__ = ["FAR", "FORMAT", "LARGEST_REGION", "MOST_REGIONS", "SCHEMA", "canonical", "device_region", "idle_region",
           "parse", "program_region"]

SCHEMA = "gradring.checkpoint"

#: Name among windows of the far memory of a node that computes.
FAR = "far"
FORMAT = 1

#: Regions of a checkpoint, and bytes of one of them.
MOST_REGIONS, LARGEST_REGION = 4096, 1 << 28
_WORD = (1 << 32) - 1
_MOST_NODES, _MOST_QUEUES, _MOST_WINDOWS = 16, 3, 64
_LARGEST_SPACE = 1 << 28


def canonical(value: Any) -> bytes:
    """The bytes of a value of numbers, texts, lists and dictionaries whose keys are texts.

    Raises
    ------
    ValueError
        A number is not finite.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")


def device_region(rank: int, space: str, base: int) -> str:
    """Name of the region with the contents of a window."""
    return f"device/{rank:02d}/{space}/{base}"


def program_region(rank: int, queue: int) -> str:
    """Name of the region with the commands of a queue's program."""
    return f"device/{rank:02d}/program/{queue}"


def idle_region(rank: int, queue: int) -> str:
    """Name of the region with the commands of a queue's program in the bank that does not run."""
    return f"device/{rank:02d}/idle/{queue}"


_number, _digest, _name = integer(0, _WORD), text("[0-9a-f]{64}"), text("[a-z][a-z0-9_]{0,31}")
_rank = integer(0, _MOST_NODES - 1)
_windows = several(pair(integer(0, _LARGEST_SPACE), integer(1, _LARGEST_SPACE)), 1, _MOST_WINDOWS)

_programs = several(pair(integer(0, 1 << 16), _digest), 0, _MOST_QUEUES)

_NODE = record(
    {"idle": _programs}, rank=_rank, version=_number, flags=integer(0, 0xFFFF),
    registers=mapping(text("[A-Z][A-Z0-9_]{0,31}"), _number, len(REGISTERS)),
    slots=several(integer(0, (1 << 19) - 1), 2, 2), model=integer(0, 255),
    contract=mapping(_name, lambda value: isinstance(value, bool | str), 32),
    programs=_programs, windows=mapping(_name, _windows, MOST_SPACES))

#: Banks of programs: the next set, the number of the latest edit, and number and set of the program that waits.
_BANKS = record(set=integer(0, 0xFFFF), latest=integer(0, 0xFFFF), model=integer(0, 255),
                due=optional(integer(0, 0xFFFF)))

_DEVICE = record(
    {"banks": _BANKS},
    ring=record(size=integer(1, _MOST_NODES), topology=_name, epoch=integer(0, 255),
                collective=integer(0, 0xFFFF), peers=several(pair(_rank, _rank), 1, _MOST_NODES)),
    nodes=several(_NODE, 1, _MOST_NODES))

_PROCESS = record(
    step=integer(0, 1 << 62), epoch=integer(0, 1 << 62), arrays=integer(0, MOST_REGIONS),
    order=optional(_digest),
    resources=record(nodes=integer(1, _MOST_NODES),
                     words=mapping(_name, integer(0, _LARGEST_SPACE), MOST_SPACES)))

_MANIFEST = {
    "schema": text(re.escape(SCHEMA)), "format": integer(FORMAT, FORMAT), "sequence": integer(0, 1 << 62),
    "nonce": text("[0-9a-f]{32}"), "time": integer(0, 1 << 62), "tenant": integer(0, 0xFFFF),
    "watermark": optional(_digest), "process": optional(_PROCESS), "device": optional(_DEVICE),
    "regions": several(record(name=text("[a-z0-9_/.]{1,90}"), size=integer(0, LARGEST_REGION), sha256=_digest), 0,
                        MOST_REGIONS),
}


def parse(data: bytes) -> dict[str, Any]:
    """The manifest of its bytes.

    Raises
    ------
    MalformedError
        The bytes are no canonical JSON, or a field is missing, unknown or of another form.
    BadVersionError
        The manifest is of another schema or format.
    """
    try:
        value = json_files.parse(data)
        same = canonical(value) == data
    except ValueError:
        raise MalformedError("manifest must be canonical JSON") from None
    if not same or not isinstance(value, dict):
        raise MalformedError("manifest must be canonical JSON, an object with sorted keys and no blanks")
    schema, number = value.get("schema"), value.get("format")
    if not isinstance(schema, str) or not integer(0, 1 << 62)(number):
        raise MalformedError("manifest must have a schema and the number of its format")
    if (schema, number) != (SCHEMA, FORMAT):
        raise BadVersionError(f"file must be of schema {SCHEMA}, format {FORMAT}, not {_short(schema)}, {number}")
    device = value.get("device")
    if isinstance(device, dict) and "contract" in device:
        raise BadVersionError("file must have a contract for each node, not one for all, as files had before")
    for name, check in _MANIFEST.items():
        if name not in value or not check(value[name]):
            raise MalformedError(f"manifest must have a {name} as docs/checkpoints.md says")
    if value.keys() != _MANIFEST.keys():
        raise MalformedError("manifest must have no other fields than those of docs/checkpoints.md")
    _check_regions(value)
    return value


def _short(name: str) -> str:
    return repr(name if len(name) <= 40 else name[:40] + "…")


def _check_regions(manifest: dict[str, Any]) -> None:
    """Raise ``MalformedError`` unless the regions are those that the frames name, in the order of their names."""
    regions = {region["name"]: region for region in manifest["regions"]}
    if list(regions) != sorted(regions) or len(regions) != len(manifest["regions"]):
        raise MalformedError("regions must be in the order of their names, each of them once")
    process, device = manifest["process"], manifest["device"]
    expected: dict[str, dict[str, Any]] = {}
    if process is not None:
        expected = {name: {} for name in ("process/state.json",
                                          *(f"process/array/{number:04d}" for number in range(process["arrays"])))}
    if device is not None:
        _check_nodes(device)
        for rank, node in enumerate(device["nodes"]):
            expected |= _windows_of(rank, node) | _programs_of(rank, node)
    for name, known in expected.items():
        if name in regions and regions[name]["sha256"] != known.get("sha256", regions[name]["sha256"]):
            raise MalformedError(f"digest of region {name} must be that of the program")
    if regions.keys() != expected.keys():
        raise MalformedError("regions must be those that the frames name, and no others")
    for name, known in expected.items():
        if regions[name]["size"] != known.get("size", regions[name]["size"]):
            raise MalformedError(f"region {name} must have {known['size']} bytes, not {regions[name]['size']}")


def _check_nodes(device: dict[str, Any]) -> None:
    """Raise ``MalformedError`` unless the nodes of a frame are those of its ring, each with its banks."""
    if {"idle" in node for node in device["nodes"]} != {"banks" in device}:
        raise MalformedError("nodes must have an idle bank where the frame has banks, and not elsewhere")
    size = device["ring"]["size"]
    if len(device["ring"]["peers"]) != size or [node["rank"] for node in device["nodes"]] != list(range(size)):
        raise MalformedError(f"nodes and peers must be those of a ring of {size}, in the order of ranks")


def _windows_of(rank: int, node: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Size of each region with the contents of a window of a node; ``MalformedError`` for windows that overlap."""
    expected = {}
    for space, windows in node["windows"].items():
        end = 0
        if space == FAR and any(base % BASE_ALIGNMENT for base, _ in windows):
            raise MalformedError(f"windows of node {rank} in {FAR} must begin at multiples of {BASE_ALIGNMENT}")
        for base, count in windows:
            if base < end or base + count > _LARGEST_SPACE:
                raise MalformedError(f"windows of node {rank} in {space} must lie one behind the other")
            end = base + count
            expected[device_region(rank, space, base)] = {"size": 4 * count}
    return expected


def _programs_of(rank: int, node: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Size and digest of each region with a program of a node."""
    return {region(rank, queue): {"size": 64 * commands, "sha256": digest}
            for region, programs in ((program_region, node["programs"]), (idle_region, node.get("idle", [])))
            for queue, (commands, digest) in enumerate(programs)}
