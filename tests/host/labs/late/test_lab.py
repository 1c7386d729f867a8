"""Training with late gradients on golden nodes: updates, statuses, and policies that must agree."""

import dataclasses
import re

import pytest

from host.features.quorum.config import Late, LateConfig
from host.labs.late.lab import SCHEMA, learn
from host.schema import read_report
from tests.refusals import refused

SMALL = LateConfig(hidden=(8,), batch=4, cycles=200_000, macs=1, skew=0.9, seed=3)


def test_ways(data):
    """The policy WAIT neither drops gradients nor applies them late. APPLY with factor 0 equals DROP."""
    outcomes = {late: learn(data, dataclasses.replace(SMALL, late=late), points=2) for late in Late}
    wait, fold, drop = (outcomes[late] for late in (Late.WAIT, Late.APPLY, Late.DROP))
    assert (wait.counts["applied_late"], wait.counts["dropped"]) == (0, 0)
    assert wait.counts["computed"] == wait.counts["applied"] == 4 * len(wait.cycles)
    assert len(fold.cycles) == len(drop.cycles) > 1.5 * len(wait.cycles)
    assert fold.counts["applied_late"] > 0
    for outcome in outcomes.values():
        counts = outcome.counts
        assert counts["computed"] == sum(counts[status] for status in (
            "applied", "applied_late", "dropped", "pending"))
        assert outcome.cycles == sorted(outcome.cycles)
        assert outcome.cycles[-1] <= SMALL.cycles
        assert len(outcome.losses) == len(outcome.cycles)
    nothing = learn(data, dataclasses.replace(SMALL, factor=0.0), points=2)
    assert (nothing.losses, nothing.measured) == (drop.losses, drop.measured)
    assert fold.losses != drop.losses


def test_two_laggards_and_a_deadline(data):
    """An update closed by its deadline has fewer gradients than the quorum."""
    config = dataclasses.replace(SMALL, slow={2: 3.0, 3: 6.0})
    waiting = learn(data, config, points=2)
    closed = learn(data, dataclasses.replace(config, deadline=500), points=2)
    assert len(closed.cycles) > 1.3 * len(waiting.cycles)
    assert closed.counts["applied_late"] > waiting.counts["applied_late"]


def test_waiting_has_no_deadline(data):
    """If updates wait for all gradients, no gradient is dropped, regardless of quorum and deadline."""
    config = dataclasses.replace(SMALL, late=Late.WAIT, slow={3: 6.0})
    outcome = learn(data, dataclasses.replace(config, deadline=500, quorum=1), points=2)
    assert outcome == learn(data, config, points=2)
    assert outcome.counts["dropped"] == 0


def test_command(tmp_path, run):
    code, printed, _ = run("lab", "late", "--skew", "0.9", "--late", "drop", "--seeds", "1", "--hidden", "8",
                           "--batch", "4", "--cycles", "30000", "--output", tmp_path)
    assert code == 0
    assert re.search(r"^0\.9 +drop ", printed, re.MULTILINE)
    assert (tmp_path / "late.png").read_bytes().startswith(b"\x89PNG")
    run, = read_report(tmp_path / "late.json", SCHEMA)["runs"]
    assert (run["late"], len(run["cycles"])) == ("drop", len(run["losses"]))


test_errors = refused(LateConfig, {}, [
    ({"quorum": 5}, "Quorum must be between 1 and the workers, 4, not 5"),
    ({"slow": {4: 2.0}}, "Straggler must be a worker, 0 to 3, not 4"),
    ({"slow": {1: 0.5}}, "Factor of a straggler must be between 1 and 1,000, not 0.5"),
])


@pytest.mark.parametrize(("options", "message"), [
    (("--late", "drop,fold"), "Late gradients must be one of apply-late, wait, drop, not 'fold'"),
    (("--skew", "0,x"), "Skews must be numbers with commas between them, not '0,x'"),
    (("--seeds", "0"), "Seeds must be between 1 and 1,000,000,000, not 0"),
])
def test_options(run, options, message):
    assert run("lab", "late", *options) == (1, "", f"error: {message}\n")
