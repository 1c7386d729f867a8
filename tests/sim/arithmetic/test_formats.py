"""Compiled kernels of codecs and hops are bit-identical to the golden models, for every codec with kernels."""

import dataclasses
import functools

import numpy as np
import pytest

from sim.arithmetic import formats, library
from sim.golden import floating, ring, zero_value
from sim.golden.codecs import CODECS
from sim.verilated.toolchain import ToolError
from tests.nvfp4 import every_place
from tests.sim.arithmetic.samples import SAMPLES, SPECIAL, decoded, encoded, golden, same, scaled
from tests.words import bits_of, random_words, words

NAMES = formats.names()
GRADIENTS = [name for name in NAMES if CODECS[name].gradients]


def codebook(name):
    """Return a codebook for the codec of this name, or None if the codec has none."""
    size = CODECS[name].codebook_words // 2
    if not size:
        return None
    if name.startswith("table"):
        return (np.arange(size, dtype=np.uint32) ** 2 << 13) + np.uint32(77)
    return np.sort(np.random.default_rng(size).standard_normal(size).astype(np.float32)).view(np.uint32)


def kernels(name):
    return formats.kernels(name, codebook(name))


@functools.cache
def answers(name):
    """Test vectors for a codec, each with its elements and golden results."""
    codec = kernels(name).codec
    more = {"places": every_place(codec.format).ravel()} if name == "nvfp4" else {}
    return {sample: (x, golden(codec, x)) for sample, x in (SAMPLES | more).items()}


def differing(kernel, name):
    """Names of the test vectors for which a kernel differs from the golden model."""
    return [sample for sample, (x, expected) in answers(name).items() if not same(kernel, x, expected)]


@pytest.mark.parametrize("name", NAMES)
def test_numbers(name):
    assert differing(kernels(name), name) == []


@pytest.mark.parametrize("name", NAMES)
def test_counts(name):
    """Results are right for every count of up to three blocks, and for counts near the ends of packets and of the
    pieces in which hops are computed."""
    x = scaled(2 * formats.PIECE, 6)
    x[2::97] = SPECIAL[:len(x[2::97])]
    kernel = kernels(name)
    for count in (*range(3 * 32 + 2), 127, 128, 129, 255, 256, 257, *range(formats.PIECE - 1, formats.PIECE + 2)):
        assert same(kernel, x[:count]), count


@pytest.mark.parametrize("name", GRADIENTS)
def test_all_codes(name):
    """All codes of up to 16 bits are decoded, with random block headers and with the lowest and highest exponents."""
    kernel = kernels(name)
    codec = kernel.codec
    packets = [random_words(codec.max_words(4096), 7)]
    if name == "bf16":
        packets.append(np.arange(1 << 16, dtype=np.uint16).view(np.uint32))
    elif name != "raw":
        form = codec.format
        codes = np.tile(np.arange(1 << form.code_bits), form.block).reshape(-1, form.block)
        for exponent in (0, 1, 2, 7, 8, 9, 100, 127, 200, 240, 253, 254, 255):
            header = random_words(codec.max_words(codes.size), exponent + 1)
            blocks = dataclasses.replace(form.unpack(header), codes=codes, exponents=np.full(len(codes), exponent))
            packets.append(form.pack(blocks))
    for packet in packets:
        expected = codec.decode(packet)
        assert decoded(kernel, packet, len(expected)).tobytes() == expected.tobytes()


@pytest.mark.parametrize("name", [name for name in NAMES if name not in GRADIENTS])
def test_codebooks(name):
    """Elements at each bound between centroids and next to it are encoded, and words with all codes are decoded."""
    kernel = kernels(name)
    codec = kernel.codec
    if name.startswith("centroid"):
        near = np.array([*codec.bounds, *codec.codebook], np.uint32)
        packet = random_words(codec.max_words(4096), 8)
        assert decoded(kernel, packet, 4096).tobytes() == codec.decode(packet).tobytes()
    else:
        bounds = codec.table.bounds(codec.codebook).astype(np.uint32) << np.uint32(11)
        near = (bounds[:, np.newaxis] | words(0, 0x3F80_0000, 0x7F80_0000)).reshape(-1)
    assert same(kernel, (near[:, np.newaxis] + words(0, 1, 0xFFFF_FFFF)).reshape(-1))
    assert same(formats.kernels(name), SAMPLES["scaled"])


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("table")])
def test_wrong_tables(name):
    kernel = kernels(name)
    x = SAMPLES["scaled"][:100]
    packet = encoded(kernel, x)
    unordered, high = packet.copy(), encoded(kernel, np.full(32, 0x3F80_0000, np.uint32))
    unordered[0] ^= 0xFF
    three = kernel.codec.encode(bits_of([1, 2, 4] * 11)[:32])
    three[1:] = 0xFFFF_FFFF  # codes that refer to a fourth exponent, which does not exist
    for wrong, count in ((packet[:-1], 100), (packet, 129), (unordered, 100), (packet[:1], 100), (high[:0], 32),
                         (three, 32)):
        with pytest.raises(ValueError, match=rf"^Words must be a packet of {count} elements, not {len(wrong)} other"):
            kernel.decode(wrong, np.empty(count, np.uint32))


def reduced(kernel, gradients, residuals, *, keep, segment):
    """Sum gradients over the ranks of a ring with kernels, block by block; ``residuals`` are updated."""
    nodes, length = gradients.shape
    total = np.empty(length, np.uint32)
    for block, segments in enumerate(ring.segment_indices(length, nodes, segment)):
        for index in segments:
            packet = None
            for hop in range(nodes):
                rank = (block + hop) % nodes
                own, kept, result = gradients[rank, index], residuals[rank, index], np.empty(len(index), np.uint32)
                sent = np.empty(kernel.codec.max_words(len(index)), np.uint32) if keep or hop < nodes - 1 else None
                kernel.hop(own, received=packet, residual=kept, words=sent, result=result)
                residuals[rank, index] = kept
                packet = sent
            total[index] = result
    return total


@pytest.mark.parametrize("name", GRADIENTS)
@pytest.mark.parametrize(("nodes", "segment"), [(1, 32), (2, 96), (3, 256), (4, 2048), (8, 32)])
def test_rings(name, nodes, segment):
    """In two successive collectives, sums and residuals equal the golden ring's, bit for bit."""
    kernel = kernels(name)
    length = 3 * 32 * nodes + 37 if segment < 2048 else 1100 * nodes
    gradients = np.stack([scaled(length, seed, -8, 8) for seed in range(nodes)])
    places = np.random.default_rng(nodes).permutation(length)[:len(SPECIAL)]
    gradients[np.arange(len(places)) % nodes, places] = SPECIAL[:len(places)]
    expected, residuals = np.zeros((2, nodes, length), np.uint32)
    for keep in (True, False):
        total = reduced(kernel, gradients, residuals, keep=keep, segment=segment)
        if keep:
            sums, _ = ring.all_reduce(gradients, gradient_codec=kernel.codec, residuals=expected, segment=segment)
            assert total.tobytes() == sums.tobytes()
        else:
            sums, _ = ring.reduce_scatter(gradients, gradient_codec=kernel.codec, residuals=expected, segment=segment)
            for block, index in enumerate(ring.block_indices(length, nodes)):
                assert total[index].tobytes() == sums[(block - 1) % nodes, index].tobytes()
        assert residuals.tobytes() == expected.tobytes()
    assert residuals.any() != kernel.codec.exact


@pytest.mark.parametrize("name", GRADIENTS)
def test_in_place(name):
    """A hop may overwrite the received words with its own, and the gradient with the decoded sum."""
    kernel = kernels(name)
    gradient, before, residual = (scaled(2500, seed, -3, 3) for seed in (1, 2, 3))
    received = encoded(kernel, before)
    packet, result, errors = np.empty_like(received), np.empty_like(gradient), residual.copy()
    kernel.hop(gradient, received=received, residual=errors, words=packet, result=result)
    kernel.hop(gradient, received=received, residual=residual, words=received, result=gradient)
    for a, b in ((received, packet), (gradient, result), (residual, errors)):
        assert a.tobytes() == b.tobytes()


def test_whole_blocks():
    """A whole block is encoded to the words of its packets of 128 elements, one after another."""
    x = scaled(700, 9)
    for name in GRADIENTS:
        parts = [encoded(kernels(name), x[start:start + 128]) for start in range(0, len(x), 128)]
        assert encoded(kernels(name), x).tobytes() == np.concatenate(parts).tobytes()


def test_sums():
    a, b = (np.ascontiguousarray(x.reshape(-1)) for x in np.meshgrid(SPECIAL, SPECIAL))
    a, b = np.concatenate([a, random_words(5000, 1)]), np.concatenate([b, random_words(5000, 2)])
    for count in (len(a), 1, 0):
        out = np.empty(count, np.uint32)
        formats.add(a[:count], b[:count], out)
        assert out.tobytes() == floating.add(a[:count], b[:count]).tobytes()
    expected = floating.add(a, b)
    formats.add(a, b, a)
    assert a.tobytes() == expected.tobytes()


@pytest.mark.parametrize("segment", [1, 32, 96, 10_000])
def test_nonzeros(segment):
    x = np.where(random_words(1000, 1) % 3 == 0, random_words(1000, 2), np.uint32(1 << 31))
    counts = formats.nonzeros(x, segment)
    parts = [x[start:start + segment] for start in range(0, len(x), segment)]
    assert counts.tolist() == [len(zero_value.encode(part)) - -(-len(part) // 32) for part in parts]
    assert len(formats.nonzeros(x[:0], segment)) == 0


@pytest.mark.parametrize("option", ["-march=native", "-DONE_VERSION"])
def test_all_instructions_of_the_processor(option, monkeypatch):
    """Results do not depend on whether code is compiled for all of the processor's instructions or only for the
    common baseline."""
    flags = (*library.FLAGS, option)
    loaded = formats.load(flags=flags)
    assert formats._adds(loaded)
    monkeypatch.setattr(formats, "arithmetic", lambda: loaded)
    for name in NAMES:
        kernel = formats.Kernels(kernels(name).codec, kernels(name).source, flags=flags)
        assert differing(kernel, name) == [], name
    test_in_place("raw")
    test_rings("raw", 3, 256)


@pytest.mark.parametrize(("name", "constant", "change"), [
    ("mx9", "LARGEST", -1), ("mx6", "DIFFERENCE_BITS", -1), ("mxfp8_e4m3", "LARGEST", 1),
    ("mxfp4_e2m1_up", "ABOVE", 1), ("mxfp8_e5m2", "LOWEST", 1), ("nvfp4", "SCALES", -1), ("nvfp4", "ELEMENTS", -1)])
def test_a_wrong_constant_is_noticed(name, constant, change):
    if name not in NAMES:
        pytest.skip(f"{name} is not in this copy")
    kernel = kernels(name)
    source = dataclasses.replace(kernel.source, constants={
        **kernel.source.constants, constant: kernel.source.constants[constant] + change})
    wrong = formats.Kernels(kernel.codec, source, flags=("-O1", *library.FLAGS[1:], "-DONE_VERSION"))
    assert differing(wrong, name)


@pytest.mark.parametrize(("before", "after"), [
    ("pattern(canonical(number(a) + number(b)))", "pattern(number(a) + number(b))"),
    ("pattern(canonical(number(a) + number(b)))", "pattern(canonical(number(a & 0xff800000) + number(b)))"),
    ("number(a) + number(b)", "(__builtin_fabsf(number(a) + number(b)) < 1e-38f ? 0 : number(a) + number(b))"),
], ids=["payload", "fraction", "flush to zero"])
def test_broken_sums_are_refused(before, after, monkeypatch):
    assert formats.TEXT.count(before) == 1
    load = formats.load
    monkeypatch.setattr(formats, "load", lambda: load(
        flags=("-O1", *library.FLAGS[1:], "-DONE_VERSION"), text=formats.TEXT.replace(before, after)))
    with pytest.raises(ToolError, match=r"must make sums that are rounded to nearest even and may be subnormal, and "
                                        r"its library does not; CXX must name a compiler without options such as "
                                        r"-ffast-math$"):
        formats.arithmetic.__wrapped__()


def test_refusals():
    raw = formats.kernels("raw")
    x = np.zeros(64, np.uint32)
    with pytest.raises(ValueError, match=r"^Codec must be one of raw.*, not 'zero_value'$"):
        formats.kernels("zero_value")
    with pytest.raises(ValueError, match=r"^Words must be of 64 numbers, not 63$"):
        raw.encode(x, x[:63].copy())
    with pytest.raises(ValueError, match=r"^Words of 64 elements must be 64, not 63$"):
        raw.decode(x[:63], x.copy())
    for name in GRADIENTS:
        if CODECS[name].exact:
            continue
        with pytest.raises(ValueError, match=r"^Residuals must be of at least 64 numbers, not 1$"):
            formats.kernels(name).hop(x, residual=x[:1], words=np.empty(CODECS[name].max_words(64), np.uint32))
    for wrong in (x[::2], x.astype(np.int64), x.reshape(8, 8)):
        with pytest.raises(ValueError, match=r"^Elements must be a contiguous array of uint32 in one dimension, not"):
            raw.encode(wrong, x)
    fixed = x.copy()
    fixed.flags.writeable = False
    with pytest.raises(ValueError, match=r"^Sums must be an array that can be written, not one that is read only$"):
        formats.add(x, x, fixed)
    with pytest.raises(ValueError, match=r"^Segment must be at least 1, not 0$"):
        formats.nonzeros(x, 0)
    for name in set(NAMES) - set(GRADIENTS):
        with pytest.raises(ValueError, match=r"^Codec must be one for gradients, not for weights only$"):
            formats.kernels(name).hop(x)
