import ctypes
import struct
import subprocess
import zlib
from pathlib import Path

import numpy as np
import pytest

from sim.verilated import build, toolchain
from sim.verilated.build import build_ring
from sim.verilated.ring import VerilatedRing
from tests.sim.verilated.probe import STAMP, Probe

HEADER, HIERARCHY = 0, 6


def unpack_lz4(packed, length):
    result, at = bytearray(), 0

    def extended(count):
        nonlocal at
        if count == 15:
            while True:
                at += 1
                count += packed[at - 1]
                if packed[at - 1] != 255:
                    break
        return count

    while at < len(packed):
        token = packed[at]
        at += 1
        literals = extended(token >> 4)
        result += packed[at:at + literals]
        at += literals
        if at == len(packed):
            break
        distance = int.from_bytes(packed[at:at + 2], "little")
        at += 2
        for _ in range(extended(token & 15) + 4):
            result.append(result[-distance])
    assert len(result) == length
    return bytes(result)


def blocks(fst):
    """Return the blocks of an FST waveform file, as pairs of type and contents."""
    at = 0
    while at < len(fst):
        length = int.from_bytes(fst[at + 1:at + 9], "big")
        yield fst[at], fst[at + 9:at + 1 + length]
        at += 1 + length


@pytest.fixture(scope="module")
def traced():
    return build_ring(Probe(), traced=True)


def test_wave_holds_all_nodes_and_changes_nothing(traced, tmp_path):
    path = tmp_path / "ring.fst"
    results = []
    for library, wave in [(build_ring(Probe()), False), (traced, True), (traced, False)]:
        with VerilatedRing(library, nodes=3, threads=2) as ring:
            ring.run(100)
            if wave:
                ring.start_wave(path)
            for _ in range(5):
                ring.send(2, [STAMP] * 20)
            ring.run(400)
            if wave:
                ring.stop_wave()
            ring.run(100)
            results.append((ring.describe(), [ring.receive(0).tolist() for _ in range(5)]))
    assert results[0] == results[1] == results[2]

    sections = dict(blocks(path.read_bytes()))
    start, end = struct.unpack(">QQ", sections[HEADER][:16])
    assert (start, end) == (1000, 4995)
    hierarchy = unpack_lz4(sections[HIERARCHY][8:], int.from_bytes(sections[HIERARCHY][:8], "big"))
    for name in (b"node0", b"node1", b"node2", b"reports", b"host_i__payload", b"ring_o__data"):
        assert name in hierarchy


def test_wave_needs_a_traced_library(tmp_path):
    with VerilatedRing(build_ring(Probe())) as ring, \
            pytest.raises(RuntimeError, match="this library was built without waveforms, so it cannot write"):
        ring.start_wave(tmp_path / "ring.fst")


def test_wave_that_cannot_be_written(traced, tmp_path):
    with VerilatedRing(traced) as ring, pytest.raises(FileNotFoundError, match=r"missing/ring\.fst"):
        ring.start_wave(tmp_path / "missing" / "ring.fst")


def test_library_is_built_once(traced):
    stages = []
    again = build_ring(Probe(), traced=True, announce=stages.append)
    assert again.path == traced.path
    assert not again.built
    assert stages == ["Verilog"]
    assert set(again.seconds) == {"Verilog"}
    assert build_ring(Probe()).path != traced.path


@pytest.fixture(scope="module")
def compressors(tmp_path_factory):
    """Build a library from the headers that replace LZ4 and zlib, so that their functions can be called."""
    folder = tmp_path_factory.mktemp("compressors")
    (folder / "all.cpp").write_text("""
        #include <lz4.h>
        #include <zlib.h>
        extern "C" int lz4(const char* from, char* to, int length) {
            return LZ4_compress_default(from, to, length, LZ4_compressBound(length));
        }
        extern "C" int bound(int length) { return LZ4_compressBound(length); }
        extern "C" unsigned long deflate(const Bytef* from, Bytef* to, unsigned long length) {
            uLongf packed = compressBound(length);
            return compress2(to, &packed, from, length, 9) == Z_OK ? packed : 0;
        }
        extern "C" unsigned long deflate_bound(unsigned long length) { return compressBound(length); }
    """)
    shim = Path(build.__file__).parent / "compression"
    subprocess.run([toolchain.compiler(), "-std=gnu++20", "-O1", "-fPIC", "-shared", f"-I{shim}", "all.cpp", "-o",
                    "all.so"], cwd=folder, check=True)
    library = ctypes.CDLL(str(folder / "all.so"))
    for name in ("deflate", "deflate_bound"):
        getattr(library, name).restype = ctypes.c_ulong
    library.deflate.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong]
    library.deflate_bound.argtypes = [ctypes.c_ulong]
    return library


@pytest.mark.parametrize("length", [0, 1, 4, 12, 13, 14, 17, 18, 19, 33, 270, 271, 300, 4096, 70_000, 200_000])
@pytest.mark.parametrize("symbols", [1, 2, 16, 256])
def test_stand_in_compressors(compressors, length, symbols):
    random = np.random.default_rng(length + symbols)
    original = random.integers(0, symbols, length, dtype=np.uint8).tobytes()
    packed = ctypes.create_string_buffer(compressors.bound(length))
    count = compressors.lz4(original, packed, length)
    assert count <= len(packed)
    assert unpack_lz4(packed.raw[:count], length) == original
    if symbols == 1 and length > 100:
        assert count < length // 20
    stored = ctypes.create_string_buffer(compressors.deflate_bound(length))
    count = compressors.deflate(original, stored, length)
    assert 0 < count <= len(stored)
    assert zlib.decompress(stored.raw[:count]) == original
