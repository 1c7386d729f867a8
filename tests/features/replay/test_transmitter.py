# amaranth: UnusedElaboratable=no
"""Transmitter of a replay link, in lockstep with its model: hdl/features/replay/transmitter.py."""

import random

import pytest

from hdl.features.replay.transmitter import ReplayTransmitter
from sim.verilated.vectors import Unit
from tests.features.replay.play import Play, assert_lockstep, cut, random_play, reset_plays
from tests.refusals import refused


@pytest.fixture(scope="module")
def unit():
    return Unit(ReplayTransmitter(segments=3, egress_words=268))


@pytest.mark.parametrize("seed", range(10))
def test_lockstep(unit, seed):
    assert_lockstep(unit, random_play(100 + seed).run(60_000), "t_")


@pytest.fixture(scope="module")
def two():
    return Unit(ReplayTransmitter(segments=3, egress_words=268, ports=2), name="TwoPorts")


@pytest.mark.parametrize("seed", range(6))
def test_two_links(two, seed):
    """A transmitter with two ports sends packets through them in random order, each port with its own wires."""
    generator = random.Random(seed)
    play = random_play(200 + seed, route=[generator.randrange(2) for _ in range(30)]).run(60_000)
    play.assert_mended()
    assert_lockstep(two, play, "t_")


def test_two_links_reset(two):
    """The links at both ports restart after a reset at any time."""
    for play in reset_plays(range(40, 700, 61), 1500, route=[0, 1] * 15):
        assert_lockstep(two, play, "t_")


def test_latency(unit):
    play = Play([(word, int(word % 70 == 69)) for word in range(210)], latency=16, willing=lambda: play.cycle > 200)
    play.run(2000)
    assert_lockstep(unit, play, "t_")
    taken, sent = (play.trace[name].index(1, 150) for name in ("t_i__valid", "t_fresh"))
    assert sent - taken == ReplayTransmitter.latency
    assert play.trace["t_fresh"][sent:sent + 210] == [1] * 210


def test_reset(unit):
    """After a reset at any time, even with faulty wires, all words are dropped and the link restarts."""
    for play in reset_plays(range(1, 300, 23), 900):
        assert_lockstep(unit, play, "t_")


def test_small():
    """A small transmitter that is mostly full (a window of three words, eight rows) matches the model."""
    play = random_play(1, rows=8, window=3, latency=5).run(60_000)
    play.assert_mended()
    assert_lockstep(Unit(ReplayTransmitter(segments=3, egress_words=8, window=3)), play, "t_")


def test_no_end(unit):
    """The unit matches the model if the wires are cut permanently, before or after the link starts."""
    for since in (0, 400):
        play = random_play(5, faults=lambda cycle, since=since: cut if cycle >= since else None)
        for _ in range(4000):
            play.step()
        assert play.restarts > 5 or not since
        assert_lockstep(unit, play, "t_")


test_parameters = refused(ReplayTransmitter, {"segments": 3, "egress_words": 268}, [
    ({"segments": 1}, "Segment count must be an integer from 2 to 15, not 1"),
    ({"segments": 16}, "Segment count must be an integer from 2 to 15, not 16"),
    ({"egress_words": 4}, "Egress depth must be an integer from 5 to 512, not 4"),
    ({"egress_words": 513}, "Egress depth must be an integer from 5 to 512, not 513"),
    ({"ports": 3}, "Port count must be 1 or 2, not 3"),
    ({"window": 256}, "Window must be 3, 7, 15, 31, 63, 127 or 255, not 256"),
])


def test_rows():
    rows = [ReplayTransmitter(segments=2, egress_words=words).rows for words in (5, 256, 257, 512)]
    assert rows == [256, 256, 512, 512]
