# amaranth: UnusedElaboratable=no
"""Sequence of the memory rows of a submatrix: hdl/features/compute/row_sequence.py."""

import dataclasses

from hdl.features.compute.row_sequence import RowSequence, row_sequence_layout, step_layout
from sim.golden.stream import Feed, Output, Trace
from tests.hdl.unit_bench import Drive, UnitBench, Want, offers, packed
from tests.refusals import refused

ROWS, MOST, LANES = 512, 16, 4
LAYOUTS = row_sequence_layout(ROWS, MOST, LANES, 2), step_layout(ROWS, MOST, LANES, 2)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Walk:
    """A submatrix: first row, row pitch, last line and last group, and the part of it that is inside the matrix."""

    row: int
    pitch: int
    line: int
    group: int
    lines: int
    edge: int
    mask: int
    tag: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Step:
    row: int
    line: int
    group: int
    keep: int
    last: int
    tag: int


def _steps(walk):
    steps = []
    for line in range(walk.line + 1):
        for group in range(walk.group + 1):
            inside = line < walk.lines and group <= walk.edge
            keep = walk.mask if group == walk.edge else (1 << LANES) - 1
            steps.append(Step(row=walk.row + line * walk.pitch + group, line=line, group=group, keep=keep * inside,
                              last=int(line == walk.line and group == walk.group), tag=walk.tag))
    return steps


def _model(unit, walks, willing, ready):
    """Expected trace: each step of a sequence is offered as soon as the previous step has been transferred."""
    feed, output = Feed(len(walks), willing["i"]), Output(ready["o"])
    for walk in walks:
        loaded = feed.accept(output.departed)
        for number in range((walk.line + 1) * (walk.group + 1)):
            output.load(loaded if number == 0 else output.departed)
    feed.accept(output.departed)
    trace = Trace(feed.valid, feed.ready, output.offered >= 0, output.offered)
    return Want.of(trace, packed(LAYOUTS[1], [step for walk in walks for step in _steps(walk)]))


def _walks(generator, count=30):
    for _ in range(count):
        line, group = generator.integers(0, generator.choice([1, 4, MOST]), 2).tolist()
        yield Walk(
            row=int(generator.integers(ROWS // 4)), pitch=int(generator.integers(20)), line=line, group=group,
            lines=int(generator.integers(MOST + 2)), edge=int(generator.integers(MOST + 2)),
            mask=int(generator.integers(1, 1 << LANES)), tag=int(generator.integers(4)))


def _drive(generator):
    walks = list(_walks(generator))
    return Drive({"i": packed(LAYOUTS[0], walks)}, walks)


BENCH = UnitBench(lambda: RowSequence(rows=ROWS, most=MOST, lanes=LANES, tag=2), _model, _drive)
test_parameters = refused(RowSequence, {"rows": 16, "most": 8, "lanes": 4}, [
    ({"rows": 1}, "Row count must be an integer of at least 2, not 1"),
    ({"most": 1}, "Line count must be an integer of at least 2, not 1"),
])
test_lockstep = BENCH.lockstep(count=6_000, least=100)
test_resets = BENCH.resets([()], (1, 2, 7, 20), count=2_000)
test_offers_stand_for_all_time = offers(lambda: RowSequence(rows=8, most=4, lanes=2), depth=2)


def test_throughput():
    """There is one step per cycle, even across sequences; the first step follows its sequence by one cycle."""
    run = BENCH.check(count=6_000)
    count = sum((walk.line + 1) * (walk.group + 1) for walk in run.drive.drawn)
    assert run.moves().tolist() == list(range(RowSequence.latency, RowSequence.latency + count))
