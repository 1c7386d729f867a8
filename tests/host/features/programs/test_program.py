import itertools
import re

import numpy as np
import pytest

from hdl.control.protocol import Operation
from host.driver.command import Command
from host.features.programs.order import Region, Wait
from host.features.programs.program import CompiledProgram, Program, ProgramError, Queue, RaceError
from sim.golden.features.programs.program import Timed, timeline
from tests.host.features.programs.random_programs import conflicting, random_program
from tests.refusals import refused, refuses

#: Number of random programs per case; there are 1,000 in total.
CASES, COUNT = range(20), 50
PASSES = 5

GRADIENTS, WEIGHTS = Region("gradients", 0, 640), Region("weights", 0, 640)


def pair(*, alternate=0):
    """Return a program in which a backward command writes a buffer and an update reads it."""
    program = Program()
    region = Region("gradients", 0, 640, alternate=alternate)
    backward = program.add("backward", operation="COMPUTE", queue=Queue.COMPUTE, writes=[region])
    update = program.add("update", operation="FUSED_UPDATE", queue=Queue.COMMUNICATE, collective=True,
                         reads=[region], writes=[WEIGHTS])
    return program, backward, update


def timed(compiled):
    return [[Timed(cmd.task.name, cmd.task.duration, waits=cmd.waits) for cmd in queue] for queue in compiled.queues]


def instances(compiled, spans):
    """Return the pass, task, start and end of each command, in the order of a single queue."""
    number = {(queue, index): command.task.place for queue, commands in enumerate(compiled.queues)
              for index, command in enumerate(commands)}
    return sorted((span.number, number[span.queue, span.place], span.start, span.end) for span in spans)


def late(compiled, spans):
    """Return pairs of conflicting commands in which the second one starts before the first one ends."""
    pairs = []
    for (number, first, _, end), (other, second, start, _) in itertools.combinations(instances(compiled, spans), 2):
        tasks = compiled.tasks
        if start < end and conflicting(tasks[first], tasks[second], number, other):
            pairs.append((tasks[first].name, number, tasks[second].name, other))
    return pairs


class TestDerived:
    def test_pair(self):
        program, *_ = pair()
        compiled = program.compile()
        assert list(compiled.waits()) == [(0, 1, Wait(1, 1)), (1, 0, Wait(1, 0))]
        assert [command.waits for queue in compiled.queues for command in queue] == [(Wait(1, 1),), (Wait(1, 0),)]

    def test_alternate_buffers(self):
        """If passes alternate between two buffers, a pass waits for the last pass but one, but not for the previous
        pass."""
        program, *_ = pair(alternate=640)
        assert list(program.compile().waits()) == [(0, 1, Wait(1, 2)), (1, 0, Wait(1, 0))]

    def test_only_the_latest_counts(self):
        program = Program()
        for number in range(3):
            program.add(f"backward {number}", operation="COMPUTE", queue=Queue.COMPUTE,
                        writes=[Region("gradients", 64 * number, 64)])
        program.add("update", operation="FUSED_UPDATE", queue=Queue.COMMUNICATE, reads=[Region("gradients", 0, 128)])
        program.add("again", operation="FUSED_UPDATE", queue=Queue.COMMUNICATE, reads=[Region("gradients", 0, 64)])
        assert list(program.compile().waits()) == [(0, 1, Wait(2, 1)), (3, 0, Wait(2, 0))]

    def test_what_follows_from_another_queue(self):
        """If queue 2 waits for a command of queue 1, it does not itself wait for commands for which queue 1 has
        already waited."""
        program = Program(queues=3)
        region, other = Region("g", 0, 32), Region("h", 0, 32)
        program.add("a", operation="COMPUTE", queue=0, writes=[region])
        program.add("b", operation="ALL_REDUCE", queue=1, reads=[region], writes=[other])
        program.add("c", operation="ALL_REDUCE", queue=2, reads=[region, other])
        waits = list(program.compile().waits())
        assert (2, 1, Wait(1, 0)) in waits
        assert not [wait for index, queue, wait in waits if (index, queue) == (2, 0)]

    def test_reads_do_not_wait_for_reads(self):
        program = Program(queues=len(Queue))
        for queue in Queue:
            program.add(f"read {queue}", operation="COMPUTE", queue=queue, reads=[WEIGHTS])
        assert list(program.compile().waits()) == []


class TestChecks:
    def test_a_race(self):
        program, backward, update = pair()
        message = "update may start before backward has ended, and both touch gradients[0:640]: let it wait"
        with pytest.raises(RaceError, match=re.escape(message)) as caught:
            program.compile(derive=False)
        assert (caught.value.first, caught.value.second, caught.value.region) == (backward, update, GRADIENTS)

    def test_a_race_with_the_pass_before(self):
        program, backward, update = pair()
        program.wait(update, backward)
        with pytest.raises(RaceError, match=r"^backward may start before update of the pass before has ended, and "):
            program.compile(derive=False)
        program.wait(backward, update, lag=1)
        assert len(list(program.compile(derive=False).waits())) == 2

    def test_a_race_two_passes_back(self):
        program, backward, update = pair(alternate=640)
        program.wait(update, backward)
        with pytest.raises(RaceError, match=r"^backward may start before update of 2 passes before has ended, and "):
            program.compile(derive=False)
        program.wait(backward, update, lag=2)
        program.compile(derive=False)

    def test_the_other_order_is_a_race(self):
        program, backward, update = pair()
        program.wait(backward, update)
        with pytest.raises(RaceError, match=r"^update may start before backward has ended"):
            program.compile(derive=False)

    def test_a_circle(self):
        program, backward, update = pair()
        program.wait(backward, update)
        refuses("Commands must not wait for each other in a circle, not backward for update for backward",
                program.compile, error=ProgramError)

    def test_a_circle_through_queues(self):
        program = Program(queues=3)
        first, second, third = (program.add(name, operation="COMPUTE", queue=queue)
                                for queue, name in enumerate(("one", "two", "three")))
        program.wait(first, second)
        program.wait(second, third)
        program.wait(third, first, lag=1)
        program.compile()
        program.wait(third, first)
        refuses("Commands must not wait for each other in a circle, not one for two for three for one",
                program.compile, error=ProgramError)

    def test_made_by_hand(self):
        """A wait added explicitly is kept even if no conflict requires it, and replaces any weaker wait."""
        program, backward, update = pair()
        other = program.add("masks", operation="MASK", queue=Queue.COMPUTE)
        program.wait(update, other)
        program.wait(other, backward)
        assert (1, 0, Wait(2, 0)) in list(program.compile().waits())


@pytest.mark.parametrize("seed", CASES)
class TestRandom:
    def test_no_conflict_at_the_same_time(self, seed):
        """With random durations, conflicting commands never overlap in any pass, and every command finishes."""
        generator = np.random.default_rng((seed, 1))
        for _ in range(COUNT):
            compiled = random_program(generator).compile()
            length = {key: int(generator.integers(0, 200)) for key in
                      itertools.product(range(PASSES), range(3), range(12))}
            spans = timeline(timed(compiled), passes=PASSES, gap=0, delay=0,
                             duration=lambda node, *key, length=length: length[key])
            assert late(compiled, spans) == [], f"seed {seed}"

    def test_every_wait_is_needed(self, seed):
        """Removing any one wait makes the checker report a race. The race can really occur: the second command starts
        too early if the first is slow."""
        generator = np.random.default_rng((seed, 2))
        removed = 0
        for _ in range(COUNT):
            compiled = random_program(generator).compile()
            for index, queue, _ in compiled.waits():
                mutant = compiled.replace(index, queue)
                with pytest.raises(RaceError) as caught:
                    mutant.check()
                removed += 1
                first = caught.value.first
                where = next((q, n) for q, commands in enumerate(compiled.queues) for n, item in enumerate(commands)
                             if item.task is first)
                spans = timeline(timed(mutant), passes=PASSES, gap=0, delay=0,
                                 duration=lambda node, number, q, n, where=where: 1000 if (q, n) == where else 1)
                assert any(item[::2] == (first.name, caught.value.second.name) for item in late(mutant, spans)), \
                    f"seed {seed}"
        assert removed > COUNT

    def test_every_circle_is_refused(self, seed):
        """A wait that would close a cycle is rejected in every program."""
        generator = np.random.default_rng((seed, 3))
        refused = 0
        for _ in range(COUNT):
            program = random_program(generator)
            compiled = program.compile()
            for index, queue, wait in compiled.waits():
                if wait.lag:
                    continue
                awaited = compiled.queues[queue][wait.after - 1].task
                number = [command.task.place for command in compiled.queues[program.tasks[index].queue]].index(index)
                mutant = compiled.replace(awaited.place, program.tasks[index].queue, Wait(number + 1, 0))
                with pytest.raises(ProgramError, match="in a circle"):
                    mutant.check()
                with pytest.raises(ValueError, match="wait for ever"):
                    timeline(timed(mutant), passes=2)
                refused += 1
        assert refused > COUNT // 2


class TestCompiled:
    def test_fields(self):
        program = Program(queues=3)
        region = Region("g", 0, 32)
        program.add("a", operation="COMPUTE", queue=0, writes=[region], fields={"length": 32})
        program.add("b", operation="ALL_REDUCE", queue=2, reads=[region], fields={"state_base": (0, 32), "length": 5})
        compiled = program.compile()
        assert compiled.queues[0][0].fields(1) == {"length": 32, "after_0": 0, "lag_0": 0, "after_1": 1, "lag_1": 1}
        assert compiled.queues[2][0].fields(0) == {"length": 5, "state_base": 0, "after_0": 1, "lag_0": 0,
                                                   "after_1": 0, "lag_1": 0}
        assert compiled.queues[2][0].fields(1)["state_base"] == 32

    def test_passes(self):
        """If other queues wait for a queue that itself never waits, its 15-bit command count limits the number of
        passes."""
        assert pair()[0].compile().max_passes is None
        loose = Program()
        first = loose.add("a", operation="COMPUTE", queue=0)
        loose.add("b", operation="COMPUTE", queue=0)
        loose.wait(loose.add("c", operation="ALL_REDUCE", queue=1, collective=True), first)
        assert loose.compile().max_passes == 32767 // 2
        assert Program().compile().max_passes is None

    def test_commands(self):
        program = Program()
        region = Region("g", 0, 64)
        program.add("mask", operation="MASK", queue=0, writes=[region], fields={"length": 64})
        program.add("sum", operation="REDUCE_SCATTER", queue=1, collective=True, reads=[region],
                    fields={"length": 64, "state_base": (0, 32, 32)})
        program.add("update", operation="FUSED_UPDATE", queue=1, fields={"size": 1, "rank": 0, "stride": 3})
        compiled = program.compile()
        assert compiled.collectives == 2
        mask, = compiled.commands(1, 3, epoch=7, model=5)[0]
        reduction, update = compiled.commands(1, 3, epoch=7, model=5)[1]
        assert mask == Command(operation=Operation.MASK, rank=1, size=3, epoch=7, model=5, length=64, after_0=1,
                               lag_0=1)
        assert reduction == Command(operation=Operation.REDUCE_SCATTER, rank=1, size=3, epoch=7, model=5, length=64,
                                    state_base=32, tag=1, after_0=1)
        assert update == Command(operation=Operation.FUSED_UPDATE, size=1, epoch=7, model=5, collective=1, tag=2,
                                 stride=3)
        assert all(command.words().size == 16 for command in (mask, reduction, update))
        program.add("other", operation="DANCE", queue=0)
        with pytest.raises(ProgramError, match=r"^Operation of other must be one of a node, not 'DANCE'$"):
            program.compile().commands(0, 3)


def test_names_and_room():
    program = Program(depth=2)
    for name in ("a", "b"):
        program.add(name, operation="COMPUTE", queue=0)
    refuses("Queue 0 must have at most 2 commands, and c is one more: take nodes with a larger program memory",
            program.add, "c", operation="COMPUTE", queue=0, error=ProgramError)
    refuses("Queue of c must be one of 2, not 2", program.add, "c", operation="COMPUTE", queue=2, error=ProgramError)
    with pytest.raises(ProgramError, match=r"^Names of commands must differ, not twice a$"):
        program.add("a", operation="COMPUTE", queue=1)
    refuses("Duration of c must be zero or more, not -1", program.add, "c", operation="COMPUTE", queue=1, duration=-1)
    first, second = program.tasks
    refuses("a must not wait for b, which its queue starts after it", program.wait, first, second, error=ProgramError)
    refuses("Lag must be 0 to 3, not 4", program.wait, first, second, lag=4)
    stranger = Program().add("d", operation="COMPUTE", queue=0)
    refuses("Command must be one of this program, not d", program.wait, first, stranger, error=ProgramError)
    program.wait(second, first)
    program.wait(first, second, lag=1)
    assert list(program.compile().waits()) == []
    assert isinstance(program.compile(), CompiledProgram)


test_errors = refused(Program, {}, [
    ({"queues": 0}, "Queues must be 1 to 3, not 0"), ({"queues": 4}, "Queues must be 1 to 3, not 4"),
    ({"depth": 0}, "Depth must be at least 1 and below 8,191, not 0"),
    ({"depth": 8191}, "Depth must be at least 1 and below 8,191, not 8191")])
