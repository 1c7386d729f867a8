"""The container of a checkpoint: a tar archive of a manifest, its HMAC-SHA256 and the regions, in that order.

The archive is canonical: names and sizes fix every other byte of a header, and a reader compares. So it needs nothing
of a header but the size of the manifest, and of everything behind it not even that. Regions follow each other in the
order of their names. ``tar xf`` unpacks the file.

A reader reads no further than the sizes that it has checked: 512 bytes, the manifest of at most
:data:`LARGEST_MANIFEST` bytes, and the regions that the manifest names.
"""

import dataclasses
import hashlib
import hmac
import io
import tarfile
from collections.abc import Mapping
from typing import Any, BinaryIO

from host.checkpoints.manifest import FORMAT, SCHEMA, canonical, parse
from host.checkpoints.rejections import BadMacError, BadRegionError, BadVersionError, MalformedError

__all__ = ["LARGEST", "LARGEST_MANIFEST", "Archive", "listed", "open_archive", "pack"]

#: Bytes of a manifest, and of the regions of a checkpoint together.
LARGEST_MANIFEST, LARGEST = 1 << 22, 1 << 31

_MANIFEST, _MAC = "manifest.json", "manifest.hmac"
_BLOCK, _DIGITS = tarfile.BLOCKSIZE, 64
_END = bytes(2 * _BLOCK)


@dataclasses.dataclass(frozen=True)
class Archive:
    """A checkpoint whose structure is right; nothing else of it has been checked."""

    manifest: dict[str, Any]
    regions: dict[str, bytes]
    _raw: bytes
    _mac: bytes

    def authenticate(self, key: bytes) -> None:
        """Raise ``BadMacError`` unless the manifest was made with this key."""
        if not hmac.compare_digest(self._mac, _mac(key, self._raw)):
            raise BadMacError("manifest must have the HMAC of this key: it was changed, or made with another one")

    def check_regions(self) -> None:
        """Raise ``BadRegionError`` for the first region whose contents are not those of the manifest."""
        for one in self.manifest["regions"]:
            name = one["name"]
            if hashlib.sha256(self.regions[name]).hexdigest() != one["sha256"]:
                owner, _, rest = name.partition("/")
                rank, _, region = rest.partition("/")
                node, region = (int(rank), region) if owner == "device" else (None, name)
                raise BadRegionError(node, region, "must have the SHA-256 of the manifest")


def listed(regions: Mapping[str, bytes]) -> list[dict[str, Any]]:
    """Field ``regions`` of a manifest."""
    return [{"name": name, "size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
            for name, data in sorted(regions.items())]


def pack(fields: Mapping[str, Any], regions: Mapping[str, bytes], key: bytes) -> bytes:
    """The bytes of a checkpoint.

    Parameters
    ----------
    fields : mapping
        Fields of the manifest, apart from schema, format and regions.
    key : bytes
        Key of the HMAC.

    Raises
    ------
    ValueError
        The fields are not those of a manifest, or the checkpoint would be too large.
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
    """Read the structure of a checkpoint.

    Raises
    ------
    MalformedError
        The bytes are no checkpoint, not a whole one, or not in the canonical form.
    BadVersionError
        The file is of another format.
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
    sizes = [_DIGITS, *(one["size"] for one in manifest["regions"])]
    if sum(sizes) > LARGEST:
        raise MalformedError(f"regions must have at most {LARGEST:,} bytes together")
    here, expected = file.tell(), sum(_BLOCK + size + -size % _BLOCK for size in sizes) + len(_END)
    if file.seek(0, io.SEEK_END) - here != expected:  # before memory is taken for them
        raise MalformedError(f"file must have {expected:,} bytes after its manifest, not {file.tell() - here:,}")
    file.seek(here)
    mac = _member(file, _MAC, _DIGITS)
    regions = {one["name"]: _member(file, one["name"], one["size"]) for one in manifest["regions"]}
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
