"""Programs that are recovered from the words of instruction lists: their buffers and plans, and lists that differ."""

import dataclasses

import numpy as np
import pytest

from hdl.features.compute.layer_list import (
    INSTRUCTION_WORDS,
    Kind,
    Place,
    RowFunction,
    VectorProgram,
    row_layout,
    vector_layout,
)
from host.driver.planned_lists import PlanError
from host.features.compute.instructions import Array
from host.features.compute.lists import compile_lists
from host.features.compute.memory.checker import dead_reads, overlaps
from host.features.compute.memory.plan import ListProgram, Room, peak, rooms_of
from host.features.compute.memory.plan import strict as rule
from host.features.programs.schedules import Copies
from host.models.layer_shapes import layers_of
from sim.golden.features.compute.compute import Engine, pack
from tests.refusals import refuses

ARRAY = Array(rows=4, lanes=4)
ENGINE = Engine(rows=4, lanes=4)
#: Tiling factors that are valid for every product and do not affect the buffers.
FACTORS = {"tile": 0, "row_tiles": 0, "column_tiles": 0, "rounds": 2, "order": 0}


def lists_of(*widths, examples=8, **options):
    return compile_lists(layers_of(widths), array=ARRAY, examples=examples, words=1 << 16,
                         factors=lambda *arguments, **kinds: FACTORS, **options)


def profile_of(lists):
    return lists.programs[0].profile(rooms_of(lists.plan), ENGINE)


def test_operations():
    """Instructions of a small network are recovered as reads and writes of buffers."""
    profile = profile_of(lists_of(8, 4, 3))
    assert [(set(operation.reads), operation.writes) for operation in profile.operations] == [
        (set(), ("inputs", "labels")),
        ({"inputs"}, ("output 1",)),
        ({"output 1"}, ("output 2",)),
        ({"output 2", "labels"}, ("gradient 2", "loss")),
        ({"gradient 2", "output 1"}, ()), ({"gradient 2"}, ()), ({"gradient 2", "output 1"}, ("gradient 1",)),
        ({"gradient 1", "inputs"}, ()), ({"gradient 1"}, ()),
        ({"inputs", "labels", "loss"}, ())]
    assert profile.words == {"inputs": 64, "output 1": 32, "output 2": 32, "gradient 1": 32, "gradient 2": 32,
                             "labels": 32, "loss": 32}


def test_sequences():
    """Adding rows to a table counts as a read of the table too; a softmax has only a source and a target."""
    places = {name: {"base": 64 * number, "place": Place.ACTIVATIONS}
              for number, name in enumerate(("x", "y", "start", "target", "second", "third", "deviation"))}
    strides = {f"stride_{name}": 8 for name in places if name != "deviation"}
    weights = {name: {"base": 0, "place": Place.WEIGHTS} for name in ("scale", "shift")}
    rows = [pack(row_layout(), {"kind": Kind.ROWS, "function": function, "started": started, "columns": 8, "count": 6,
                                **places, **strides, **weights})
            for function, started in ((RowFunction.SCATTER, 0), (RowFunction.NORM, 1), (RowFunction.NORM_BACK, 0),
                                      (RowFunction.CLEAR, 0))]
    softmax = pack(vector_layout(), {
        "kind": Kind.VECTOR, "function": VectorProgram.SOFTMAX, "columns": 8, "source": places["x"],
        "stride_source": 8, "target": places["target"], "stride_target": 8})
    program = ListProgram(words=np.concatenate([*rows, softmax, np.zeros(INSTRUCTION_WORDS, np.uint32)]), base=512,
                          starts=[512], examples=4, given=tuple(places), taken=())
    rooms = {name: Room(operand["base"], 64) for name, operand in places.items()}
    profile = program.profile(rooms, dataclasses.replace(ENGINE, sequences=True))
    assert [(set(operation.reads), set(operation.writes)) for operation in profile.operations[1:-1]] == [
        ({"x", "y", "target"}, {"target"}), ({"x", "start"}, {"target", "second", "third", "deviation"}),
        ({"x", "y", "deviation"}, {"target", "second"}), (set(), {"target"}), ({"x"}, {"target"})]
    with pytest.raises(PlanError, match=r"its instruction 0 is wrong$"):
        program.profile(rooms, ENGINE)


@pytest.mark.parametrize(("widths", "naive", "live", "strict"), [
    ((64, 64, 10), 6976, 6592, 6592), ((64, *[64] * 9, 10), 39744, 22976, 22976),
    ((64, 128, 96, 48, 10), 20288, 13888, 14912)], ids=["digits", "deep", "narrowing"])
def test_perceptrons(widths, naive, live, strict):
    """For 32 examples, both checks accept the plan, which needs only as many words as are live at the same time."""
    lists = lists_of(*widths, examples=32)
    profile = profile_of(lists)
    assert profile.digest == lists.plan.digest
    assert (profile.naive, profile.live, lists.plan.peak, lists.places.lists) == (naive, live, live, live)
    assert peak(profile.lifetimes, rule(profile.lifetimes)) == strict
    assert not overlaps(profile, lists.plan.places)
    assert not dead_reads(profile, lists.plan.places)


def test_passes_that_overlap():
    """Lists for odd passes yield the same program, with inputs, labels and lists at higher addresses."""
    lists = lists_of(8, 4, 3, copies=Copies(layers=1, distance=1024))
    assert [listed.further for listed in lists.programs] == [0, 1024]
    for program in lists.programs:
        program.check(lists.plan, ENGINE)
    with pytest.raises(PlanError, match=r"^Operation 1 must touch one buffer of the memory plan with words 1,024 "
                                        r"to 1,088, not none: plan its memory again$"):
        dataclasses.replace(lists.programs[1], further=0).check(lists.plan, ENGINE)


class TestRefused:
    def test_plan_of_other_lists(self):
        plan = lists_of(8, 4, 3).plan
        assert lists_of(8, 4, 3, plan=plan).plan == plan
        for widths, examples in (((8, 4, 5), 8), ((8, 4, 3), 64), ((8, 4, 4, 3), 8)):
            with pytest.raises(PlanError, match=r"^Program must be the one of its memory plan"):
                lists_of(*widths, examples=examples, plan=plan)

    def test_lists_of_another_network(self):
        """Lists with different operations, or with an operand outside all planned buffers, are rejected."""
        plan = lists_of(16, 8, 8, 4).plan
        with pytest.raises(PlanError, match=r"^Operation 1 must touch one buffer .* not none: plan"):
            lists_of(16, 64, 8, 4).programs[0].check(plan, ENGINE)
        lists = lists_of(16, 8, 8, 4)
        program = lists.programs[0]
        without = dataclasses.replace(program, starts=program.starts[:-1])
        with pytest.raises(PlanError, match=r"in other operations\): plan its memory again$"):
            without.check(plan, ENGINE)

    def test_damaged_list(self):
        program = lists_of(8, 4, 3).programs[0]
        words = program.words.copy()
        words[0] = 9
        refuses(f"List at {program.base} must be one that nodes run, and its instruction 0 is wrong",
                dataclasses.replace(program, words=words).check, lists_of(8, 4, 3).plan, ENGINE, error=PlanError)

    def test_lists_inside_of_the_plan(self):
        lists = lists_of(8, 4, 3)
        plan = dataclasses.replace(lists.plan, places={**lists.plan.places, "loss": lists.plan.peak})
        with pytest.raises(PlanError, match=r"must touch one buffer"):
            lists.programs[0].check(plan, ENGINE)
        grown = dataclasses.replace(lists.plan, words={**lists.plan.words, "loss": 4096})
        with pytest.raises(PlanError, match=r"^Memory plan must take at most the \d+ words there are, not 4,\d+$"):
            lists.programs[0].check(grown, ENGINE)
