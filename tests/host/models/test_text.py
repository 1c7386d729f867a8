from pydoc_data.topics import topics as source

import numpy as np
import pytest

from host.models.text import ALPHABET, REPLACEMENT, Batch, Bigram, collate, cut, decode, encode, lines, topics
from tests.refusals import refuses


def sequences(*texts):
    return [encode(text) for text in texts]


class TestCharacters:
    def test_alphabet(self):
        assert len(ALPHABET) == len(set(ALPHABET)) == 64
        assert ALPHABET[0] == REPLACEMENT
        assert ALPHABET.lower() == ALPHABET

    def test_round_trip(self):
        assert encode(ALPHABET).tolist() == list(range(64))
        assert decode(encode(ALPHABET)) == ALPHABET

    def test_replacement(self):
        assert decode(encode("a”B$\n?")) == "a" + 5 * REPLACEMENT


class TestLines:
    def test_rule(self):
        text = {"b": "  Two  spaces \nsame\n\nx\n", "a": "same\n\tTab\tand  end  "}
        assert lines(text) == ["same", "tab and end", "two spaces"]

    def test_cut(self):
        assert cut("abcdefg", 3) == ["abcd", "defg"]
        assert cut("abcdefgh", 3) == ["abcd", "defg", "gh"]
        assert cut("abc", 2) == cut("abc", 9) == ["abc"]
        assert cut("abc", 1) == ["ab", "bc"]

    @pytest.mark.parametrize("context", [1, 2, 5, 16])
    def test_cut_predicts_each_character_once(self, context):
        for length in range(2, 40):
            line = "".join(chr(ord("A") + n) for n in range(length))
            pieces = cut(line, context)
            assert all(2 <= len(piece) <= context + 1 for piece in pieces)
            assert line[0] + "".join(piece[1:] for piece in pieces) == line

    def test_context_of_nothing(self):
        refuses("Context must be at least 1, not 0", cut, "abc", 0)


class TestTopics:
    def test_parts(self):
        text = topics(context=200)
        expected = lines(source)
        assert max(map(len, expected)) <= 201
        assert len(expected) > 4000
        assert [sequence.tolist() for sequence in text.test] == [encode(line).tolist() for line in expected[9::10]]
        del expected[9::10]
        assert [sequence.tolist() for sequence in text.train] == [encode(line).tolist() for line in expected]

    def test_no_line_in_both(self):
        pieces = lines(source)
        assert not set(pieces[9::10]) & {line for n, line in enumerate(pieces) if n % 10 != 9}

    def test_lengths(self):
        text = topics(context=16)
        for part in (text.train, text.test):
            lengths = {len(sequence) for sequence in part}
            assert lengths == set(range(2, 18))

    def test_predicted_characters_do_not_depend_on_context(self):
        counts = {sum(len(sequence) - 1 for sequence in topics(context=context).test) for context in (8, 16, 200)}
        assert len(counts) == 1

    def test_same_every_time(self):
        first, second = topics(context=16), topics(context=16)
        assert all(np.array_equal(a, b) for a, b in zip(first.train, second.train, strict=True))

    def test_little_is_replaced(self):
        characters = np.concatenate(topics(context=200).train)
        assert (characters == 0).mean() < 0.01


class TestBatch:
    def test_collate(self):
        batch = collate([np.array([5, 6, 7, 8]), np.array([1, 2]), np.array([3, 4, 9])])
        assert batch.inputs.tolist() == [[5, 6, 7], [1, 0, 0], [3, 4, 0]]
        assert batch.targets.tolist() == [[6, 7, 8], [2, 0, 0], [4, 9, 0]]
        assert batch.lengths.tolist() == [3, 1, 2]

    def test_none(self):
        batch = collate([])
        assert isinstance(batch, Batch)
        assert (batch.inputs.shape, batch.targets.shape, batch.lengths.shape) == ((0, 0), (0, 0), (0,))

    def test_too_short(self):
        refuses("Sequence must be of at least 2 characters, not 1", collate, sequences("ab", "a"))


class TestBigram:
    def test_by_hand(self):
        # In these sequences, the pair ab occurs twice, ac once and ba once.
        bigram = Bigram(sequences("aba", "ab", "ac"), smoothing=0.5)
        probabilities = np.exp(bigram.logarithms)
        a, b, c, d = encode("abcd")
        assert probabilities[a, b] == pytest.approx(2.5 / 35)
        assert probabilities[a, c] == pytest.approx(1.5 / 35)
        assert probabilities[a, d] == pytest.approx(0.5 / 35)
        assert probabilities[b, a] == pytest.approx(1.5 / 33)
        assert probabilities[d, a] == pytest.approx(1 / 64)
        assert probabilities.sum(axis=1) == pytest.approx(np.ones(64))
        expected = -(np.log(2.5 / 35) + np.log(1.5 / 33) + np.log(1.5 / 35)) / 3
        assert bigram.loss(sequences("aba", "ac")) == pytest.approx(expected)

    def test_smoothing_is_chosen_on_the_training_part(self):
        text = topics(context=16)
        bigram = Bigram(text.train)
        judges = text.train[9::10]
        rest = [sequence for n, sequence in enumerate(text.train) if n % 10 != 9]
        losses = {k: Bigram(rest, smoothing=k).loss(judges) for k in (0.001, 0.01, 0.1, bigram.smoothing, 1.0, 3.0)}
        assert min(losses.values()) == losses[bigram.smoothing]
        assert np.array_equal(bigram.logarithms, Bigram(text.train, smoothing=bigram.smoothing).logarithms)

    def test_loss(self):
        text = topics(context=16)
        assert 2.3 < Bigram(text.train).loss(text.test) < 2.7

    def test_errors(self):
        refuses("Smoothing must be greater than zero, not 0", Bigram, sequences("ab"), smoothing=0)
        refuses("Sequences must be at least 10 to choose smoothing, not 9", Bigram, sequences("ab") * 9)
