# amaranth: UnusedElaboratable=no
"""Checkpoints are restored on simulated nodes; invalid ones are rejected before anything changes."""

import dataclasses
import hashlib

import numpy as np
import pytest

from hdl.control.protocol import Operation
from host.checkpoints import rejections
from host.checkpoints.archive import open_archive, pack
from host.checkpoints.checkpoint import Expectation, ProcessFrame, Stamp, make, restore
from host.checkpoints.device_frame import digest, load, read, scrub, verify
from host.checkpoints.rejections import Cause
from host.driver.command import Command
from host.driver.errors import DeviceTimeoutError
from tests.host.rings import CONFIGS, open_nodes, random

KEY, OWNER = b"k" * 32, b"o" * 32
LENGTH = 96
LIVE = {"weights": [(0, LENGTH)], "state_0": [(0, 64)], "masters": [(0, 64)]}
NOW, NONCE = 1_000_000, "ab" * 16
EXPECTED = Expectation(now=NOW, oldest=60, seen=6, nonce=NONCE)
STAMP = Stamp(sequence=7, time=NOW - 10, nonce=NONCE)


@pytest.fixture(scope="module")
def ring():
    with open_nodes(2, config=CONFIGS["wide"]) as (ring, _):
        yield ring


@pytest.fixture(scope="module")
def frame(ring):
    """Checkpoint frame of nodes that have data in memory and non-default settings and flags."""
    generator = np.random.default_rng(5)
    scrub(ring)
    for rank, device in enumerate(ring.devices):
        for space, windows in LIVE.items():
            for base, count in windows:
                device.write_memory(device.config.memory_map[space].number, base, random(generator, count))
        device.write_register("LEARNING_RATE", 0.25)
        device.write_register("FLAGS", 0x500 + rank)
        device.write_register("WEIGHT_VERSION", 40 + rank)
        for ready in (1, 0):  # a gradient is pending in slot 1
            device.write_register("RESUMED_SET", 9 | 1 << 16 | ready << 17)
    ring.programs.load([[[Command(operation=Operation.COMPUTE, tag=3, length=32, duration=100 + rank)],
                         [Command(operation=Operation.LATCH, tag=4)]] for rank in range(2)], model=5)
    return read(ring, LIVE)


@pytest.fixture
def target(ring):
    scrub(ring)
    return ring


def checkpoint(frame, **options):
    process = ProcessFrame(state={"a": np.arange(3)}, step=7, nodes=2, words={"weights": LENGTH})
    return make(process, frame, **{"key": KEY, "owner": OWNER, "stamp": STAMP, **options})


def test_there_and_back(target, frame):
    """A frame is restored completely on nodes that were used before, and all other contents stay unchanged."""
    before = digest(target)
    state, restored = restore(checkpoint(frame), target, key=KEY, owner=OWNER, expected=EXPECTED)
    assert state["a"].tolist() == [0, 1, 2]
    assert restored == frame
    assert restored.live_words == LENGTH + 128
    again = read(target, LIVE)
    target.commands.resume_from(*(frame.fields["ring"][name] for name in ("epoch", "collective")))
    assert again.regions == frame.regions
    assert again.fields["nodes"] == frame.fields["nodes"]
    assert [[slot["pending"] for slot in slots] for slots in target.quorum.slots()] == [[0, 1]] * 2
    assert [device.read_register("WEIGHT_VERSION") for device in target.devices] == [40, 41]
    assert target.programs.loaded[0] == 5
    assert digest(target) != before
    scrub(target)
    assert digest(target) == before


def test_canonical(frame):
    """Equal frames have equal encodings, regardless of their order of assembly."""
    turned = dataclasses.replace(frame, regions=dict(reversed(frame.regions.items())),
                                 fields=dict(reversed(frame.fields.items())))
    assert checkpoint(turned) == checkpoint(frame)
    assert open_archive(checkpoint(frame)).manifest["process"]["step"] == 7


def test_frames_apart(target, frame):
    assert restore(make(None, frame, key=KEY, stamp=STAMP), target, key=KEY, expected=EXPECTED) == (None, frame)
    alone = checkpoint(None)
    assert open_archive(alone).manifest["device"] is None
    with pytest.raises(rejections.TooSmallError, match="must have a device frame to be restored on nodes"):
        restore(alone, target, key=KEY, owner=OWNER, expected=EXPECTED)


def changed(frame, change):
    """Checkpoint with modified fields in its device frame, signed after the modification."""
    fields = {**frame.fields, "ring": dict(frame.fields["ring"]),
              "nodes": [{**node, "windows": dict(node["windows"]), "contract": dict(node["contract"])}
                        for node in frame.fields["nodes"]]}
    regions = dict(frame.regions)
    change(fields, regions)
    return checkpoint(dataclasses.replace(frame, fields=fields, regions=regions))


def large(fields, regions):
    for node in fields["nodes"]:
        node["windows"]["weights"] = [[8192, LENGTH]]
        name = f"device/{node['rank']:02d}/weights"
        regions[f"{name}/8192"] = regions.pop(f"{name}/0")


def without_register(fields, regions):
    fields["nodes"][1]["registers"] = {"CLIP": 1}


def other_memory(fields, regions):
    for node in fields["nodes"]:
        del node["windows"]["masters"]
        node["windows"]["codebook"] = [[0, 64]]
        name = f"device/{node['rank']:02d}"
        regions[f"{name}/codebook/0"] = regions.pop(f"{name}/masters/0")


def flipped(name):
    def flip(frame):
        whole = checkpoint(frame)
        index = whole.index(frame.regions[name]) if name in frame.regions else whole.index(b"\x93NUMPY") + 130
        return whole[:index] + bytes([whole[index] ^ 4]) + whole[index + 1:]
    return flip


def remarked(frame):
    """Checkpoint with a changed weight but the old watermark, signed with the manifest key."""
    archive = open_archive(checkpoint(frame))
    regions = dict(archive.regions)
    name = "device/00/weights/0"
    regions[name] = bytes([regions[name][0] ^ 1]) + regions[name][1:]
    return pack({name: value for name, value in archive.manifest.items()
                 if name not in ("schema", "format", "regions")}, regions, KEY)


def peers(fields, regions):
    fields["ring"]["peers"] = [[1, 1], [1, 0]]


REJECTED = {
    "cut": (lambda frame: checkpoint(frame)[:-700], Cause.MALFORMED, "must be in|must end|must have"),
    "npz": (lambda frame: b"PK\3\4" + bytes(600), Cause.BAD_VERSION, "not an npz archive, in which versions before"),
    "later format": (lambda frame: later(checkpoint(frame)), Cause.BAD_VERSION,
                     "must be of schema gradring.checkpoint, format 1, not 'gradring.checkpoint', 2"),
    "other key": (lambda frame: checkpoint(frame, key=b"x" * 32), Cause.BAD_MAC, "must have the HMAC of this key"),
    "tenant": (lambda frame: checkpoint(frame, stamp=dataclasses.replace(STAMP, tenant=3)), Cause.FOREIGN_TENANT,
               "must be of tenant 0, not 3"),
    "old": (lambda frame: checkpoint(frame, stamp=dataclasses.replace(STAMP, time=NOW - 61)), Cause.STALE,
            "must be at most 60 seconds old, not 61"),
    "of the future": (lambda frame: checkpoint(frame, stamp=dataclasses.replace(STAMP, time=NOW + 60)), Cause.STALE,
                      "must be at most 60 seconds old, not -60"),
    "seen": (lambda frame: checkpoint(frame, stamp=dataclasses.replace(STAMP, sequence=6)), Cause.STALE,
             "must have a larger number than 6, which was seen, not 6"),
    "other nonce": (lambda frame: checkpoint(frame, stamp=dataclasses.replace(STAMP, nonce="0" * 32)), Cause.STALE,
                    "must have the nonce that was drawn for this restore"),
    "large": (lambda frame: changed(frame, large), Cause.TOO_SMALL,
              "node 0 must have 8,288 words of weights, not 4,096"),
    "no register": (lambda frame: changed(frame, without_register), Cause.TOO_SMALL,
                    "node 1 must have the registers of the checkpoint"),
    "other memory": (lambda frame: changed(frame, other_memory), Cause.TOO_SMALL,
                     "node 0 must have 64 words of codebook, not 0"),
    "contract": (lambda frame: changed(frame, lambda fields, regions: fields["nodes"][1]["contract"].update(
        weight_codec="mx9")), Cause.WRONG_CONTRACT, "node 1 must compute with weight_codec 'mx9', not 'mxfp8_e4m3'"),
    "other owner": (lambda frame: checkpoint(frame, owner=b"x" * 32), Cause.WRONG_WATERMARK, "watermark of this"),
    "no owner": (lambda frame: checkpoint(frame, owner=None), Cause.WRONG_WATERMARK, "watermark of this owner"),
    "other weights": (remarked, Cause.WRONG_WATERMARK, "its structure or its weights are others"),
    "peers": (lambda frame: changed(frame, peers), Cause.WRONG_PEERS,
              r"of 2 nodes with the peers \[\[1, 1\], \[1, 0\]\], not a ring of 2 with \[\[1, 1\], \[0, 0\]\]"),
    "weight": (flipped("device/01/weights/0"), Cause.BAD_REGION, "^BAD_REGION: node 1, region weights/0 must have"),
    "state": (flipped("device/00/state_0/0"), Cause.BAD_REGION, "^BAD_REGION: node 0, region state_0/0 must have"),
    "process": (flipped("process"), Cause.BAD_REGION, "^BAD_REGION: region process/array/0000 must have the SHA-256"),
    "program": (lambda frame: changed(frame, bad_program), Cause.MALFORMED,
                "region device/00/program/0 must have descriptors of commands"),
}


def later(whole):
    return whole.replace(b'"format":1', b'"format":2')


def bad_program(fields, regions):
    regions["device/00/program/0"] = bytes([0xEE]) * 64
    fields["nodes"][0]["programs"] = [[1, hashlib.sha256(regions["device/00/program/0"]).hexdigest()],
                                      fields["nodes"][0]["programs"][1]]


@pytest.mark.parametrize("name", REJECTED)
def test_rejected(ring, frame, clean, name):
    """Each kind of invalid checkpoint is rejected for its own reason, and the target is unchanged."""
    make_checkpoint, cause, message = REJECTED[name]
    with pytest.raises(rejections.RejectionError, match=message) as caught:
        restore(make_checkpoint(frame), ring, key=KEY, owner=OWNER, expected=EXPECTED)
    assert caught.value.cause is cause
    assert str(caught.value) == f"{cause}: {caught.value.reason}"
    assert KEY.decode() not in str(caught.value)
    assert digest(ring) == clean


@pytest.fixture(scope="module")
def clean(ring, frame):
    """Digest of the target before any restore, to check that rejected checkpoints change nothing."""
    scrub(ring)
    return digest(ring)


def test_usable_behind(ring, frame, clean):
    """A valid checkpoint can still be restored after all invalid ones have been rejected."""
    assert digest(ring) == clean
    restore(checkpoint(frame), ring, key=KEY, owner=OWNER, expected=EXPECTED)
    verify(ring, frame)


def test_every_cause_is_there():
    assert {cause for _, cause, _ in REJECTED.values()} == {*Cause} - {Cause.READ_BACK}


def test_too_few_nodes(frame):
    with open_nodes(3, config=CONFIGS["wide"]) as (ring, _):
        with pytest.raises(rejections.WrongPeersError, match=r"a ring of 2 nodes .* not a ring of 3 with"):
            restore(checkpoint(frame), ring, key=KEY, owner=OWNER, expected=EXPECTED)


def test_silent_peer(target, frame, monkeypatch):
    """A target node that does not respond is detected before anything is written."""
    before = digest(target)

    def silent():
        raise DeviceTimeoutError("node 1: no response")

    with monkeypatch.context() as patch:
        patch.setattr(target.devices[1], "connect", silent)
        with pytest.raises(rejections.WrongPeersError, match=r"^WRONG_PEERS: node 1 of the target must answer: "):
            restore(checkpoint(frame), target, key=KEY, owner=OWNER, expected=EXPECTED)
    assert digest(target) == before


@pytest.mark.parametrize(("where", "message"), [
    ("weights", "^READ_BACK: node 1, region weights/0 must hold what was written to it$"),
    ("register", "^READ_BACK: node 1, region registers must hold CLIP 0x[0-9a-f]{8}, not 0x[0-9a-f]{8}$"),
])
def test_read_back(target, frame, monkeypatch, where, message):
    """A word that was written incorrectly is detected, and the previous contents are restored."""
    generator = np.random.default_rng(3)
    device = target.devices[1]
    device.write_memory(1, 1000, random(generator, 50))
    device.write_register("WEIGHT_VERSION", 3)
    before = digest(target)

    def disturbed(ring, frame):
        load(ring, frame)
        if where == "weights":
            device.write_memory(1, 5, np.array([77], np.uint32))
        else:
            device.write_register("CLIP", 3.0)
        monkeypatch.undo()

    monkeypatch.setattr("host.checkpoints.checkpoint.load", disturbed)
    with pytest.raises(rejections.ReadBackError, match=message) as caught:
        restore(checkpoint(frame), target, key=KEY, owner=OWNER, expected=EXPECTED)
    assert caught.value.node == 1
    assert digest(target) == before
    restore(checkpoint(frame), target, key=KEY, owner=OWNER, expected=EXPECTED)
