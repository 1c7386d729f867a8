"""Checkpoints of nodes that compute include the far memories of these nodes."""

import numpy as np
import pytest

from host.checkpoints.archive import open_archive, pack
from host.checkpoints.checkpoint import make, restore
from host.checkpoints.device_frame import digest, read, scrub, verify, whole
from host.checkpoints.rejections import BadRegionError, MalformedError, ReadBackError, TooSmallError
from tests.host.rings import CONFIGS, open_nodes

KEY = b"k" * 32
CONFIG = CONFIGS["centroid"]
#: Memory windows of nodes. In far memory, one is shorter than a group, and one is longer than two activation memory
#: sections.
LIVE = {"far": [(32, 3), (64, 3000), (4064, 32)], "activations": [(32, 500)], "weights": [(0, 64)]}


@pytest.fixture(scope="module")
def rings():
    with open_nodes(2, config=CONFIG) as here, open_nodes(2, config=CONFIG, latency=40) as there:
        there[1].set_far_speed(latency=60, rate=1 / 2)
        yield here, there


def filled(opened, seed):
    """Fill all memories with random words; return the contents of the far memories."""
    ring, simulation = opened
    generator = np.random.default_rng(seed)
    for rank, device in enumerate(ring.devices):
        for space, ((_, words),) in whole(device).items():
            values = generator.integers(0, 1 << 32, words, dtype=np.uint32)
            if space == "far":
                simulation.far_memory(rank)[0][:] = values
            else:
                device.write_memory(device.config.memory_map[space].number, 0, values)
    return [simulation.far_memory(rank)[0].copy() for rank in range(2)]


def test_there_and_back(rings):
    """Windows are restored to far memories with another speed; all words outside the windows are unchanged."""
    (source, simulation), (target, other) = rings
    written, before = filled(rings[0], 1), filled(rings[1], 2)
    near = [device.read_memory(device.config.memory_map["activations"].number, 0, 2048) for device in target.devices]
    begun = simulation.cycle
    frame = read(source, LIVE)
    print(f"{3035:,} words of far memory and {564:,} others are read in {simulation.cycle - begun:,} cycles")
    assert [frame.regions[f"device/{rank:02d}/far/64"] for rank in range(2)] == [
        words[64:3064].astype("<u4").tobytes() for words in written]
    assert all((simulation.far_memory(rank)[0] == words).all() for rank, words in enumerate(written))
    again = read(source, LIVE)
    assert again.regions == frame.regions, "reading must leave near memory as it is"
    begun = other.cycle
    restore(make(None, frame, key=KEY), target, key=KEY)
    print(f"they are restored and read back in {other.cycle - begun:,} cycles")
    for rank, (words, old) in enumerate(zip(written, before, strict=True)):
        expected = old.copy()
        for base, count in LIVE["far"]:
            expected[base:base + count] = words[base:base + count]
        assert (other.far_memory(rank)[0] == expected).all()
        device = target.devices[rank]
        actual = device.read_memory(device.config.memory_map["activations"].number, 0, 2048)
        near[rank][32:532] = np.frombuffer(frame.regions[f"device/{rank:02d}/activations/32"], "<u4")
        assert (actual == near[rank]).all()


def test_read_back(rings):
    """A far-memory word that was written incorrectly is detected, and far memories can be scrubbed."""
    (source, _), (target, other) = rings
    filled(rings[0], 3)
    filled(rings[1], 4)
    before = digest(target)
    frame = read(source, LIVE)
    whole_file = make(None, frame, key=KEY)
    index = whole_file.index(frame.regions["device/01/far/64"])
    damaged = whole_file[:index] + bytes([whole_file[index] ^ 1]) + whole_file[index + 1:]
    with pytest.raises(BadRegionError, match=r"^BAD_REGION: node 1, region far/64 must have the SHA-256"):
        restore(damaged, target, key=KEY)
    assert digest(target) == before
    restore(whole_file, target, key=KEY)
    other.far_memory(1)[0][100] ^= 1
    with pytest.raises(ReadBackError, match=r"^READ_BACK: node 1, region far/64 must hold what was written to it$"):
        verify(target, frame)
    scrub(target)
    assert all(not other.far_memory(rank)[0].any() for rank in range(2))


def test_silent(rings):
    """If a far memory does not respond, an error reports this and near memory is unchanged."""
    source, simulation = rings[0]
    filled(rings[0], 5)
    number = CONFIG.memory_map["activations"].number
    before = [device.read_memory(number, 0, 2048) for device in source.devices]
    source.devices.write_register("TIMEOUT", 500)
    simulation.set_far_speed(latency=16, rate=0)
    with pytest.raises(Exception, match="the far memory said nothing for TIMEOUT cycles, after 0 elements"):
        read(source, LIVE)
    simulation.set_far_speed(latency=16, rate=1)
    assert all((device.read_memory(number, 0, 2048) == words).all()
               for device, words in zip(source.devices, before, strict=True))


def test_refused(rings):
    frame = read(rings[0][0], {"far": [(64, 32)]})
    with open_nodes(2, config=CONFIGS["wide"]) as (ring, _):
        with pytest.raises(TooSmallError, match=r"^TOO_SMALL: node 0 must have 96 words of far, not 0$"):
            restore(make(None, frame, key=KEY), ring, key=KEY)
    whole_file = make(None, frame, key=KEY)
    archive = open_archive(whole_file)
    fields = {name: value for name, value in archive.manifest.items() if name not in ("schema", "format", "regions")}
    for node in fields["device"]["nodes"]:
        node["windows"]["far"] = [[65, 32]]
    regions = {name.replace("far/64", "far/65"): data for name, data in archive.regions.items()}
    with pytest.raises(MalformedError, match=r"windows of node 0 in far must begin at multiples of 32$"):
        pack(fields, regions, KEY)
