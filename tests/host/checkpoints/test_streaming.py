# amaranth: UnusedElaboratable=no
"""Checkpoints of layer streaming: runs resumed on other workers and servers give the same bits."""

import dataclasses
import functools
import json
import random
import tarfile

import numpy as np
import pytest

from hdl.ring.topology import RingTopology
from host.checkpoints.archive import canonical, open_archive, pack, parse
from host.checkpoints.checkpoint import Expectation, ProcessFrame, Stamp, admit, make, restore
from host.checkpoints.device_frame import digest, load, read, windows_of
from host.checkpoints.rejections import Cause, ReadBackError, RejectionError, TooSmallError, WrongContractError
from host.driver.device import Device
from host.driver.ring import Ring
from host.features.streaming.edits import Kind, Structure
from host.features.streaming.node_run import NodeRun, worker_of
from host.features.streaming.run import GoldenStreaming, Together, Underflow
from host.training.optimizers import SGD
from tests.host import rings
from tests.host.checkpoints.test_archive import Node, mutated
from tests.host.features.streaming.sets import CLASSES, WIDTH, do, examples, resume, state_of
from tests.refusals import refuses

RELAY = rings.MIXED["relay"]
KEY, OWNER = b"k" * 32, b"o" * 32
MICROBATCH, SETS = 4, 9

open_streaming = functools.partial(rings.open_nodes, len(RELAY), config=RELAY, timeout=50_000, host_port=False)


class Changes:
    """Assessor that proposes all kinds of changes while sets are running, one of which is rejected."""

    GIVEN = ((1, Kind.FORMAT, "mx4"), (2, Kind.ADD, WIDTH), (0, Kind.MICROBATCHES, 2), (2, Kind.FORMAT, "bf16"),
             (2, Kind.REMOVE, 0), (0, Kind.RATE, 0.02))

    def __init__(self):
        self._given = 0

    def assess(self, report, following):
        self._given += 1
        return self.GIVEN[self._given - 1:self._given]

    def state(self):
        return {"given": self._given}

    def restore(self, state):
        self._given = state["given"]


def run_of(ring, *, windows=2, **options):
    structure = Structure((WIDTH, WIDTH, CLASSES), ("raw",) * 2, 1, 0.05, MICROBATCH,
                          worker_of(RELAY[0], windows=windows))
    return NodeRun(ring, examples(), structure, optimizer=SGD(0.05, momentum=0.9),
                   assessor=Together(Changes(), Underflow(sets=2)), **options)


def saved(run, ring, **stamp):
    state = state_of(run)
    return make(ProcessFrame(state=state, step=len(run.reports), order=state["batches"], nodes=ring.nodes),
                read(ring, run.live()), key=KEY, owner=OWNER, stamp=Stamp(**stamp))


def resumed(data, ring, **options):
    state, frame = restore(data, ring, key=KEY, owner=OWNER)
    run = run_of(ring, **options)
    resume(run, state)
    return run, frame


def advance(run):
    """Run the next set of a training run; after the fifth set, also propose an edit."""
    do(run)
    if len(run.reports) == 5:
        run.propose(0, Kind.RATE, 0.03)


def finish(run):
    while len(run.reports) < SETS:
        advance(run)
    assert run.compare()
    return run.described(), run.refused, run.reports


def versions(ring):
    return [device.read_register("WEIGHT_VERSION") for device in ring.devices]


@pytest.fixture(scope="module")
def whole():
    """Run without interruption: final results, a checkpoint after each set, and the final weight versions."""
    with open_streaming() as (ring, simulation):
        simulation.set_far_speed(latency=16, rate=4, node=2)
        run, checkpoints = run_of(ring), []
        while len(run.reports) < SETS:
            advance(run)
            checkpoints.append(saved(run, ring, sequence=len(run.reports)))
        yield finish(run), checkpoints, versions(ring)


@pytest.fixture(scope="module")
def other():
    """Nodes with different link and far-memory speeds that still hold the program bank, set count and edit numbers of
    another run."""
    with open_streaming(latency=37) as (ring, simulation):
        for rank in range(3):
            simulation.set_far_speed(latency=7 + 10 * rank, rate=1 / (1 + rank), node=rank)
        used = run_of(ring, seed=5)
        do(used, 3)
        assert [device.read_fields("PROGRAM_BANK")["bank"] for device in ring.devices] == [1] * 3
        yield ring


@pytest.mark.parametrize("sets", range(1, SETS))
def test_same_bits(whole, other, sets):
    """A run that resumes on used nodes after any set, with pending edits, proposed edits or no edits, ends with the
    same losses, weights, state, counts and log."""
    expected, checkpoints, last = whole
    run, frame = resumed(checkpoints[sets - 1], other)
    assert run.compare()
    assert [node["contract"]["role"] for node in frame.fields["nodes"]] == ["worker", "worker", "server"]
    assert finish(run) == expected
    assert versions(other) == last


def test_resident(other):
    """If workers keep all layers in memory, they use different windows; their runs can be resumed too."""
    with open_streaming() as (ring, _):
        run = run_of(ring, windows=3)
        do(run, 2)
        data = saved(run, ring)
        do(run, 3)
        assert run.compare()
    again, _ = resumed(data, other, windows=3)
    do(again, 3)
    assert again.compare()
    assert again.described() == run.described()


def test_edits_of_all_kinds(whole):
    """Checkpoints include pending edits, an edit that has not been sent yet, and the server's counts."""
    (described, refused, reports), checkpoints, _ = whole
    manifests = [open_archive(item).manifest for item in checkpoints]
    assert {edit["kind"] for edit in described["edits"]} == {kind.value for kind in Kind}
    assert len(refused) == 1
    due = [manifest["device"]["banks"]["due"] for manifest in manifests]
    assert {number if number is None else number - item for item, number in enumerate(due, start=1)} == {None, 0}
    assert due[4] is None
    windows = manifests[-1]["device"]["nodes"]
    assert windows[2]["windows"]["counts"] == [[0, 8]]
    table = np.frombuffer(open_archive(checkpoints[-1]).regions["device/02/counts/0"], "<u4").reshape(2, 4)
    for way, counts in enumerate((reports[-1].fetched, reports[-1].pushed)):
        assert table[:, 2 * way:2 * way + 2].tolist() == [[item.zeros, item.saturations] for item in counts.values()]


# Tests of rejected checkpoints.


def changed(data, change=lambda fields, regions: None, *, key=KEY):
    """Return a checkpoint with changed fields or regions. It is signed after the change, but keeps the old
    watermark."""
    archive = open_archive(data)
    fields = json.loads(canonical({name: value for name, value in archive.manifest.items()
                                   if name not in ("schema", "format", "regions")}))
    regions = dict(archive.regions)
    change(fields, regions)
    return pack(fields, regions, key)


def node(fields, rank):
    return fields["device"]["nodes"][rank]


def flipped(data, name):
    index = data.index(open_archive(data).regions[name])
    return data[:index] + bytes([data[index] ^ 4]) + data[index + 1:]


def longer(fields, regions):
    """Move a worker's window for lists beyond the end of its activation memory."""
    base, count = node(fields, 1)["windows"]["activations"][0]
    node(fields, 1)["windows"]["activations"][0] = [8192, count]
    regions["device/01/activations/8192"] = regions.pop(f"device/01/activations/{base}")


def remarked(fields, regions):
    name = "device/02/weights/0"
    regions[name] = bytes([regions[name][0] ^ 1]) + regions[name][1:]


def before(data):
    """Return a file in the previous frame format, which has a single contract shared by all nodes."""
    manifest = open_archive(data).manifest
    manifest["device"]["contract"] = node(manifest, 0)["contract"]
    raw, head = canonical(manifest), tarfile.TarInfo("manifest.json")
    head.size = len(raw)
    return head.tobuf(tarfile.USTAR_FORMAT, "ascii", "strict") + raw + bytes(-len(raw) % 512) + data[
        data.index(b"manifest.hmac"):]


REJECTED = {
    "cut": (lambda data: data[:-700], Cause.MALFORMED, "must be in|must end|must have"),
    "one contract": (before, Cause.BAD_VERSION, "^BAD_VERSION: file must have a contract for each node, not one for "
                                                "all, as files had before$"),
    "other key": (lambda data: changed(data, key=b"x" * 32), Cause.BAD_MAC, "must have the HMAC of this key"),
    "tenant": (lambda data: changed(data, lambda fields, regions: fields.update(tenant=1)), Cause.FOREIGN_TENANT,
               "must be of tenant 0, not 1"),
    "seen": (lambda data: changed(data, lambda fields, regions: fields.update(sequence=2)), Cause.STALE,
             "must have a larger number than 2, which was seen, not 2"),
    "lists": (lambda data: changed(data, longer), Cause.TOO_SMALL,
              r"node 1 must have 8,[0-9]{3} words of activations, not 8,192"),
    "role": (lambda data: changed(data, lambda fields, regions: node(fields, 2)["contract"].update(role="worker")),
             Cause.WRONG_CONTRACT, "^WRONG_CONTRACT: node 2 must compute with role 'worker', not 'server'$"),
    "formats": (lambda data: changed(data, lambda fields, regions: node(fields, 1)["contract"].update(
        fetch_formats=False)), Cause.WRONG_CONTRACT,
        "^WRONG_CONTRACT: node 1 must compute with fetch_formats False, not True$"),
    "weights": (lambda data: changed(data, remarked), Cause.WRONG_WATERMARK, "its structure or its weights are "),
    "peers": (lambda data: changed(data, lambda fields, regions: fields["device"]["ring"]["peers"].reverse()),
              Cause.WRONG_PEERS, "target must be a ring of 3 nodes with the peers"),
    "counts": (lambda data: flipped(data, "device/02/counts/0"), Cause.BAD_REGION,
               "^BAD_REGION: node 2, region counts/0 must have the SHA-256 of the manifest$"),
    "idle": (lambda data: flipped(data, "device/01/idle/2"), Cause.BAD_REGION,
             "^BAD_REGION: node 1, region idle/2 must have the SHA-256 of the manifest$"),
}


@pytest.fixture(scope="module")
def waiting(whole):
    """A checkpoint that was made after the third set and includes a pending edit."""
    return whole[1][2]


@pytest.fixture(scope="module")
def clean(other, waiting):
    """Return a digest of the words that a restore would overwrite."""
    return digest(other, windows_of(admit(open_archive(waiting), other)))


@pytest.mark.parametrize("name", REJECTED)
def test_rejected(other, waiting, clean, name):
    """Each kind of invalid checkpoint is rejected for its own reason; the target is unchanged."""
    make_checkpoint, cause, message = REJECTED[name]
    with pytest.raises(RejectionError, match=message) as caught:
        restore(make_checkpoint(waiting), other, key=KEY, owner=OWNER, expected=Expectation(seen=2))
    assert caught.value.cause is cause
    assert digest(other, windows_of(admit(open_archive(waiting), other))) == clean


@pytest.mark.parametrize(("rank", "change", "differs"), [
    (0, {"role": {"broadcast_formats": False}}, "node 0 must compute with fetch_formats True, not False"),
    (1, {"compute": {"operands": "bf16"}}, "node 1 must compute with operands 'fp32', not 'bf16'"),
    (2, {"role": {"broadcast_formats": False}}, "node 2 must have 8 words of counts, not 0"),
])
def test_other_nodes(waiting, rank, change, differs):
    """If a node would compute different bits, or has no table of counts, the error message names it."""
    configs = list(RELAY)
    configs[rank] = configs[rank].replace(**change)
    ring = Ring([Device(None, config) for config in configs])
    with pytest.raises((WrongContractError, TooSmallError), match=rf": {differs}$"):
        admit(open_archive(waiting), ring)


@pytest.mark.parametrize(("space", "message"), [
    ("counts", "^READ_BACK: node 2, region counts/0 must hold what was written to it$"),
    ("activations", "^READ_BACK: node 1, region activations/[0-9]+ must hold what was written to it$"),
    ("idle", "^READ_BACK: node 2, region idle must have the CRC-32 of what was sent to it$"),
])
def test_read_back(other, waiting, monkeypatch, space, message):
    """If a count, list word or program word is not written correctly, this is detected, and the previous contents of
    all nodes are restored. The checkpoint can still be restored afterwards."""
    rank = 1 if space == "activations" else 2
    device, windows = other.devices[rank], windows_of(admit(open_archive(waiting), other))
    clean = digest(other, windows)

    def disturbed(ring, frame):
        load(ring, frame)
        base = frame.fields["nodes"][rank]["windows"][space][0][0]
        device.write_memory(device.config.memory_map[space].number, base + 1, np.array([77], np.uint32))
        monkeypatch.undo()

    submit = device.submit_load_program

    def another(queue, commands, *, idle=False, **options):
        if idle and commands and len(loads) == 1:
            commands = [dataclasses.replace(commands[0], length=32), *commands[1:]]
        loads.extend([queue] if idle and commands else [])
        return submit(queue, commands, idle=idle, **options)

    loads = []
    if space == "idle":
        monkeypatch.setattr(device, "submit_load_program", another)
    else:
        monkeypatch.setattr("host.checkpoints.checkpoint.load", disturbed)
    with pytest.raises(ReadBackError, match=message) as caught:
        restore(waiting, other, key=KEY, owner=OWNER)
    monkeypatch.undo()
    assert caught.value.node == rank
    assert digest(other, windows) == clean
    run, _ = resumed(waiting, other)
    do(run)
    assert run.compare()


class Nodes:
    """Stub of a streaming ring with only the members read when checking a restore target."""

    nodes, topology = 3, RingTopology(3)
    devices = tuple(Node(None, config) for config in RELAY)


def test_mutated_manifests(waiting):
    """Each of 1,000 modified manifests of unequal nodes is either rejected or accepted."""
    seed = 7
    generator, counts = random.Random(seed), dict.fromkeys([*Cause, None], 0)
    archive = open_archive(waiting)
    for _ in range(1000):
        raw = mutated(generator, archive.manifest)
        try:
            admit(dataclasses.replace(archive, manifest=parse(raw)), Nodes)
            counts[None] += 1
        except RejectionError as error:
            counts[error.cause] += 1
    print({str(cause): count for cause, count in counts.items() if count}, f"seed {seed}")
    assert counts[Cause.MALFORMED] > 500
    for cause in (Cause.BAD_VERSION, Cause.TOO_SMALL, Cause.WRONG_CONTRACT):
        assert counts[cause], cause


def test_not_begun():
    """A run can be saved only after its first set, and its state can be resumed only by the same run."""
    ring = Ring([Device(None, config) for config in RELAY])
    refuses("Run must have done a set before it is saved", state_of, run_of(ring))
    run = GoldenStreaming(examples(), run_of(ring)._start, workers=2, optimizer=SGD(0.05))
    do(run)
    state = state_of(run)
    with pytest.raises(ValueError, match=r"^Run must go on from one with seed 3, not 0$"):
        resume(GoldenStreaming(examples(), run._start, workers=2, optimizer=SGD(0.05), seed=3), state)
