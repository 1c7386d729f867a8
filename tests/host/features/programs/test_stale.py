# amaranth: UnusedElaboratable=no
"""Delayed updates on simulated rings: passes overlap, and some layers use the previous weights."""

import dataclasses
import itertools

import numpy as np
import pytest

from hdl.control.protocol import EventStatus
from host.cycles.estimate import Costs
from host.driver.diagnosis import RingError
from host.driver.memory import Buffer
from host.driver.optimizer_settings import Settings
from host.driver.ring import Ring
from host.features.codebook.codebooks import codebook
from host.features.compute.engine import Computer
from host.features.compute.instructions import Array
from host.features.compute.lists import compile_lists
from host.features.programs.delayed import run_passes
from host.features.programs.schedules import Computed, Copies, Kind, Schedule, build
from host.models.layer_shapes import layers_of
from host.training.optimizers import SGD
from sim.golden import ring as golden_ring
from sim.golden.codecs import GRADIENT_CODECS, WEIGHT_CODECS
from sim.golden.features.compute.compute import Engine
from sim.golden.features.programs.program import GAP
from sim.golden.features.programs.program_nodes import ProgramNodes
from tests.host import rings

CONFIG = rings.CONFIGS["wide"]
LAYERS = layers_of([12, *[6] * 9, 5])
LENGTH = LAYERS[-1].base + LAYERS[-1].length
MOMENTUM = SGD(learning_rate=0.125, momentum=0.9)
#: Costs with few multiply-adds per cycle, so that computing takes longer than communicating.
COSTS = Costs(examples=4, macs=1)
PASSES = 4  # number of passes in a run, limited by the size of the trace


class Steps:
    """Random gradients and settings for each step, the nodes that they are written to, and a golden model of the
    nodes.

    Parameters
    ----------
    ring : Ring
    behind : int
        Number of layers with weights one update old.
    seed : int
    """

    def __init__(self, ring: Ring, behind: int, seed: int):
        self.ring, self.behind = ring, behind
        self.generator = np.random.default_rng(seed)
        weights = rings.random(self.generator, LENGTH)
        self.program = build(Schedule(Kind.DELAYED, behind), LAYERS, nodes=ring.nodes, costs=COSTS, staged=LENGTH,
                             distance=LENGTH)
        self.tags = {task.name: task.place for task in self.program.tasks}
        self.golden = ProgramNodes(
            ring.nodes, gradient_words=2 * LENGTH, weights=golden_ring.bits(weights), planes=1,
            segment=CONFIG.segment, weight_codec=WEIGHT_CODECS[CONFIG.weights.codec],
            gradient_codec=GRADIENT_CODECS[CONFIG.gradients])
        self.golden.weights, self.golden.weight_stride = np.tile(self.golden.weights, 2), LENGTH
        ring.collectives.distribute(weights)
        ring.memory.clear_state(LENGTH)
        decoded = ring.memory.read_weights(LENGTH)
        ring.memory.write_weights_of(list(decoded), Buffer("weights", LENGTH, LENGTH))
        ring.settings.set_weight_stride(LENGTH)
        ring.programs.load([self.program.commands(rank, ring.nodes) for rank in range(ring.nodes)])
        self.number = 0

    def run(self, passes, *, late=lambda: None):
        """Run several passes at once on the ring, and the same passes one by one on the golden model."""
        prepared = []
        for number in range(passes):
            gradients = rings.random(self.generator, (self.ring.nodes, LENGTH), density=0.7)
            settings = Settings(**dataclasses.asdict(MOMENTUM.settings(
                self.number + number + 1, gradient_scale=0.25, learning_rate=0.25 / (self.number + number + 1))))
            prepared.append((list(gradients), settings))
        staged = Buffer("gradients", LENGTH, LENGTH)

        def give(number):
            late()
            self.ring.memory.write_gradients(prepared[number][0], staged)

        result = run_passes(self.ring, self.program, [settings for _, settings in prepared], first=self.number,
                            after="backward 1", give=give)
        placed = self.program.placed(self.ring.nodes)
        for number, (gradients, settings) in enumerate(prepared, self.number):
            self.golden.settings = golden_ring.settings(**{
                name: value for name, value in dataclasses.asdict(settings).items() if name != "packed_state"})
            self.golden.stage(golden_ring.bits(np.stack(gradients)), LENGTH)
            self.golden.run(placed, seed=number, parity=number % 2)
        self.number += passes
        return result

    def compare(self):
        for base in (0, LENGTH) if self.behind else (0,):
            words = self.ring.memory.read_weights(Buffer("weights", base, LENGTH)).view(np.uint32)
            assert (words == self.golden.weights[:, base:base + LENGTH]).all(), base
        own = self.golden.owned(0, LENGTH, 0)
        masters, state = (np.empty(LENGTH, np.uint32) for _ in range(2))
        for rank, index in enumerate(own):
            masters[index] = self.golden.masters[rank, :len(index)]
            state[index] = self.golden.state[0][rank, :len(index)]
        assert (self.ring.memory.read_master(LENGTH).view(np.uint32) == masters).all()
        assert (self.ring.memory.read_state(LENGTH).view(np.uint32) == state).all()


def cycles(result):
    """Cycles per pass, from the end of the second pass to the end of the last, and their lower bound: the time for
    which the busiest queue of any node is busy, including gaps between commands."""
    last = 3 * len(LAYERS)  # update 1, which follows the latch
    passes = max(ends[-1] - ends[1] for ends in (
        [record.time for record in trace if record.end and record.tag == last] for trace in result.traces))
    queues = [max(sum((1 if record.end else -1) * record.time for record in trace if record.queue == queue)
                  for trace in result.traces) / PASSES + GAP * count
              for queue, count in enumerate((2 * len(LAYERS), len(LAYERS) + 1))]
    return passes / (PASSES - 2), max(queues)


@pytest.mark.parametrize("nodes", [2, 3])
def test_same_bits_and_versions(nodes):
    """Memories match the golden model over two runs of several passes, for different numbers of delayed layers.
    Passes overlap, and the trace gives the weight version that each command used."""
    steps = []
    with rings.open_nodes(nodes, config=CONFIG, host_port=False) as (ring, _):
        for behind in (0, 1, 3, 10):
            bench = Steps(ring, behind, seed=100 * nodes + behind)
            for first in (0, PASSES):
                result = bench.run(PASSES)
                bench.compare()
                for layer in LAYERS:
                    lag = int(layer.number <= behind)
                    for name in ("forward", "backward"):
                        tag = bench.tags[f"{name} {layer.number}"]
                        for trace in result.traces:
                            assert [record.version for record in trace if (record.tag, record.end) == (tag, False)] \
                                == [max(0, number - lag) for number in range(first, first + PASSES)]
            steps.append(cycles(result))
    # The tolerance is needed because the rings' gradients have their zeros at different positions.
    assert all(after <= before + 40 for (before, _), (after, _) in itertools.pairwise(steps)), steps
    assert steps[-1][0] < 0.95 * steps[0][0], steps
    assert all(step <= 1.05 * bound for step, bound in steps[2:]), steps


def test_a_host_that_is_late():
    """If the host is late in writing gradients and settings, the nodes wait for it, and results are bit-identical."""
    with rings.open_nodes(2, config=CONFIG, host_port=False) as (ring, simulation):
        generator = np.random.default_rng(5)
        bench = Steps(ring, 3, seed=7)
        bench.run(PASSES, late=lambda: simulation.run(int(generator.integers(1, 3000))))
        bench.compare()


def test_a_wrong_number_is_refused():
    """If the first pass number of a run differs from the nodes' update count, the run ends before computing anything;
    a run with the correct number then succeeds."""
    with rings.open_nodes(2, config=CONFIG, host_port=False) as (ring, _):
        bench = Steps(ring, 3, seed=8)
        bench.run(2)
        bench.number = 3
        with pytest.raises(RingError, match=r"its region of weights has had 2 updates, and its pass must find 3; "
                                            r"check its waits, or the number of the run's first pass") as refused:
            bench.run(2)
        assert {event.status for event in refused.value.events if event} >= {EventStatus.STALE}
        bench.compare()
        ring.recover()
        bench.number = 2
        bench.run(2)
        bench.compare()


class Engines:
    """Compute nodes and golden nodes, with separate lists, inputs and labels for even and odd passes."""

    NODES, EXAMPLES, DISTANCE = 2, 4, 512
    CONFIG = rings.CONFIGS["centroid"]
    LAYERS = layers_of([8, 8, 4])
    LENGTH = LAYERS[-1].base + LAYERS[-1].length

    def __init__(self, ring, behind, weights):
        config, self.ring = self.CONFIG, ring
        self.lists = compile_lists(
            self.LAYERS, array=Array(rows=config.compute.rows, lanes=config.lanes, operands=config.compute.operands),
            examples=self.EXAMPLES, words=config.compute.activations,
            copies=Copies(layers=behind, distance=self.DISTANCE))
        self.program = build(
            Schedule(Kind.DELAYED, behind), self.LAYERS, nodes=self.NODES, costs=Costs(examples=self.EXAMPLES),
            computed=Computed(self.lists.commands, [self.EXAMPLES] * self.NODES), distance=self.DISTANCE,
            depth=config.programs.depth)
        self.computer = Computer(ring, self.lists, self.LENGTH)
        centroids = codebook(config.weights.codec, weights)
        self.golden = golden = ProgramNodes(
            self.NODES, gradient_words=self.LENGTH, weights=golden_ring.bits(weights), planes=1,
            weight_codec=WEIGHT_CODECS[config.weights.codec].bind(centroids),
            gradient_codec=GRADIENT_CODECS[config.gradients], segment=config.segment,
            engine=Engine(rows=config.compute.rows, lanes=config.lanes, operands=config.compute.operands),
            activation_words=config.compute.activations)
        between = np.zeros((self.NODES, self.DISTANCE - self.LENGTH), np.uint32)
        golden.weights = np.hstack([golden.weights, between, golden.weights])
        golden.weight_stride = self.DISTANCE
        ring.memory.write_codebook(centroids)
        ring.collectives.distribute(weights)
        ring.memory.clear_state(self.LENGTH)
        ring.memory.write_weights_of(list(ring.memory.read_weights(self.LENGTH)),
                                     Buffer("weights", self.DISTANCE, self.LENGTH))
        ring.settings.set_weight_stride(self.DISTANCE)
        self.computer.prepare()
        for odd, words in enumerate((self.lists.words, self.lists.odd)):
            base = self.lists.places.lists + odd * self.DISTANCE
            golden.activations[:, base:base + len(words)] = words
        ring.programs.load([self.program.commands(rank, self.NODES) for rank in range(self.NODES)])

    def run(self, first, prepared):
        """Run several passes at once on the compute nodes, and the same passes one by one on the golden nodes."""
        settings = [Settings(**dataclasses.asdict(MOMENTUM.settings(first + number + 1, gradient_scale=0.25)))
                    for number in range(len(prepared))]
        run_passes(self.ring, self.program, settings, first=first, after="forward 1",
                   give=lambda number: self.computer.give(prepared[number], odd=(first + number) % 2))
        places, golden = self.lists.places, self.golden
        for number, (shares, scalars) in enumerate(zip(prepared, settings, strict=True), first):
            for rank, (x, labels) in enumerate(shares):
                further = golden.activations[rank][number % 2 * self.DISTANCE:]
                further[places.outputs[0]:][:x.size] = x.view(np.uint32).ravel()
                further[places.labels:][:len(labels)] = labels
            golden.settings = golden_ring.settings(**{
                name: value for name, value in dataclasses.asdict(scalars).items() if name != "packed_state"})
            golden.run(self.program.placed(self.NODES), seed=number, parity=number % 2)


def test_passes_of_an_engine():
    """Losses and weights of compute nodes match the golden nodes after each of two runs of three passes, with none,
    one or all of the layers delayed."""
    generator = np.random.default_rng(3)
    weights = rings.random(generator, Engines.LENGTH)
    with rings.open_nodes(Engines.NODES, config=Engines.CONFIG, host_port=False, timeout=20_000) as (ring, _):
        for behind in (0, 1, 2):
            bench = Engines(ring, behind, weights)
            for first in (0, 3):
                bench.run(first, [[(generator.standard_normal((Engines.EXAMPLES, 8)).astype(np.float32),
                                    generator.integers(0, 4, Engines.EXAMPLES)) for _ in range(Engines.NODES)]
                                  for _ in range(3)])
                for base in (0, Engines.DISTANCE) if behind else (0,):
                    words = ring.memory.read_weights(Buffer("weights", base, Engines.LENGTH)).view(np.uint32)
                    expected = bench.golden.weights[:, base:base + Engines.LENGTH]
                    assert (words == expected).all(), (behind, first, base)
                loss = bench.golden.activations[:, bench.lists.places.loss].view(np.float32)
                assert bench.computer.losses() == loss.tolist()
