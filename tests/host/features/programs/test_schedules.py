import dataclasses
import itertools
import re

import numpy as np
import pytest

from host.cycles.estimate import Collective, Costs
from host.features.programs.program import CompiledProgram, ProgramError, Queue, RaceError
from host.features.programs.schedules import Kind, Schedule, build, chunks, search
from host.models.layer_shapes import layers_of
from sim.golden.features.programs.program import GAP, Timed, makespan, timeline
from tests.refusals import refuses

DEEP = [64, *[32] * 9, 10]
LENGTH = 10_880
STAGED = 16_384
SCHEDULES = [Schedule(Kind.NONE), Schedule(Kind.STRICT), Schedule(Kind.LAYERS),
             *(Schedule(Kind.CHUNKS, size) for size in range(1, 11))]


def program(schedule, widths=DEEP, *, nodes=4, costs=None, **options):
    return build(schedule, layers_of(widths), nodes=nodes, costs=costs or Costs(examples=8), staged=STAGED, **options)


def stale(layers):
    return program(Schedule(Kind.DELAYED, layers), distance=LENGTH)


def steady(compiled):
    """Return the cycles per pass, leaving out the first passes."""
    ends = [max(span.end for span in spans_of(compiled, passes=6) if span.number == number) for number in (1, 5)]
    return (ends[1] - ends[0]) / 4


def spans_of(compiled, *, nodes=4, passes=1):
    return timeline(compiled.timed(), nodes=nodes, passes=passes)


def chunk_search(most, measure):
    """Return the chunk sizes that a search measures, and the result of the search."""
    measured = []

    def counted(size):
        measured.append(size)
        return measure(size)

    return measured, search(most, counted)


class TestLayers:
    def test_deep(self):
        layers = layers_of(DEEP)
        assert [layer.length for layer in layers] == [2080, *[1056] * 8, 352]
        assert sum(layer.length for layer in layers) == 10_880
        assert all(after.base == before.base + before.length for before, after in itertools.pairwise(layers))

    def test_multiplications(self):
        first, second = layers_of([64, 64, 10])
        assert [first.multiplications(backward=flag) for flag in (False, True)] == [4096, 4096]
        assert [second.multiplications(backward=flag) for flag in (False, True)] == [640, 1280]
        assert second.base + second.length == 4832

    def test_too_few(self):
        with pytest.raises(ValueError, match=re.escape("Widths must be two or more, not [64]")):
            layers_of([64])

    @pytest.mark.parametrize(("size", "numbers"), [
        (1, [[10], [9], [8], [7], [6], [5], [4], [3], [2], [1]]), (2, [[10], [9, 8], [7, 6], [5, 4], [3, 2], [1]]),
        (4, [[10], [9, 8, 7, 6], [5, 4, 3, 2], [1]]), (9, [[10], [9, 8, 7, 6, 5, 4, 3, 2, 1]])])
    def test_chunks(self, size, numbers):
        assert [[layer.number for layer in part] for part in chunks(layers_of(DEEP), size)] == numbers


class TestNames:
    @pytest.mark.parametrize("text", ["none", "strict", "layers", "chunks:3", "delayed:0", "delayed:2", "search"])
    def test_round_trip(self, text):
        assert str(Schedule.parse(text)) == text

    @pytest.mark.parametrize("text", ["", "chunk:2", "chunks", "chunks:", "chunks:0", "chunks:x", "layers:2", "stale",
                                      "stale:-1"])
    def test_refused(self, text):
        with pytest.raises(ValueError, match=re.escape(
                f"Overlap must be one of none, strict, layers, chunks:n, delayed:n, search with n of at least 1, or "
                f"0 "
                f"of delayed, not {text!r}")):
            Schedule.parse(text)

    def test_errors(self):
        refuses("Layers of chunks must be at least 1, not 0", Schedule, Kind.CHUNKS, 0)
        refuses("Layers of delayed must be at least 0, not -1", Schedule, Kind.DELAYED, -1)
        with pytest.raises(ValueError, match=r"^Layers one update behind must be at most all 10, not 11$"):
            program(Schedule(Kind.DELAYED, 11), distance=LENGTH)
        with pytest.raises(ValueError, match=r"^Copies of weights must lie at least 3,136 elements apart, not 3104$"):
            program(Schedule(Kind.DELAYED, 2), distance=3104)
        refuses("Schedule of a program must be one, not search: measure several and choose", program,
                Schedule(Kind.SEARCH))
        refuses("Node count must be at least 1, not 0", program, Schedule(Kind.NONE), nodes=0)
        with pytest.raises(ValueError, match=r"^Staged gradients must lie behind all 18,432 elements, not at 16384$"):
            program(Schedule(Kind.NONE), [512, 32, 32, 29])
        refuses("Schedule with state as bfloat16 must be none or strict, not chunks:2: state of a part may begin "
                "inside a word", Schedule(Kind.CHUNKS, 2).check_state, packed=True)
        Schedule(Kind.STRICT).check_state(packed=True)
        Schedule(Kind.CHUNKS, 2).check_state(packed=False)
        with pytest.raises(ProgramError, match=r"^Queue 0 must have at most 8 commands, and forward 9 is one more"):
            program(Schedule(Kind.NONE), depth=8)


class TestPrograms:
    @pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
    @pytest.mark.parametrize("nodes", [1, 2, 3, 4, 8])
    def test_compute(self, schedule, nodes):
        """Layers run forward in order and backward in reverse order; each element is updated once."""
        compiled = program(schedule, nodes=nodes)
        assert [command.task.name for command in compiled.queues[Queue.COMPUTE]] == [
            *(f"forward {number}" for number in range(1, 11)), *(f"backward {number}" for number in range(10, 0, -1))]
        updated = np.zeros(10_880, dtype=int)
        for command in compiled.queues[Queue.COMMUNICATE]:
            if command.task.operation != "FUSED_UPDATE":
                continue
            fields = [command.fields(rank) for rank in range(nodes)]
            for node_fields in fields[:1] if command.task.collective else fields:
                stride = node_fields.get("stride", 1)
                for group in range(-(-node_fields["length"] // 32)):
                    start = node_fields["weight_base"] + 32 * stride * group
                    updated[start:start + 32] += 1
        assert (updated == 1).all()
        assert compiled.max_passes is None
        assert makespan(spans_of(compiled, nodes=nodes)) >= max(
            sum(command.task.duration for command in queue) for queue in compiled.queues)

    def test_durations(self):
        """Commands have the expected durations for 8 examples and 16 multiply-adds per cycle."""
        durations = {command.task.name: command.task.duration for command in program(SCHEDULES[0]).queues[0]}
        assert [durations[name] for name in ("forward 1", "forward 2", "forward 10")] == [1024, 512, 160]
        assert [durations[name] for name in ("backward 10", "backward 2", "backward 1")] == [320, 1024, 1024]
        assert sum(durations.values()) == 14_816

    def test_waits(self):
        """Updates wait for the backward command of their layer; the next pass waits for the first layer's update."""
        compiled = program(Schedule(Kind.LAYERS))
        waits = {item.task.name: item.waits[0] for queue in compiled.queues for item in queue if item.waits[0].after}
        assert waits == {"forward 1": (11, 1), **{f"update {number}": (21 - number, 0) for number in range(1, 11)}}

    def test_stale_waits(self):
        """A layer's forward command waits for its update in the previous pass or, with two copies, in the last pass
        but one; each backward command waits until the gradients of the previous pass are summed."""
        compiled = stale(2)
        waits = {item.task.name: item.waits[0] for queue in compiled.queues for item in queue if item.waits[0].after}
        # Forward 3 waits for update 3 of the previous pass, which is the ninth command after LATCH. Backward 10 does
        # not wait.
        assert waits["forward 3"] == (9, 1)
        assert "forward 1" not in waits
        assert "forward 2" not in waits
        assert (waits["backward 2"], waits["backward 1"]) == ((10, 1), (11, 1))
        assert {name: wait for name, wait in waits.items() if name.startswith("update")} == {
            f"update {number}": (21 - number, 0) for number in range(1, 11)}
        # With all layers delayed and no waits for sums, forward 1 could start before update 1 of two passes earlier.
        assert [item.waits[0] for item in stale(10).queues[0] if item.waits[0].after] == [
            (12 - number, 1) for number in range(10, 0, -1)]

    def test_stale_fields(self):
        """Each command uses the region of its layer. Commands of the first two layers alternate between two copies of
        this region."""
        tasks = {task.name: task.fields for task in stale(2).tasks}
        for number in range(1, 11):
            for name in ("forward", "backward", "update"):
                fields = tasks[f"{name} {number}"]
                behind = int(number <= 2)
                assert (fields["region"], fields["alternate"], fields["apart"]) == (number, behind, behind)
        assert all("region" not in task.fields for task in program(Schedule(Kind.LAYERS)).tasks)

    def test_one_copy_too_few(self):
        """A race is reported if the forward command of a delayed layer reads the copy that the last update writes."""
        compiled = stale(2)
        tasks = [dataclasses.replace(task, reads=tuple(dataclasses.replace(region, alternate=0)
                                                       for region in task.reads),
                                     writes=tuple(dataclasses.replace(region, alternate=0) for region in task.writes))
                 for task in compiled.tasks]
        waits = [{queue: wait for index, queue, wait in compiled.waits() if index == task.place} for task in tasks]
        with pytest.raises(RaceError, match=r"^forward \d may start before update \d of the pass before has ended"):
            CompiledProgram(tuple(tasks), 2, waits).check()

    def test_turns_and_state(self):
        """The block offset of a command is its first group, and its state is stored after the state of all earlier
        groups."""
        compiled = program(Schedule(Kind.CHUNKS, 3), nodes=3)
        for command in compiled.queues[Queue.COMMUNICATE][1:]:
            first = command.fields(0)["gradient_base"] // 32
            for rank in range(3):
                fields = command.fields(rank)
                assert fields["block_offset"] == first % 3
                assert fields["state_base"] == 32 * sum(group % 3 == (rank + 1) % 3 for group in range(first))

    def test_own_blocks(self):
        """Even a node that owns no block of a chunk gets an update command for the chunk. This command updates
        nothing."""
        compiled = program(Schedule(Kind.STRICT), [3, 2], nodes=3)
        update = next(command for command in compiled.queues[Queue.COMMUNICATE] if command.task.name == "update")
        assert [update.fields(rank)["length"] for rank in range(3)] == [0, 0, 32]
        assert [update.fields(rank)["gradient_base"] for rank in range(3)] == [0, 0, 0]


class TestTime:
    def test_strict(self):
        """The sum of a layer starts during the backward command of the layer below, or at most one gap earlier; no
        update starts before the last sum."""
        spans = {span.name: span for span in spans_of(program(Schedule(Kind.STRICT), nodes=4)) if span.node == 2}
        for number in range(2, 11):
            before = spans[f"backward {number - 1}"]
            assert before.start - GAP <= spans[f"sum {number}"].start < before.end
        assert spans["update"].start > max(spans[f"sum {number}"].end for number in range(1, 11))
        assert spans["update"].end < spans["gather"].start

    def test_overlap(self):
        """With 8 examples per node on four nodes, overlap reduces the modelled time of the deep network."""
        cycles = {str(schedule): makespan(spans_of(program(schedule))) for schedule in SCHEDULES}
        assert cycles["strict"] <= 0.91 * cycles["none"]
        assert cycles["layers"] <= 0.84 * cycles["none"]
        assert min(cycles.values()) <= 0.80 * cycles["none"]
        assert cycles["chunks:1"] == cycles["layers"]

    def test_steady(self):
        """A pass begins as soon as the first layer has its new weights, so all passes take the same time."""
        compiled = program(Schedule(Kind.LAYERS))
        first, third = (makespan(spans_of(compiled, passes=passes)) for passes in (1, 3))
        assert 3 * first <= third <= 3 * (first + 16)


    def test_stale(self):
        """Each additional delayed layer shortens the step, until the ring becomes the bottleneck, as in the table in
        the docs."""
        cycles = [steady(stale(layers)) for layers in range(11)]
        assert cycles[0] == steady(program(Schedule(Kind.LAYERS)))
        assert all(after <= before for before, after in itertools.pairwise(cycles))
        compute, communicate = (sum(command.task.duration for command in queue) for queue in stale(2).queues)
        bound = max(compute, communicate + GAP * len(stale(2).queues[Queue.COMMUNICATE]))
        assert max(cycles[2:]) <= 1.05 * bound
        assert cycles[2] <= 0.66 * steady(program(Schedule(Kind.NONE)))


class TestSearch:
    @pytest.mark.parametrize(("cycles", "tried", "chosen", "claimed"), [
        ({1: 1012, 2: 992, 4: 1048, 8: 1298}, [1, 2, 4], 2, 2), ({1: 5, 2: 5}, [1, 2], 1, None),
        ({1: 9, 2: 8, 4: 7, 8: 6, 16: 5}, [1, 2, 4, 8, 16], 16, 2), ({1: 9, 2: 9, 4: 1}, [1, 2], 1, None)])
    def test_stops(self, cycles, tried, chosen, claimed):
        measured, outcome = chunk_search(9, cycles.__getitem__)
        assert measured == tried
        assert outcome.trials == [(size, cycles[size]) for size in tried]
        assert (outcome.size, outcome.claimed) == (chosen, claimed)

    def test_known_answer(self):
        """Eight layers of 100 cycles and 64 elements each. A transfer takes 50 cycles plus one cycle per element."""
        def measure(size):
            sizes = [len(part) for part in chunks(layers_of([1] * 9), size)]
            return makespan(timeline([
                [Timed(f"C{n}", 100, waits=((0, 0),)) for n in range(8)],
                [Timed(f"X{n}", 50 + 64 * count, waits=((end, 0),))
                 for n, (count, end) in enumerate(zip(sizes, itertools.accumulate(sizes), strict=True))]],
                gap=0, delay=0))

        assert [measure(size) for size in (1, 2, 4, 8)] == [1012, 992, 1048, 1298]
        measured, outcome = chunk_search(7, measure)
        assert measured == [1, 2, 4]
        assert outcome.size == 2

    def test_log(self):
        _, outcome = chunk_search(7, {1: 1012, 2: 992, 4: 1048}.__getitem__)
        assert outcome.lines() == ["chunks:1  1,012 cycles", "chunks:2  992 cycles", "chunks:4  1,048 cycles",
                                   "chosen: chunks:2 (the first that is shorter than the one before: chunks:2)"]
        assert chunk_search(1, lambda size: 7)[1].lines()[-1] == (
            "chosen: chunks:1 (the first that is shorter than the one before: none)")

    def test_on_the_golden_time(self):
        measured, outcome = chunk_search(9, lambda size: makespan(spans_of(program(Schedule(Kind.CHUNKS, size)))))
        assert measured == [1, 2, 4]
        assert outcome.size == 2

    def test_nothing_to_choose(self):
        refuses("Layers to choose chunks from must be at least 1, not 0", search, 0, lambda size: 0)


class TestCosts:
    @pytest.mark.parametrize(("kind", "length", "nodes", "cycles"), [
        (Collective.FUSED_UPDATE, 16_384, 4, 25_488), (Collective.FUSED_UPDATE, 32, 8, 949),
        (Collective.REDUCE_SCATTER, 1056, 3, 884), (Collective.FUSED_UPDATE, 1024, 1, 1231),
        (Collective.ALL_GATHER, 5000, 1, 0), (Collective.FUSED_UPDATE, 0, 4, 0),
        (Collective.FUSED_UPDATE, 32_768, 4, 25_488 + 25_344), (Collective.ALL_GATHER, 64, 6, 229)])
    def test_collectives(self, kind, length, nodes, cycles):
        """Costs of collectives are correct at entries of the table, between lengths or ring sizes, and beyond its
        end."""
        assert Costs(examples=1).collective(kind, length, nodes=nodes) == cycles

    def test_compute(self):
        assert Costs(examples=8).compute(2048) == 1024
        assert Costs(examples=5, macs=7).compute(3) == 3
        assert Costs(examples=0).compute(3) == 0

    @pytest.mark.parametrize(("options", "message"), [
        ({"examples": -1}, "Examples must be at least 0, not -1"),
        ({"examples": 1, "macs": 0}, "MACs must be at least 1, not 0"),
        ({"examples": 1, "latch": -1}, "Latch must be at least 0, not -1")])
    def test_errors(self, options, message):
        refuses(message, Costs, **options)
