# amaranth: UnusedElaboratable=no
"""Receiver of a replay link, in lockstep with its model: hdl/features/replay/receiver.py."""

import random

import pytest

from hdl.features.replay.receiver import ReplayReceiver
from sim.verilated.vectors import Unit
from tests.features.replay.check_model import word_check
from tests.features.replay.link_model import Word, restart_word
from tests.features.replay.play import Play, assert_lockstep, random_play, reset_plays
from tests.refusals import refused


@pytest.fixture(scope="module")
def unit():
    return Unit(ReplayReceiver(segments=3, packet_words=70))


@pytest.mark.parametrize("seed", range(10))
def test_lockstep(unit, seed):
    assert_lockstep(unit, random_play(200 + seed).run(60_000), "r_")


def test_latency(unit):
    play = Play([(word, int(word % 70 == 69)) for word in range(210)], latency=0).run(2000)
    assert_lockstep(unit, play, "r_")
    assert play.moments[0] - play.trace["t_fresh"].index(1) == ReplayReceiver.latency
    assert play.moments == list(range(play.moments[0], play.moments[0] + 210))


def test_reset(unit):
    for play in reset_plays(range(1, 300, 23), 900):
        assert_lockstep(unit, play, "r_")


def test_any_words(unit):
    """The receiver matches its model even for random words, RESTARTs, overlong packets, and packets without credit.
    """
    generator = random.Random(7)
    play = Play([], faults=lambda cycle: lambda word, line: (any_word(), line),
                takes=lambda: generator.random() < .5, control_takes=lambda: generator.random() < .5)

    def any_word():
        receiver = play.receiver
        chance = generator.random()
        if chance < .3:
            return Word()
        if chance < .4:
            number = (receiver.expect - generator.choice([-1, 0, 0, 1, 3, 255, 256, 511])) % 1024
            right = restart_word(number, generator.randrange(4), generator.random() < .1)
            wrong = 0 if generator.random() < .7 else 1 << generator.randrange(32)
            return Word(1, right.data ^ wrong, 1, 1, word_check(right.data ^ wrong, 1, 1, 0))
        data, last, kind = generator.getrandbits(32), int(generator.random() < .03), int(generator.random() < .1)
        number = receiver.number + sum(word.valid for word in (receiver._word, *play.wires[0]))
        return Word(1, data, last, kind, word_check(data, last, kind, number + (generator.random() < .01)))

    for _ in range(20_000):
        play.step()
    assert play.failed > 100
    assert len(play.received) > 500
    assert play.receiver.overrun
    assert_lockstep(unit, play, "r_")


test_parameters = refused(ReplayReceiver, {"segments": 3, "packet_words": 70}, [
    ({"segments": 1}, "Segment count must be an integer from 2 to 15, not 1"),
    ({"segments": 16}, "Segment count must be an integer from 2 to 15, not 16"),
    ({"packet_words": 4}, "Packet length must be an integer of at least 5, not 4"),
])
