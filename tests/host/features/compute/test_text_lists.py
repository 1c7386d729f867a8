"""Lists of the text model: the golden engine's activations, losses and gradients equal the host's."""

import collections
import dataclasses
import itertools

import numpy as np
import pytest

from hdl.control.protocol import EventStatus
from hdl.features.compute.layer_list import PADDING, Place, RowFunction
from host.features.compute.instructions import Array
from host.features.compute.memory.checker import dead_reads, overlaps
from host.features.compute.memory.plan import peak, planned, rooms_of
from host.features.compute.text_lists import ListCycles, compile_text, engine_of
from host.features.compute.text_steps import text_program
from host.models.text import collate, encode
from host.models.transformer import Transformer, TransformerConfig
from sim.golden.features.compute.compute import Gemm
from sim.golden.features.compute.row_instruction import Rows
from tests.refusals import refuses

WORDS = 32_768
NAN = 0x7FC0_0001
ARRAY = Array(rows=4, lanes=4)
TEXT = TransformerConfig()
#: A model of two layers with split lists, heads of four elements, and a context that is no multiple of the lanes.
SMALL = TransformerConfig(width=16, heads=4, layers=2, hidden=12, context=6, characters=8)


def model_of(config, seed):
    model = Transformer(config)
    model.initialize(seed)
    model.parameters += np.random.default_rng(seed).standard_normal(model.size).astype(np.float32) / 8
    return model


def sequences_of(config, lengths):
    generator = np.random.default_rng(sum(lengths))
    return [generator.integers(0, config.characters, length + 1) for length in lengths]


def memories_of(model, lists, sequences):
    """Memories holding parameters, lists and sequences; words to be written are initially NaN."""
    memories = {Place.ACTIVATIONS: np.full(WORDS, NAN, np.uint32), Place.WEIGHTS: model.parameters.view(np.uint32),
                Place.GRADIENTS: np.full(model.size, NAN, np.uint32)}
    activations = memories[Place.ACTIVATIONS]
    activations[lists.base:lists.end] = lists.words
    for number, sequence in enumerate([*sequences, *[np.zeros(1, np.int64)] * (-len(sequences) % lists.together)]):
        tokens = np.array([0, PADDING], np.uint32).repeat(lists.context)
        tokens[:len(sequence) - 1] = sequence[:-1]
        tokens[lists.context:lists.context + len(sequence) - 1] = sequence[1:]
        base = lists.data + number * lists.stride
        activations[base:base + len(tokens)] = tokens
    return memories


def run(memories, lists, array, count):
    engine = engine_of(array)
    for number in range(0, count, lists.together):
        for base in (*lists.forward, *(lists.further if number else lists.first)):
            outcome = engine.run(memories, base=base, length=lists.context, offset=number * lists.stride)
            assert outcome.status is EventStatus.OK, outcome
    places = lists.data + lists.stride * np.arange(count) + 2 * lists.context
    return memories[Place.ACTIVATIONS][places].view(np.float32)


@pytest.mark.parametrize(("config", "array", "lengths", "again", "together"), [
    (TEXT, ARRAY, (16, 11, 1, 16), False, 1), (TEXT, ARRAY, (5, 16), True, 1),
    (TEXT, Array(rows=1, lanes=8), (16, 3), False, 1), (TEXT, ARRAY, (16, 11, 1, 16), False, 2),
    (SMALL, Array(rows=2, lanes=4), (6, 1, 5), False, 1), (SMALL, ARRAY, (6, 2), True, 1),
    (SMALL, Array(rows=2, lanes=4), (4, 6, 5), False, 2), (SMALL, ARRAY, (6, 2, 3, 6, 6, 1), True, 3),
], ids=str)
def test_are_the_model(config, array, lengths, again, together):
    """Losses and all gradients match the model bit for bit, and nothing except buffers is written. Sequences give the
    same bits one by one and in groups, even in a group completed by padding."""
    lists = compile_text(config, array=array, sequences=len(lengths), words=WORDS, scaled_again=again,
                         together=together)
    for seed in range(2):
        model, sequences = model_of(config, seed), sequences_of(config, lengths)
        memories = memories_of(model, lists, sequences)
        before = memories[Place.ACTIVATIONS].copy()
        losses = run(memories, lists, array, len(lengths))
        loss, gradient = model.differentiate(collate(sequences))
        assert float(sum(losses, np.float32(0))) == loss
        np.testing.assert_array_equal(memories[Place.GRADIENTS], gradient.view(np.uint32))
        written = np.flatnonzero(memories[Place.ACTIVATIONS] != before)
        beside = written[written >= lists.plan.peak]
        assert beside.tolist() == [lists.data + number * lists.stride + 2 * lists.context
                                   for number in range(len(lengths))]  # the loss of padding is zero


def instructions_of(lists, bases, length=16):
    """For each list, its checked instructions and its number of words, including the END instruction."""
    memories = {space: np.broadcast_to(np.uint32(0), 1 << 20) for space in (Place.WEIGHTS, Place.GRADIENTS)}
    memories[Place.ACTIVATIONS] = np.concatenate([np.zeros(lists.base, np.uint32), lists.words])
    for base in bases:
        instructions, wrong = engine_of(ARRAY).check(memories, base=base, length=length)
        assert wrong is None
        yield instructions, memories[Place.ACTIVATIONS][base:base + 16 * (len(instructions) + 1)].reshape(-1, 16)


@pytest.mark.parametrize("length", [16, 7])
def test_activations(length):
    """Each written buffer is bit-identical to the result of the step program, even in its padding rows."""
    lists = compile_text(TEXT, array=ARRAY, sequences=1, words=WORDS)
    model, (sequence,) = model_of(TEXT, 5), sequences_of(TEXT, [length])
    memories = memories_of(model, lists, [sequence])
    rooms, saved = rooms_of(lists.plan), {}
    _, *operations, _ = lists.programs[0].profile(rooms, engine_of(ARRAY)).operations
    instructions = [item for saved, _ in instructions_of(lists, (*lists.forward, *lists.first)) for item in saved]
    clear = next(item for item in instructions if isinstance(item, Rows) and item.function is RowFunction.CLEAR)
    clear.run(memories)
    instructions.remove(clear)  # it is the only instruction without a buffer
    for instruction, operation in zip(instructions, operations, strict=True):
        assert instruction.run(memories)
        for name in operation.writes:
            room = rooms[name]
            saved[name] = memories[Place.ACTIVATIONS][room.base:room.base + room.words].copy()
    gradient = np.zeros(model.size, np.float32)
    program = text_program(TEXT, parameters=model.parameters, gradient=gradient, length=length)
    program = dataclasses.replace(program, taken=[name for name in program.shapes if name not in program.given])
    words = program.profile.words
    data = np.zeros((2, TEXT.context, 1), np.int64)
    data[0, :length, 0], data[1, :length, 0] = sequence[:-1], sequence[1:]
    expected = program.run(dict(zip(words, itertools.accumulate(words.values(), initial=0), strict=False)),
                           dict(zip(program.given, data, strict=True)))
    for name in lists.plan.words:
        if not name.startswith("products"):  # these are separate steps in the step program
            other = expected[{"d x 2": "d norm"}.get(name, name)]
            bits = saved[name][:other.size].reshape(other.shape)
            np.testing.assert_array_equal(bits, other.view(np.uint32), err_msg=name)
    np.testing.assert_array_equal(memories[Place.GRADIENTS], gradient.view(np.uint32))


@pytest.mark.parametrize(("again", "together", "naive", "strict", "live"), [
    (False, 1, 21_600, 11_808, 9_312), (True, 1, 23_136, 12_352, 7_776), (False, 2, 43_104, 23_584, 18_528)])
def test_words(again, together, naive, strict, live):
    """The buffers of a group of sequences take the expected number of words. With sharing, this is the number of
    words that are live at once."""
    lists = compile_text(TEXT, array=ARRAY, sequences=4, words=WORDS, scaled_again=again, together=together)
    profiles = [program.profile(rooms_of(lists.plan), engine_of(ARRAY)) for program in lists.programs]
    assert {profile.digest for profile in profiles} == {lists.plan.digest}
    buffers = profiles[0].lifetimes
    peaks = {method: peak(buffers, places) for method, places in planned(buffers, rounds=0).items()}
    assert (profiles[0].naive, peaks["strict"], peaks["shared"], lists.plan.peak) == (naive, strict, live, live)
    assert profiles[0].live == live
    assert not overlaps(profiles[0], lists.plan.places)
    assert not dead_reads(profiles[0], lists.plan.places)


def test_multiplications():
    """The number of multiplications for a sequence of length 16 matches the step program."""
    lists = compile_text(TEXT, array=ARRAY, sequences=1, words=WORDS)
    products = [gemm for instructions, _ in instructions_of(lists, (*lists.forward, *lists.first))
                for gemm in instructions if isinstance(gemm, Gemm) and gemm.a.place is not Place.ONES]
    assert len(products) == 27
    assert sum(gemm.job.m * gemm.job.n * gemm.job.k for gemm in products) == lists.multiplications == 638_976


def cycles_of(lists, bases):
    """Modelled cycles of a text's lists, by unit. Some characters of the text repeat. Column sums are counted
    separately from other products."""
    model = ListCycles(ARRAY, length=16, words=WORDS, characters=encode("the first of all"))
    cycles = collections.Counter()
    for instructions, words in instructions_of(lists, bases):
        cycles["lists"] += model.walks(words)
        for instruction in instructions:
            unit, taken = model.instruction(instruction)
            cycles[unit] += taken
    return cycles


@pytest.mark.parametrize(("together", "first", "further"), [
    (1, (42_950, 67_500), (46_032, 70_000)), (2, (84_278, 127_500), (87_360, 130_000))])
def test_cycles(together, first, further):
    """Modelled cycles of the first and further sequences of length 16 in a share, on 4 x 4 units. In pairs, each
    takes less than 66,000 cycles, and the units are busy for 85 % of the cycles of products and column sums."""
    lists = compile_text(TEXT, array=ARRAY, sequences=4, words=WORDS, together=together)
    forward = cycles_of(lists, lists.forward)
    for backward, (products, most) in ((lists.first, first), (lists.further, further)):
        cycles = forward + cycles_of(lists, backward)
        assert cycles["products"] == products
        assert together * lists.multiplications > 0.85 * 16 * (products + cycles["sums"] * (together > 1))
        assert most - 1000 < cycles.total() < most


class TestRefused:
    @pytest.mark.parametrize(("options", "message"), [
        ({"heads": 16}, "Width of a head must be a multiple of the 4 lanes of nodes that compute, not 2"),
        ({"hidden": 98}, "Hidden width must be a multiple of the 4 lanes of nodes that compute, not 98"),
        ({"characters": 63}, "Characters must be a multiple of the 4 lanes of nodes that compute, not 63"),
        ({"characters": 68}, "Characters must be at most 64 on nodes that compute, not 68"),
        ({"width": 128}, "Width must be at most 64 on nodes that compute, not 128"),
        ({"context": 65}, "Context must be at most 64 on nodes that compute, not 65")], ids=str)
    def test_sizes(self, options, message):
        refuses(message, compile_text, TransformerConfig(**options), array=ARRAY, sequences=1, words=WORDS)

    def test_no_room(self):
        refuses("90 sequences of nodes that compute need 16,448 elements of the activation memory, with lists, which "
                "has 16,384: take smaller batches", compile_text, TEXT, array=ARRAY, sequences=90, words=16_384)
