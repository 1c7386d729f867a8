"""Golden model of the compute engine: results of known lists, and rejection of invalid lists."""

import numpy as np
import pytest

from hdl.control.protocol import EventStatus
from hdl.features.compute.layer_list import (
    BASE_BITS,
    INSTRUCTION_WORDS,
    MAX_INSTRUCTIONS,
    Initial,
    Kind,
    Place,
    VectorProgram,
    centroid_layout,
    gemm_layout,
    vector_layout,
)
from hdl.features.compute.operands import OPERANDS
from sim.golden import summation
from sim.golden.features.codebook_layers import centroid_product
from sim.golden.features.compute.compute import Engine, Outcome, pack, unpack
from tests.features.compute.lists import at

ENGINE = Engine(rows=4, lanes=4)
LIST = 512  # address of the instruction list in activation memory
WORDS = 1024


def product(**changes):
    """Instruction that multiplies the 3 x 8 matrix at 0 by 8 x 5 weights, adds a bias, and writes to 64."""
    return pack(gemm_layout(), {
        "kind": Kind.GEMM, "m": 3, "k": 8, "n": 5, "initial": Initial.MATRIX, "rounds": 2,
        "a": at(Place.ACTIVATIONS, 0), "stride_a": 8, "b": at(Place.WEIGHTS, 0), "stride_b": 8,
        "c": at(Place.ACTIVATIONS, 64), "stride_c": 8, "start": at(Place.WEIGHTS, 96), **changes})


def loss(**changes):
    """Instruction for the cross-entropy of the 3 x 5 scores at 64, with labels starting at 201."""
    return pack(vector_layout(), {
        "kind": Kind.VECTOR, "function": VectorProgram.CROSS_ENTROPY, "rows": 3, "columns": 5,
        "source": at(Place.ACTIVATIONS, 64), "stride_source": 8, "labels": at(Place.ACTIVATIONS, 201),
        "stride_labels": 1, "target": at(Place.ACTIVATIONS, 96), "stride_target": 8,
        "loss": at(Place.ACTIVATIONS, 207), **changes})


END = np.zeros(INSTRUCTION_WORDS, np.uint32)


@pytest.fixture
def memories():
    generator = np.random.default_rng(1)
    arrays = {space: generator.standard_normal(WORDS).astype(np.float32).view(np.uint32)
              for space in (Place.GRADIENTS, Place.WEIGHTS, Place.ACTIVATIONS)}
    arrays[Place.ACTIVATIONS][201:204] = [4, 0, 2]
    return arrays


def run(memories, *instructions, base=LIST, length=3, offset=0, engine=ENGINE):
    """Run a list and return its outcome, checking that only the instructions' targets change."""
    words = np.concatenate(instructions)
    memories[Place.ACTIVATIONS][base:base + len(words)] = words
    return engine.run(memories, base=base, length=length, offset=offset)


def matrix(memories, space, base, rows, columns, stride):
    index = base + stride * np.arange(rows)[:, None] + np.arange(columns)
    return memories[space][index].view(np.float32)


def same(actual, expected):
    return actual.astype(np.float32).tobytes() == expected.astype(np.float32).tobytes()


def copied(memories):
    return {space: memory.copy() for space, memory in memories.items()}


def changed(memories, before):
    return {space: np.flatnonzero(memory != before[space]).tolist() for space, memory in memories.items()
            if (memory != before[space]).any()}


def test_fields_of_instructions():
    words = product(scale=0x1234)
    assert words.dtype == np.uint32
    assert len(words) == INSTRUCTION_WORDS
    fields = unpack(gemm_layout(), words)
    assert (fields["m"], fields["c"], fields["scale"]) == (3, {"base": 64, "owner": 0, "place": 2, "relative": 0},
                                                     0x1234)


class TestCentroids:
    ENGINE = Engine(rows=4, lanes=4, centroids=16)

    def instruction(self, memories, indices, **changes):
        """Centroid layer of 9 inputs and 6 outputs; 3 examples at 0, table at 16, biases at 0, results at 64."""
        lines = centroid_product.pack_indices(indices, 4)
        memories[Place.WEIGHTS][64:64 + lines.size] = lines.ravel()
        return pack(centroid_layout(), {
            "kind": Kind.CENTROID, "columns": 9, "outputs": 6, "initial": 1, "x": at(Place.ACTIVATIONS, 0),
            "stride_x": 12, "indices": at(Place.WEIGHTS, 64), "stride_indices": 8, "table": at(Place.WEIGHTS, 16),
            "start": at(Place.WEIGHTS, 0), "target": at(Place.ACTIVATIONS, 64), "stride_target": 8, **changes})

    def test_product(self, memories):
        indices = np.random.default_rng(2).integers(0, 16, (6, 9))
        x = matrix(memories, Place.ACTIVATIONS, 0, 3, 9, 12)
        table, bias = (matrix(memories, Place.WEIGHTS, base, 1, count, 0)[0] for base, count in ((16, 16), (0, 6)))
        words = self.instruction(memories, indices, relu=1)
        # One instruction; each of two output groups with eight examples takes 16 multiplications per lane.
        assert run(memories, words, END, engine=self.ENGINE) == Outcome(EventStatus.OK, (16 * 2 * 8) << 8 | 1)
        total = centroid_product.product(indices, table, x, bias)
        assert (total < 0).any()
        assert same(matrix(memories, Place.ACTIVATIONS, 64, 3, 6, 8), np.where(total <= 0, 0, total))

    def test_gradient(self, memories):
        indices = np.random.default_rng(3).integers(0, 16, (6, 9))
        x, upstream = (matrix(memories, Place.ACTIVATIONS, base, 3, *size) for base, size in ((0, (9, 12)),
                                                                                             (128, (6, 8))))
        words = self.instruction(memories, indices, gradient=1, initial=0, start=at(Place.ACTIVATIONS, 128),
                                 stride_start=8, target=at(Place.GRADIENTS, 4), stride_target=3)
        before = copied(memories)
        assert run(memories, words, END, engine=self.ENGINE) == Outcome(EventStatus.OK, (16 * 2 * 8) << 8 | 1)
        assert same(matrix(memories, Place.GRADIENTS, 4, 1, 16, 0)[0],
                    centroid_product.gradient(indices, x, upstream, 16, lanes=4))
        assert changed(memories, before)[Place.GRADIENTS] == list(range(4, 20))

    def test_an_engine_without(self, memories):
        words = self.instruction(memories, np.zeros((6, 9), np.int64))
        assert run(memories, words, END) == Outcome(EventStatus.BAD_INSTRUCTION, 0)


class TestProducts:
    @pytest.mark.parametrize(("transpose_a", "transpose_b"), [(0, 0), (0, 1), (1, 0), (1, 1)])
    def test_transposes(self, memories, transpose_a, transpose_b):
        a = matrix(memories, Place.ACTIVATIONS, 0, *((8, 3, 4) if transpose_a else (3, 8, 8)))
        b = matrix(memories, Place.WEIGHTS, 0, *((5, 8, 8) if transpose_b else (8, 5, 8)))
        start = matrix(memories, Place.WEIGHTS, 96, 3, 5, 0)
        before = copied(memories)
        outcome = run(memories, product(transpose_a=transpose_a, transpose_b=transpose_b,
                                        stride_a=4 if transpose_a else 8), END)
        assert outcome == Outcome(EventStatus.OK, 1)
        actual = matrix(memories, Place.ACTIVATIONS, 64, 3, 5, 8)
        assert same(actual, summation.product(a.T if transpose_a else a, b.T if transpose_b else b, start))
        memories[Place.ACTIVATIONS][LIST:] = before[Place.ACTIVATIONS][LIST:]
        assert set(changed(memories, before)[Place.ACTIVATIONS]) <= {
            64 + 8 * row + column for row in range(3) for column in range(5)}

    def test_epilogues(self, memories):
        """ReLU passes NaNs, and a gate passes elements where the gate matrix is positive."""
        memories[Place.ACTIVATIONS][:8] = np.full(8, np.nan, np.float32).view(np.uint32)
        plain = copied(memories)
        run(plain, product(), END)
        total = matrix(plain, Place.ACTIVATIONS, 64, 3, 5, 8)
        assert (total < 0).any()
        assert run(memories, product(relu=1), END).status is EventStatus.OK
        assert same(matrix(memories, Place.ACTIVATIONS, 64, 3, 5, 8), np.where(total <= 0, 0, total))
        gate = matrix(memories, Place.GRADIENTS, 32, 3, 5, 8)
        assert 0 < (gate > 0).sum() < 15
        assert run(memories, product(gated=1, gate=at(Place.GRADIENTS, 32), stride_gate=8),
                   END).status is EventStatus.OK
        assert same(matrix(memories, Place.ACTIVATIONS, 64, 3, 5, 8), np.where(gate > 0, total, 0))

    def test_sums_of_columns(self, memories):
        """Column sums are a product with the operand ONES; a k of zero stands for the length in the command."""
        x = matrix(memories, Place.ACTIVATIONS, 0, 7, 5, 8)
        assert run(memories, product(m=1, k=0, initial=0, a=at(Place.ONES, 3), stride_a=1,
                                     b=at(Place.ACTIVATIONS, 0), c=at(Place.GRADIENTS, 4)), END,
                   length=7) == Outcome(EventStatus.OK, 1)
        assert same(matrix(memories, Place.GRADIENTS, 4, 1, 5, 8)[0], summation.column_sums(x))

    def test_one_sum_in_two_products(self, memories):
        whole = copied(memories)
        run(whole, product(), END)
        half = {"k": 4, "start": at(Place.ACTIVATIONS, 64), "stride_start": 8, "a": at(Place.ACTIVATIONS, 4),
                "b": at(Place.WEIGHTS, 32)}
        assert run(memories, product(k=4), product(**half), END) == Outcome(EventStatus.OK, 2)
        assert same(matrix(memories, Place.ACTIVATIONS, 64, 3, 5, 8), matrix(whole, Place.ACTIVATIONS, 64, 3, 5, 8))

    def test_known_answers(self, memories):
        """Sums are taken in order of k: 1e8 + 1 - 1e8 is 0, 1e8 - 1e8 + 1 is 1; products of -0.0 are +0.0."""
        rows = np.array([[1e8, 1, -1e8, 0], [1e8, -1e8, 1, 0], [-0.0] * 4], np.float32)
        memories[Place.ACTIVATIONS][:12] = rows.ravel().view(np.uint32)
        run(memories, product(k=4, n=1, stride_a=4, initial=0, b=at(Place.ONES, 0)), END)
        assert matrix(memories, Place.ACTIVATIONS, 64, 3, 1, 8).view(np.uint32).ravel().tolist() == [
            0, 0x3F80_0000, 0]

    def test_relative_operands(self, memories):
        other = copied(memories)
        run(other, product(a=at(Place.ACTIVATIONS, 32)), END)
        assert run(memories, product(a=at(Place.ACTIVATIONS, 0, relative=1)), END, offset=32).status is EventStatus.OK
        assert all((memories[space] == other[space])[:LIST].all() for space in memories)


class TestCrossEntropy:
    def test_behind_a_product(self, memories):
        assert run(memories, product(), loss(rows=0), END) == Outcome(EventStatus.OK, 2)
        scores = matrix(memories, Place.ACTIVATIONS, 64, 3, 5, 8)
        expected, gradient = summation.cross_entropy(scores, np.array([4, 0, 2]))
        assert same(matrix(memories, Place.ACTIVATIONS, 96, 3, 5, 8), gradient)
        assert memories[Place.ACTIVATIONS][207] == expected.view(np.uint32)

    def test_wrong_label(self, memories):
        """A row with an out-of-range label keeps its softmax and adds no loss; other rows are unaffected."""
        memories[Place.ACTIVATIONS][202] = 5
        assert run(memories, product(), loss(), product(c=at(Place.GRADIENTS, 0)), END) == Outcome(
            EventStatus.BAD_INSTRUCTION, 1)
        scores = matrix(memories, Place.ACTIVATIONS, 64, 3, 5, 8)
        actual = matrix(memories, Place.ACTIVATIONS, 96, 3, 5, 8)
        powers = summation.exp(scores - summation.maxima(scores))
        weights = powers / summation.row_sums(powers)
        assert same(actual[1], weights[1])
        weights[[0, 2], [4, 2]] -= np.float32(1)
        assert same(actual, weights)
        expected, _ = summation.cross_entropy(scores[[0, 2]], np.array([4, 2]))
        assert memories[Place.ACTIVATIONS][207] == expected.view(np.uint32)


class TestRefusals:
    def test_nothing_is_written(self, memories):
        """An invalid instruction, even after valid ones, ends the command before any instruction runs."""
        listed = np.concatenate([product(), loss(function=1), END])
        memories[Place.ACTIVATIONS][LIST:LIST + len(listed)] = listed
        before = copied(memories)
        assert ENGINE.run(memories, base=LIST, length=3, offset=4) == Outcome(EventStatus.BAD_INSTRUCTION, 1)
        assert changed(memories, before) == {}

    def test_no_end(self, memories):
        several = [product(c=at(Place.GRADIENTS, 0))] * MAX_INSTRUCTIONS
        memories = {**memories, Place.ACTIVATIONS: np.tile(memories[Place.ACTIVATIONS], 2)}
        assert run(memories, *several, END) == Outcome(EventStatus.BAD_INSTRUCTION, MAX_INSTRUCTIONS)
        assert run(memories, *several[1:], END) == Outcome(EventStatus.OK, MAX_INSTRUCTIONS - 1)
        assert run(memories, several[0], several[0], base=2 * WORDS - 32) == Outcome(EventStatus.BAD_INSTRUCTION, 2)

    def test_no_examples(self, memories):
        assert run(memories, END, length=0) == Outcome(EventStatus.BAD_LENGTH, 1)
        assert run(memories, END) == Outcome(EventStatus.OK, 0)

    def test_length_of_the_command(self, memories):
        assert run(memories, product(m=0), END, length=56) == Outcome(EventStatus.BAD_INSTRUCTION, 0)
        assert run(memories, product(m=0, c=at(Place.GRADIENTS, 0)), END, length=5000) == Outcome(
            EventStatus.BAD_INSTRUCTION, 0)
        assert run(memories, product(m=0, c=at(Place.GRADIENTS, 0)), END, length=56) == Outcome(EventStatus.OK, 1)

    def test_lowest_target_over_the_list(self, memories):
        low, high = (product(c=at(Place.ACTIVATIONS, LIST + base)) for base in (-4, 8))
        assert run(memories, high, low, low, END) == Outcome(EventStatus.BAD_INSTRUCTION, 1)

    def test_fields_without_use(self, memories):
        """Unused instruction fields may hold any value."""
        wild = {"base": (1 << BASE_BITS) - 1, "owner": 255, "place": 7, "relative": 1}
        assert run(memories, product(initial=0, start=wild, stride_start=3, gate=wild, stride_gate=5, scale=9,
                                     a={**wild, "place": Place.ONES}, stride_a=1), END).status is EventStatus.OK

    def test_panels_depend_on_the_array(self, memories):
        words = product(rounds=5, tile=3)
        assert run(memories, words, END, engine=Engine(rows=1, lanes=4)).status is EventStatus.OK
        assert run(memories, words, END, engine=Engine(rows=4, lanes=4, blocks=32)) == Outcome(
            EventStatus.BAD_INSTRUCTION, 0)

    @pytest.mark.parametrize("operands", OPERANDS)
    def test_panels_hold_whole_blocks(self, memories, operands):
        """In every format, a list is rejected if panels of several tiles would split operand blocks."""
        engine = Engine(rows=4, lanes=4, operands=operands)
        many = {"m": 5, "k": 40, "n": 3, "initial": 0, "format": OPERANDS[operands].code, "row_tiles": 1,
                "stride_a": 40, "c": at(Place.GRADIENTS, 0)}
        for rounds in range(2, 7):
            parts = 1 << rounds < OPERANDS[operands].terms
            assert run(memories, product(**many, rounds=rounds), END, engine=engine).status is (
                EventStatus.BAD_INSTRUCTION if parts else EventStatus.OK)
            assert run(memories, product(**many | {"row_tiles": 0}, rounds=rounds), END,
                       engine=engine).status is EventStatus.OK
