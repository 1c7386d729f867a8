"""Elements that test every rounding case of a format, and comparisons of compiled kernels with the golden model."""

import numpy as np

from tests.words import bits_of, random_words, words

#: Zero, subnormal and normal numbers, the largest number, infinity, and quiet and signalling NaNs with payloads.
POSITIVE = words(0, 1, 2, 0x3F_FFFF, 0x40_0000, 0x7F_FFFF, 0x80_0000, 0x80_0001, 0xFF_FFFF, 0x100_0000, 0x3F7F_FFFF,
                 0x3F80_0000, 0x3F80_0001, 0x40C0_0000, 0x43E0_0000, 0x7E80_0000, 0x7F00_0000, 0x7F7F_8000,
                 0x7F7F_FFFF, 0x7F80_0000, 0x7F80_0001, 0x7FBF_FFFF, 0x7FC0_0000, 0x7FC0_0001, 0x7FFF_FFFF)
SPECIAL = np.concatenate([POSITIVE, POSITIVE | np.uint32(1 << 31)])


def scaled(count, seed, low=-140, high=125):
    """Bits of normally distributed numbers with a scale that changes every 16 elements."""
    generator = np.random.default_rng(seed)
    scales = np.repeat(generator.integers(low, high, -(-count // 16)), 16)[:count]
    near = scales + generator.integers(-6, 1, count)
    return np.ldexp(generator.standard_normal(count).astype(np.float32), near.astype(np.int32)).view(np.uint32)


def ties():
    """Numbers halfway between any two adjacent numbers of a format with up to eight bits, and just below and above.

    In a block, the first number determines the scale.
    """
    odd = np.arange(1, 1 << 10, 2)
    exact = np.concatenate([np.float32(512) + odd, odd / np.float32(2), odd / np.float32(16), odd / np.float32(512)])
    bits = bits_of(exact)[:, np.newaxis] + words(0, 1, 0xFFFF_FFFF)
    bits = np.ascontiguousarray(bits.reshape(-1)[:bits.size // 15 * 15])
    blocks = np.insert(bits.reshape(-1, 15), 0, bits_of([1023])[0], axis=1)
    return blocks.reshape(-1) | random_words(blocks.size) & np.uint32(1 << 31)


def peaks():
    """Blocks by their largest number: its fraction has up to four bits, or it is just below or above such a
    number."""
    fractions = np.arange(0, 1 << 23, 1 << 19, dtype=np.uint32)[:, np.newaxis] + words(0, 1, 0xFFFF_FFFF)
    numbers = np.concatenate([fractions.reshape(-1) + np.uint32(exponent << 23) for exponent in (1, 124, 253, 254)])
    blocks = numbers[:, np.newaxis] - (np.arange(32, dtype=np.uint32) * np.uint32(0x12_3456))
    return np.where(blocks >> 31, numbers[:, np.newaxis], blocks).reshape(-1)


def encoded(kernel, x):
    """Encode ``x`` with a kernel and return the words of the packet; the kernel must not write beyond them."""
    packet = np.full(kernel.codec.max_words(len(x)), 0xDEAD_BEEF, np.uint32)
    size = kernel.encode(x, packet)
    assert (packet[size:] == 0xDEAD_BEEF).all()
    return packet[:size]


def decoded(kernel, packet, count):
    x = np.empty(count, np.uint32)
    kernel.decode(packet, x)
    return x


def golden(codec, x):
    """Encode ``x`` with the golden model; return the words, and the elements decoded from them."""
    packet = codec.encode(x)
    return packet, codec.decode(packet, len(x))


def same(kernel, x, expected=None):
    """Return whether a kernel encodes and decodes ``x`` as expected, by default as the golden model does."""
    packet, elements = golden(kernel.codec, x) if expected is None else expected
    return (encoded(kernel, x).tobytes() == packet.tobytes() and
            decoded(kernel, packet, len(x)).tobytes() == elements.tobytes())


def samples():
    """Test vectors by name: special numbers alone and among normal ones, random bits, various scales, and ties."""
    finite = SPECIAL[(SPECIAL & 0x7F80_0000) != 0x7F80_0000]
    among = scaled(64 * len(SPECIAL), 3)
    among[::64] = SPECIAL
    bits = random_words(6000, 4)
    return {"special": SPECIAL, "finite": finite, "repeated": np.repeat(SPECIAL, 32), "among": among,
            "random": bits, "random finite": np.where((bits >> 23 & 255) == 255, bits & np.uint32(0xBFFF_FFFF), bits),
            "scaled": scaled(6000, 5), "ties": ties(), "peaks": peaks()}


SAMPLES = samples()
