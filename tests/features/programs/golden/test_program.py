import itertools

import numpy as np
import pytest

from sim.golden.features.programs.program import Remote, Span, Timed, makespan, signal_cycles, timeline
from tests.refusals import refuses

SEEDS = range(40)


def overlapped(compute, communicate):
    """Program of compute commands, and of transfers that each wait until a number of compute commands have ended."""
    return [[Timed(f"C{n}", cycles, waits=((0, 0),)) for n, cycles in enumerate(compute)],
            [Timed(f"X{n}", cycles, collective=True, waits=((after, 0),))
             for n, (cycles, after) in enumerate(communicate)]]


def chunked(sizes):
    """Program for eight layers, each with 100 cycles of computing and 64 elements.

    A transfer takes 50 cycles plus one per element.
    """
    ends = list(itertools.accumulate(sizes))
    return overlapped([100] * 8, [(50 + 64 * size, end) for size, end in zip(sizes, ends, strict=True)])


class TestKnownAnswers:
    @pytest.mark.parametrize("nodes", [1, 4])
    def test_three_layers(self, nodes):
        queues = overlapped([300, 200, 100], [(150, 1), (150, 2), (150, 3)])
        spans = timeline(queues, nodes=nodes, gap=0, delay=0)
        assert makespan(spans) == 800
        assert [(span.start, span.end) for span in spans if span.node == 0 and span.queue == 1] == [
            (300, 450), (500, 650), (650, 800)]
        serial = [[*queues[0], *(Timed(transfer.name, transfer.duration) for transfer in queues[1])]]
        assert makespan(timeline(serial, gap=0, delay=0)) == 1050

    @pytest.mark.parametrize(("sizes", "cycles"), [
        ([1] * 8, 1012), ([2] * 4, 978), ([4] * 2, 1106), ([8], 1362),
        ([1, *[2] * 3, 1], 992), ([1, 4, 3], 1048), ([1, 7], 1298)])
    def test_eight_layers(self, sizes, cycles):
        assert makespan(timeline(chunked(sizes), gap=0, delay=0)) == cycles

    def test_gap_and_delay(self):
        spans = timeline(overlapped([10, 10], [(5, 1), (5, 2)]), gap=8, delay=3)
        assert [(span.name, span.start, span.end) for span in spans] == [
            ("C0", 0, 10), ("X0", 13, 18), ("C1", 18, 28), ("X1", 31, 36)]

    def test_passes(self):
        """If a wait has a lag, passes can overlap. A wait for a pass before the first one ends immediately."""
        queues = [[Timed("C", 10, waits=((1, 2),))], [Timed("X", 25, waits=((1, 0),))]]
        spans = timeline(queues, passes=4, gap=0, delay=0)
        assert [span.start for span in spans if span.queue == 0] == [0, 10, 35, 60]
        assert [span.start for span in spans if span.queue == 1] == [10, 35, 60, 85]
        assert [span.number for span in spans if span.queue == 1] == [0, 1, 2, 3]

    def test_a_collective_waits_for_all_nodes(self):
        queues = [[Timed("C", 0, waits=((0, 0),))], [Timed("X", 50, collective=True, waits=((1, 0),))]]
        spans = timeline(queues, nodes=3, gap=0, delay=0,
                         duration=lambda node, number, queue, index: 50 if queue else 10 * (node + 1))
        assert [span for span in spans if span.queue] == [
            Span(node, 1, "X", 10 * (node + 1), 80) for node in range(3)]

    def test_three_queues(self):
        queues = [[Timed("C", 10, waits=((0, 0), (0, 0)))], [Timed("X", 20, waits=((1, 0), (0, 0)))],
                  [Timed("M", 5, waits=((1, 0), (1, 0)))]]
        assert makespan(timeline(queues, gap=0, delay=3)) == 10 + 3 + 20 + 3 + 5

    def test_nothing(self):
        assert timeline([[], []]) == []
        assert makespan([]) == 0


@pytest.mark.parametrize("seed", SEEDS)
def test_recurrence(seed):
    """Each command's span starts at the latest of its lower bounds, which the test computes without the model."""
    generator = np.random.default_rng(seed)
    nodes, passes, count = (int(number) for number in generator.integers(1, 4, 3))
    gap, delay = (int(number) for number in generator.integers(0, 10, 2))
    lengths = generator.integers(1, 6, count).tolist()
    queues = []

    def remote(index):
        """Draw a wait for a command of a random node (possibly the same node), or None."""
        lag = int(generator.integers(0, 3))
        queue = int(generator.integers(count))
        after = min(index, lengths[queue]) if lag == 0 else lengths[queue]
        return Remote(int(generator.integers(nodes)), queue, int(generator.integers(after + 1)), lag) if (
            generator.random() < 0.7) else None

    for queue, length in enumerate(lengths):
        peers = [other for other in range(count) if other != queue]
        queues.append([Timed(f"{queue}.{index}", int(generator.integers(0, 100)),
                             collective=bool(queue == count - 1),
                             # A wait for only earlier commands or passes cannot cause a deadlock.
                             waits=tuple((int(generator.integers(0, min(index, lengths[other]) + 1)), 0)
                                         if generator.random() < 0.5
                                         else (int(generator.integers(0, lengths[other] + 1)),
                                               int(generator.integers(1, 4))) for other in peers),
                             remotes=tuple(remote(index) for _ in range(nodes)) if generator.random() < 0.5 else ())
                       for index in range(length)])
    spans = {(span.node, span.queue, span.number, span.place): span
             for span in timeline(queues, passes=passes, nodes=nodes, gap=gap, delay=delay)}
    assert len(spans) == nodes * passes * sum(lengths), f"seed {seed}"
    for (node, queue, number, index), span in spans.items():
        command = queues[queue][index]
        bounds = [0]
        if index or number:
            before = (node, queue, number, index - 1) if index else (node, queue, number - 1, lengths[queue] - 1)
            bounds.append(spans[before].end + gap)
        peers = [other for other in range(count) if other != queue]
        bounds += [spans[node, other, number - lag, after - 1].end + delay
                   for other, (after, lag) in zip(peers, command.waits, strict=True) if after and number >= lag]
        far = command.remotes[node] if command.remotes else None
        if far is not None and far.after and number >= far.lag:
            hops = (node - far.unit) % nodes
            bounds.append(spans[far.unit, far.queue, number - far.lag, far.after - 1].end + (
                signal_cycles(hops) if hops else delay))
        begun = max(spans[other, queue, number, index].start for other in range(nodes)) if command.collective \
            else span.start
        assert (span.start, span.end) == (max(bounds), begun + command.duration), f"seed {seed}"


def test_commands_that_wait_for_ever():
    queues = [[Timed("a", 1, waits=((1, 0),))], [Timed("b", 1, waits=((1, 0),))]]
    refuses("Commands must not wait for ever, not a of pass 0, queue 0 of node 0", timeline, queues)
