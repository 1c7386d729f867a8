"""Checkpoint format: flipped bits, truncated files, modified manifests, and the process state."""

import hashlib
import hmac
import io
import json
import math
import random
import tarfile

import numpy as np
import pytest

from hdl.config import NodeConfig, Weights
from hdl.control.protocol import Operation
from hdl.features.settable_version.feature import SettableVersion
from hdl.ring.topology import RingTopology
from host.checkpoints.archive import LARGEST_MANIFEST, canonical, open_archive, pack, pack_state, parse, unpack_state
from host.checkpoints.checkpoint import ProcessFrame, Stamp, admit, examine, make
from host.checkpoints.device_frame import CARRIED, contracts_of
from host.checkpoints.keys import key_of
from host.checkpoints.rejections import BadRegionError, BadVersionError, Cause, MalformedError, RejectionError
from host.driver.command import Command
from host.driver.device import Device
from tests.refusals import refuses

KEY = b"k" * 32
STATE = {"b": [np.arange(3, dtype=np.uint32), math.inf], "a": None, "text": "ä", "n": 1 << 100}
WINDOWS = {"weights": [[0, 4], [32, 2]], "masters": [[0, 3]]}
#: Commands of two queues in the checkpoint of a node with a single queue, which must receive all of them.
PROGRAMS = [Command(operation=Operation.QUIESCE).words().astype("<u4").tobytes(), b""]
NODE = {"version": 3, "flags": 0, "registers": dict.fromkeys(CARRIED, 1), "slots": [0, 0], "model": 0,
        "programs": [[len(data) // 64, hashlib.sha256(data).hexdigest()] for data in PROGRAMS],
        "windows": WINDOWS, "idle": [], "contract": contracts_of([NodeConfig(
            weights=Weights(master=True), features=(SettableVersion(),))])[0]}
FIELDS = {
    "sequence": 3, "nonce": "0" * 32, "time": 9, "tenant": 0, "watermark": None,
    "process": {"step": 1, "epoch": 1, "arrays": 0, "order": None, "resources": {"nodes": 1, "words": {}}},
    "device": {"nodes": [{**NODE, "rank": 0}],
               "banks": {"set": 1, "latest": 2, "model": 3, "due": None},
               "ring": {"size": 1, "topology": "ring", "epoch": 0, "collective": 0, "peers": [[0, 0]]}},
}
REGIONS = {"process/state.json": b"null", "device/00/weights/0": bytes(16), "device/00/weights/32": bytes(8),
           "device/00/masters/0": bytes(12),
           **{f"device/00/program/{queue}": data for queue, data in enumerate(PROGRAMS)}}
SMALL = pack(FIELDS, REGIONS, KEY)


def outcome(data):
    """Return the reason for which a checkpoint is rejected, or None if it is accepted."""
    try:
        examine(data, key=KEY).check_regions()
    except RejectionError as error:
        return error.cause
    return None


def test_is_an_archive_that_tar_reads():
    with tarfile.open(fileobj=io.BytesIO(SMALL)) as archive:
        assert archive.getnames() == ["manifest.json", "manifest.hmac", *sorted(REGIONS)]
        assert archive.extractfile("process/state.json").read() == b"null"
    assert outcome(SMALL) is None
    assert pack(FIELDS, dict(reversed(REGIONS.items())), KEY) == SMALL


def test_every_bit_counts():
    counts = dict.fromkeys([*Cause, None], 0)
    for index in range(len(SMALL)):
        for bit in range(8):
            counts[outcome(SMALL[:index] + bytes([SMALL[index] ^ 1 << bit]) + SMALL[index + 1:])] += 1
    print({str(cause): count for cause, count in counts.items() if count})
    assert counts.pop(None) == 0
    assert counts[Cause.BAD_REGION] == 8 * sum(map(len, REGIONS.values()))
    assert counts[Cause.BAD_MAC] > 8 * 64
    assert sum(counts.values()) == 8 * len(SMALL)


def test_every_length():
    for length in range(len(SMALL)):
        with pytest.raises(MalformedError):
            open_archive(SMALL[:length])
    with pytest.raises(MalformedError, match=r"must have .* bytes after its manifest, not "):
        open_archive(SMALL + b"\0")
    with pytest.raises(MalformedError, match="must end with two blocks of zeros behind its last region"):
        open_archive(SMALL[:-1] + b"\1")


class Watched(io.BytesIO):
    """File that records how far it has been read and the largest number of bytes requested at once."""

    end = largest = 0

    def read(self, size=-1):
        self.largest = max(self.largest, size if size >= 0 else 1 << 60)
        data = super().read(size)
        self.end = max(self.end, self.tell())
        return data


def mutated(generator, manifest):
    """Return a manifest with a few random errors in its text or values."""
    if generator.random() < 0.5:
        text = bytearray(canonical(manifest))
        for _ in range(generator.randint(1, 4)):
            index = generator.randrange(len(text))
            kind = generator.randrange(4)
            if kind == 0:
                text[index] = generator.randrange(256)
            elif kind == 1:
                del text[index:index + generator.randint(1, 20)]
            elif kind == 2:
                text[index:index] = text[generator.randrange(len(text)):][:generator.randint(1, 30)]
            else:
                text[index:index] = generator.choice([b"[" * 3000, b"9" * 5000, b"\xff", b"\\u0000", b"1e999", b"-"])
        return bytes(text)
    value = json.loads(canonical(manifest))
    for _ in range(generator.randint(1, 3)):
        index = value
        while isinstance(index, dict | list) and index:
            keys = list(index) if isinstance(index, dict) else range(len(index))
            key = generator.choice(keys)
            if not isinstance(index[key], dict | list) or not index[key] or generator.random() < 0.2:
                break
            index = index[key]
        if not index:
            continue
        if generator.random() < 0.2:
            del index[key]
        else:
            index[key] = generator.choice([
                None, True, -1, 0, 1, 1 << 28, 1 << 31, 1 << 70, 1.5, "", "0" * 64, "weights", "../x", [], {}, [[]],
                [0] * 100, {"a": 1}, [[0, 1]] * 70, "\ud800", "device/00/weights/0"])
    return canonical(value)


class Node(Device):
    """Stub of a node with only the methods that are called to check a restore target."""

    connect = read_register = lambda self, *name: 0


class Nodes:
    """Stub of a one-node ring with only the members that are read to check a restore target."""

    nodes, topology = 1, RingTopology(1)
    devices = (Node(None, NodeConfig(weights=Weights(master=True), features=(SettableVersion(),))),)


def test_admitted():
    assert admit(open_archive(SMALL), Nodes).live_words == 9


def test_mutated_manifests():
    """Each of 20,000 manifests, signed or not, is either rejected or admitted; no read exceeds the limit."""
    seed, names = 7, sorted(REGIONS)
    generator, counts = random.Random(seed), dict.fromkeys([*Cause, None], 0)
    manifest = open_archive(SMALL).manifest
    header = SMALL[:512]
    for number in range(20_000):
        raw = mutated(generator, manifest)
        where = f"manifest {number} of seed {seed}"
        info = tarfile.TarInfo("manifest.json")
        info.size = len(raw)
        head = info.tobuf(tarfile.USTAR_FORMAT, "ascii", "strict") if generator.random() < 0.9 else header
        rest = SMALL[SMALL.index(b"manifest.hmac"):]
        signed = generator.random() < 0.5
        if signed:
            rest = rest[:512] + hmac.new(KEY, raw, "sha256").hexdigest().encode() + rest[576:]
        file = Watched(head + raw + bytes(-len(raw) % 512) + rest)
        try:
            archive = examine(file, key=KEY)
            archive.check_regions()
            assert signed or raw == canonical(manifest), where
            if archive.manifest["device"] is not None:
                admit(archive, Nodes)
            counts[None] += 1
        except RejectionError as error:
            counts[error.cause] += 1
        assert file.largest <= LARGEST_MANIFEST, where
        try:  # check the manifest's sizes even if its signature is invalid
            sizes = [region["size"] for region in parse(raw)["regions"]]
            assert len(sizes) <= len(names) + 1, where
        except (MalformedError, BadVersionError):
            continue
    print({str(cause): count for cause, count in counts.items() if count})
    assert counts[Cause.MALFORMED] > 15_000
    for cause in (Cause.BAD_VERSION, Cause.BAD_MAC, Cause.TOO_SMALL, Cause.WRONG_CONTRACT, Cause.FOREIGN_TENANT,
                  Cause.BAD_REGION):
        assert counts[cause], cause


def test_large_sizes_are_not_read():
    """A header that declares an excessive size is rejected without reading any further."""
    info = tarfile.TarInfo("manifest.json")
    info.size = LARGEST_MANIFEST + 1
    file = Watched(info.tobuf(tarfile.USTAR_FORMAT, "ascii", "strict") + bytes(1 << 20))
    with pytest.raises(MalformedError, match=r"must begin with manifest\.json, of at most 4,194,304 bytes$"):
        open_archive(file)
    assert file.end == 512


@pytest.mark.parametrize(("raw", "message"), [
    (b"[" * 100_000, "manifest must be canonical JSON"),
    (b'{"a":1,"a":1}', "manifest must be canonical JSON"),
    (b'{"b":1,"a":1}', "manifest must be canonical JSON, an object with sorted keys and no blanks"),
    (b"[]", "manifest must be canonical JSON, an object with sorted keys and no blanks"),
    (b"{}", "manifest must have a schema and the number of its format"),
    (b"\xff", "manifest must be canonical JSON"),
])
def test_malformed(raw, message):
    refuses(f"MALFORMED: {message}", parse, raw, error=MalformedError)


@pytest.mark.parametrize(("change", "message"), [
    (lambda value: value["device"]["nodes"][0].update(rank=1), "nodes and peers must be those of a ring of 1, in the "
                                                              "order of ranks"),
    (lambda value: value["device"]["nodes"][0].update(windows={"weights": [[4, 4], [0, 2]]}),
     "windows of node 0 in weights must lie one behind the other"),
    (lambda value: value["device"]["nodes"][0]["windows"].update(masters=[[0, 4]]),
     "region device/00/masters/0 must have 16 bytes, not 12"),
    (lambda value: value["process"].update(arrays=1), "regions must be those that the frames name, and no others"),
    (lambda value: value.update(extra=1), "manifest must have no other fields than those of docs/checkpoints.md"),
    (lambda value: value.update(tenant=-1), "manifest must have a tenant as docs/checkpoints.md says"),
    (lambda value: value["regions"].reverse(), "regions must be in the order of their names, each of them once"),
])
def test_structure(change, message):
    value = json.loads(canonical(open_archive(SMALL).manifest))
    change(value)
    refuses(f"MALFORMED: {message}", parse, canonical(value), error=MalformedError)


class TestState:
    def test_there_and_back(self):
        unpacked = unpack_state(pack_state(STATE))
        assert unpacked["b"][0].tolist() == [0, 1, 2]
        assert {**unpacked, "b": unpacked["b"][1]} == {"a": None, "b": math.inf, "n": 1 << 100, "text": "ä"}
        assert math.isnan(unpack_state(pack_state(math.nan)))
        assert pack_state(dict(reversed(STATE.items()))) == pack_state(STATE)
        for array in (np.array(3.0), np.zeros((2, 0), np.float32), np.ones((2, 3), bool)[:, ::2],
                      np.arange(4, dtype=">u2")):
            unpacked = unpack_state(pack_state(array))
            assert unpacked.shape == array.shape
            assert (unpacked == array).all()

    @pytest.mark.parametrize("value", [{"$array": 1}, {1: 2}, np.array(["a"]), np.array([None])])
    def test_refused(self, value):
        with pytest.raises(ValueError, match="must be"):
            pack_state(value)

    @pytest.mark.parametrize("change", [
        {"process/state.json": b'{"$array":9}'}, {"process/state.json": b'{"a" :1}'},
        {"process/state.json": b'{"$number":"1"}'}, {"process/state.json": b'{"$array":[]}'},
        {"process/array/0000": b""}, {"process/array/0000": b"\x93NUMPY\x02\x00"},
        {"process/array/0000": pack_state(np.zeros(3))["process/array/0000"][:-1]},
    ])
    def test_malformed(self, change):
        with pytest.raises(MalformedError, match="state of the process must be canonical JSON that names its arrays"):
            unpack_state({**pack_state([np.zeros(3)]), **change})

    def test_no_pickles(self):
        buffer = io.BytesIO()
        np.save(buffer, np.array([{}], object), allow_pickle=True)
        with pytest.raises(MalformedError):
            unpack_state({"process/state.json": b'{"$array":0}', "process/array/0000": buffer.getvalue()})


def test_regions():
    index = SMALL.rindex(b"null")
    with pytest.raises(BadRegionError) as caught:
        open_archive(SMALL[:index] + b"true" + SMALL[index + 4:]).check_regions()
    assert (caught.value.node, caught.value.region) == (None, "process/state.json")


def test_stamp():
    frame = ProcessFrame(state=None, order={"number": 3})
    manifest = open_archive(make(frame, None, key=KEY, stamp=Stamp(sequence=5, time=6, tenant=7))).manifest
    assert [manifest[name] for name in ("sequence", "time", "tenant", "nonce")] == [5, 6, 7, "0" * 32]
    assert len(manifest["process"]["order"]) == 64


def test_key(tmp_path):
    """A key is created only once, and can only be read by its owner."""
    path = tmp_path / "folder" / "key"
    assert key_of(path) == key_of(path) == path.read_bytes()
    assert path.stat().st_mode & 0o777 == 0o600
    assert [file.name for file in path.parent.iterdir()] == ["key"]
