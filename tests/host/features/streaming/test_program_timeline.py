"""Timelines of sets, computed from programs with moves: host/features/streaming/timeline.py."""

import functools
from fractions import Fraction

import numpy as np
import pytest

from host.features.streaming.lists import StreamingLists, streaming_program
from host.features.streaming.plan import Worker, make_streaming_plan
from host.features.streaming.timeline import Costs, Far, packet_cycles, program_run, streaming_timeline
from sim.golden.features.streaming.streaming import Unit

#: A move of 64 elements (a microbatch) takes 37 cycles in and 23 cycles out; of 32 elements, 29 and 15.
FAST = Far(rate=Fraction(4), latency=16)
#: Commands follow each other without gaps, and start as soon as their waits end.
AT_ONCE = {"gap": 0, "delay": 0}


@functools.cache
def planned(widths, count, microbatch=4, window=4160):
    """Return the units and the program of a set. Its lists have addresses but no words."""
    worker = Worker(weight_words=2 * window, gradient_words=2 * window, activation_words=8192, far_words=1 << 17)
    plan = make_streaming_plan(widths, worker=worker, count=count, microbatch=microbatch)
    lists = StreamingLists(plan=plan, words=np.zeros(0, np.uint32), places=dict.fromkeys(plan.keys, 0), base=0)
    return plan.units, streaming_program(lists, lengths=[[microbatch] * count], depth=1024)


def uniform(layers, costs, count, far, **options):
    units, program = planned((16,) * layers + (10,), count)
    return program_run(program, [costs] * len(units), far, **options)


def test_cycles_of_moves():
    assert [FAST.cycles(64, back=back) for back in (True, False)] == [37, 23]
    assert [FAST.cycles(32, back=back) for back in (True, False)] == [29, 15]
    assert [Far().cycles(512, back=back) for back in (True, False)] == [530, 516]


@pytest.mark.parametrize(("layers", "backward", "count", "end", "stalled"), [
    (4, 200, 1, 1850, 350), (4, 200, 2, 2700, 0), (3, 300, 1, 1600, 100), (3, 300, 2, 2700, 0)])
def test_known_answers_without_moves(layers, backward, count, end, stalled):
    run = uniform(layers, Costs(150, 150, 100, backward), count, None, **AT_ONCE)
    assert (run.end, run.stalled) == (end, stalled)


def test_a_set_by_hand():
    """Three layers and one microbatch: each layer's outputs are moved out, and moved back in as inputs."""
    run = uniform(3, Costs(10, 10, 100, 200), 1, FAST, **AT_ONCE)
    events = [(event.kind, event.unit, event.start, event.end) for event in run.events]
    assert [event for event in events if event[0] in ("forward", "backward")] == [
        ("forward", 0, 37, 137), ("forward", 1, 197, 297), ("forward", 2, 386, 486),
        ("backward", 2, 486, 686), ("backward", 1, 783, 983), ("backward", 0, 1080, 1280)]
    assert [event for event in events if event[0] in ("fetch", "push")] == [
        ("fetch", 0, 0, 10), ("fetch", 1, 10, 20), ("fetch", 2, 137, 147), ("push", 2, 686, 696),
        ("fetch", 0, 696, 706), ("push", 1, 983, 993), ("push", 0, 1280, 1290)]
    assert [event for event in events if event[0] in ("in", "out")] == [
        ("in", 0, 0, 37), ("out", 0, 137, 160), ("in", 1, 160, 197), ("out", 1, 297, 320),
        ("in", 2, 320, 357), ("in", 2, 357, 386), ("in", 2, 386, 423), ("in", 2, 423, 452), ("out", 2, 486, 501),
        ("out", 2, 686, 709), ("in", 1, 709, 746), ("in", 1, 746, 783), ("out", 1, 983, 1006),
        ("in", 0, 1006, 1043), ("in", 0, 1043, 1080)]
    assert run.stalled == 60 + 89 + 97 + 97


@pytest.mark.parametrize(("count", "far", "end", "stalled"), [
    # While one of two microbatches is moved, the other one is computed; computing takes longer than the move.
    (2, FAST, 37 + 1800 + 10, 0),
    # Moving 64 elements takes 1222 cycles in and 1208 out; 32 elements take 582 and 568. The loss is moved out after
    # the inputs of the last layer's backward, which ends 368 cycles before the move of the loss is complete.
    (1, Far(rate=Fraction(4, 80)), 0, (1208 + 1222) + (1208 + 1222 + 582) + (1222 + 582 - 100) + 368
     + 2 * (1208 + 2 * 1222))])
def test_moves_and_microbatches(count, far, end, stalled):
    run = uniform(3, Costs(10, 10, 100, 200), count, far, **AT_ONCE)
    assert run.stalled == stalled
    if end:
        assert run.end == end


@pytest.mark.parametrize("seed", range(4))
def test_timelines_are_the_same_without_moves(seed):
    """Without moves, the timeline of a program equals the timeline of its layers, for any layers, parts and costs."""
    generator = np.random.default_rng(seed)
    layers, count = int(generator.integers(1, 6)), int(generator.integers(1, 4))
    units, program = planned((16,) * layers + (8,), count, window=160 if seed % 2 else 4160)
    assert (len(units) > layers) == (seed % 2 and layers > 1), f"{seed=}"
    costs = [Costs(*map(int, generator.integers(1, 300, 4))) for _ in units]
    own, other = program_run(program, costs, None, **AT_ONCE), streaming_timeline(units, costs, count)
    assert (own.end, own.busy, own.stalled) == (other.end, other.busy, other.stalled), f"{seed=}"
    link = [sorted((event.start, event.end, event.kind, event.unit) for event in run.events
                   if event.kind in ("fetch", "push")) for run in (own, other)]
    assert link[0] == link[1], f"{seed=}"


@pytest.mark.parametrize(("layers", "count", "rate", "stall"), [
    (4, 1, 1, 24.4), (8, 1, 1, 26.4), (16, 1, 1, 27.2), (4, 1, 4, 17.3), (8, 1, 4, 23.4), (16, 1, 4, 25.7),
    (4, 2, 1, 0.1), (4, 3, 4, 0.1)])
def test_measured_stalls(layers, count, rate, stall):
    """Modelled stalls match simulated rings of 4 workers that train with momentum and microbatches of 8. The model
    uses measured compute times, which are longer when gradients are added to those of an earlier microbatch."""
    units, program = planned((64,) * layers + (10,), count, microbatch=8)
    backward = 7001 + round(1100 * (count - 1) / count)
    executions = [(2273, backward - 2260), *[(2273, backward)] * (layers - 2), (1878, 3202)]
    costs = [Costs(*packet_cycles(unit, workers=4, state_words=4, zeros=0.3), *executed)
             for unit, executed in zip(units, executions, strict=True)]
    run = program_run(program, costs, Far(rate=Fraction(rate)))
    assert 100 * run.stall == pytest.approx(stall, abs=0.3)


@pytest.mark.parametrize(("workers", "state_words", "rate", "zeros", "cycles", "within"), [
    (1, 2, 4, 0.41, 2914, 0.01), (2, 2, 4, 0.34, 3255, 0.01), (4, 2, 4, 0.32, 3470, 0.02),
    (1, 4, 4, 0.41, 4088, 0.03), (2, 4, 4, 0.34, 4189, 0.01), (4, 4, 4, 0.32, 4337, 0.01),
    (4, 2, 2, 0.32, 4356, 0.01), (2, 2, 1, 0.34, 7947, 0.05), (2, 4, 1, 0.34, 15403, 0.09),
    (2, 6, 4, 0.34, 6051, 0.04)])
def test_measured_pushes(workers, state_words, rate, zeros, cycles, within):
    """The modelled cycles of a PUSH of 4,160 words match measurements. The server reads ahead while it waits, if it
    is slow."""
    taken = packet_cycles(Unit(1, 64, 64), workers=workers, state_words=state_words, rate=Fraction(rate), zeros=zeros)
    assert taken[1] == pytest.approx(cycles, rel=within)


@pytest.mark.parametrize(("form", "cycles", "within"), [
    ("raw", 4267, 0), ("mx9", 1324, 0.04), ("mx6", 1150, 0), ("mx4", 1150, 0)])
def test_measured_fetches(form, cycles, within):
    taken = packet_cycles(Unit(1, 64, 64, format=form), workers=4)
    assert taken[0] == pytest.approx(cycles, rel=within)
    assert packet_cycles(Unit(1, 64, 64), workers=4, rate=Fraction(1, 2))[0] == 8320 + 39
