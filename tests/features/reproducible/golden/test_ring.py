"""Collectives with the gradient codecs sum32 and sum16, in the golden models of the ring and of nodes."""

import itertools

import numpy as np
import pytest

from sim.golden import optimizer, ring
from sim.golden.codecs import CODECS, GRADIENT_CODECS, WEIGHT_CODECS, is_agreed
from sim.golden.features.reproducible.packet import WIDTHS
from sim.golden.features.reproducible.sums import sum_of
from sim.golden.nodes import Nodes, Placed
from tests.present import needs
from tests.refusals import refuses

MOMENTUM = ring.settings(optimizer.Rule.MOMENTUM, gradient_scale=0.5, learning_rate=0.1, first_decay=0.9)


def codec_of(width):
    return CODECS[f"sum{width}"]


def numbers(seed, shape):
    """Draw finite numbers: half with any exponent, half with similar exponents, and some zeros of both signs."""
    generator = np.random.default_rng(seed)
    similar = ring.bits(generator.standard_normal(shape))
    values = np.where(generator.random(shape) < 0.5, generator.integers(0, 2 ** 32, shape, np.uint32), similar)
    values[generator.random(shape) < 0.1] &= 0x807F_FFFF
    values[generator.random(shape) < 0.1] &= 0x8000_0000
    return np.where(np.isfinite(ring.floats(values)), values, 0).astype(np.uint32)


def update(gradients, **options):
    """Run a fused update on random weights and momenta; return its sum, weights and state."""
    length = gradients.shape[1]
    weights, momenta = (ring.bits(np.random.default_rng(seed).standard_normal(length)) for seed in (1, 2))
    return ring.fused_update(gradients, weights, [momenta], MOMENTUM, **options)


def owners(gradients, **options):
    """Return the sum after a reduce-scatter, read from the owners; check that other elements are unchanged."""
    nodes, length = gradients.shape
    result, total = ring.reduce_scatter(gradients, **options)[0], np.zeros(length, np.uint32)
    for block, index in enumerate(ring.block_indices(length, nodes, block_offset=options.get("block_offset", 0))):
        total[index] = result[(block - 1) % nodes, index]
        result[(block - 1) % nodes, index] = gradients[(block - 1) % nodes, index]
    assert np.array_equal(result, gradients)
    return total


# --- codecs


def test_registry():
    """Both formats are only for gradients, have no residuals, and are registered with their code and width."""
    assert [name for name in CODECS if is_agreed(CODECS[name])] == ["sum32", "sum16"]
    for name, code, width in (("sum32", 20, 32), ("sum16", 22, 16)):
        codec = CODECS[name]
        assert (codec.code, codec.width, codec.block) == (code, width, 1)
        assert name in GRADIENT_CODECS
        assert name not in WEIGHT_CODECS
        assert codec.bind([]) is codec
        assert [codec.exponent_words(count) for count in (0, 32, 33, 128, 129)] == [0, 1, 1, 1, 2]


@pytest.mark.parametrize("width", WIDTHS)
def test_words(width):
    """Encoding and decoding leaves integer codes unchanged."""
    codec = codec_of(width)
    for count in (0, 1, 2, 31, 32, 33, 512):
        codes = np.random.default_rng(count).integers(-2 ** (width - 1), 2 ** (width - 1), count).astype(np.uint32)
        words = codec.encode(codes)
        assert len(words) == codec.max_words(count) == -(-count * width // 32)
        assert words.dtype == codec.decode(words).dtype == np.uint32
        assert codec.decode(words, count).tolist() == codes.tolist()
        assert codec.decode(words)[:count].tolist() == codes.tolist()
        assert codec.span(words, count) == (len(words), 0, False)
        assert codec.span(words, count + 4) == (len(words), codec.max_words(count + 4) - len(words), False)


def test_large_codes():
    refuses("Codes must have at most 16 bits", CODECS["sum16"].encode, [0x3F80_0000])


# --- collectives


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("nodes", range(2, 9))
def test_orders(nodes, width):
    """Twenty permutations of the nodes give the same sum in every collective and leave residuals unchanged."""
    generator = np.random.default_rng(nodes)
    gradients, residuals = numbers(nodes, (nodes, 700)), numbers(99, (nodes, 700))
    expected = sum_of(gradients, width=width)
    left = residuals.copy()
    options = {"gradient_codec": codec_of(width), "residuals": residuals, "segment": 64}
    whole = update(gradients, **options)
    for number in range(20):
        permuted = generator.permutation(gradients)
        options["block_offset"] = number % nodes
        assert np.array_equal(ring.all_reduce(permuted, **options)[0], expected)
        assert np.array_equal(owners(permuted, **options), expected)
        other = update(permuted, **options)
        assert np.array_equal(other.total, expected)
        assert np.array_equal(other.weights, whole.weights)
        assert np.array_equal(other.state[0], whole.state[0])
    assert np.array_equal(residuals, left)


@pytest.mark.parametrize("width", WIDTHS)
def test_one_node(width):
    """A ring of one node sends nothing, but rounds its gradients as in any other sum."""
    gradients = numbers(3, (1, 333))
    expected = sum_of(gradients, width=width)
    result, traffic = ring.all_reduce(gradients, gradient_codec=codec_of(width))
    assert np.array_equal(result, expected)
    assert (traffic.words.sum(), traffic.bound, traffic.density.size) == (0, 0, 0)
    assert np.array_equal(owners(gradients, gradient_codec=codec_of(width)), expected)
    assert np.array_equal(update(gradients, gradient_codec=codec_of(width)).total, expected)
    # A 32-bit addend loses bits only if its group has numbers at least 256 times as large.
    similar = ring.bits(np.random.default_rng(4).uniform(0.01, 1, (1, 333)))
    assert np.array_equal(ring.all_reduce(similar, gradient_codec=codec_of(width))[0], similar[0]) is (width == 32)


def cuts(length, size):
    """Bounds of consecutive parts of ``size`` elements that together cover a vector."""
    return list(itertools.pairwise([*range(0, length, size), length]))


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("nodes", [2, 3, 8])
@pytest.mark.parametrize("size", [32, 160, 992, 4_000, 9_000])
def test_cuts(size, nodes, width):
    """A vector that is split between groups gives the same sums, for any block offset."""
    length = min(4 * size + 65, 9_000)
    gradients = numbers(size, (nodes, length))
    options = {"gradient_codec": codec_of(width)}
    expected, whole = sum_of(gradients, width=width), update(gradients, **options)
    assert np.array_equal(whole.total, expected)
    for number, (start, stop) in enumerate(cuts(length, size)):
        part = gradients[:, start:stop]
        options["block_offset"] = (start // 32, number)[number % 2] % nodes
        assert np.array_equal(ring.all_reduce(part, **options)[0], expected[start:stop])
        assert np.array_equal(owners(part, **options), expected[start:stop])
        assert np.array_equal(update(part, **options).total, expected[start:stop])


@pytest.mark.parametrize("size", [32, 160, 1_000, 4_000, 9_000])
def test_parameters(size):
    """A parameter has the same sums in a command of its own as in a bucket, where each parameter starts a new group.
    """
    length = min(4 * size + 65, 9_000)
    gradients, bounds = numbers(size, (4, length)), cuts(length, size)
    expected = sum_of(gradients, width=16, lengths=[stop - start for start, stop in bounds])
    for start, stop in bounds:
        assert np.array_equal(ring.all_reduce(gradients[:, start:stop], gradient_codec=codec_of(16))[0],
                              expected[start:stop])


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("nodes", [1, 2, 3, 4])
def test_special(nodes, width):
    """Infinities and NaNs on any nodes affect only their own elements; other elements are sums of finite addends."""
    plain, inf, nan = ring.bits(np.random.default_rng(nodes).standard_normal((nodes, 100))), np.inf, np.nan
    options = {"gradient_codec": codec_of(width)}
    for rank, other in itertools.product(range(nodes), repeat=2):
        gradients = plain.copy()
        gradients[rank, 40:44] = ring.bits([inf, -inf, nan, -nan])
        gradients[other, 45:48] = ring.bits([inf, -inf, inf])
        gradients[rank, 45:48] = ring.bits([-inf, -inf, nan])
        finite = np.where(np.isfinite(ring.floats(gradients)), gradients, 0)
        expected = ring.all_reduce(finite, **options)[0]
        expected[[*range(40, 44), 45, 46, 47]] = ring.bits([
            inf, -inf, nan, nan, -inf if rank == other else nan, -inf, nan])
        for total in (ring.all_reduce(gradients, **options)[0], owners(gradients, **options),
                      update(gradients, **options).total):
            assert np.array_equal(total, expected)


@pytest.mark.parametrize("width", WIDTHS)
def test_density(width):
    """Zeros are counted at each hop; words of zero_value are counted for all packets, even empty ones."""
    nodes, length = 3, 96 * 4
    gradients = ring.bits(np.random.default_rng(1).uniform(0.5, 1, (nodes, length)))
    gradients[:, ::2] = 0
    gradients[1, ::4] = ring.bits([1.0])[0]
    options = {"segment": 32}
    for collective, empty in ((ring.all_reduce, 1 + 2), (ring.reduce_scatter, 1 + 6)):
        traffic = collective(gradients, gradient_codec=codec_of(width), **options)[1]
        plain = collective(gradients, **options)[1]
        np.testing.assert_array_equal(traffic.density, plain.density)
        assert traffic.masked_words == plain.masked_words + 4 * empty * nodes * (nodes - 1)
    traffic = update(gradients, gradient_codec=codec_of(width), **options).traffic
    plain = update(gradients, **options).traffic
    assert traffic.masked_words == plain.masked_words + 4 * (1 + 2) * nodes * (nodes - 1)


def test_density_of_integers():
    """Density counts nonzero integers: small elements of a group become zero."""
    gradients = ring.bits(np.tile(np.where(np.arange(64) % 4, np.float32(1e-6), np.float32(1)), (2, 1)))
    assert [ring.all_reduce(gradients, gradient_codec=codec_of(width))[1].density.tolist() for width in (16, 32)] == [
        [0.25], [1.0]]


# --- nodes


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("nodes", [1, 2, 3, 5])
@pytest.mark.parametrize("weight_codec", ["raw", "bf16"])
def test_nodes(weight_codec, nodes, width):
    """Commands on golden nodes give the same sums as the golden ring, and leave residuals at zero."""
    needs("bf16")
    length = 200
    options = {"gradient_codec": codec_of(width), "segment": 64}
    weights = ring.bits(np.random.default_rng(1).standard_normal(length))
    model = Nodes(nodes, gradient_words=3 * 256, weights=weights, planes=1, weight_codec=CODECS[weight_codec],
                  **options)
    model.settings = MOMENTUM
    gradients = numbers(nodes, (nodes, 3 * 256))
    model.gradients[:] = gradients
    model.latch()

    def run(operation, base):
        fields = [{"gradient_base": base, "length": length}] * nodes
        return model.execute(Placed(operation, fields, collective=True), range(nodes))

    for operation, base in (("ALL_REDUCE", 0), ("REDUCE_SCATTER", 256), ("FUSED_UPDATE", 512)):
        collected, = run(operation, base)
        part = gradients[:, base:base + length]
        assert np.array_equal(collected.total, sum_of(part, width=width))
        assert np.array_equal(collected.words, collected.traffic.words)
    assert (model.gradients[:, :length] == sum_of(gradients[:, :length], width=width)).all()
    assert np.array_equal(model.gradients[:, 256:256 + length], ring.reduce_scatter(
        gradients[:, 256:256 + length], **options)[0])
    expected = ring.fused_update(gradients[:, 512:512 + length], weights, [np.zeros(length, np.uint32)], MOMENTUM,
                                 weight_codec=CODECS[weight_codec], **options)
    assert (model.weights == expected.weights).all()
    assert not model.residuals.any()
