import itertools

import ml_dtypes
import numpy as np
import pytest

from sim.golden import floating, optimizer, ring
from sim.golden.codecs import GRADIENT_CODECS, WEIGHT_CODECS
from tests.refusals import refuses

SIZES = [1, 2, 3, 4, 5, 8, 16]
LENGTHS = [0, 1, 31, 32, 33, 100, 511, 1000]
SGD = ring.settings(optimizer.Rule.SGD, gradient_scale=1, learning_rate=0.1)


def random_gradients(generator, nodes, length, density):
    values = generator.standard_normal((nodes, length)).astype(np.float32)
    values[generator.random((nodes, length)) >= density] = 0
    return ring.bits(values)


def packet_words(values):
    words = 3 + 1
    for start in range(0, len(values), 32):
        words += 1 + sum(1 for value in values[start:start + 32] if value & 0x7fff_ffff)
    return words


def step_by_step(gradients, segment):
    """Model a scatter-reduce as messages between ranks; return the owners' sums and the words per hop and rank."""
    nodes, length = gradients.shape
    blocks = [np.flatnonzero(np.arange(length) // 32 % nodes == block) for block in range(nodes)]
    count = max(-(-len(block) // segment) for block in blocks)
    local = [[ring.canonical(gradients[rank, block]) for block in blocks] for rank in range(nodes)]
    words = np.zeros((nodes - 1, nodes), dtype=int)
    for hop in range(nodes - 1):
        sent = [local[rank][(rank - hop) % nodes] for rank in range(nodes)]
        for rank in range(nodes):
            words[hop, rank] = sum(packet_words(sent[rank][t * segment:(t + 1) * segment]) for t in range(count))
        for rank in range(nodes):
            block = (rank - hop - 1) % nodes
            arrived = sent[(rank - 1) % nodes].view(np.float32)
            with np.errstate(all="ignore"):
                local[rank][block] = ring.canonical((arrived + local[rank][block].view(np.float32)).view(np.uint32))
    return [local[rank][(rank + 1) % nodes] for rank in range(nodes)], words


class TestBlocks:
    @pytest.mark.parametrize(("segment", "size"), [(32, 1), (96, 200), (128, 1 << 15)])
    def test_parts(self, segment, size, monkeypatch):
        """Blocks are processed in order, in parts of at most ``size`` elements, or of one segment if a segment is
        longer."""
        monkeypatch.setattr(ring, "PART", size)
        for nodes, length in itertools.product(SIZES, LENGTHS):
            for block_offset in range(nodes):
                schedule = ring._Schedule(length, nodes, segment, 1, block_offset)
                parts = list(schedule.parts())
                assert all(part.count <= max(size, segment) for part in parts)
                blocks = [[] for _ in range(nodes)]
                for part in parts:
                    assert len(blocks[part.block]) == part.segments.start
                    blocks[part.block] += np.split(part.indices, part.sizes.cumsum())[:-1]
                expected = ring.segment_indices(length, nodes, segment, block_offset=block_offset)
                assert [[t.tolist() for t in block] for block in blocks] == [
                    [t.tolist() for t in block] for block in expected]
                assert schedule.sizes.tolist() == [[len(t) for t in block] for block in expected]

    def test_parts_do_not_change_results(self, monkeypatch):
        gradients = random_gradients(np.random.default_rng(1), 3, 1000, 0.3)
        for name, codec in GRADIENT_CODECS.items():
            results = []
            for size in (32, 1 << 15):
                monkeypatch.setattr(ring, "PART", size)
                residuals = np.zeros_like(gradients)
                total, traffic = ring.all_reduce(gradients, gradient_codec=codec, residuals=residuals, segment=64)
                results.append([total.tolist(), residuals.tolist(), repr(traffic)])
            assert results[0] == results[1], name

    @pytest.mark.parametrize("nodes", SIZES)
    @pytest.mark.parametrize("length", LENGTHS)
    def test_groups_in_turn(self, length, nodes):
        for block_offset in range(nodes):
            blocks = ring.block_indices(length, nodes, block_offset=block_offset)
            assert len(blocks) == nodes
            expected = [[] for _ in blocks]
            for group in range(-(-length // 32)):
                expected[(group + block_offset) % nodes] += range(32 * group, min(32 * group + 32, length))
            assert [block.tolist() for block in blocks] == expected
            groups = [-(-len(block) // 32) for block in blocks]
            assert max(groups) - min(groups) <= 1
            assert max(map(len, blocks)) == ring.largest_block(length, nodes)

    def test_segments(self):
        segments = [[segment.tolist() for segment in block] for block in ring.segment_indices(100, 3, 32)]
        assert segments == [[[*range(32)], [*range(96, 100)]], [[*range(32, 64)], []], [[*range(64, 96)], []]]
        assert ring.segment_indices(0, 2, 32) == [[], []]

    @pytest.mark.parametrize("nodes", SIZES)
    def test_parts_of_a_vector(self, nodes):
        """An element belongs to the same block in each command that covers it, and the blocks of a rank have no
        gaps."""
        whole = ring.block_indices(1000, nodes)
        for first in range(0, 32):
            part = ring.block_indices(1000 - 32 * first, nodes, block_offset=first % nodes)
            for block, (index, tail) in enumerate(zip(whole, part, strict=True)):
                before = 32 * ring.groups_before(first, nodes, block)
                assert index[before:].tolist() == [32 * first + element for element in tail.tolist()]

    def test_places(self):
        assert ring.places(70).tolist() == [*range(70)]
        assert ring.places(70, stride=3).tolist() == [*range(32), *range(96, 128), *range(192, 198)]
        assert ring.places(0, stride=7).tolist() == []

    @pytest.mark.parametrize(("arguments", "message"), [
        ((-1, 2, 32, 0), "Length must be zero or more, not -1"),
        ((1, 0, 32, 0), "Node count must be at least 1, not 0"),
        ((1, 2, 33, 0), "Segment must be a positive multiple of 32, not 33"),
        ((1, 2, 0, 0), "Segment must be a positive multiple of 32, not 0"),
        ((1, 2, 32, 2), "Block offset must be below 2, not 2"),
        ((1, 2, 32, -1), "Block offset must be below 2, not -1"),
    ])
    def test_errors(self, arguments, message):
        *positional, block_offset = arguments
        refuses(message, ring.segment_indices, *positional, block_offset=block_offset)
        refuses("Stride must be at least 1, not 0", ring.places, 5, stride=0)


class TestCanonical:
    def test_patterns(self):
        patterns = np.array([0x8000_0000, 0x7f80_0001, 0xffff_ffff, 0x7f80_0000, 0x8000_0001, 1], dtype=np.uint32)
        assert ring.canonical(patterns).tolist() == [0, 0x7fc0_0000, 0x7fc0_0000, 0x7f80_0000, 0x8000_0001, 1]

    def test_leaves_its_argument(self):
        patterns = np.array([0x8000_0000], dtype=np.uint32)
        ring.canonical(patterns)
        assert patterns[0] == 0x8000_0000

    def test_floats(self):
        assert ring.floats(ring.bits([1.5, -2])).tolist() == [1.5, -2]


class TestReduction:
    @pytest.mark.parametrize("nodes", SIZES)
    @pytest.mark.parametrize("length", LENGTHS)
    def test_values_and_words(self, length, nodes):
        generator = np.random.default_rng(length * 17 + nodes)
        gradients = random_gradients(generator, nodes, length, density=generator.random())
        own, words = step_by_step(gradients, 64)
        total, traffic = ring.all_reduce(gradients, segment=64)
        scattered, scatter_traffic = ring.reduce_scatter(gradients, segment=64)
        blocks = ring.block_indices(length, nodes)
        for rank in range(nodes):
            index = blocks[(rank + 1) % nodes]
            assert np.array_equal(total[index], own[rank])
            assert np.array_equal(scattered[rank, index], own[rank])
            rest = np.setdiff1d(np.arange(length), index)
            assert np.array_equal(scattered[rank, rest], gradients[rank, rest])
        assert np.array_equal(traffic.scatter_words, words)
        assert np.array_equal(scatter_traffic.words, words.sum(axis=0))
        count = max(-(-len(block) // 64) for block in blocks)
        for hop in range(nodes - 1):
            for rank in range(nodes):
                block = total[blocks[(rank + 1 - hop) % nodes]]
                expected = sum(packet_words(block[t * 64:(t + 1) * 64]) for t in range(count))
                assert traffic.gather_words[hop, rank] == expected

    def test_order_of_the_sum(self):
        # The sum of block b starts at rank b, so blocks are rounded differently: for example, (2^24 + 1) + 1 loses
        # both ones.
        column = np.array([2.0**24, 1, 1], dtype=np.float32)
        gradients = ring.bits(np.repeat(column[:, None], 96, axis=1))
        total, _ = ring.all_reduce(gradients)
        assert ring.floats(total)[[0, 32, 64]].tolist() == [2.0**24, 2.0**24 + 2, 2.0**24]

    def test_special_values(self):
        gradients = ring.bits(np.array([[-0.0, np.inf, np.nan, 3], [-0.0, -np.inf, 1, -3]], dtype=np.float32))
        total, traffic = ring.all_reduce(gradients)
        assert total.tolist() == [0, 0x7fc0_0000, 0x7fc0_0000, 0]
        # Rank 0 sends block 0 (a mask and three nonzero elements), gets it back (a mask and two), and does not
        # forward it.
        assert traffic.words.tolist() == [4 + 4 + 4, 4 + 4 + 3]

    def test_one_node_canonicalises(self):
        total, traffic = ring.all_reduce(ring.bits([[-0.0, 2]]))
        assert total.tolist() == [0, 0x4000_0000]
        assert traffic.words.tolist() == [0]
        assert traffic.bound == 0
        assert traffic.density.shape == (0,)


class TestTraffic:
    @pytest.mark.parametrize("nodes", [2, 4, 8])
    def test_dense_bound(self, nodes):
        """For dense gradients, the bound equals the closed form of link cycles."""
        length = 16384
        gradients = ring.bits(np.ones((nodes, length)))
        share = (nodes - 1) * length // nodes
        _, plain = ring.all_reduce(gradients)
        assert plain.bound == 2 * share * 33 // 32
        assert plain.scatter_bound == share * 33 // 32
        assert np.array_equal(plain.density, np.ones(nodes - 1))
        _, gathered = ring.all_gather(gradients)
        assert gathered.bound == share
        assert gathered.scatter_bound == 0
        packets = (nodes - 1) * (length // nodes // 256)
        assert plain.words.tolist() == [2 * (share * 33 // 32 + 4 * packets)] * nodes
        assert gathered.words.tolist() == [share + 4 * packets] * nodes
        assert plain.dense_words == nodes * 2 * (share + 4 * packets)

    def test_empty_vector(self):
        for nodes in (1, 4):
            total, traffic = ring.all_reduce(np.zeros((nodes, 0), dtype=np.uint32))
            assert total.shape == (0,)
            assert traffic.words.tolist() == [0] * nodes
            assert traffic.bound == 0

    def test_zeros_run_at_the_speed_of_the_memory(self):
        for lanes in (1, 2, 4, 8):
            _, traffic = ring.all_reduce(np.zeros((4, 4096), dtype=np.uint32), lanes=lanes)
            assert traffic.bound == 2 * 3 * (1024 // lanes)
            assert traffic.words.tolist() == [2 * 3 * (1024 // 32 + 4 * 4)] * 4

    def test_adder_is_the_limit_where_sums_cancel(self):
        ones = ring.bits(np.ones(1024, dtype=np.float32))
        gradients = np.stack([ones, ones ^ 0x8000_0000, ones, ones ^ 0x8000_0000])
        _, traffic = ring.all_reduce(gradients)
        # The bound of a hop of 256 elements is 264 cycles if all elements are nonzero, and 256 if all are zero.
        assert traffic.density.tolist() == [1, 0, 1]
        assert traffic.scatter_bound == 264 + 256 + 264
        assert traffic.bound == traffic.scatter_bound + 256 + 2 * 64

    def test_reduce_scatter_is_the_first_half(self):
        _, traffic = ring.reduce_scatter(ring.bits(np.ones((2, 512))))
        assert traffic.bound == traffic.scatter_bound == 264

    def test_density_grows_hop_by_hop(self):
        generator = np.random.default_rng(7)
        _, traffic = ring.all_reduce(random_gradients(generator, 4, 16384, 0.1))
        assert np.allclose(traffic.density, [0.1, 0.19, 0.271], atol=0.01)

    def test_lanes(self):
        refuses("Lane count must be at least 1, not 0", ring.all_reduce, ring.bits(np.ones((2, 32))), lanes=0)


class TestGather:
    def test_all_gather(self):
        weights = np.arange(3 * 100, dtype=np.uint32).reshape(3, 100)
        result, traffic = ring.all_gather(weights, segment=32)
        assert result.tolist() == [*range(200, 232), *range(32, 64), *range(164, 196), *range(296, 300)]
        assert traffic.density.shape == (0,)
        # Rank 0 sends block 1 and then block 0, each in two segments, one of which may be empty.
        assert traffic.gather_words[:, 0].tolist() == [32 + 8, 36 + 8]

    def test_broadcast(self):
        weights = np.arange(8, dtype=np.uint32).reshape(2, 4)
        assert ring.broadcast(weights, 1).tolist() == [4, 5, 6, 7]
        refuses("Root must be a rank below 2, not 2", ring.broadcast, weights, 2)


class TestFusedUpdate:
    @pytest.mark.parametrize("nodes", SIZES)
    @pytest.mark.parametrize("rule", list(optimizer.Rule))
    def test_values_and_words(self, rule, nodes):
        generator = np.random.default_rng(nodes)
        length = 1000
        gradients = random_gradients(generator, nodes, length, density=0.5)
        weights, first, second = (generator.standard_normal(length).astype(np.float32) for _ in range(3))
        second = np.abs(second)
        scale, rate, decay, gain = (np.float32(value) for value in (1 / 3, 0.1, 0.9, 0.2))
        settings = ring.settings(rule, gradient_scale=scale, learning_rate=rate, first_decay=decay, first_gain=gain,
                                 second_decay=decay, second_gain=gain, epsilon=gain, weight_factor=decay)
        state = [ring.bits(first), ring.bits(second)][:settings.planes]
        result = ring.fused_update(gradients, ring.bits(weights), state, settings)
        total, plain = ring.all_reduce(gradients)
        assert np.array_equal(result.total, total)
        step, start = scale * ring.floats(total), weights
        if rule == optimizer.Rule.ADAMW:
            start = decay * weights
        else:
            step = step + decay * weights
        expected = []
        if rule != optimizer.Rule.SGD:
            gradient, step = step, decay * first + gain * step
            expected.append(ring.bits(step))
        if settings.planes == 2:
            second = decay * second + gain * gradient * gradient
            expected.append(ring.bits(second))
            step = step / (np.sqrt(second) + gain)
        assert np.array_equal(result.weights, ring.bits(start - rate * step))
        assert len(result.state) == settings.planes
        assert all(np.array_equal(plane, other) for plane, other in zip(result.state, expected, strict=True))
        # A scatter-reduce sends the same number of words as that of an all-reduce, and weights are sent raw.
        assert np.array_equal(result.traffic.scatter_words, plain.scatter_words)
        assert np.array_equal(result.traffic.density, plain.density)
        _, gathered = ring.all_gather(gradients)
        assert np.array_equal(result.traffic.gather_words, gathered.gather_words)
        assert result.traffic.dense_words == plain.dense_words

    @pytest.mark.parametrize("nodes", [2, 4, 8])
    def test_dense_bound(self, nodes):
        gradients = ring.bits(np.ones((nodes, 16384)))
        zeros = np.zeros(16384, dtype=np.uint32)
        traffic = ring.fused_update(gradients, zeros, [], SGD).traffic
        assert traffic.bound == (nodes - 1) * 16384 // nodes * 65 // 32

    @pytest.mark.parametrize("rule", [optimizer.Rule.MOMENTUM, optimizer.Rule.ADAM])
    def test_packed_state_is_rounded_after_the_update(self, rule):
        """Packed state gives the same new weights; state is rounded to bfloat16, and unused planes do not change."""
        generator = np.random.default_rng(9)
        gradients = random_gradients(generator, 2, 333, density=0.9)
        weights, first, second = (ring.bits(np.abs(generator.standard_normal(333))) for _ in range(3))
        settings = ring.settings(rule, gradient_scale=1, learning_rate=0.1, first_decay=0.9, second_decay=0.99,
                                 second_gain=0.01, epsilon=1e-8)
        state = [first & 0xffff_0000, second]
        plain, packed = (ring.fused_update(gradients, weights, list(state), settings, packed_state=packed_state)
                         for packed_state in (False, True))
        assert np.array_equal(packed.weights, plain.weights)
        for plane in range(2):
            expected = plain.state[plane]
            if plane < settings.planes:
                expected = ring.bits(ring.floats(expected).astype(ml_dtypes.bfloat16).astype(np.float32))
                assert not np.array_equal(expected, plain.state[plane])
            assert np.array_equal(packed.state[plane], expected)

    def test_settings(self):
        settings = ring.settings(1, nesterov=True, gradient_scale=0.5, learning_rate=0.1, clip=float("inf"))
        assert settings == optimizer.Settings(optimizer.Rule.MOMENTUM, 0x3f00_0000, 0x3dcc_cccd, clip=0x7f80_0000,
                                              nesterov=True)


CODECS = [name for name in WEIGHT_CODECS if name != "raw"]


class TestWeightCodecs:
    @pytest.mark.parametrize("nodes", [1, 2, 3, 4])
    @pytest.mark.parametrize("name", CODECS)
    def test_values_and_words(self, name, nodes):
        """Master weights are the same as without a codec; each segment of weights is decoded from them."""
        codec = WEIGHT_CODECS[name]
        generator = np.random.default_rng(nodes)
        length, segment = 1000, 64
        gradients = random_gradients(generator, nodes, length, density=0.5)
        master, momentum = (ring.bits(generator.standard_normal(length)) for _ in range(2))
        settings = ring.settings(optimizer.Rule.MOMENTUM, gradient_scale=0.5, learning_rate=0.1, first_decay=0.9)
        plain, coded = (ring.fused_update(gradients, master, [momentum], settings, weight_codec=code, segment=segment)
                        for code in (WEIGHT_CODECS["raw"], codec))
        assert np.array_equal(plain.weights, plain.master)
        assert np.array_equal(coded.master, plain.master)
        assert np.array_equal(coded.state[0], plain.state[0])
        assert np.array_equal(coded.total, plain.total)
        segments = ring.segment_indices(length, nodes, segment)
        for index in itertools.chain(*segments):
            decoded = codec.decode(codec.encode(plain.master[index]), len(index))
            assert np.array_equal(coded.weights[index], decoded)
        assert np.array_equal(coded.traffic.scatter_words, plain.traffic.scatter_words)
        assert coded.traffic.scatter_bound == plain.traffic.scatter_bound
        assert coded.traffic.dense_words == plain.traffic.dense_words
        for hop in range(nodes - 1):
            for rank in range(nodes):
                block = segments[(rank + 1 - hop) % nodes]
                assert coded.traffic.gather_words[hop, rank] == sum(
                    4 + len(codec.encode(plain.master[index])) for index in block)
        distributed = ring.distribute(plain.master, nodes, weight_codec=codec, segment=segment)
        assert np.array_equal(distributed, coded.weights)
        assert np.array_equal(ring.distribute(plain.master, nodes), plain.master)

    @pytest.mark.parametrize(("name", "words"), [("mx9", 72), ("bf16", 128), ("mxfp4_e2m1", 64)])
    def test_dense_bound(self, name, words):
        """Weights in mx9 take nine bits instead of 32, but with four lanes, a segment takes at least 64 cycles."""
        gradients = ring.bits(np.ones((4, 16384)))
        traffic = ring.fused_update(gradients, gradients[0], [], SGD, weight_codec=WEIGHT_CODECS[name]).traffic
        assert traffic.scatter_bound == 3 * 16 * 264
        assert traffic.bound == 3 * 16 * (264 + words)


def recoded(codec, segments, values):
    """Values after each segment has been encoded to a packet and decoded."""
    result = values.copy()
    for index in segments:
        result[index] = codec.decode(codec.encode(values[index]), len(index))
    return result


def lost(values, decoded):
    return np.where(np.isfinite(ring.floats(values)) & np.isfinite(ring.floats(decoded)),
                    floating.add(values, decoded ^ 0x8000_0000), 0)


class TestGradientCodecs:
    @pytest.mark.parametrize("nodes", [1, 2, 3, 4])
    @pytest.mark.parametrize("name", [
        name for name in GRADIENT_CODECS if name != "zero_value" and not GRADIENT_CODECS[name].agreed])
    def test_values_words_and_residuals(self, name, nodes):
        """Sums are right at every hop of two steps, the second of which adds the residuals of the first."""
        codec = GRADIENT_CODECS[name]
        generator = np.random.default_rng(nodes)
        length, segment = 1000, 64
        blocks, segments = ring.block_indices(length, nodes), ring.segment_indices(length, nodes, segment)
        settings = ring.settings(optimizer.Rule.SGD, gradient_scale=0.5, learning_rate=0.1)
        weights = ring.bits(generator.standard_normal(length))
        for kept, operation in ((False, ring.fused_update), (True, ring.all_reduce), (False, ring.reduce_scatter)):
            residuals = np.zeros((nodes, length), np.uint32)
            due = residuals.copy()
            for step in range(2):
                gradients = random_gradients(generator, nodes, length, density=0.8)
                gradients[0, 5], gradients[-1, 500] = ring.bits([np.nan, np.inf])
                options = {"gradient_codec": codec, "residuals": residuals, "segment": segment}
                total = np.zeros(length, np.uint32)
                for index, packets, block in zip(blocks, segments, range(nodes), strict=True):
                    partial = np.zeros(length, np.uint32)
                    for hop in range(nodes):
                        rank = (block + hop) % nodes
                        last = hop == nodes - 1
                        addend = ring.canonical(gradients[rank])
                        if (kept or not last) and name != "raw":
                            addend = floating.add(addend, due[rank])
                        partial = floating.add(partial, addend)
                        if kept or not last:
                            decoded = recoded(codec, packets, partial)
                            due[rank, index] = lost(partial, decoded)[index]
                            partial = decoded
                    total[index] = partial[index]
                if operation is ring.fused_update:
                    update = operation(gradients, weights, [], settings, **options)
                    actual, traffic = update.total, update.traffic
                else:
                    actual, traffic = operation(gradients, **options)
                for rank in range(nodes if operation is ring.reduce_scatter else 0):
                    index = blocks[(rank + 1) % nodes]
                    assert np.array_equal(actual[rank, index], total[index]), f"{step=}"
                assert operation is ring.reduce_scatter or np.array_equal(actual, total), f"{step=}"
                assert np.array_equal(residuals, due), f"{step=}"
                assert np.isfinite(ring.floats(residuals)).all()
                for hop in range(nodes - 1):
                    for rank in range(nodes):
                        words = sum(4 + codec.max_words(len(index)) for index in segments[(rank - hop) % nodes])
                        assert traffic.scatter_words[hop, rank] == words
                        if operation is ring.all_reduce:
                            words = sum(4 + codec.max_words(len(index))
                                        for index in segments[(rank + 1 - hop) % nodes])
                            assert traffic.gather_words[hop, rank] == words

    @pytest.mark.parametrize(("name", "words"), [("raw", 256), ("mx9", 72), ("mx4", 64)])
    def test_dense_bound(self, name, words):
        """With four lanes, any segment takes at least 64 cycles, in any codec."""
        gradients = ring.bits(np.ones((4, 16384)))
        options = {"gradient_codec": GRADIENT_CODECS[name], "residuals": np.zeros_like(gradients)}
        traffic = ring.fused_update(gradients, gradients[0], [], SGD, **options).traffic
        assert traffic.scatter_bound == 3 * 16 * words
        assert traffic.bound == 3 * 16 * (words + 256)
        assert ring.all_reduce(gradients, **options)[1].bound == 2 * 3 * 16 * words

    def test_raw_sums_are_exact(self):
        """Sums of raw gradients equal sums of zero_value gradients."""
        gradients = random_gradients(np.random.default_rng(1), 4, 500, density=0.5)
        raw, _ = ring.all_reduce(gradients, gradient_codec=GRADIENT_CODECS["raw"])
        assert np.array_equal(raw, ring.all_reduce(gradients)[0])

    @pytest.mark.parametrize("residuals", [None, np.zeros((2, 99), np.uint32)])
    def test_residuals_must_be_there(self, residuals):
        gradients = np.zeros((2, 100), np.uint32)
        message = r"^Residuals must be there with a codec that is not exact, one row per rank$"
        with pytest.raises(ValueError, match=message):
            ring.all_reduce(gradients, gradient_codec=GRADIENT_CODECS["mx9"], residuals=residuals)
