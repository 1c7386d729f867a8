"""Checkpoints of format 1 (a process frame, a device frame or both), and checks before a restore.

First, :func:`examine` runs the checks that need no target; then :func:`admit` runs the checks against the target.
They follow the order of :class:`~host.checkpoints.rejections.Cause`. Nothing is written before all checks have
passed.
"""

import contextlib
import dataclasses
import hashlib
import hmac
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

from host.checkpoints.archive import (
    FAR,
    Archive,
    canonical,
    digests,
    listed,
    open_archive,
    pack,
    pack_state,
    unpack_state,
)
from host.checkpoints.device_frame import (
    CARRIED,
    DeviceFrame,
    commands,
    contracts_of,
    forget_programs,
    load,
    missing,
    peers_of,
    read,
    verify,
    windows_of,
)
from host.checkpoints.rejections import (
    ForeignTenantError,
    MalformedError,
    ReadBackError,
    StaleError,
    TooSmallError,
    WrongContractError,
    WrongPeersError,
    WrongWatermarkError,
)
from host.driver.errors import DeviceError
from host.driver.far_contents import far_words_of
from host.driver.ring import Ring

__all__ = ["Expectation", "ProcessFrame", "Stamp", "admit", "check_watermark", "examine", "given_back", "make",
           "restore", "watermark"]

#: Memory spaces that contain weights.
_SPACES = ("weights", "masters", "codebook")


def watermark(manifest: dict[str, Any], key: bytes) -> str:
    """Watermark of the model that a manifest describes: a hexadecimal HMAC made with the owner's key.

    The fabric's operator has the key for the checkpoint's HMAC but not the owner's key, so a model with different
    weights or structure cannot be passed off as the owner's. The structure is represented by the nodes' contracts and
    windows, the weights by the digests of their regions. Without a device frame, the whole checkpoint is marked.
    """
    device, regions = manifest["device"], manifest["regions"]
    if device is None:
        structure, marked = None, regions
    else:
        structure = [[node["contract"], node["windows"]] for node in device["nodes"]]
        marked = [region for region in regions if region["name"].startswith("device/")
                  and region["name"].split("/")[2] in _SPACES]
    return hmac.new(key, canonical([structure, marked]), hashlib.sha256).hexdigest()


def check_watermark(manifest: dict[str, Any], key: bytes) -> None:
    """Raise ``WrongWatermarkError`` unless the manifest carries this owner's watermark."""
    mark = manifest["watermark"]
    if mark is None or not hmac.compare_digest(mark, watermark(manifest, key)):
        raise WrongWatermarkError("model must have the watermark of this owner: its structure or its weights are "
                                  "others, or another key has marked it")


#: Maximum difference in seconds between the clocks of source and target.
_SKEW = 5


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stamp:
    """Identity of a checkpoint: its sequence number, time, nonce and tenant."""

    sequence: int = 0  # checkpoint number, greater than all previous ones
    time: int = 0  # seconds since 1970
    nonce: str = "0" * 32  # random number chosen by the target, in hexadecimal; zeros if it chose none
    tenant: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Expectation:
    """Conditions for restoring a checkpoint."""

    tenant: int = 0
    now: int = 0  # seconds since 1970
    oldest: int | None = None  # maximum age of a checkpoint in seconds; unlimited by default
    seen: int = -1  # highest sequence number seen by the target, or -1
    nonce: str | None = None  # random number chosen by the target for this restore


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProcessFrame:
    """Frame of the process that sends the nodes' commands."""

    state: Any  # see :func:`host.checkpoints.archive.pack_state`
    step: int = 0  # number of steps so far
    epoch: int = 0  # number of passes over the examples
    order: Any = None  # state of the example order, or None; its digest is in the manifest
    nodes: int = 1
    words: dict[str, int] = dataclasses.field(default_factory=dict)  # number of words in use per memory space


def make(process: ProcessFrame | None, device: DeviceFrame | None, *, key: bytes, owner: bytes | None = None,
         stamp: Stamp | None = None) -> bytes:
    """Encode a checkpoint with one or two frames. Equal frames, stamps and keys give equal bytes.

    ``key`` is used for the manifest's HMAC. If the key of an ``owner`` is given, a watermark is added.
    """
    stamp = Stamp() if stamp is None else stamp
    regions: dict[str, bytes] = {} if device is None else dict(device.regions)
    fields: dict[str, Any] = {**dataclasses.asdict(stamp), "watermark": None, "process": None,
                              "device": None if device is None else device.fields}
    if process is not None:
        packed = pack_state(process.state)
        order = None if process.order is None else hashlib.sha256(digests(pack_state(process.order))).hexdigest()
        fields["process"] = {"step": process.step, "epoch": process.epoch, "order": order, "arrays": len(packed) - 1,
                             "resources": {"nodes": process.nodes, "words": process.words}}
        regions |= packed
    if owner is not None:
        fields["watermark"] = watermark({**fields, "regions": listed(regions)}, owner)
    return pack(fields, regions, key)


def examine(source: bytes | BinaryIO, *, key: bytes, expected: Expectation | None = None) -> Archive:
    """Run all checks up to STALE, which need no target. Raises ``RejectionError`` if one fails."""
    archive, expected = open_archive(source), Expectation() if expected is None else expected
    archive.authenticate(key)
    manifest = archive.manifest
    if manifest["tenant"] != expected.tenant:
        raise ForeignTenantError(f"checkpoint must be of tenant {expected.tenant}, not {manifest['tenant']}")
    if manifest["sequence"] <= expected.seen:
        raise StaleError(f"checkpoint must have a larger number than {expected.seen}, which was seen, not "
                         f"{manifest['sequence']}")
    if expected.nonce is not None and manifest["nonce"] != expected.nonce:
        raise StaleError("checkpoint must have the nonce that was drawn for this restore: it was made for another "
                         "one")
    if expected.oldest is not None:
        age = expected.now - manifest["time"]
        if not -_SKEW <= age <= expected.oldest:
            raise StaleError(f"checkpoint must be at most {expected.oldest} seconds old, not {age}")
    return archive


def admit(archive: Archive, ring: Ring, *, owner: bytes | None = None) -> DeviceFrame:
    """Check the result of :func:`examine` against a target ring (rejections TOO_SMALL to BAD_REGION). The watermark
    is checked only if the ``owner`` key is given."""
    device = archive.manifest["device"]
    if device is None:
        raise TooSmallError("checkpoint must have a device frame to be restored on nodes")
    _check_room(archive.manifest, ring)
    contracts = contracts_of([target.config for target in ring.devices])
    for rank, (own, node) in enumerate(zip(contracts, device["nodes"], strict=False)):
        contract = node["contract"]
        if own != contract:
            differ = ", ".join(f"{name} {contract.get(name)!r}, not {own.get(name)!r}"
                               for name in sorted({*own, *contract}) if own.get(name) != contract.get(name))
            raise WrongContractError(f"node {rank} must compute with {differ}")
    if owner is not None:
        check_watermark(archive.manifest, owner)
    _check_peers(device["ring"], ring)
    archive.check_regions()
    for name, data in archive.regions.items():
        if "/program/" in name or "/idle/" in name:
            try:
                commands(data)
            except ValueError:
                raise MalformedError(f"region {name} must have descriptors of commands") from None
    return DeviceFrame(device, {name: data for name, data in archive.regions.items() if name.startswith("device/")})


def restore(source: bytes | BinaryIO, ring: Ring, *, key: bytes, owner: bytes | None = None,
            expected: Expectation | None = None) -> tuple[Any, DeviceFrame]:
    """Restore the nodes' state from a checkpoint, without starting anything. The watermark is checked only if the
    ``owner`` key is given.

    Returns the state of the process (None without a process frame) and the frame of the nodes. If the checkpoint is
    rejected, raises ``RejectionError`` and leaves the target unchanged. The target must be idle and free of failures.
    """
    archive = examine(source, key=key, expected=expected)
    frame = admit(archive, ring, owner=owner)
    state = unpack_state(archive.regions) if archive.manifest["process"] is not None else None
    before = read(ring, windows_of(frame))
    with given_back(ring, before):
        load(ring, frame)
        verify(ring, frame)
    return state, frame


@contextlib.contextmanager
def given_back(ring: Ring, before: DeviceFrame) -> Iterator[None]:
    """Context manager that restores the nodes' previous frame, ``before``, if its body raises ``ReadBackError``. The
    error is then re-raised. ``before`` must have the same windows as the frame that was loaded."""
    try:
        yield
    except ReadBackError:
        ring.recover()
        forget_programs(ring)
        load(ring, before)
        raise


def _check_room(manifest: dict[str, Any], ring: Ring) -> None:
    """Raise ``TooSmallError`` unless the nodes have the memory, registers and program memory for the frame."""
    nodes: Sequence[dict[str, Any]] = manifest["device"]["nodes"]
    for device, node in zip(ring.devices, nodes, strict=False):
        config, where = device.config, f"node {node['rank']}"
        for space, windows in node["windows"].items():
            words = far_words_of(config) if space == FAR else device.room(space) if space != "trace" else 0
            end = max(base + count for base, count in windows)
            if end > words:
                raise TooSmallError(f"{where} must have {end:,} words of {space}, not {words:,}")
        if node["registers"].keys() != {*CARRIED}:
            raise TooSmallError(f"{where} must have the registers of the checkpoint")
        if any(length for length, _ in node.get("idle", [])) and not config.has_banks:
            raise TooSmallError(f"{where} must have two banks of programs")
        for programs in (node["programs"], node.get("idle", [])):
            longest = max((length for length, _ in programs), default=0)
            # Nodes with a single queue need no program memory, because the host process sends their commands.
            if config.queues > 1 and (len(programs) > config.queues or longest > config.programs.depth):
                raise TooSmallError(f"{where} must have {len(programs)} queues of {longest} commands, not "
                                    f"{config.queues} of {config.programs.depth}")
    missing(ring.devices, nodes)


def _check_peers(described: dict[str, Any], ring: Ring) -> None:
    """Raise ``WrongPeersError`` unless the target is the described ring and all its nodes answer."""
    peers = peers_of(ring.nodes)
    if (described["size"], described["topology"], described["peers"]) != (ring.nodes, "ring", peers):
        raise WrongPeersError(f"target must be a {described['topology']} of {described['size']} nodes with the peers "
                              f"{described['peers']}, not a ring of {ring.nodes} with {peers}")
    for rank, device in enumerate(ring.devices):
        try:
            device.connect()
        except DeviceError as error:
            raise WrongPeersError(f"node {rank} of the target must answer: {error}") from None
