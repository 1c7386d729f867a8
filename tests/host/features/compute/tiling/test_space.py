"""Space of tiling factors: size, neighbours and random states."""

import collections

import numpy as np
import pytest

from host.features.compute.tiling.space import Move, Space


@pytest.mark.parametrize(("sizes", "depths", "count"), [
    ((64, 64, 64), (2, 2, 2), 343), ((32, 64, 32), (3, 2, 3), 3087), ((256,) * 3, (4, 2, 4), 245_025),
    ((512,) * 3, (4, 2, 4), 484_000), ((1024,) * 3, (4, 2, 4), 899_756), ((2048,) * 3, (4, 2, 4), 1_589_952)])
def test_published_sizes(sizes, depths, count):
    assert len(Space(sizes, depths)) == count


def test_states():
    """All states of a space are distinct, and each has the depths and exponents of the space."""
    space = Space((32, 64, 32), (3, 2, 3))
    states = list(space)
    assert len(set(states)) == len(states) == 3087
    assert {tuple(map(len, state)) for state in states} == {space.depths}
    assert {tuple(map(sum, state)) for state in states} == {space.exponents} == {(5, 6, 5)}
    assert min(min(map(min, state)) for state in states) == 0
    assert ((5, 0, 0), (6, 0), (5, 0, 0)) in states
    assert ((5, 0, 0), (6, 1), (5, 0, 0)) not in states


def test_neighbours():
    """A move shifts a factor of two to another level, and the opposite move undoes it, so two states are always
    neighbours of each other."""
    space = Space((8, 4, 2), (3, 2, 1))
    assert len(space.moves) == 6 + 2
    state = ((3, 0, 0), (1, 1), (1,))
    assert set(space.neighbours(state)) == {
        ((2, 1, 0), (1, 1), (1,)), ((2, 0, 1), (1, 1), (1,)), ((3, 0, 0), (0, 2), (1,)), ((3, 0, 0), (2, 0), (1,))}
    assert space.step(state, Move(0, 1, 0)) is None
    assert all(state in space.neighbours(other) for state in space for other in space.neighbours(state))


def test_random():
    """The random choice of states is uniform: each of 35 states occurs about 200 times in 7,000 draws."""
    space = Space((16, 1, 1), (4, 1, 1))
    generator = np.random.default_rng(3)
    drawn = collections.Counter(space.random(generator) for _ in range(7000))
    assert set(drawn) == set(space)
    # A tolerance of five standard deviations.
    assert all(abs(count - 200) < 5 * 200**0.5 for count in drawn.values())


def test_arguments():
    with pytest.raises(ValueError, match="Sizes of a space must be powers of two, not 48"):
        Space((48, 64, 64), (2, 2, 2))
    with pytest.raises(ValueError, match="Levels of a dimension must be at least 1, not 0"):
        Space((64, 64, 64), (2, 0, 2))
