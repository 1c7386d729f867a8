"""Compiled collectives have the results, residuals and traffic of the golden ring, bit for bit."""

import dataclasses
import itertools

import numpy as np
import pytest

from sim.arithmetic import formats
from sim.arithmetic import ring as compiled
from sim.golden import optimizer, ring
from sim.golden.codecs import CODECS, GRADIENT_CODECS, WEIGHT_CODECS, is_agreed
from tests.sim.arithmetic.samples import SPECIAL, scaled
from tests.words import random_words

NODES = (1, 2, 3, 4, 8)

#: Lengths of blocks: none, one element, and lengths around one to three groups and segments of 32, 96 and 256.
BLOCKS = (0, 1, 31, 32, 33, 63, 64, 65, 95, 96, 97, 191, 193, 255, 256, 257, 513)


def codec_of(name):
    codec = CODECS[name]
    if not codec.codebook_words:
        return codec
    size = codec.codebook_words // 2
    if name.startswith("table"):
        return codec.bind((np.arange(size, dtype=np.uint32) ** 2 << 13) + np.uint32(77))
    return codec.bind(np.sort(np.random.default_rng(size).standard_normal(size).astype(np.float32)).view(np.uint32))


def vectors(nodes, length, seed):
    """Gradients of similar magnitude for each rank, with many zeros, negative zeros and special numbers."""
    x = np.stack([scaled(length, seed + rank, -8, 8) for rank in range(nodes)])
    random = random_words(x.size, seed).reshape(x.shape)
    x[random % 4 == 0] = 0
    x[:, random[0] % 8 == 0] = 1 << 31
    special = random % 16 == 3
    x[special] = SPECIAL[random[special] % len(SPECIAL)]
    return x


def assert_same(a, b):
    """Check that two results are equal: arrays or numbers, or all members of dataclasses and sequences."""
    if dataclasses.is_dataclass(a):
        for field in dataclasses.fields(a):
            assert_same(getattr(a, field.name), getattr(b, field.name))
    elif isinstance(a, list | tuple):
        for x, y in zip(a, b, strict=True):
            assert_same(x, y)
    else:
        assert type(a) is type(b)
        assert np.asarray(a).dtype == np.asarray(b).dtype
        assert np.array_equal(a, b)


def cases(seed):
    """Shapes and options of collectives: each length in ``BLOCKS`` with two numbers of nodes, which depend on the
    seed."""
    generator = np.random.default_rng(seed)
    for index, block in [*enumerate(BLOCKS, seed), *enumerate(BLOCKS, seed + 1)]:
        nodes = NODES[index % len(NODES)]
        length = max(block * nodes + int(generator.integers(-3, 4)), 0)
        yield (nodes, length), {"segment": int(generator.choice([32, 96, 128, 256])),
                                "lanes": int(generator.integers(1, 9)),
                                "block_offset": int(generator.integers(nodes))}


@pytest.mark.parametrize("name", [name for name in GRADIENT_CODECS if not is_agreed(CODECS[name])])
def test_sums(name):
    """In two successive collectives, of which the second adds the residuals of the first, the results equal the
    golden ring's."""
    for seed, (shape, options) in enumerate(cases(CODECS[name].code)):
        gradients, (expected, residuals) = vectors(*shape, seed), np.zeros((2, *shape), np.uint32)
        before = gradients.copy()
        for function in ("all_reduce", "reduce_scatter"):
            a, b = (getattr(module, function)(gradients, gradient_codec=CODECS[name], residuals=kept, **options)
                    for module, kept in ((ring, expected), (compiled, residuals)))
            assert_same(a, b)
            assert_same(expected, residuals)
        assert_same(gradients, before)


@pytest.mark.parametrize("name", list(WEIGHT_CODECS))
def test_weights(name):
    """Weights are sent through every codec, with a codebook if the codec has one."""
    codec = codec_of(name)
    settings = ring.settings(optimizer.Rule.SGD, gradient_scale=0.5, learning_rate=0.1)
    for length, segment in ((0, 32), (33, 32), (700, 96), (1000, 256)):
        gradients = vectors(3, length, length)
        weights, state = scaled(length, 1, -3, 3), [np.zeros(length, np.uint32), np.zeros(length, np.uint32)]
        assert_same(ring.distribute(weights, 3, weight_codec=codec, segment=segment),
                    compiled.distribute(weights, 3, weight_codec=codec, segment=segment))
        options = {"weight_codec": codec, "segment": segment, "block_offset": 2}
        assert_same(*(module.all_gather(gradients, **options) for module in (ring, compiled)))
        assert_same(*(module.fused_update(gradients, weights, state, settings, **options)
                      for module in (ring, compiled)))


@pytest.mark.parametrize("name", [name for name in GRADIENT_CODECS if is_agreed(CODECS[name])])
def test_sums_of_integers(name):
    gradients = np.stack([scaled(333, seed, -8, 8) for seed in range(4)])
    for function, counts in itertools.product(("all_reduce", "reduce_scatter"), (None, [1, 2, 1])):
        assert_same(*(getattr(module, function)(gradients, gradient_codec=CODECS[name], counts=counts)
                      for module in (ring, compiled)))


@pytest.mark.parametrize("name", ["raw", "zero_value", "mx9"])
def test_long_blocks(name):
    """The blocks of a collective may be so long that they are processed in several parts."""
    if name not in CODECS:
        pytest.skip(f"{name} is not in this copy")
    shape = 2, 4 * ring.PART + 77
    gradients, (expected, residuals) = vectors(*shape, 1), np.zeros((2, *shape), np.uint32)
    for segment in (96, 2 * ring.PART):
        assert_same(*(module.all_reduce(gradients, gradient_codec=CODECS[name], residuals=kept, segment=segment)
                      for module, kept in ((ring, expected), (compiled, residuals))))
        assert_same(expected, residuals)


def test_kernels_of_a_codec():
    """Every codec for which there are kernels gets them, with its codebook. All other codecs get none."""
    for name in formats.names():
        for codec in (CODECS[name], codec_of(name)):
            assert compiled.kernels_of(codec).codec == codec
    assert compiled.kernels_of(CODECS["zero_value"]) is None
    assert compiled.kernels_of(dataclasses.replace(CODECS["raw"], code=99)) is None
    assert compiled.kernels_of(dataclasses.replace(CODECS["raw"], exact=False)) is None


def test_codecs_without_kernels():
    """If a codec has no kernels, the golden model computes its collectives."""
    codec = dataclasses.replace(CODECS["raw"], code=99, exact=False)
    gradients, (expected, residuals) = vectors(3, 500, 1), np.zeros((2, 3, 500), np.uint32)
    assert_same(*(module.all_reduce(gradients, gradient_codec=codec, residuals=kept)
                  for module, kept in ((ring, expected), (compiled, residuals))))
    assert_same(expected, residuals)


def test_refusals():
    x = np.zeros((2, 200), np.uint32)
    for wrong, kind in ((x[:, ::2], "uint32"), (x.astype(np.int64), "int64")):
        with pytest.raises(ValueError, match=rf"^Gradients must be a contiguous array of uint32 .*, not {kind}"):
            compiled.all_reduce(wrong, gradient_codec=CODECS["raw"])
    with pytest.raises(ValueError, match=r"^Memory must be of at least 200 numbers, not 190$"):
        compiled.CompiledArithmetic().read(x[0, :190], ring.Part(0, slice(0, 1), np.array([104]), 0, 2))
    codec = dataclasses.replace(CODECS["raw"], exact=False)
    with pytest.raises(ValueError, match=r"^Residuals must be there with a codec that is not exact"):
        compiled.all_reduce(x, gradient_codec=codec)
