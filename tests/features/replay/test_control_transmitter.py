# amaranth: UnusedElaboratable=no
"""Transmitter of control words, compared with its link model: hdl/features/replay/control_transmitter.py."""

import random

import numpy as np
import pytest

from hdl.features.replay.control_transmitter import ControlTransmitter
from sim.verilated.vectors import Unit
from tests.features.replay.columns import compare
from tests.features.replay.play import cut, random_play, reset_plays
from tests.refusals import refuses

WINDOW = 31


@pytest.fixture(scope="module")
def unit():
    return Unit(ControlTransmitter(window=WINDOW))


def words(seed, **options):
    """Return random stimuli for a link, with 600 control words and no packet words."""
    play = random_play(seed, rows=WINDOW + 1, window=WINDOW, **options)
    generator = random.Random(seed)
    play.sent, play.controls = [], [generator.getrandbits(32) for _ in range(600)]
    return play


def assert_lockstep(unit, play):
    columns = play.columns("t_")
    compare(unit, {**{name: rows for name, rows in columns.items()
                      if not name.startswith(("i__", "credits", "may_start"))},
                   "enable": np.ones(play.cycle, np.uint64), "round": np.zeros(play.cycle),
                   "hush": np.zeros(play.cycle, np.uint64)},
            free={"round": np.ones(play.cycle, bool),
                  **{f"ring_o__{wire}": columns["ring_o__valid"] == 0 for wire in ("data", "last", "kind", "check")}})


def test_parameters():
    refuses("Window must be 3, 7, 15, 31, 63, 127 or 255, not 32", ControlTransmitter, window=32)


@pytest.mark.parametrize("seed", range(6))
def test_lockstep(unit, seed):
    play = words(300 + seed).run(60_000)
    play.assert_mended()
    assert_lockstep(unit, play)


def test_reset(unit):
    """The unit matches the model if links are reset at any time, even with damaged wires."""
    for play in reset_plays(range(1, 300, 23), 900, words):
        assert_lockstep(unit, play)


def test_no_end(unit):
    """The unit matches the model if the wires are cut permanently, before or after the link starts."""
    for since in (0, 400):
        play = words(5, faults=lambda cycle, since=since: cut if cycle >= since else None)
        for _ in range(4000):
            play.step()
        assert play.restarts > 5 or not since
        assert_lockstep(unit, play)


def test_hush_and_enable(unit):
    """All wires are 0 in the cycle after ``hush``, with no other effects; without ``enable``, no word is sent."""
    play = words(7).run(60_000)
    columns = play.columns("t_")
    rows = {name: values for name, values in columns.items()
            if name in ("control__valid", "control__payload", "ring_o__line", "reset_link")}
    hush = np.random.default_rng(7).integers(0, 2, play.cycle, np.uint64)
    unit.reset()
    outputs = unit.run({**rows, "enable": 1, "hush": hush}, cycles=play.cycle)
    on = np.concatenate([[True], hush[:-1] == 0])
    for name in ("fresh", "repeated", "restarted", "settled", "control__ready"):
        assert (outputs[name] == columns[name]).all(), name
    for name in ("valid", "data", "last", "kind"):
        due = np.where(on & (columns["ring_o__valid"] != 0), columns[f"ring_o__{name}"], 0)
        assert (outputs[f"ring_o__{name}"] == due).all(), name
    unit.reset()
    outputs = unit.run({**rows, "enable": 0}, cycles=play.cycle)
    assert not outputs["fresh"].any()
    assert outputs["ring_o__valid"].any()


@pytest.mark.parametrize("latency", [1, 16, 60])
def test_round(unit, latency):
    """The unit measures the round-trip time of the wires, and ``delay`` is half of it."""
    play = words(1, latency=latency, back=latency, faults=lambda cycle: None)
    play.run(60_000)
    unit.reset()
    outputs = unit.run({"enable": 1, **{name: rows for name, rows in play.columns("t_").items() if name in (
        "control__valid", "control__payload", "ring_o__line", "reset_link")}}, cycles=play.cycle)
    assert outputs["round"][-1] == 2 * latency
    assert outputs["delay"][-1] == latency
