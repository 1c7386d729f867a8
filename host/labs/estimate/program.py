"""Programs whose times are estimated: training steps of perceptrons, each executed by a schedule."""

import dataclasses
import functools

import numpy as np

from hdl.features.compute.layer_list import INSTRUCTION_WORDS
from hdl.group import GROUP
from host.cycles.estimate import Costs
from host.driver.memory import Buffer
from host.driver.optimizer_settings import Rule, Settings
from host.driver.results import known
from host.driver.ring import Ring
from host.features.compute.engine import Computer
from host.features.compute.instructions import Array
from host.features.compute.lists import Lists, compile_lists
from host.features.compute.text_lists import ListCycles
from host.features.programs.program import CompiledProgram
from host.features.programs.ring_programs import Passes
from host.features.programs.schedules import Computed, Kind, Schedule, build
from host.labs.estimate.machine import NODES, Machine, Opened
from host.models.layer_shapes import Dense, layers_of
from sim.golden.features.compute.vector_cycles import VectorCycles

__all__ = ["NETWORKS", "Case", "Measured", "Step", "check", "compute_cycles", "prepare"]

#: Layer widths of perceptrons, keyed by the number of parameters.
NETWORKS = {256: (8, 16, 5), 1024: (24, 32, 6), 4832: (64, 64, 10)}

#: Number of runs of a step with at most ``_SHORT`` parameters. Longer steps run once: their start time is negligible.
_RUNS, _SHORT = 4, 1024

_SETTINGS = Settings(rule=Rule.MOMENTUM, gradient_scale=0.125, learning_rate=0.01, first_decay=0.9)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """A program, defined by a network and a schedule."""

    length: int  # number of parameters of the network; a key of :data:`NETWORKS`
    overlapped: bool  # whether layers are updated while other layers compute instead of after the last layer
    #: Multiply-adds per cycle that COMPUTE commands model; 0 if the nodes' engines compute.
    macs: int = 0
    examples: int = 8  # number of examples on each node

    @property
    def layers(self) -> list[Dense]:
        return layers_of(NETWORKS[self.length])

    def __str__(self) -> str:
        return f"K = {self.length:,}, {'overlapped' if self.overlapped else 'serial'}"


def _array(machine: Machine) -> Array:
    return Array(rows=machine.node.compute.rows, lanes=machine.node.lanes, operands=machine.node.compute.operands)


def _lists(machine: Machine, case: Case) -> Lists:
    return compile_lists(case.layers, array=_array(machine), examples=case.examples,
                         words=machine.node.compute.activations)


def check(machine: Machine, case: Case) -> None:
    """Raise ``ValueError`` if a machine, built or not, cannot run a case."""
    node, words = machine.node, case.length * (2 if case.macs else 1)
    if node.queues < 2:
        raise ValueError(f"Nodes of {machine.name} must have two queues to run programs, not {node.queues}")
    if not (node.stub if case.macs else node.compute):
        lacking = "the stand-in" if case.macs else "a compute engine"
        raise ValueError(f"Nodes of {machine.name} must have {lacking} to run {case}")
    if node.memories.gradient < words or node.memories.weight < case.length:
        raise ValueError(f"Nodes of {machine.name} must have room for {words:,} gradients and {case.length:,} "
                         f"weights to run {case}, not for {node.memories.gradient:,} and {node.memories.weight:,}")
    state = sum(GROUP * -(-layer.length // (GROUP * NODES)) for layer in case.layers)
    if node.memories.state < state:
        raise ValueError(f"Nodes of {machine.name} must have room for {state:,} elements of state to run {case}, not "
                         f"for {node.memories.state:,}")
    if not case.macs:
        try:
            _lists(machine, case)
        except ValueError as error:
            raise ValueError(f"{machine.name} cannot run {case}: {error}") from error


@functools.cache
def compute_cycles(machine: Machine, case: Case) -> int:
    """Return the cycles of a step's compute commands, from the engine's golden models, with idle memories."""
    if case.macs:
        costs = Costs(examples=case.examples, macs=case.macs)
        return sum(costs.compute(layer.multiplications(backward=backward))
                   for layer in case.layers for backward in (False, True))
    node, array, lists = machine.node, _array(machine), _lists(machine, case)
    scale_mask = node.compute.scale_mask
    model = ListCycles(array, length=case.examples, scale_mask=scale_mask, vector=VectorCycles(),
                       words=max(node.memories.gradient, node.memories.weight, node.compute.activations))
    program, = lists.programs
    cycles = 0
    for start, instructions in zip(program.starts, program.lists(array.engine(scale_mask=scale_mask)), strict=True):
        words = lists.words[start - program.base:].reshape(-1, INSTRUCTION_WORDS)[:len(instructions) + 1]
        cycles += model.walks(list(words)) + sum(model.instruction(instruction)[1] for instruction in instructions)
    return cycles


@dataclasses.dataclass(frozen=True)
class Measured:
    """Measured cycles and resulting weights of a training step."""

    #: Cycles from the first input word at the host ports (or, with staged gradients, from the first start of a
    #: command) to the last end of a command, averaged over several runs with different start times of the nodes.
    cycles: float
    weights: bytes


class Step:
    """A training step on a running machine, with all data loaded."""

    def __init__(self, opened: Opened, case: Case):
        self._opened, self._case = opened, case
        self._ring: Ring = opened.ring
        self._length = case.length
        generator = np.random.default_rng(case.length)
        self._weights = generator.standard_normal(self._length).astype(np.float32) / 8
        self._gradients = generator.standard_normal((NODES, self._length)).astype(np.float32)
        widths = NETWORKS[case.length]
        self._shares = [(generator.standard_normal((case.examples, widths[0])).astype(np.float32),
                         generator.integers(0, widths[-1], case.examples)) for _ in range(NODES)]
        node, costs = opened.machine.node, Costs(examples=case.examples, macs=case.macs or 1)
        self._staged = Buffer("gradients", self._length, self._length)
        self._computer = None if case.macs else Computer(self._ring, _lists(opened.machine, case), self._length)
        computed = None if self._computer is None else Computed(
            self._computer.lists.commands, [case.examples] * NODES)
        schedule = Schedule(Kind.LAYERS if case.overlapped else Kind.NONE)
        self._program: CompiledProgram = build(schedule, case.layers, nodes=NODES, costs=costs,
                                               depth=node.programs.depth, staged=self._length, computed=computed)
        if self._computer is not None:
            self._computer.prepare()
        self._ring.programs.load([self._program.commands(rank, NODES) for rank in range(NODES)])
        self._ring.settings.write(_SETTINGS)

    def measure(self) -> Measured:
        """Measure the step from its initial weights, repeatedly if it is short."""
        runs = [self._measure() for _ in range(1 if self._length > _SHORT else _RUNS)]
        if len({weights for _, weights in runs}) > 1:
            raise AssertionError(f"Weights of {self._case} differ from run to run")
        return Measured(sum(cycles for cycles, _ in runs) / len(runs), runs[0][1])

    def _measure(self) -> tuple[int, bytes]:
        begun, run = self.run()
        cycles = known(run.outcome.cycles)
        if self._computer is not None:  # nodes count time from the first cycle of the simulation
            cycles = max(record.time for trace in run.traces for record in trace) - begun
        return cycles, self._ring.memory.read_weights(self._length).tobytes()

    def run(self) -> tuple[int, Passes]:
        """Run the step once; return the cycle of its first input word and the program's passes."""
        self._ring.collectives.distribute(self._weights)
        self._ring.memory.clear_state(self._length)
        begun = self._opened.simulation.cycle
        if self._computer is None:
            self._ring.memory.write_gradients(list(self._gradients), self._staged)
        else:
            self._computer.give(self._shares)
        return begun, self._ring.programs.run(collectives=self._program.collectives)


def prepare(opened: Opened, case: Case) -> Step:
    """Restart a machine and load a case's program."""
    opened.restart()
    return Step(opened, case)
