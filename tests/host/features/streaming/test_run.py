"""Layer streaming on golden nodes, assessors and logs: host/features/streaming/run.py."""

import dataclasses

import numpy as np
import pytest

from host.features.streaming.edits import Kind, RefusedError, Structure, edited
from host.features.streaming.run import (
    GoldenStreaming,
    Plateau,
    SetReport,
    Together,
    Underflow,
    accuracy_of,
    trained_weights,
)
from host.labs.streaming.experiment import CASES, WORKER, choices, failures, learn, replay_log, row_of, stalls
from host.models.digits import digits
from host.models.layers import perceptron
from host.training.optimizers import SGD, Adam
from sim.golden.features.streaming.streaming import Counts
from tests.host.features.streaming.sets import do
from tests.refusals import refuses

DATA = digits()


def structure(widths=(64, 16, 10), form="raw", **changes):
    fields = {"count": 1, "rate": 0.1, "microbatch": 8, "worker": WORKER}
    return Structure(widths=widths, formats=(form,) * (len(widths) - 1), **{**fields, **changes})


def run_of(first, *, optimizer=None, **options):
    return GoldenStreaming(DATA, first, workers=2, optimizer=optimizer or SGD(first.rate, momentum=0.9), **options)


def report(number, loss, *, zeros=(), base=None):
    base = base or structure()
    return SetReport(number, int(np.float32(loss).view(np.uint32)), 1,
                     {layer: Counts(100, count, 0) for layer, count in enumerate(zeros, start=1)}, {}, base)


class Once:
    """Assessor that proposes its changes once, after a given set."""

    def __init__(self, number, *changes):
        self._number, self._changes = number, changes

    def assess(self, report, following):
        return self._changes if report.number == self._number else []


def test_an_identity_changes_no_bit():
    """Adding an identity layer at any position does not change the losses."""
    run = run_of(structure((64, 16, 16, 10)))
    do(run, 3)
    for layer in (1, 2, 3):
        other = run_of(structure((64, 16, 16, 10)), assessor=Once(2, (layer, Kind.ADD, 64 if layer == 1 else 16)))
        do(other, 5)
        same = run_of(structure((64, 16, 16, 10)))
        do(same, 5)
        assert [item.loss for item in other.reports[:4]] == [item.loss for item in same.reports[:4]]
        assert other.reports[4].loss == same.reports[4].loss  # this is the first set with the added layer
        assert len(other.server.units) == 4
        assert other.log[0].set == 4


def test_what_is_asked_in_vain_changes_nothing():
    run, same = run_of(structure(), assessor=Once(0, (3, Kind.ADD, 16), (2, Kind.REMOVE, 0))), run_of(structure())
    for current in (run, same):
        do(current, 3)
    assert run.log == []
    assert run.refused[0] == "Edit's layer must be 1 to 2, not 3"
    assert len(run.refused) == 2
    assert run.digest == same.digest


def test_an_edit_holds_from_the_next_set_but_one():
    run = run_of(structure(), assessor=Once(1, (2, Kind.FORMAT, "mx6"), (0, Kind.MICROBATCHES, 2)))
    do(run, 5)
    assert [item.structure.formats[1] for item in run.reports] == ["raw"] * 3 + ["mx6"] * 2
    assert [item.examples for item in run.reports] == [16] * 3 + [32] * 2
    assert [(item.number, item.set) for item in run.log] == [(1, 3), (2, 3)]
    assert run.log[1].digest == run.reports[3].structure.digest == edited(
        edited(structure(), 2, Kind.FORMAT, "mx6"), 0, Kind.MICROBATCHES, 2).digest


@pytest.mark.parametrize("widths", [(64, 16, 10), (64, 20, 12, 10)])
def test_weights_do_not_depend_on_units(widths):
    """Without padding, layers have the same weights in one unit or several, initially and after three sets."""
    small = dataclasses.replace(WORKER, weight_words=2 * 640)
    runs = [run_of(structure(widths, worker=worker)) for worker in (WORKER, small)]
    assert len(runs[0].server.units) < len(runs[1].server.units)
    model = perceptron(widths[0], widths[1:-1], widths[-1])
    model.initialize(0)
    for run in runs:
        assert np.array_equal(np.concatenate(trained_weights(run.server)), model.parameters.view(np.uint32))
        do(run, 3)
    weights = [np.concatenate(trained_weights(run.server)) for run in runs]
    assert np.array_equal(*weights)
    assert not np.array_equal(weights[0], model.parameters.view(np.uint32))


@pytest.mark.parametrize("optimizer", [SGD(0.1), SGD(0.1, momentum=0.9), Adam(0.01)])
def test_layers_come_and_go(optimizer):
    changes = [Once(1, (2, Kind.ADD, 16)), Once(4, (2, Kind.REMOVE, 0)), Once(6, (0, Kind.RATE, 0.05))]
    run = run_of(structure(), optimizer=optimizer, assessor=Together(*changes))
    do(run, 10)
    assert [len(item.structure.widths) for item in run.reports] == [3] * 3 + [4] * 3 + [3] * 4
    assert run.reports[-1].structure.rate == np.float32(0.05)
    assert [unit.length for unit in run.server.units] == [len(master) for master in run.server.masters]
    again = GoldenStreaming(DATA, structure(), workers=2, optimizer=optimizer, edits=run.log)
    do(again, 10)
    assert again.digest == run.digest


def test_a_choice_of_microbatches_is_in_the_log():
    run = run_of(structure())
    run.propose(0, Kind.MICROBATCHES, 3)
    do(run)
    assert run.reports[0].examples == 48
    assert (run.log[0].number, run.log[0].set) == (1, 0)


def test_parts_of_layers_learn_the_same():
    """Layers that are split, including an added one, train exactly like layers that are not."""
    narrow = dataclasses.replace(WORKER, weight_words=2 * 672)
    changes = (3, Kind.ADD, 16), (2, Kind.REMOVE, 0)
    runs = [run_of(structure((64, 16, 16, 10), worker=worker), assessor=Once(0, *changes))
            for worker in (WORKER, narrow)]
    for run in runs:
        do(run, 4)
    assert len(runs[1].server.units) > len(runs[0].server.units)
    assert [item.loss for item in runs[0].reports] == [item.loss for item in runs[1].reports]
    assert runs[0].accuracy == runs[1].accuracy


def test_plateau():
    rule = Plateau(sets=2, ratio=0.9, most=2)
    changes = [rule.assess(report(number, loss), structure((64, 16, 16, 10)))
               for number, loss in enumerate((4, 4, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1))]
    change = [(3, Kind.ADD, 16)]
    assert changes == [[]] * 8 + [change] + [[]] * 3 + [change]
    refuses("Sets and layers of a plateau must be at least 1 and 0, not 0 and 1", Plateau, sets=0)


def test_underflow():
    rule, base = Underflow(part=0.1, sets=3), structure(form="mx4")
    zeros = [(11, 10), (11, 11), (10, 11), (11, 11), (11, 0), (11, 0)]
    changes = [rule.assess(report(number, 1, zeros=pair, base=base), base) for number, pair in enumerate(zeros)]
    assert changes == [[], [], [], [(2, Kind.FORMAT, "mx6")], [], [(1, Kind.FORMAT, "mx6")]]
    raw = structure()
    assert not any(Underflow(sets=1).assess(report(0, 1, zeros=(50, 50), base=raw), raw))
    rule = Underflow(sets=2)
    rule.assess(report(0, 1, zeros=(50, 0), base=base), base)
    assert rule.assess(report(1, 1, zeros=(50, 0), base=base), structure()) == []  # an edit is pending


def test_blind():
    """This assessor widens all formats after the first set and proposes no further changes."""
    base = structure(form="mx4")
    rule = CASES[4].assessor()
    changes = [(1, Kind.FORMAT, "mx6"), (2, Kind.FORMAT, "mx6")]
    assert rule.assess(report(0, 1, zeros=(0, 0), base=base), base) == changes
    wide = structure(form="mx6")
    assert rule.assess(report(1, 1, zeros=(0, 0), base=base), wide) == []
    assert rule.assess(report(2, 1, zeros=(0, 0), base=wide), wide) == []


def test_counts_of_layers():
    run = run_of(structure(form="mx4"))
    do(run)
    assert {layer: counts.elements for layer, counts in run.reports[0].fetched.items()} == {1: 65 * 16, 2: 17 * 10}
    assert run.reports[0].fetched[1].zero_part > 0.1
    assert run.reports[0].pushed[1].elements == 65 * 16


@pytest.mark.parametrize("case", CASES[1:4:2], ids=lambda case: case.name)
def test_replays(case):
    """Replaying the log of a run with an assessor gives the same run; damaged logs are rejected."""
    run = learn(dataclasses.replace(case, assessor=lambda: Together(Plateau(sets=3, ratio=0.5), Underflow(sets=3))),
                DATA, 0, epochs=1)
    assert len(run.log) > 1
    log = run.described()
    again = replay_log(DATA, log)
    assert again.described() == log
    assert again.accuracy == run.accuracy
    broken = {**log, "edits": [{**log["edits"][0], "digest": "0" * 32}, *log["edits"][1:]]}
    with pytest.raises(RefusedError, match=r"^Edit must lead to the program "):
        replay_log(DATA, broken)
    other = {**log, "start": {**log["start"], "rate": 0.2}}
    with pytest.raises(ValueError, match=r"^Log must be of a run that begins with the program "):
        replay_log(DATA, other)


def test_accuracy_is_that_of_decoded_weights():
    run = run_of(structure(form="mx4"))
    do(run, 4)
    raw = dataclasses.replace(run.server.units[0], format="raw")
    coded = accuracy_of(run.server, DATA.test_x, DATA.test_y)
    run.server.masters = [run.server.decoded(number) for number in range(2)]
    run.server.units = [raw, dataclasses.replace(run.server.units[1], format="raw")]
    assert accuracy_of(run.server, DATA.test_x, DATA.test_y) == coded


def test_rows_and_bars():
    run = run_of(structure())
    do(run, 2)
    plain = row_of(CASES[0], [run])
    rows = [plain, dataclasses.replace(plain, name="more", beside=CASES[0].name, bar=0.5),
            dataclasses.replace(plain, name="deep", bar=200.0)]
    assert failures(rows) == ["more must gain at least 0.5 points, not 0.00",
                              f"deep must have at least 200 %, not {plain.mean:.2f}"]


def test_modelled_tables():
    assert {row["peak"] for row in stalls(3)} == {20_224}
    assert [row["microbatches"] for row in choices()] == [5, 3, 2, 3, 4, 5, 1]
