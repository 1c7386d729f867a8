"""Edits that arrive on simulated nodes while a set is running: active programs, rejections and replays."""

import dataclasses
import functools
import itertools

import numpy as np
import pytest

from host.driver.command import ProgramRun
from host.driver.errors import OldEditError, ProgramNotLoadedError, WrongProgramError, WrongSetError
from host.features.streaming.edits import Kind, RefusedError, Structure
from host.features.streaming.lists import first_bases, next_bases
from host.features.streaming.node_run import NodeRun, worker_of
from host.features.streaming.run import GoldenStreaming
from host.training.optimizers import SGD
from tests.host import rings
from tests.host.features.streaming.sets import CLASSES, WIDTH, do, examples
from tests.refusals import refuses

RELAY = rings.MIXED["relay"]
MICROBATCH = 4
EDITS = 50

open_streaming = functools.partial(rings.open_nodes, len(RELAY), config=RELAY, timeout=50_000)


def structure_of(widths=(WIDTH, WIDTH, CLASSES), count=1, **changes):
    settings = {"rate": 0.05, "microbatch": MICROBATCH, "worker": worker_of(RELAY[0]), **changes}
    return Structure(tuple(widths), ("raw",) * (len(widths) - 1), count, **settings)


def optimizer():
    return SGD(0.05, momentum=0.9)


class Random:
    """Assessor that proposes some random edits, not all of them valid."""

    def __init__(self, seed):
        self._generator = np.random.default_rng(seed)
        self.run = None

    def assess(self, report, following):
        if len(self.run.log) >= EDITS:
            return
        for _ in range(self._generator.choice([0, 2, 3, 3, 4])):
            structure = self.run._banks.following
            kinds = [Kind.ADD, Kind.ADD, Kind.REMOVE, Kind.RATE, Kind.MICROBATCHES, Kind.RATE, Kind.FORMAT]
            kind = kinds[self._generator.integers(len(kinds))]
            layer = int(self._generator.integers(1, structure.layers + 1))
            match kind:
                case Kind.ADD if structure.layers < 3:
                    yield layer, kind, int(structure.widths[layer - 1])
                case Kind.REMOVE if structure.layers > 1:
                    yield layer, kind, 0  # an edit may not remove the last layer
                case Kind.MICROBATCHES:
                    yield 0, kind, int(self._generator.choice([1, 1, 2, 1 << 13]))  # 1 << 13 exceeds the limit
                case Kind.RATE:
                    yield 0, kind, float(self._generator.choice([0.02, 0.05, 0.1]))
                case Kind.FORMAT:
                    yield layer, kind, str(self._generator.choice(["mx9", "raw", "bf16", "bf16"]))  # bf16 is missing


def run_of(ring, **options):
    return NodeRun(ring, examples(), structure_of(), optimizer=optimizer(), **options)


def in_force(run, nodes):
    """Check that all nodes run the program of the latest valid edit, from the same bank."""
    number = len(run.reports) - 1
    latest = max((edit.number for edit in run.log if edit.set <= number), default=0)
    for device in nodes.devices:
        bank, sets = device.read_fields("PROGRAM_BANK"), device.read_fields("PROGRAM_SET")
        assert sets["set"] == number
        assert bank["edit"] == latest
        assert sets["latest"] == len(run.log)
        assert bank["pending"] == any(edit.set > number for edit in run.log)
    return bank["bank"]


def layers_of(run):
    """Return the start and end of each LAYERS command of the first worker in the latest set, in NODE_TIME."""
    operations = {task.place: task.operation for task in run.outcome.program.tasks}
    starts, spans = {}, []
    for record in run.outcome.records:
        if operations[record.tag] == "LAYERS":
            if record.end:
                spans.append((starts[record.tag], record.time))
            starts[record.tag] = record.time
    return spans


def test_random_edits():
    seed = 3
    with open_streaming() as (ring, simulation):
        simulation.set_far_speed(latency=16, rate=4, node=ring.nodes - 1)
        assessor = Random(seed)
        run = assessor.run = run_of(ring, assessor=assessor, traced=True)
        banks, inside = [], 0
        while len(run.log) < EDITS or run.log[-1].set >= len(run.reports):
            do(run)
            assert run.compare(), f"seed {seed}, set {len(run.reports) - 1}"
            banks.append(in_force(run, ring))
            staged = [times for times in run.relay.edited if times[0] == len(run.reports)]
            if staged:
                spans = layers_of(run)
                ((_, begun, ended),) = staged
                assert spans[0][0] < begun < ended < spans[-1][1], f"seed {seed}, set {len(run.reports) - 1}"
                inside += any(start < begun and ended < end for start, end in spans)
        assert len(run.relay.edited) == sum(item != other for item, other in itertools.pairwise(banks)) >= 20
        assert inside >= 10
        assert len(run.refused) >= 10
        assert {edit.kind for edit in run.log} == set(Kind)
    golden = GoldenStreaming(examples(), structure_of(), workers=2, optimizer=optimizer(), edits=run.log)
    do(golden, len(run.reports))
    assert golden.digest == run.digest
    for sets, latency, threads in ((len(run.reports), 3, 1), (6, 40, 2)):
        with open_streaming(latency=latency, threads=threads) as (ring, simulation):
            for rank in range(ring.nodes):
                simulation.set_far_speed(latency=5 + 10 * rank, rate=1 + rank % 2, node=rank)
            again = run_of(ring, edits=run.log)
            do(again, sets)
            assert again.compare()
            assert [item.loss for item in again.reports] == [item.loss for item in run.reports[:sets]]
            assert in_force(again, ring) == banks[sets - 1]
        assert sets < len(run.reports) or again.digest == run.digest


def test_a_node_that_refuses():
    """If the program of one node does not match the edit's digest, the other nodes withdraw the edit, and the run
    continues. The edit is accepted later under a higher number; late and old edits are rejected."""
    with open_streaming() as (ring, _):
        run = run_of(ring)
        do(run, 2)
        relay = run.relay
        programs = [[list(commands) for commands in program] for program in ring.programs._programs]
        for _ in ring.programs.stage(programs):
            pass
        ring.devices[1].load_program(2, [], idle=True)
        refuses("node 1: edit 1 from set 2 on was refused with WRONG_PROGRAM; load the idle bank again, from slot 0 "
                "of queue 0 on", ring.programs.edit, number=1, set=2, error=WrongProgramError)
        assert [device.read_fields("PROGRAM_BANK")["pending"] for device in ring.devices] == [0] * 3
        refuses("Programs must be staged before an edit", ring.programs.edit, number=2, set=2)
        do(run)
        assert run.compare()
        for number, first, error in ((2, 2, WrongSetError), (2, 4, WrongSetError), (1, 3, OldEditError)):
            for _ in ring.programs.stage(programs):
                pass
            with pytest.raises(error):
                ring.programs.edit(number=number, set=first)
        for _ in ring.programs.stage(programs):
            pass
        ring.programs.edit(number=2, set=3)
        do(run, 2)
        assert run.compare()
        assert [device.read_fields("PROGRAM_BANK")["bank"] for device in ring.devices] == [1] * 3
        assert relay is run.relay


def test_an_edit_outlives_a_failed_set():
    """A pending edit outlives a failed set and a link reset, and takes effect in the set that it was made for."""
    with open_streaming() as (ring, _):
        run = run_of(ring)
        do(run, 2)
        programs = [[list(commands) for commands in program] for program in ring.programs._programs]
        for _ in ring.programs.stage(programs):
            pass
        ring.programs.edit(number=1, set=2)
        with pytest.raises(ProgramNotLoadedError):
            ring.devices[0].run(ProgramRun(1, model=ring.programs._model, first=2))  # program that was replaced
        with pytest.raises(ProgramNotLoadedError):
            ring.devices[0].run(ProgramRun(1, model=ring.programs._model + 1, first=1))  # number of an earlier set
        ring.devices[0].run(ProgramRun(1, model=ring.programs._model, first=1))  # FETCH on a single node cannot end
        ring.recover()
        for device in ring.devices:
            assert device.read_fields("PROGRAM_BANK") == {"bank": 0, "pending": 1, "edit": 0}
        do(run)
        assert run.compare()
        for device in ring.devices:
            assert device.read_fields("PROGRAM_BANK") == {"bank": 1, "pending": 0, "edit": 1}


def test_no_room():
    """An edit is rejected if its lists do not fit in memory in addition to the lists of the running set."""
    small = dataclasses.replace(worker_of(RELAY[0]), activation_words=960)
    data = examples()
    with open_streaming() as (ring, _):
        run = NodeRun(ring, data, structure_of(worker=small), optimizer=optimizer())
        do(run)
        refuses("Edit must leave a place for 384 elements of lists among the 960 of a worker's activation memory, "
                "beside buffers and lists of the set that runs", run.propose, 2, Kind.ADD, WIDTH, error=RefusedError)
        do(run)
        assert not run.log
        assert run.compare()


def test_places():
    """Existing units keep their addresses, and each new unit gets the lowest address not used by the running set."""
    old = [np.zeros(length, np.uint32) for length in (96, 64, 32)]
    new = [np.zeros(length, np.uint32) for length in (64, 32)]
    assert first_bases([96, 64, 32]) == [0, 96, 160]
    assert next_bases(old, [0, 96, 160], [old[0], new[0], old[2], new[1]], words=512) == [0, 192, 160, 256]
    assert next_bases(old, [64, 256, 0], [new[1], *old[:2]], words=320) == [32, 64, 256]
    refuses("Edit must leave a place for a unit of 64 words among the 224 of a server beside the 192 of the set that "
            "runs", next_bases, old, [0, 96, 160], [new[0]], words=224, error=RefusedError)
