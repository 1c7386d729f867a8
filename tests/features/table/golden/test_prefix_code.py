import itertools

import numpy as np
import pytest

from sim.golden.features.table.prefix_code import Code, PrefixCode, code_lengths
from tests.refusals import refuses

FOUR = Code(tuple(range(120, 135)), (4,) * 16)


def test_four_bits_by_hand():
    """Exponent 127 of 1.0 is the eighth symbol, with code 0111; the code's highest bit is sent first."""
    words = PrefixCode().encode([0x3F80, 0xBFC0], FOUR)
    assert words[:4].tolist() == [0x7B7A_7978, 0x7F7E_7D7C, 0x8382_8180, 0x0086_8584]
    assert words[4:6].tolist() == [0x4444_4444] * 2
    # 1.0 is fraction 0, sign 0, code 0111. -1.5 is fraction 0.5, sign 1, code 0111. Then come zeros, 1111, and 120.
    bits = "00000000" "0111" "00000011" "0111" "00000000" "1111" "00011110"
    assert words[6:].tolist() == [int(bits[:32][::-1], 2), int(bits[32:][::-1], 2)]
    assert PrefixCode().decode(words).tolist() == [0x3F80, 0xBFC0]


def test_codes():
    code = Code(tuple(range(15)), (2, 2, 3, 4, 4, 4, 5, 5, *[6] * 8))
    assert code.codes[:8] == ["00", "01", "100", "1010", "1011", "1100", "11010", "11011"]
    assert code.codes[8:] == [f"111{number:03b}" for number in range(8)]
    for first, second in itertools.permutations(code.codes, 2):
        assert not second.startswith(first)


@pytest.mark.parametrize(("exponents", "lengths", "message"), [
    (range(14), (4,) * 16, r"^Exponents must be 15 different ones, not "),
    ([1] * 15, (4,) * 16, r"^Exponents must be 15 different ones, not "),
    (range(250, 265), (4,) * 16, r"^Exponents must be of eight bits, not "),
    (range(15), (4,) * 15, r"^Lengths must be 16 from 1 to 6 in ascending order, not "),
    (range(15), (5, *(4,) * 15), r"^Lengths must be 16 from 1 to 6 in ascending order, not "),
    (range(15), (*(4,) * 15, 5), r"^Lengths must be those of a complete code, not "),
])
def test_bad_codes(exponents, lengths, message):
    with pytest.raises(ValueError, match=message):
        Code(tuple(exponents), lengths)


def test_errors():
    refuses("Elements must be at least one, not none", PrefixCode().encode, [], FOUR)
    words = PrefixCode().encode([0x3F80], FOUR)
    refuses("Packet must tell its end, not end before", PrefixCode().decode, words[:-1])
    refuses("Packet must end with the word that tells its end, not 1 words behind", PrefixCode().decode, [*words, 0])
    refuses("Symbols must be 2 to 4, not 5", code_lengths, [1] * 5, 2)


def test_lengths_are_best():
    """Code lengths are optimal among all complete prefix codes of six symbols with ascending lengths."""
    generator = np.random.default_rng(1)
    for longest in (3, 4, 5):
        complete = [lengths for lengths in itertools.combinations_with_replacement(range(1, longest + 1), 6)
                    if sum((1 << longest) >> length for length in lengths) == 1 << longest]
        for _ in range(50):
            counts = generator.integers(0, 100, 6)
            got = code_lengths(counts, longest)
            assert max(got) <= longest
            best = min(int(np.sort(counts)[::-1] @ lengths) for lengths in complete)
            assert got @ counts == best


@pytest.mark.parametrize("longest", [4, 6])
def test_round_trip(longest):
    generator = np.random.default_rng(longest)
    for count in (1, 2, 31, 200):
        for elements in (generator.integers(0, 1 << 16, count), np.arange(count) * 997 & 0xFFFF,
                         np.full(count, 0x8000)):
            code = Code.fitted(elements, longest=longest)
            np.testing.assert_array_equal(PrefixCode().decode(PrefixCode().encode(elements, code)), elements)


def test_all_encodings():
    elements = np.arange(1 << 16)
    np.testing.assert_array_equal(PrefixCode().decode(PrefixCode().encode(elements, FOUR)), elements)


def ratio(elements, longest):
    """Number of encoded words divided by the number of words of raw elements."""
    words = PrefixCode().encode(elements, Code.fitted(elements, longest=longest))
    return 2 * len(words) / len(elements)


def test_ratio_of_gaussian_weights():
    weights = np.random.default_rng(1).standard_normal(65_536).astype(np.float32).view(np.uint32) >> 16
    assert ratio(weights, 4) == pytest.approx(0.75, abs=0.001)
    assert ratio(weights, 6) <= 0.68


def test_ratio_of_trained_weights(trained_weights):
    """Weights of a trained digits network shrink to at most 76 % with codes of up to four bits, 68 % with six."""
    exponents = trained_weights >> 7 & 0xFF
    covered = np.isin(exponents, Code.fitted(trained_weights, longest=4).exponents).mean()
    assert covered >= 0.999
    assert ratio(trained_weights, 4) <= 0.76
    assert ratio(trained_weights, 6) <= 0.68


@pytest.fixture(scope="module")
def trained_weights():
    from host.models.digits import digits
    from host.models.layers import perceptron
    from sim.golden import conversion

    dataset = digits()
    model = perceptron(64, [128], 10)
    model.initialize(0)
    generator = np.random.default_rng(0)
    for _ in range(30):
        order = generator.permutation(len(dataset.train_x))
        for start in range(0, len(order), 32):
            batch = order[start:start + 32]
            _, gradient = model.differentiate(dataset.train_x[batch], dataset.train_y[batch])
            model.parameters -= np.float32(0.1 / len(batch)) * gradient
    assert model.accuracy(dataset.test_x, dataset.test_y) > 0.95
    return conversion.to_bfloat16(model.parameters.view(np.uint32)).astype(np.uint32)
