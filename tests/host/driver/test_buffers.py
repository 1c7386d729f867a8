# amaranth: UnusedElaboratable=no
"""Test buffers and their allocator, and several vectors in the memories of simulated rings."""

import random

import numpy as np
import pytest

from hdl.config import Memories, NodeConfig, Weights
from hdl.control.protocol import EventStatus, Operation
from host.driver.diagnosis import RingError
from host.driver.masking import Mask, MaskJob
from host.driver.memory import Allocation, Allocator, Buffer, Buffers, place
from host.driver.optimizer_settings import Rule, Settings
from host.training.optimizers import SGD
from sim.golden import masking as golden_masking
from sim.golden import ring as golden
from tests.host import rings
from tests.present import needs
from tests.refusals import refuses

needs("mx")

CONFIG = NodeConfig(
    memories=Memories(gradient=256, weight=320, state=64), weights=Weights(codec="mx9"), gradients="mx9")


class TestBuffer:
    @pytest.mark.parametrize(("options", "message"), [
        (("codebook", 0, 1),
         "Space of a buffer must be one of gradients, weights, state, activations, not 'codebook'"),
        (("weights", 33, 1), "Base of a buffer must be a multiple of 32, not 33: take 64"),
        (("weights", -32, 1), "Base of a buffer must be a multiple of 32, not -32: take 0"),
        (("weights", 32, -1), "Length of a buffer must not be negative, not -1")])
    def test_refused(self, options, message):
        refuses(message, Buffer, *options)

    def test_overlap(self):
        buffer = Buffer("weights", 32, 40)
        assert buffer.end == 72
        assert buffer.overlaps(Buffer("weights", 64, 1))
        assert not buffer.overlaps(Buffer("weights", 96, 1))
        assert not buffer.overlaps(Buffer("gradients", 32, 40))
        assert not buffer.overlaps(Buffer("weights", 64, 0))

    def test_parts(self):
        vector = Buffers(gradients=Buffer("gradients", 64, 9), weights=Buffer("weights", 0, 9))
        assert vector.length == 9
        assert place(vector, "gradients") is vector.gradients
        assert place(vector.weights, "errors") is vector.weights
        assert place(33, "errors") == Buffer("weights", 64, 33)
        for part, where, message in (
                ("state", vector, "Buffers must have one of state: allocate it with the others"),
                ("gradients", vector.weights, "Buffer of gradients must be in gradients, not in weights")):
            refuses(message, place, where, part)
        with pytest.raises(ValueError, match=r"^Buffer of errors must be in weights, not in state$"):
            Buffers(gradients=vector.gradients, weights=vector.weights, errors=Buffer("state", 0, 9))
        with pytest.raises(ValueError, match=r"^Buffers of gradients and weights must have one length, not 9 and 8$"):
            Buffers(gradients=vector.gradients, weights=Buffer("weights", 0, 8))


class TestAllocator:
    def test_room(self):
        """The number of elements that fit in a region is limited by the smallest memory that it uses, such as the
        state or master memory."""
        allocator = Allocator(CONFIG.memory_map)
        assert [allocator.room(space) for space in ("gradients", "weights", "state")] == [256, 320, 64]
        plain = Allocator(NodeConfig(memories=Memories(planes=0)).memory_map)
        refuses("Region must be one of gradients, weights, not 'state'", plain.allocate, "state", 1)

    def test_gaps(self):
        """A buffer is placed in the first gap that is long enough, and freed words are reused."""
        allocator = Allocator(CONFIG.memory_map)
        buffers = [allocator.allocate("weights", length) for length in (33, 1, 32)]
        assert [buffer.base for buffer in buffers] == [0, 64, 96]
        allocator.free(buffers[1])
        assert allocator.allocate("weights", 33).base == 128
        assert allocator.allocate("weights", 32).base == 64
        refuses("Buffer of weights must have at most the 128 words of the largest gap, not 129: free another buffer, "
                "or take nodes with larger memories", allocator.allocate, "weights", 129)
        assert allocator.allocate("weights", 128) == Buffer("weights", 192, 128)

    def test_claims(self):
        allocator = Allocator(CONFIG.memory_map)
        allocator.claim(Buffer("weights", 64, 32))
        refuses("Buffer must not overlap another, not 40 words of weights from 32 on with 32 words of weights from "
                "64 on", allocator.claim, Buffer("weights", 32, 40))
        with pytest.raises(ValueError, match=r"^Buffer of weights must end within the 320 words of a node, not at"):
            allocator.claim(Buffer("weights", 96, 225))
        with pytest.raises(ValueError, match=r"^Buffer to free must be one that is reserved, not 1 words of we"):
            allocator.free(Buffer("weights", 64, 1))

    @pytest.mark.parametrize("seed", range(3))
    def test_never_overlap(self, seed):
        """Buffers never overlap or exceed their memory, and allocation fails only if there is no room."""
        generator = random.Random(seed)
        allocator, taken = Allocator(CONFIG.memory_map), {space: {} for space in ("gradients", "weights", "state")}
        for _ in range(300):
            space = generator.choice(list(taken))
            words = allocator.room(space)
            used = taken[space]
            if used and generator.random() < 0.4:
                buffer = generator.choice(list(used))
                allocator.free(buffer)
                del used[buffer]
                continue
            length = generator.randrange(1, 100)
            busy = {word for buffer in used for word in range(buffer.base, buffer.end)}
            possible = any(base + length <= words and busy.isdisjoint(range(base, base + length))
                           for base in range(0, words, 32))
            try:
                buffer = allocator.allocate(space, length)
            except ValueError:
                assert not possible, f"{seed=}"
                continue
            assert buffer.base % 32 == 0
            assert buffer.end <= words
            assert busy.isdisjoint(range(buffer.base, buffer.end)), f"{seed=}"
            used[buffer] = True

    def test_whole_vectors(self):
        """Master weights take one word per owned element, packed state half a word; a failed request reserves
        nothing."""
        allocator = Allocator(CONFIG.memory_map)
        first = Allocation(length=50, planes=1, packed_state=True).place(allocator, CONFIG, nodes=2)
        assert first.state == Buffer("state", 0, 32)
        second = Allocation(length=50, errors=True).place(allocator, CONFIG, nodes=2)
        assert (second.state.base, second.errors) == (32, Buffer("weights", 128, 50))
        before = allocator.buffers
        with pytest.raises(ValueError, match=r"^Buffer of state must have at most the 0 words of the largest gap, "):
            Allocation(length=50).place(allocator, CONFIG, nodes=2)
        assert allocator.buffers == before
        plain = NodeConfig(memories=Memories(state=64))
        allocation = Allocation(length=100, planes=1, packed_state=True)
        vector = allocation.place(Allocator(plain.memory_map), plain, nodes=2)
        assert vector.state.length == 32


def test_two_vectors_train_in_one_memory():
    """Two models that are trained alternately in the same memory get the same results as separately. Sums may be
    queued."""
    config = rings.CONFIGS["default"]
    generator = np.random.default_rng(11)
    optimizer = SGD(learning_rate=0.1, momentum=0.9)
    with rings.open_nodes(2, config=config) as (ring, _):
        lengths = 700, 333
        vectors = [ring.memory.allocate(Allocation(length=length, planes=1, packed_state=packed, errors=True))
                   for length, packed in zip(lengths, (False, True), strict=True)]
        assert all(buffer.base for buffer in (vectors[1].gradients, vectors[1].weights, vectors[1].state))
        models = []
        for vector in vectors:
            weights = rings.random(generator, vector.length)
            ring.collectives.distribute(weights, vector)
            models.append(rings.Reference(ring, weights, planes=1))
        for vector, packed in zip(vectors, (False, True), strict=True):
            ring.memory.clear_state(vector, packed_state=packed)
        for step in (1, 2):
            for vector, model, packed in zip(vectors, models, (False, True), strict=True):
                values = optimizer.settings(step, gradient_scale=0.25)
                settings = Settings(**{**vars(values), "packed_state": packed})
                gradients = rings.random(generator, (2, vector.length), density=0.6)
                ring.settings.write(settings)
                ring.memory.write_gradients(list(gradients), vector)
                ring.collectives.fused_update(vector)
                model.step(gradients, settings)
        for vector, model, packed in zip(vectors, models, (False, True), strict=True):
            assert (ring.memory.read_weights(vector).view(np.uint32) == model.weights).all()
            assert (ring.memory.read_state(vector, packed_state=packed).view(np.uint32) == model.state[0]).all()

        # Queue more sums than a node's queue can hold, alternating between the two vectors.
        gradients = [rings.random(generator, (2, vector.length), density=0.6) for vector in vectors]
        for vector, values in zip(vectors, gradients, strict=True):
            ring.memory.write_gradients(list(values), vector)
        pending = [ring.collectives.submit(Operation.ALL_REDUCE, vector) for vector in (*vectors, *vectors) * 3]
        outcomes = ring.commands.wait()
        assert all(command.collected for command in pending)
        assert outcomes == [command.result() for command in pending[-len(outcomes):]]
        for vector, values in zip(vectors, gradients, strict=True):
            expected = golden.bits(values)
            for _ in range(6):
                expected = np.broadcast_to(golden.all_reduce(expected)[0], expected.shape)
            assert (ring.memory.read_gradients(vector).view(np.uint32) == expected).all()

        # Sparsify the second vector with its own errors; the start of the memories must not change.
        bound = np.float32(0.5)
        ring.memory.clear_errors(vectors[1])
        ring.memory.write_gradients(list(gradients[1]), vectors[1])
        outcome = ring.local.sparsify(vectors[1], threshold=float(bound))
        zeros = np.zeros(gradients[1].shape, np.uint32)
        kept, errors = golden_masking.sparsify(golden.bits(gradients[1]), zeros, int(bound.view(np.uint32)))
        assert (ring.memory.read_gradients(vectors[1]).view(np.uint32) == kept).all()
        assert (ring.memory.read_errors(vectors[1]).view(np.uint32) == errors).all()
        assert outcome.dropped == [int((row == 0).sum()) for row in kept]

        # Mask a buffer, using lists stored after all weights. The weights and gradients before the buffer must not
        # change.
        data, lists = ring.memory.allocator.allocate("gradients", 96), ring.memory.allocator.allocate("weights", 64)
        matrices = rings.random(generator, (2, 5, 6))
        masked = ring.local.mask([[MaskJob(matrices=matrices, mask=Mask(triangle=True))]] * 2, alternative=-1.0,
                                 data=data, lists=lists)
        expected = np.where(np.arange(6) <= np.arange(5)[:, None], matrices, np.float32(-1))
        assert all((results[0] == expected).all() for results in masked.results)
        assert (ring.memory.read_gradients(vectors[1]).view(np.uint32) == kept).all()
        for vector, model in zip(vectors, models, strict=True):
            assert (ring.memory.read_weights(vector).view(np.uint32) == model.weights).all()


def test_masters_and_residuals_lie_with_their_vector():
    """With codecs in both directions, master weights and residuals of a second vector are stored at its own base
    addresses, and the first vector's do not change."""
    generator = np.random.default_rng(12)
    with rings.open_nodes(2, config=rings.CONFIGS["mx9"]) as (ring, _):
        vectors = [ring.memory.allocate(Allocation(length=length, planes=2)) for length in (300, 500)]
        models = []
        for vector in vectors:
            weights = rings.random(generator, vector.length)
            ring.collectives.distribute(weights, vector)
            models.append(rings.Reference(ring, weights, planes=1))
        settings = SGD(learning_rate=0.1, momentum=0.9).settings(1, gradient_scale=0.25)
        ring.settings.write(settings)
        for vector in vectors:
            ring.memory.clear_state(vector)
        for turn in (1, 0, 1):
            gradients = rings.random(generator, (2, vectors[turn].length), density=0.6)
            ring.memory.write_gradients(list(gradients), vectors[turn])
            ring.collectives.fused_update(vectors[turn])
            models[turn].step(gradients, settings)
            for vector, model in zip(vectors, models, strict=True):
                assert (ring.memory.read_weights(vector).view(np.uint32) == model.weights).all(), turn
                assert (ring.memory.read_master(vector).view(np.uint32) == model.master).all(), turn
                assert (ring.memory.read_residual(vector).view(np.uint32) == model.residuals).all(), turn
                assert (ring.memory.read_state(vector).view(np.uint32) == model.state[0]).all(), turn
        assert all(model.residuals.any() for model in models)


def test_what_buffers_lack():
    config = rings.CONFIGS["default"]
    with rings.open_nodes(2, config=config) as (ring, _):
        plain = ring.memory.allocate(Allocation(length=64))
        ring.settings.write(Settings(rule=Rule.MOMENTUM, gradient_scale=1.0, learning_rate=0.5))
        refuses("Buffers must have one of state: allocate it with the others", ring.collectives.fused_update, plain)
        short = Buffers(gradients=plain.gradients, weights=plain.weights, state=Buffer("state", 0, 31))
        with pytest.raises(ValueError, match=r"^State of a block must take at most the 31 words of its buffer"):
            ring.collectives.fused_update(short)
        with pytest.raises(ValueError, match=r"^Vector must have at most the 64 elements of its buffer, not 65$"):
            ring.memory.write_gradients([np.zeros(65, np.float32)] * 2, plain)
        with pytest.raises(ValueError, match=r"^Block must have at most the 31 words of its buffer, not 32$"):
            ring.memory.write_state(np.zeros(64, np.float32), 0, short)
        with pytest.raises(ValueError, match=r"^Operation to submit must be one of FUSED_UPDATE, ALL_REDUCE,"):
            ring.collectives.submit(Operation.MASK, 64)


def test_a_failure_among_queued_commands():
    """A rejected command reports its error, and does not affect other commands or the ring."""
    config = rings.CONFIGS["default"]
    with rings.open_nodes(2, config=config) as (ring, _):
        ring.memory.write_gradients([np.ones(64, np.float32)] * 2)
        good, bad, last = (ring.collectives.submit(Operation.ALL_REDUCE, where) for where in (
            64, Buffer("gradients", config.memories.gradient - 32, 64), 64))
        with pytest.raises(RingError, match=r"^all-reduce failed: node 0: .* BAD_LENGTH: the length exceeds the 32 "):
            ring.commands.wait()
        assert good.result().cycles == last.result().cycles
        assert [event.status for event in bad.events.values()] == [EventStatus.BAD_LENGTH] * 2
        assert (ring.memory.read_gradients(64) == 4).all()
        pending = ring.collectives.submit(Operation.ALL_REDUCE, 64)
        ring.recover()
        with pytest.raises(RingError, match=r"^all-reduce failed: the ring was recovered before it had"):
            pending.result()
        ring.collectives.all_reduce(64)
