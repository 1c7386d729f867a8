"""Commands that stream the layers of a gradient set, on golden nodes. Covers host/features/streaming/lists.py and
sim/golden/features/streaming/streaming_nodes.py."""

import dataclasses

import numpy as np
import pytest

from host.features.compute.instructions import Array
from host.features.streaming.lists import compile_streaming, streaming_program
from host.features.streaming.plan import Worker, make_streaming_plan
from sim.arithmetic import functions
from sim.golden import ring
from sim.golden.features.programs.program import timeline
from sim.golden.features.streaming.streaming import Server, streaming_set
from sim.golden.features.streaming.streaming_nodes import StreamingNodes
from sim.golden.nodes import Placed
from tests.refusals import refuses

ARRAY = Array(rows=4, lanes=4)
SETTINGS = ring.settings(1, gradient_scale=0.125, learning_rate=0.1, clip=np.inf, first_decay=0.9)


def worker(**changes):
    return dataclasses.replace(Worker(weight_words=2 * 288, gradient_words=2 * 288, activation_words=4096,
                                      far_words=1 << 14), **changes)


def server(plan, seed=0):
    generator = np.random.default_rng(seed)
    masters = []
    for unit in plan.units:
        numbers = np.zeros(unit.length, np.float32)
        numbers[:(unit.inputs + 1) * unit.outputs] = generator.normal(size=(unit.inputs + 1) * unit.outputs) * 0.35
        masters.append(ring.bits(numbers))
    return Server(plan.units, masters, planes=2)


class Bench:
    """Golden nodes together with the golden model of gradient sets."""

    def __init__(self, widths, *, workers, count, microbatch, lengths=None, recompute=True, formats=(), **changes):
        plan = make_streaming_plan(widths, worker=worker(**changes), count=count, microbatch=microbatch)
        formats = formats or ["raw"] * plan.last
        self.plan = dataclasses.replace(plan, units=tuple(
            dataclasses.replace(unit, format=formats[unit.layer - 1]) for unit in plan.units))
        self.lists = compile_streaming(self.plan, array=ARRAY, recompute=recompute)
        self.lengths = lengths or [[microbatch] * count] * workers
        self.program = streaming_program(self.lists, lengths=self.lengths, depth=1024)
        self.model = server(self.plan)
        memories = self.plan.worker
        self.nodes = StreamingNodes(workers, weights=np.concatenate(self.model.masters), planes=2,
                                gradient_words=memories.gradient_words, engine=ARRAY.engine(),
                                activation_words=memories.activation_words, far_words=memories.far_words)
        self.nodes.settings = SETTINGS
        self.nodes.activations[:, self.plan.lists:self.plan.lists + len(self.lists.words)] = self.lists.words

    def set(self, number):
        """Run a gradient set on the nodes and in the model; return whether weights, state and losses are equal."""
        generator, plan, shares = np.random.default_rng(number), self.plan, []
        width = plan.widths[0]
        for rank, row in enumerate(self.lengths):
            x = generator.random((sum(row), width), np.float32)
            labels = generator.integers(plan.widths[plan.last], size=sum(row))
            shares.append((x, labels))
            first = 0
            for microbatch, length in enumerate(row):
                base = plan.far("x", microbatch, 1).base
                self.nodes.far[rank, base:base + length * width] = ring.bits(x[first:first + length]).ravel()
                base = plan.far("labels", microbatch).base
                self.nodes.far[rank, base:base + length] = labels[first:first + length]
                first += length
        self.nodes.run(self.program.placed(len(self.lengths) + 1), seed=number)
        if len({length for row in self.lengths for length in row[:-1]}) > 1:
            raise ValueError("Microbatches of the model must be full but for the last one")
        loss, _ = streaming_set(self.model, shares, SETTINGS, microbatch=self.lengths[0][0], functions=functions)
        losses = [[self.nodes.far[rank, plan.far("loss", microbatch).base] for microbatch in range(plan.count)]
                  for rank in range(len(shares))]
        total = np.float32(0)
        for row in losses:
            summed = np.float32(0)
            for value in row:
                summed += value.view(np.float32)
            total += summed
        return (np.array_equal(self.nodes.weights[-1], np.concatenate(self.model.masters))
                and all(np.array_equal(plane[-1], np.concatenate([state[n] for state in self.model.state]))
                        for n, plane in enumerate(self.nodes.state)) and int(total.view(np.uint32)) == loss)


@pytest.mark.parametrize(("workers", "layers", "count"), [(1, 1, 2), (2, 2, 3), (4, 3, 2), (2, 4, 1), (3, 8, 3)])
def test_a_set_on_nodes_is_the_models(workers, layers, count):
    bench = Bench([16] * layers + [10], workers=workers, count=count, microbatch=4)
    assert [bench.set(number) for number in range(3)] == [True] * 3


def test_last_microbatches_may_be_smaller():
    bench = Bench([16] * 3 + [10], workers=2, count=3, microbatch=4, lengths=[[4, 4, 1], [4, 4, 3]])
    assert [bench.set(number) for number in range(2)] == [True] * 2


def test_parts_of_layers():
    bench = Bench([16] * 4 + [8], workers=2, count=2, microbatch=4, weight_words=2 * 160)
    assert [unit.outputs for unit in bench.plan.units] == [8, 8] * 3 + [8]
    assert [bench.set(number) for number in range(2)] == [True] * 2


def test_resident_layers_have_the_same_bits_and_are_fetched_once():
    bench = Bench([16] * 4 + [10], workers=2, count=2, microbatch=4, windows=4, weight_words=4 * 288,
                  gradient_words=4 * 288)
    assert bench.plan.peak == 2 * 4 * bench.plan.window + bench.plan.lists
    assert [task.name for task in bench.program.tasks if task.operation == "BROADCAST"] == [
        f"fetch {number}" for number in range(4)]
    assert [bench.set(number) for number in range(2)] == [True] * 2


def test_formats():
    """If each layer has its own format, sets have the model's bits, and the server has the model's counts."""
    bench = Bench([16] * 4 + [10], workers=2, count=2, microbatch=4, formats=["mx9", "raw", "mx4", "mx6"])
    for number in range(2):
        assert bench.set(number)
        for operation, counts in (("BROADCAST", bench.model.fetched), ("PUSH", bench.model.pushed)):
            assert {entry: count for (name, entry), count in bench.nodes.counts.items()
                    if name == operation} == counts
    assert bench.model.fetched[2].zeros > 0


def test_nodes_that_expect_different_formats():
    bench = Bench([16, 10], workers=1, count=1, microbatch=4)
    command = Placed("BROADCAST", [{"length": 32, "root": 1, "format": 1}, {"length": 32, "root": 1}], True)
    refuses("Format of a BROADCAST must be one on all nodes, not [0, 1]", bench.nodes.execute, command, [0, 1])


def test_bits_are_those_without_recomputing():
    bench = Bench([16] * 4 + [10], workers=2, count=2, microbatch=4, recompute=False)
    assert [bench.set(number) for number in range(2)] == [True] * 2


def test_wrong_weights_in_a_window_are_found():
    bench = Bench([16] * 4 + [10], workers=2, count=2, microbatch=4)
    bench.nodes.weights[-1, 40] ^= 1 << 22
    assert not bench.set(0)


def test_lists_are_those_of_the_plan():
    bench = Bench([16] * 8 + [10], workers=1, count=3, microbatch=4)
    assert len(bench.lists.words) == sum(key.words for key in bench.plan.keys) == bench.plan.end - bench.plan.lists
    assert list(bench.lists.places) == bench.plan.keys


@pytest.mark.parametrize("layers", [4, 16])
def test_moved_words_of_inner_layers(layers):
    """A microbatch of 8 moves 1,024 words in the forward pass of a 64 x 64 layer, and 1,536 in the backward pass."""
    plan = make_streaming_plan([64] * layers + [10], count=3, microbatch=8, worker=Worker(
        weight_words=8320, gradient_words=8320, activation_words=8192, far_words=1 << 16))
    program = streaming_program(compile_streaming(plan, array=ARRAY), lengths=[[8] * 3] * 4, depth=1024)
    for way, words in (("forward", 1024), ("backward", 1536)):
        moved = [task.fields["length"] for task in program.tasks if f"{way} 1 2" in task.name and task.queue == 2]
        assert sum(moved) == words
    kinds = [task.name for task in program.tasks if task.operation in ("BROADCAST", "PUSH")]
    assert kinds[:layers] == [f"fetch {number}" for number in range(layers)]
    assert kinds[layers:layers + 3] == [f"push {layers - 1}", f"fetch {layers - 3} again", f"push {layers - 2}"]
    assert kinds[-2:] == ["push 1", "push 0"]
    assert len(kinds) == layers + layers - 2 + layers


def test_three_activities_at_once():
    bench = Bench([16] * 8 + [10], workers=2, count=3, microbatch=4)
    cycles = {"LAYERS": 300, "BROADCAST": 500, "PUSH": 500, "LATCH": 1}
    queues = bench.program.timed()
    tasks = [[task for task in bench.program.tasks if task.queue == queue] for queue in range(3)]
    spans = timeline(queues, nodes=3, duration=lambda node, number, queue, index: cycles.get(
        tasks[queue][index].operation, 20))
    own = [span for span in spans if span.node == 0]
    link = [span for span in own if span.queue == 1 and span.name != "latch"]
    computing = [span for span in own if span.queue == 0]
    for kind in ("push", "fetch"):
        assert any(work.start < other.end and other.start < work.end for work in computing for other in link
                   if kind in other.name)


def test_wrong_parameters():
    bench = Bench([16] * 3 + [10], workers=1, count=2, microbatch=4)
    for lengths in ([[4]], [[4, 5]], [[4, 0]]):
        with pytest.raises(ValueError, match=r"^Lengths of a worker must be 2 of 1 to 4 examples, not \["):
            streaming_program(bench.lists, lengths=lengths)
    with pytest.raises(ValueError, match=r"^Array must have the 4 lanes of the plan's worker, not 2$"):
        compile_streaming(bench.plan, array=Array(rows=2, lanes=2))
    fresh = StreamingNodes(1, weights=np.zeros(32, np.uint32), gradient_words=32)
    with pytest.raises(ValueError, match=r"^Settings must be latched before an update$"):
        fresh.execute(Placed("PUSH", [{"length": 32, "root": 1}] * 2, True), [0, 1])
