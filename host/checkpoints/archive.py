"""Checkpoint container: a tar archive of a manifest, its HMAC-SHA256 and the regions, in this order.

The archive is canonical: a member's name and size determine all other bytes of its header. A reader compares headers,
and uses only the manifest's size from them. Regions are sorted by name. ``tar xf`` unpacks the file.

The manifest is canonical JSON with sorted keys, no white space and only ASCII characters, so equal values always have
equal bytes. Any other form is rejected, which prevents hiding data in a manifest, for example in a key with two
values. All fields are validated before any is used. The state of a process consists of one region of canonical JSON,
and regions that contain arrays as npy files.

A reader never reads more than the sizes that it has checked: 512 bytes, a manifest of at most
:data:`LARGEST_MANIFEST` bytes, and the regions listed in it.
"""

import dataclasses
import hashlib
import hmac
import io
import json
import math
import re
import tarfile
from collections.abc import Mapping
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from hdl.control.registers import REGISTERS
from hdl.memory_map import BASE_ALIGNMENT, MAX_SPACES
from host.archives import read_header
from host.checkpoints.rejections import BadMacError, BadRegionError, BadVersionError, MalformedError
from sim import json_files
from sim.fields import integer, mapping, optional, pair, record, several, text

__all__ = ["FAR", "FORMAT", "LARGEST", "LARGEST_MANIFEST", "LARGEST_REGION", "MAX_REGIONS", "SCHEMA", "STATE",
           "Archive", "array_region", "canonical", "device_region", "digests", "idle_region", "listed",
           "open_archive", "pack", "pack_state", "parse", "program_region", "unpack_state"]

SCHEMA = "gradring.checkpoint"

#: Name of a computing node's far memory in the windows of a manifest.
FAR = "far"
FORMAT = 1

#: Maximum number of regions in a checkpoint, and maximum size of one region in bytes.
MAX_REGIONS, LARGEST_REGION = 4096, 1 << 28
_WORD = (1 << 32) - 1
_MAX_NODES, _MAX_QUEUES, _MAX_WINDOWS = 16, 3, 64
_LARGEST_SPACE = 1 << 28


def canonical(value: Any) -> bytes:
    """Encode numbers, strings, lists and dictionaries with string keys as canonical bytes. Raises ``ValueError`` if a
    number is not finite."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")


def digests(regions: Mapping[str, bytes]) -> bytes:
    """Encode the SHA-256 digests of all regions as canonical bytes."""
    return canonical({name: hashlib.sha256(data).hexdigest() for name, data in regions.items()})


def device_region(rank: int, space: str, base: int) -> str:
    """Name of the region with the contents of a memory window, which starts at element ``base``."""
    return f"device/{rank:02d}/{space}/{base}"


def program_region(rank: int, queue: int) -> str:
    """Name of the region with the commands of a queue's program."""
    return f"device/{rank:02d}/program/{queue}"


def idle_region(rank: int, queue: int) -> str:
    """Name of the region with the commands of a queue's program in the idle bank."""
    return f"device/{rank:02d}/idle/{queue}"


_number, _digest, _name = integer(0, _WORD), text("[0-9a-f]{64}"), text("[a-z][a-z0-9_]{0,31}")
_rank = integer(0, _MAX_NODES - 1)
_windows = several(pair(integer(0, _LARGEST_SPACE), integer(1, _LARGEST_SPACE)), 1, _MAX_WINDOWS)

_programs = several(pair(integer(0, 1 << 16), _digest), 0, _MAX_QUEUES)

_NODE = record(
    {"idle": _programs}, rank=_rank, version=_number, flags=integer(0, 0xFFFF),
    registers=mapping(text("[A-Z][A-Z0-9_]{0,31}"), _number, len(REGISTERS)),
    slots=several(integer(0, (1 << 19) - 1), 2, 2), model=integer(0, 255),
    contract=mapping(_name, lambda value: isinstance(value, bool | str), 32),
    programs=_programs, windows=mapping(_name, _windows, MAX_SPACES))

#: State of a node's two program banks: number of the next set of passes, number of the latest edit, and number and
#: first set of the program that waits in the idle bank.
_BANKS = record(set=integer(0, 0xFFFF), latest=integer(0, 0xFFFF), model=integer(0, 255),
                due=optional(integer(0, 0xFFFF)))

_DEVICE = record(
    {"banks": _BANKS},
    ring=record(size=integer(1, _MAX_NODES), topology=_name, epoch=integer(0, 255),
                collective=integer(0, 0xFFFF), peers=several(pair(_rank, _rank), 1, _MAX_NODES)),
    nodes=several(_NODE, 1, _MAX_NODES))

_PROCESS = record(
    step=integer(0, 1 << 62), epoch=integer(0, 1 << 62), arrays=integer(0, MAX_REGIONS),
    order=optional(_digest),
    resources=record(nodes=integer(1, _MAX_NODES),
                     words=mapping(_name, integer(0, _LARGEST_SPACE), MAX_SPACES)))

_FIELDS = {
    "schema": text(re.escape(SCHEMA)), "format": integer(FORMAT, FORMAT), "sequence": integer(0, 1 << 62),
    "nonce": text("[0-9a-f]{32}"), "time": integer(0, 1 << 62), "tenant": integer(0, 0xFFFF),
    "watermark": optional(_digest), "process": optional(_PROCESS), "device": optional(_DEVICE),
    "regions": several(record(name=text("[a-z0-9_/.]{1,90}"), size=integer(0, LARGEST_REGION), sha256=_digest), 0,
                        MAX_REGIONS),
}


def parse(data: bytes) -> dict[str, Any]:
    """Decode a manifest.

    Raises ``MalformedError`` if the bytes are not canonical JSON or a field is missing, unknown or invalid, and
    ``BadVersionError`` if the schema or format differs.
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
        short = schema if len(schema) <= 40 else schema[:40] + "…"
        raise BadVersionError(f"file must be of schema {SCHEMA}, format {FORMAT}, not {short!r}, {number}")
    device = value.get("device")
    if isinstance(device, dict) and "contract" in device:
        raise BadVersionError("file must have a contract for each node, not one for all, as files had before")
    for name, check in _FIELDS.items():
        if name not in value or not check(value[name]):
            raise MalformedError(f"manifest must have a {name} as docs/checkpoints.md says")
    if value.keys() != _FIELDS.keys():
        raise MalformedError("manifest must have no other fields than those of docs/checkpoints.md")
    _check_regions(value)
    return value


def _check_regions(manifest: dict[str, Any]) -> None:
    """Raise ``MalformedError`` unless the regions are sorted by name and match the frames exactly."""
    regions = {region["name"]: region for region in manifest["regions"]}
    if list(regions) != sorted(regions) or len(regions) != len(manifest["regions"]):
        raise MalformedError("regions must be in the order of their names, each of them once")
    process, device = manifest["process"], manifest["device"]
    expected: dict[str, dict[str, Any]] = {}
    if process is not None:
        expected = {name: {} for name in (STATE, *map(array_region, range(process["arrays"])))}
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
    """Raise ``MalformedError`` unless a frame contains every node of its ring and the state of its banks."""
    if {"idle" in node for node in device["nodes"]} != {"banks" in device}:
        raise MalformedError("nodes must have an idle bank where the frame has banks, and not elsewhere")
    size = device["ring"]["size"]
    if len(device["ring"]["peers"]) != size or [node["rank"] for node in device["nodes"]] != list(range(size)):
        raise MalformedError(f"nodes and peers must be those of a ring of {size}, in the order of ranks")


def _windows_of(rank: int, node: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the size of each window's region for one node. Raises ``MalformedError`` if windows overlap."""
    expected: dict[str, dict[str, Any]] = {}
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
    """Return the size and digest of each program's region for one node."""
    return {region(rank, queue): {"size": 64 * commands, "sha256": digest}
            for region, programs in ((program_region, node["programs"]), (idle_region, node.get("idle", [])))
            for queue, (commands, digest) in enumerate(programs)}


# State of a process.

STATE = "process/state.json"

#: Types that arrays may have.
_TYPES = {np.dtype(name) for name in ("u1", "i1", "b1", "<u2", "<i2", "<u4", "<i4", "<u8", "<i8", "<f4", "<f8")}
_NUMBERS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def array_region(number: int) -> str:
    """Name of the region that contains an array of the process state."""
    return f"process/array/{number:04d}"


def pack_state(value: Any) -> dict[str, bytes]:
    """Convert a state (None, numbers, strings, arrays, lists, dictionaries with string keys) to regions."""
    arrays: list[npt.NDArray[Any]] = []
    text = canonical(_pack(value, arrays))
    return {STATE: text, **{array_region(number): _npy(array) for number, array in enumerate(arrays)}}


def unpack_state(regions: dict[str, bytes]) -> Any:
    """Restore the state of a process from regions with verified digests.

    Raises ``MalformedError`` if a region could not have been created by :func:`pack_state`.
    """
    try:
        state = _unpack(json_files.parse(regions[STATE], largest=LARGEST_REGION), regions)
        same = canonical(_pack(state, [])) == regions[STATE]
    except (ValueError, TypeError, KeyError, IndexError):
        raise MalformedError("state of the process must be canonical JSON that names its arrays") from None
    if not same:
        raise MalformedError("state of the process must be canonical JSON that names its arrays in order")
    return state


def _pack(value: Any, arrays: list[npt.NDArray[Any]]) -> Any:
    """Replace the arrays in a value with references, and append them to ``arrays``."""
    if isinstance(value, np.ndarray):
        arrays.append(value)
        return {"$array": len(arrays) - 1}
    if isinstance(value, dict):
        if any(not isinstance(key, str) or key.startswith("$") for key in value):
            raise ValueError(f"Keys of a state must be texts that do not begin with $, not {list(value)}")
        return {key: _pack(value[key], arrays) for key in sorted(value)}
    if isinstance(value, list | tuple):
        return [_pack(item, arrays) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return {"$number": str(float(value))}
    return value


def _unpack(value: Any, regions: dict[str, bytes]) -> Any:
    if isinstance(value, dict):
        if value.keys() == {"$array"}:
            return _array(regions[array_region(value["$array"])])
        if value.keys() == {"$number"}:
            return _NUMBERS[value["$number"]]
        return {key: _unpack(item, regions) for key, item in value.items()}
    if isinstance(value, list):
        return [_unpack(item, regions) for item in value]
    return value


def _npy(array: npt.NDArray[Any]) -> bytes:
    """Encode an array as an npy file (little-endian, row-major)."""
    array = np.ascontiguousarray(array, array.dtype.newbyteorder("<")) if array.ndim else array
    if array.dtype not in _TYPES:
        raise ValueError(f"Arrays of a state must be of integers or floats, not {array.dtype}")
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, array, version=(1, 0), allow_pickle=False)
    return buffer.getvalue()


def _array(data: bytes) -> npt.NDArray[Any]:
    """Decode an array from an npy file. Memory is allocated only after the array's size has been checked."""
    file = io.BytesIO(data)
    dtype, shape, fortran, length = read_header(file, "of a state")
    rest = data[length:]
    if fortran or dtype not in _TYPES or math.prod(shape) * dtype.itemsize != len(rest):
        raise ValueError("npy file must be one of numbers in rows, and of the size of its shape")
    array = np.frombuffer(rest, dtype).reshape(shape).copy()
    if _npy(array) != data:
        raise ValueError("npy file must be as it is written here")
    return array


# The tar archive.

#: Maximum size in bytes of a manifest, and of all regions of a checkpoint together.
LARGEST_MANIFEST, LARGEST = 1 << 22, 1 << 31

_MANIFEST, _MAC = "manifest.json", "manifest.hmac"
_BLOCK, _DIGITS = tarfile.BLOCKSIZE, 64
_END = bytes(2 * _BLOCK)


@dataclasses.dataclass(frozen=True)
class Archive:
    """Checkpoint with validated structure but unchecked contents."""

    manifest: dict[str, Any]
    regions: dict[str, bytes]
    _raw: bytes
    _mac: bytes

    def authenticate(self, key: bytes) -> None:
        """Raise ``BadMacError`` unless this key was used for the manifest's HMAC."""
        if not hmac.compare_digest(self._mac, _mac(key, self._raw)):
            raise BadMacError("manifest must have the HMAC of this key: it was changed, or made with another one")

    def check_regions(self) -> None:
        """Raise ``BadRegionError`` for the first region that does not match the manifest."""
        for entry in self.manifest["regions"]:
            name = entry["name"]
            if hashlib.sha256(self.regions[name]).hexdigest() != entry["sha256"]:
                owner, _, rest = name.partition("/")
                rank, _, region = rest.partition("/")
                node, region = (int(rank), region) if owner == "device" else (None, name)
                raise BadRegionError(node, region, "must have the SHA-256 of the manifest")


def listed(regions: Mapping[str, bytes]) -> list[dict[str, Any]]:
    """The manifest's ``regions`` field, which lists the regions."""
    return [{"name": name, "size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
            for name, data in sorted(regions.items())]


def pack(fields: Mapping[str, Any], regions: Mapping[str, bytes], key: bytes) -> bytes:
    """Encode a checkpoint with the given manifest fields; schema, format and regions are added.

    Raises ``ValueError`` if the fields are not a valid manifest, or if the checkpoint would be too large.
    """
    raw = canonical({**fields, "schema": SCHEMA, "format": FORMAT, "regions": listed(regions)})
    parse(raw)
    if len(raw) > LARGEST_MANIFEST or sum(map(len, regions.values())) > LARGEST:
        raise ValueError(f"Checkpoint must have at most {LARGEST:,} bytes in regions and {LARGEST_MANIFEST:,} in its "
                         f"manifest")
    members = [(_MANIFEST, raw), (_MAC, _mac(key, raw)), *sorted(regions.items())]
    return b"".join(part for name, data in members for part in (_header(name, len(data)), data, _padding(len(data)))
                    ) + _END


def open_archive(source: bytes | BinaryIO) -> Archive:
    """Read a checkpoint and validate its structure.

    Raises ``MalformedError`` if the bytes are incomplete, not canonical or not a checkpoint, and ``BadVersionError``
    if the file has a different format.
    """
    file = io.BytesIO(source) if isinstance(source, bytes) else source
    header = file.read(_BLOCK)
    if header[:4] == b"PK\3\4":
        raise BadVersionError(f"file must be of format {FORMAT}, not an npz archive, in which versions before it "
                              f"kept checkpoints")
    try:
        size = tarfile.TarInfo.frombuf(header, "ascii", "strict").size
    except (tarfile.HeaderError, ValueError):
        raise MalformedError("file must begin with a header of tar") from None
    if not 0 <= size <= LARGEST_MANIFEST or header != _header(_MANIFEST, size):
        raise MalformedError(f"file must begin with {_MANIFEST}, of at most {LARGEST_MANIFEST:,} bytes")
    raw = _body(file, _MANIFEST, size)
    manifest = parse(raw)
    sizes = [_DIGITS, *(entry["size"] for entry in manifest["regions"])]
    if sum(sizes) > LARGEST:
        raise MalformedError(f"regions must have at most {LARGEST:,} bytes together")
    here, expected = file.tell(), sum(_BLOCK + size + -size % _BLOCK for size in sizes) + len(_END)
    if file.seek(0, io.SEEK_END) - here != expected:  # check sizes before memory is allocated for regions
        raise MalformedError(f"file must have {expected:,} bytes after its manifest, not {file.tell() - here:,}")
    file.seek(here)
    mac = _member(file, _MAC, _DIGITS)
    regions = {entry["name"]: _member(file, entry["name"], entry["size"]) for entry in manifest["regions"]}
    if file.read(len(_END) + 1) != _END:
        raise MalformedError("file must end with two blocks of zeros behind its last region")
    return Archive(manifest, regions, raw, mac)


def _mac(key: bytes, raw: bytes) -> bytes:
    return hmac.new(key, raw, hashlib.sha256).hexdigest().encode()


def _header(name: str, size: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.size = size
    return info.tobuf(tarfile.USTAR_FORMAT, "ascii", "strict")


def _padding(size: int) -> bytes:
    return bytes(-size % _BLOCK)


def _member(file: BinaryIO, name: str, size: int) -> bytes:
    if file.read(_BLOCK) != _header(name, size):
        raise MalformedError(f"file must have {name}, of {size} bytes, as its next member")
    return _body(file, name, size)


def _body(file: BinaryIO, name: str, size: int) -> bytes:
    data, padding = file.read(size), _padding(size)
    if len(data) != size or file.read(len(padding)) != padding:
        raise MalformedError(f"file must have {size} bytes of {name}, and zeros up to the next block")
    return data
