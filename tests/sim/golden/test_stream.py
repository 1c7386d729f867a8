"""Cycle model of a queue, checked by hand and against a simulation of each cycle."""

import collections
import itertools

import numpy as np
import pytest

from sim.golden import stream
from sim.streams import STALLS, stall_array


def flags(text):
    return np.array([mark == "#" for mark in text])


def text(pattern):
    return "".join("#" if flag else "." for flag in pattern)


def digits(offered):
    """Return the index of the beat that is offered in each cycle, as text with one character per cycle."""
    return "".join("." if index < 0 else str(index) for index in offered.tolist())


# --- tests of patterns


@pytest.mark.parametrize(("pattern", "expected"), [
    ("", [0]), ("###", [0, 1, 2, 3]), ("...", [3, 3, 3, 3]), (".#..#.", [1, 1, 4, 4, 4, 6, 6])])
def test_first_from(pattern, expected):
    assert stream.first_from(flags(pattern)) == expected


# --- tests of queues


def run(depth, latency, beats, willing, ready):
    """Simulate a queue: return (i_valid, i_ready, o_valid, offered, level) for each cycle."""
    held = collections.deque()  # stored beats, each with the first cycle in which it can be offered
    waiting, numbers, rows = None, iter(range(beats)), []
    for cycle, (begins, takes) in enumerate(zip(willing, ready, strict=True)):
        if waiting is None and begins:
            waiting = next(numbers, None)
        shown = bool(held) and held[0][1] <= cycle
        accepts = len(held) < depth or (depth == 1 and takes)
        rows.append((waiting is not None, accepts, shown, held[0][0] if shown else -1, len(held)))
        if shown and takes:
            held.popleft()
        if accepts and waiting is not None:
            held.append((waiting, cycle + latency))
            waiting = None
    return zip(*rows, strict=True)


@pytest.mark.parametrize(("source", "sink"), [*itertools.product(STALLS, STALLS)])
@pytest.mark.parametrize(("depth", "latency"), [(1, 1), (2, 1), (3, 1), (5, 1), (4, 3), (7, 3)])
def test_against_a_queue(depth, latency, source, sink):
    count = 600
    for seed, beats in ((1, count), (2, 100)):
        willing, ready = stall_array(source, count, seed=seed), stall_array(sink, count, seed=seed + 10)
        got = stream.queue(depth=depth, latency=latency, beats=beats, willing=willing, ready=ready)
        for name, expected in zip(("i_valid", "i_ready", "o_valid", "offered", "level"),
                                  run(depth, latency, beats, willing, ready), strict=True):
            np.testing.assert_array_equal(getattr(got, name), expected, f"{name}, {seed=}")
        np.testing.assert_array_equal(got.accepted, np.flatnonzero(got.i_valid & got.i_ready))
        np.testing.assert_array_equal(got.departed, np.flatnonzero(got.o_valid & ready))


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_every_pattern(depth):
    """The model matches the simulated queue for all patterns of six cycles, both at the input and at the output."""
    patterns = [flags(marks) for marks in itertools.product(".#", repeat=6)]
    for willing, ready in itertools.product(patterns, patterns):
        got = stream.queue(depth=depth, latency=1, beats=4, willing=willing, ready=ready)
        for name, expected in zip(("i_valid", "i_ready", "o_valid", "offered", "level"),
                                  run(depth, 1, 4, willing, ready), strict=True):
            assert getattr(got, name).tolist() == list(expected), (name, text(willing), text(ready))


# --- tests of sources and output registers


def test_a_feed():
    feed = stream.Feed(3, flags("#..#...#.."))
    assert (feed.end, feed.offered) == (10, 0)
    assert feed.accept(2) == 2  # a beat is offered from cycle 0 on
    assert feed.offered == 3
    assert feed.accept(4) == 4
    assert feed.accept(5) == 7  # the queue is ready from cycle 5 on, and offers a beat from cycle 7 on
    assert text(feed.valid) == "#####..#.."
    assert text(feed.ready) == "..#.####.."
    # There are no more beats, so the queue offers nothing and stays ready until the end.
    assert feed.offered == feed.accept(8) == 10
    assert text(feed.ready) == "..#.######"
    assert text(feed.valid) == "#####..#.."


def test_a_beat_taken():
    """A unit that controls its own ready signal accepts beats in the expected cycles."""
    feed = stream.Feed(2, flags("#####"))
    feed.take(1)
    assert (feed.offered, text(feed.valid), text(feed.ready)) == (2, "#####", ".....")
    feed.take(2)
    assert (feed.offered, text(feed.valid)) == (5, "###..")
    feed.take(5)
    assert text(feed.valid) == "###.."
    assert stream.Feed(0, flags("###")).offered == 3


def test_an_output():
    """A beat is offered from the cycle after it is loaded. The next beat is loaded as soon as the offered one
    leaves."""
    output = stream.Output(flags("...#.##..."))
    assert [output.load(0), output.departed] == [0, 3]
    assert [output.load(1), output.departed] == [3, 5]
    assert [output.load(7), output.departed] == [7, 10]
    assert [output.load(8), output.departed] == [10, 10]
    assert digits(output.offered) == ".00011..22"
