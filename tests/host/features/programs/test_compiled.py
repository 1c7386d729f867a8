"""Waits for commands on other nodes: their compiled form, and the rejection of invalid waits."""


import numpy as np
import pytest

from hdl.control.protocol import Operation
from host.driver.command import Command
from host.features.programs.order import find_node_cycle
from host.features.programs.program import Program, ProgramError, Queue
from sim.golden.features.programs.program import DELAY, HOP, TOLD, Remote, signal_cycles, timeline
from sim.golden.features.programs.program_nodes import ProgramNodes
from tests.refusals import refuses


def pair(nodes=3):
    """Program with a single command in each queue."""
    program = Program(nodes=nodes)
    return (program, program.add("backward", operation="COMPUTE", queue=Queue.COMPUTE, duration=100),
            program.add("latch", operation="LATCH", queue=Queue.COMMUNICATE, duration=10))


def test_fields():
    """A remote wait names a rank, for all nodes or for each node, and waits for the other queue of that rank."""
    program, backward, latch = pair()
    program.wait(latch, backward, unit=2, lag=1)
    compiled = program.compile()
    assert list(compiled.remote_waits()) == [(1, rank, Remote(2, 0, 1, 1)) for rank in (0, 1)]
    commands = [compiled.commands(rank, 3)[1][0] for rank in range(3)]
    assert commands[0] == Command(operation=Operation.LATCH, rank=0, size=3, tag=1, remote=1, unit=2, unit_queue=0,
                                  after_1=1, lag_1=1)
    assert (commands[2].remote, commands[2].after_0, commands[2].lag_0) == (0, 1, 1)
    refuses("latch of rank 0 must wait for one queue of one node, not of nodes 2 and 1: let a QUIESCE before it wait "
            "for the other", program.wait, latch, backward, unit=1, error=ProgramError)


def test_waits_that_are_left_out():
    """Of several waits for a queue, only the latest is kept. A wait for a command that must already have ended is not
    kept."""
    program, backward, latch = pair()
    other = program.add("forward", operation="COMPUTE", queue=Queue.COMPUTE)
    program.wait(latch, other, unit=1, lag=1)
    program.wait(latch, backward, unit=1, lag=1)
    program.wait(latch, backward, unit=[1, None, None], lag=2)
    program.wait(other, backward, unit=[0, None, None])
    assert list(program.compile().remote_waits()) == [(1, 0, Remote(1, 0, 2, 1)), (1, 2, Remote(1, 0, 2, 1))]


@pytest.mark.parametrize(("unit", "message"), [
    (3, "Units that latch waits for must be ranks of 3 nodes, one for each of them, not 3"),
    ([0, 1], "Units that latch waits for must be ranks of 3 nodes, one for each of them, not [0, 1]"),
    ([0, 1, -1], "Units that latch waits for must be ranks of 3 nodes, one for each of them, not [0, 1, -1]"),
])
def test_units_are_checked(unit, message):
    program, backward, latch = pair()
    refuses(message, program.wait, latch, backward, unit=unit, error=ProgramError)


def test_nodes_are_checked():
    program = Program()
    task = program.add("a", operation="COMPUTE", queue=0)
    with pytest.raises(ProgramError, match=r"^Program must have a number of nodes for a to wait for one of them$"):
        program.wait(task, task, unit=1, lag=1)
    refuses("Nodes must be 1 to 16, not 17", Program, nodes=17)
    program, backward, latch = pair()
    program.wait(latch, backward, unit=0)
    with pytest.raises(ProgramError, match=r"^Nodes must be the 3 that commands wait for each other on, not 4$"):
        program.compile().commands(0, 4)
    with pytest.raises(ProgramError, match=r"^backward must not wait for backward, which its queue starts after it$"):
        program.wait(backward, backward, unit=0)


def test_three_queues():
    """A command descriptor has fields for only one wait for another queue and one wait for another node."""
    program = Program(queues=3, nodes=2)
    first, second, third = (program.add(f"{queue}", operation="COMPUTE", queue=queue) for queue in range(3))
    program.wait(third, first)
    program.wait(third, second, unit=[1, None])
    assert program.compile().queues[2][0].fields(0) == {
        "after_0": 1, "lag_0": 0, "after_1": 1, "lag_1": 0, "remote": 1, "unit": 1, "unit_queue": 1}
    program.wait(third, second)
    refuses("2 of rank 0 must wait for queue 0 of its node alone, beside another node: let a QUIESCE before it wait "
            "for the other queue", program.compile, error=ProgramError)


class TestCircles:
    def test_two_nodes(self):
        program, backward, latch = pair(2)
        program.wait(latch, backward, unit=[1, None])
        program.wait(backward, latch, unit=[None, 0])
        refuses("Commands must not wait for each other in a circle, not latch of rank 0 for backward of rank 1 for "
                "latch of rank 0", program.compile, error=ProgramError)
        program, backward, latch = pair(2)
        program.wait(latch, backward, unit=[1, None])
        program.wait(backward, latch, unit=[None, 0], lag=1)
        program.compile()

    def test_round_a_ring(self):
        """If each node's command waits for the previous node's, the waits form a cycle unless one node does not
        wait."""
        program, backward, _ = pair(4)
        program.wait(backward, backward, unit=[3, 0, 1, 2])
        with pytest.raises(ProgramError, match="backward of rank 0 for backward of rank 3 for backward of rank 2 for "
                                               "backward of rank 1 for backward of rank 0"):
            program.compile()
        program, backward, _ = pair(4)
        program.wait(backward, backward, unit=[None, 0, 1, 2])
        spans = timeline(program.compile().timed(), nodes=4, signal=lambda hops: 50 * hops)
        assert [span.start for span in spans if span.name == "backward"] == [0, 150, 300, 450]

    def test_through_a_collective(self):
        """A cycle of waits may include a collective, because a collective cannot end on any node before it has
        started on all nodes."""
        program = Program(nodes=2)
        first = program.add("first", operation="COMPUTE", queue=0)
        reduced = program.add("sum", operation="ALL_REDUCE", queue=1, collective=True)
        program.wait(reduced, first, unit=[1, None])
        program.wait(first, reduced, unit=[None, 1])
        with pytest.raises(ProgramError, match="sum of rank 0 for first of rank 1 for sum for sum of rank 0"):
            program.compile()


def test_most_passes():
    """A run may have any number of passes if a collective synchronizes all nodes; otherwise, 15-bit command counts
    limit it."""
    program, backward, latch = pair()
    program.wait(latch, backward, unit=0)
    assert program.compile().max_passes == 32767
    program.add("sum", operation="ALL_REDUCE", queue=1, collective=True)
    program.wait(backward, latch, lag=1)  # keeps the queues of a node from running ahead of each other
    program.wait(latch, backward)
    assert program.compile().max_passes is None
    program = Program(nodes=2, depth=1000)
    for index in range(1000):
        program.add(str(index), operation="ALL_REDUCE", queue=1, collective=True)
    program.wait(program.tasks[3], program.tasks[2], unit=0)
    assert program.compile().max_passes == 32


def test_time():
    """Hand-computed: a command that waits for another node starts exactly when the control word arrives."""
    program, backward, latch = pair()
    program.wait(latch, backward, unit=0)
    spans = [span for span in timeline(program.compile().timed(), nodes=3) if span.name == "latch"]
    assert [(span.node, span.start) for span in spans] == [
        (0, 100 + DELAY), (1, 100 + signal_cycles(1)), (2, 100 + signal_cycles(2))]
    assert signal_cycles(3, wire=5) == 3 * (HOP + 5) + TOLD


@pytest.mark.parametrize("seed", range(60))
def test_random_circles(seed):
    """The check agrees with golden nodes: a program either ends in any order of commands, or its waits have a
    cycle."""
    generator = np.random.default_rng(seed)
    nodes = int(generator.integers(2, 5))
    program = Program(nodes=nodes)
    for index in range(int(generator.integers(2, 7))):
        collective = bool(generator.random() < 0.3)
        program.add(f"{index}", operation="QUIESCE", queue=int(generator.integers(2)) if not collective else 1,
                    collective=collective)
    compiled = program.compile()
    refused = False
    for _ in range(5):
        waiting, other = (program.tasks[index] for index in generator.integers(0, len(program.tasks), 2))
        units = [int(unit) if generator.random() < .3 else None for unit in generator.integers(0, nodes, nodes)]
        try:
            program.wait(waiting, other, unit=units, lag=int(generator.integers(0, 2)))
        except ProgramError:
            continue
        try:
            compiled = program.compile()
        except ProgramError:
            refused = True
            break
    golden = ProgramNodes(nodes, gradient_words=32, weights=np.zeros(32, np.uint32))
    if refused:
        with pytest.raises(ValueError, match="wait for ever"):
            golden.run(_unchecked(program, nodes), passes=2)
        assert find_node_cycle([task.queue for task in program.tasks], [{} for _ in program.tasks], program._remotes,
                               [task.collective for task in program.tasks], nodes)
    else:
        golden.run(compiled.placed(nodes), passes=3, seed=seed)


def _unchecked(program, nodes):
    """Return a program's commands for golden nodes without the check, which would reject them."""
    from host.features.programs.program import CompiledProgram
    waits = [{} for _ in program.tasks]
    return CompiledProgram(program.tasks, 2, waits, remotes=program._remotes, nodes=nodes).placed(nodes)
