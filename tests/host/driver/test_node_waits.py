"""Commands that wait for commands on other nodes, and nodes that wait for a straggler, on simulated rings."""

import dataclasses
import re

import numpy as np
import pytest

from hdl.control.protocol import EventStatus, Operation, Space
from hdl.features.replay.keepalive import KeepAlive
from host.driver.command import Command, ProgramRun
from host.driver.diagnosis import RingError
from host.features.programs.order import Region
from host.features.programs.program import CompiledProgram, Program, Queue, origin_of, spans
from sim.golden.features.programs.program import HOP, TOLD, signal_cycles
from tests.host import rings
from tests.programs.play import play_part
from tests.refusals import refuses

NODES = 4
TIMEOUT = 4000
CONFIG = rings.CONFIGS["wide"]


def open_nodes(nodes=NODES, config=CONFIG, **options):
    return rings.open_nodes(nodes, config=config, host_port=False, timeout=TIMEOUT, **options)


def relay_race(nodes, *, first, passes_back=0, duration=1500):
    """A program where node ``first`` computes and all other nodes wait for it."""
    program = Program(nodes=nodes)
    source = program.add("source", operation="COMPUTE", queue=Queue.COMPUTE,
                         fields={"duration": [duration if rank == first else 1 for rank in range(nodes)]})
    target = program.add("target", operation="QUIESCE", queue=Queue.COMMUNICATE)
    program.wait(target, source, unit=[None if rank == first else first for rank in range(nodes)], lag=passes_back)
    return program.compile()


def played(ring, program, *, passes=1):
    """Run the program; return its spans keyed by node, name and pass."""
    nodes = ring.nodes
    ring.programs.load([program.commands(rank, nodes) for rank in range(nodes)])
    result = ring.programs.run(collectives=program.collectives, passes=passes)
    origin = origin_of(result.traces)
    return {(span.node, span.name, span.number): span for rank, trace in enumerate(result.traces)
            for span in spans(trace, program, node=rank, origin=origin)}


@pytest.mark.parametrize("wire", [1, 16, 60])
def test_cycles(wire):
    """If a command waits for a command on another node, its delay is given by the formula for the number of hops,
    plus up to two cycles because queues take turns at both ends."""
    with open_nodes(latency=wire) as (ring, _):
        rows = []
        for first in range(NODES):
            spans = played(ring, relay_race(NODES, first=first))
            end = spans[first, "source", 0].end
            rows += [((rank - first) % NODES, spans[rank, "target", 0].start - end)
                     for rank in range(NODES) if rank != first]
        for hops in range(1, NODES):
            measured = sorted({cycles for number, cycles in rows if number == hops})
            print(f"{wire} cycles of wire, {hops} hops: {hops} x ({wire} + {HOP}) + {TOLD} = "
                  f"{signal_cycles(hops, wire=wire)} cycles, measured {measured}")
            assert set(measured) <= {signal_cycles(hops, wire=wire) + late for late in range(3)}


def test_passes():
    """Over 20 passes, each node waits for another node, in a cycle across passes, for various link latencies."""
    program = Program(nodes=3)
    first = program.add("one", operation="COMPUTE", queue=Queue.COMPUTE, fields={"duration": [30, 200, 90]})
    second = program.add("two", operation="QUIESCE", queue=Queue.COMMUNICATE)
    program.wait(second, first, unit=[1, 2, 0])
    program.wait(first, second, unit=[2, 0, 1], lag=1)
    compiled = program.compile()
    with open_nodes(3) as (ring, simulation):
        for link, latency in zip(simulation.links, (3, 60, 16), strict=True):
            link.set_latency(data=latency, credit=latency)
        ring.recover()
        simulation.run(300)
        for _ in range(2):
            spans = played(ring, compiled, passes=20)
            for number in range(20):
                for rank in range(3):
                    assert spans[rank, "two", number].start > spans[(rank + 1) % 3, "one", number].end
                    if number:
                        assert spans[rank, "one", number].start > spans[(rank - 1) % 3, "two", number - 1].end


def test_counts_of_earlier_runs():
    """After a failed run, after other programs are loaded, and after the ring is recovered, waits do not count
    commands of earlier runs."""
    program = relay_race(3, first=2)
    with open_nodes(3) as (ring, _):
        def check():
            spans = played(ring, program)
            for rank in range(2):
                assert spans[rank, "target", 0].start >= spans[2, "source", 0].end + signal_cycles((rank - 2) % 3)

        check()
        # Node 2 has already finished its commands when the other nodes fail.
        commands = [program.commands(rank, 3) for rank in range(3)]
        commands[0][1][0] = dataclasses.replace(commands[0][1][0], operation=99)
        ring.programs.load(commands)
        events = ring.programs.play(1)
        assert [[event.status for event in queues[0]] for queues in events] == [[], *[[EventStatus.OK]] * 2]
        check()
        # Run many passes of another program, so that its counts far exceed the next program's.
        other = Program(nodes=3)
        for index in range(5):
            other.add(f"{index}", operation="QUIESCE", queue=Queue.COMPUTE)
        played(ring, other.compile(), passes=8)
        check()
        ring.recover()
        check()
        for _ in range(65):  # run numbers wrap around
            ring.programs.load([program.commands(rank, 3) for rank in range(3)])
            ring.programs.play(1)
        check()


def test_random_programs_see_a_missing_wait(monkeypatch):
    """If nodes ignore remote waits, random programs detect it, because the reference model does wait."""
    commands = CompiledProgram.commands
    monkeypatch.setattr(CompiledProgram, "commands", lambda *arguments, **options: [
        [dataclasses.replace(command, remote=0) for command in queue] for queue in commands(*arguments, **options)])
    assert re.search(r"Span\(.*\) has started before \d+", play_part("wide", 3, 1000, 6, remote=True)["difference"])


def test_alone():
    """On a ring of one node, a command may wait for its own node."""
    program = Program(nodes=1)
    source = program.add("source", operation="COMPUTE", queue=Queue.COMPUTE, fields={"duration": 50})
    program.wait(program.add("target", operation="QUIESCE", queue=Queue.COMMUNICATE), source, unit=0)
    with open_nodes(1) as (ring, _):
        for _ in range(3):
            spans = played(ring, program.compile(), passes=3)
            assert all(spans[0, "target", n].start - spans[0, "source", n].end == 3 for n in range(3))


def test_statuses():
    """Impossible waits are rejected, unsatisfied waits time out, and correct programs run afterwards."""
    program = relay_race(NODES, first=1)
    with open_nodes() as (ring, _):
        cases = [
            ({"unit": 4}, EventStatus.BAD_UNIT, 4 | 0 << 8 | NODES << 16),
            ({"unit": 0}, EventStatus.BAD_UNIT, 0 | 0 << 8 | NODES << 16),
            ({"unit_queue": 2}, EventStatus.BAD_UNIT, 1 | 2 << 8 | NODES << 16),
            ({"after_1": 2}, EventStatus.AFTER_TIMEOUT, 2 | 0 << 16 | 1 << 18 | 1 << 20 | 0 << 24),
            ({"unit": 3, "unit_queue": 1, "after_1": 1 << 14}, EventStatus.AFTER_TIMEOUT,
             1 << 14 | 1 << 18 | 3 << 20 | 1 << 24),
        ]
        for fields, status, detail in cases:
            commands = [program.commands(rank, NODES) for rank in range(NODES)]
            commands[0][1][0] = dataclasses.replace(commands[0][1][0], **fields)
            ring.programs.load(commands)
            with pytest.raises(RingError, match=status.name) as caught:
                ring.programs.run(collectives=0)
            assert [(event.status, event.detail) for event in caught.value.events if event.status] == [
                (status, detail)]
            ring.recover()
            played(ring, program)
        # In a run with number 0 and without positions in the ring, nodes send no signals to each other.
        for rank, device in enumerate(ring.devices):
            device.run(ProgramRun(1, rank=rank))
        event = ring.devices[0].pop_event(20 * TIMEOUT)
        assert EventStatus.BAD_UNIT in (event.status, ring.devices[0].pop_event(20 * TIMEOUT).status)
        ring.recover()
        played(ring, program)


def test_programs_that_nodes_cannot_run():
    """Programs with waits that the nodes do not support are rejected when they are loaded or sent."""
    command = Command(operation=Operation.QUIESCE, remote=1, unit=1, after_1=1, tag=1)
    with open_nodes(2) as (ring, _):
        refuses("Queues must have as many commands on each node where commands wait for other nodes, not (0, 1) and "
                "(0, 2)", ring.programs.load, [([], [command]), ([], [command, command])])
        ring.programs.load([([], [command]), ([], [command])])
        refuses("Commands that wait for other nodes must be run by the nodes, and not be sent", ring.programs.send)


def test_nodes_without_control_words():
    command = Command(operation=Operation.QUIESCE, remote=1, unit=1, after_1=1, tag=1)
    with open_nodes(2, config=rings.CONFIGS["mx9"]) as (ring, _):
        refuses("Nodes must have replay and two queues for commands to wait for other nodes", ring.programs.load,
                [([], [command]), ([], [command])])
        for device in ring.devices:
            device.load_program(1, [command])
            device.run(ProgramRun(1))
            assert device.pop_event(TIMEOUT).status is EventStatus.BAD_UNIT


def straggler(late, duration, nodes=NODES):
    """A program where one node computes for a long time before all nodes begin a collective."""
    program = Program(nodes=nodes)
    region = Region("gradients", 0, 256)
    program.add("backward", operation="COMPUTE", queue=Queue.COMPUTE, writes=[region],
                fields={"duration": [duration if rank == late else 100 for rank in range(nodes)],
                        "gradient_base": 0, "state_base": 256, "length": 256}, duration=duration)
    program.add("sum", operation="ALL_REDUCE", queue=Queue.COMMUNICATE, collective=True, reads=[region],
                writes=[region], fields={"gradient_base": 0, "length": 256})
    # Every node then waits for the end of the sum. All nodes except the delayed one start the sum early.
    last = program.add("last", operation="QUIESCE", queue=Queue.COMPUTE)
    program.wait(last, program.tasks[1])
    return program.compile()


@pytest.mark.parametrize("late", range(NODES))
def test_a_straggler_is_not_a_broken_link(late):
    """While one node computes for ten time-outs, all nodes wait for it, both in the sum and in later commands, and
    the sum is correct. (A time-out must be longer than the period of the keep-alive words.)"""
    duration = 10 * TIMEOUT
    assert KeepAlive.period < TIMEOUT
    values = np.random.default_rng(late).integers(-50, 50, (NODES, 256)).astype(np.float32)
    with open_nodes() as (ring, _):
        for device, row in zip(ring.devices, values, strict=True):
            device.write_memory(Space.GRADIENT, 256, row)
        spans = played(ring, straggler(late, duration))
        assert all(spans[rank, "sum", 0].end > duration for rank in range(NODES))
        assert all(spans[rank, "sum", 0].start < 1000 for rank in range(NODES) if rank != late)
        for device in ring.devices:
            assert (device.read_memory(Space.GRADIENT, 0, 256).view(np.float32) == values.sum(axis=0)).all()


def test_a_node_that_others_wait_for_in_a_sum():
    """A node begins a sum while it computes; the rest join when its COMPUTE ends, ten time-outs later."""
    program = Program(nodes=NODES)
    long = program.add("long", operation="COMPUTE", queue=Queue.COMPUTE, duration=10 * TIMEOUT,
                       fields={"duration": [10 * TIMEOUT, 1, 1, 1]})
    total = program.add("sum", operation="ALL_REDUCE", queue=Queue.COMMUNICATE, collective=True,
                        fields={"gradient_base": 0, "length": 256})
    program.wait(total, long, unit=[None, 0, 0, 0])
    with open_nodes() as (ring, _):
        spans = played(ring, program.compile())
        assert spans[0, "sum", 0].start < 100
        assert all(spans[rank, "sum", 0].start > 10 * TIMEOUT for rank in range(1, NODES))


def test_without_control_words_it_is():
    """Nodes without control words time out while waiting for a straggler."""
    program = straggler(1, 10 * TIMEOUT, nodes=2)
    with open_nodes(2, config=rings.CONFIGS["mx9"]) as (ring, _):
        ring.programs.load([program.commands(rank, 2) for rank in range(2)])
        with pytest.raises(RingError, match="INGRESS_TIMEOUT"):
            ring.programs.run(collectives=program.collectives)


def busy():
    """Program in which all nodes compute for a long time while a sum runs."""
    program = Program(nodes=NODES)
    program.add("long", operation="COMPUTE", queue=Queue.COMPUTE, duration=10 * TIMEOUT,
                fields={"duration": 10 * TIMEOUT})
    program.add("sum", operation="ALL_REDUCE", queue=Queue.COMMUNICATE, collective=True,
                fields={"gradient_base": 0, "length": 4096})
    return program.compile()


@pytest.mark.parametrize("program", [straggler(0, 100), straggler(0, 10 * TIMEOUT), busy()],
                         ids=["nobody", "one", "all"])
def test_a_cut_link_is_named(program):
    """A cut link is named and ends the sum within one time-out, even while its sender or all nodes compute."""
    with open_nodes() as (ring, simulation):
        played(ring, straggler(0, 100))
        ring.programs.load([program.commands(rank, NODES) for rank in range(NODES)])
        # Node 1 sends, but node 2 receives neither node 1's words nor words that node 1 forwards.
        simulation.links[1].cut(simulation.cycle + 300)
        with pytest.raises(RingError) as caught:
            ring.programs.run(collectives=program.collectives)
        assert caught.value.cause == 1
        event = caught.value.events[2]
        # After timing out, the node waits up to another time-out until its predecessor's packets end.
        assert event.status is EventStatus.INGRESS_TIMEOUT
        assert event.cycles < 2 * TIMEOUT + 300
        simulation.links[1].mend()
        ring.recover()
        simulation.run(300)
        played(ring, straggler(0, 100))
