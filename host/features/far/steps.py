"""Training steps of a perceptron on nodes with far memories; policies keep, move or recompute activation maps.

Each list is first run separately with all maps kept, to measure the cycles that all plans use. Each step then runs as
a program of three queues, and its results are compared with the model on the host.
"""

import collections
import contextlib
import dataclasses
import functools
from collections.abc import Iterator, Sequence

import numpy as np

from hdl.config import Memories, NodeConfig, SingleRing
from hdl.control.protocol import Operation
from hdl.features.compute.feature import Compute
from hdl.features.programs.feature import Programs
from hdl.group import GROUP
from host.cycles.estimate import Costs
from host.driver.device import Device
from host.driver.results import Cycles, known
from host.driver.ring import Ring
from host.features.compute.instructions import Array, up
from host.features.compute.memory.chain import KINDS, Chain, Decision, MapPlan, Policy, decide, run
from host.features.compute.text_lists import TextOperations
from host.features.compute.text_steps import CONFIG
from host.features.far.lists import FarLists, FarText, compile_far, compile_far_text, layers_chain_of
from host.features.far.training import FarTextComputer, operations_of
from host.features.programs.schedules import Computed, Kind, Schedule, build
from host.models.layer_shapes import Dense, layers_of
from host.models.layers import Array as Numbers
from host.models.layers import Labels, Model, perceptron
from host.models.text import Characters, collate
from host.models.transformer import Transformer
from host.transports.backdoor import BackdoorTransport, PortTime
from host.transports.session import FAR_LATENCY
from host.transports.verilated import open_ring
from sim.verilated.native import Arithmetic
from sim.verilated.ring import VerilatedRing

__all__ = ["FarStep", "far_steps", "far_text_steps", "run_policies", "run_text_policies"]


@dataclasses.dataclass(frozen=True)
class FarStep:
    """Results of a training step under one kind of plan for the activation maps."""

    kind: str  # kind of plan: keep, swap, recompute, or mixed
    cycles: int  # cycles of the step on the nodes
    timeline: int  # cycles of the step according to the plan's timeline
    budget: int  # words available for saved maps
    peak: int  # number of words that saved maps occupy according to the plan
    far_words: int  # number of words moved by each node in both directions
    planned: int  # number of words a node moves according to the plan
    multiplications: int  # multiply-adds of recomputed maps
    same: bool  # whether losses and gradients of all nodes are bit-identical to the host's
    policies: tuple[Policy, ...]


def _plans(chain: Chain, share: float, rate: float, kinds: Sequence[str]) -> Iterator[tuple[str, MapPlan]]:
    """Yield the plan of each kind, skipping kinds without a plan that fits."""
    for kind in kinds:
        budget = chain.words if kind == "keep" else int(share * chain.words)
        decision = decide(chain, budget=budget, rate=rate, kind=kind)
        if decision is not None:
            yield kind, MapPlan(chain, decision, budget)


def _step(kind: str, plan: MapPlan, *, cycles: Cycles, moved: int, same: bool) -> FarStep:
    run = plan.decision.run
    return FarStep(kind=kind, cycles=known(cycles), timeline=run.cycles, budget=plan.budget, peak=run.peak,
                   far_words=moved, planned=run.far_words, multiplications=run.multiplications, same=same,
                   policies=plan.decision.policies)


def _moved(simulation: VerilatedRing) -> int:
    """Return the number of words that the first node has moved in both directions."""
    return sum(simulation.far_memory(0)[1:])


def run_policies(ring: Ring, simulation: VerilatedRing, model: Model, layers: Sequence[Dense],
                 shares: Sequence[tuple[Numbers, Labels]], *, share: float, rate: float) -> list[FarStep]:
    """Compute gradients under each policy that has a plan, on nodes with far memories and three queues.

    Nodes have equal shares of inputs and labels. Losses and gradients are compared with the model's results.

    Parameters
    ----------
    share : float
        Fraction of the saved words that fits in the activation memory.
    rate : float
        Words per cycle to and from the far memory of each node.
    """
    config, examples = ring.devices[0].config, len(shares[0][1])
    array = Array(rows=config.compute.rows, lanes=config.lanes, operands=config.compute.operands)
    compiled = functools.partial(compile_far, layers, array=array, examples=examples,
                                 words=config.compute.activations, far_words=config.far_words)
    simulation.set_far_speed(latency=FAR_LATENCY, rate=rate)
    ring.memory.write_weights(model.parameters)
    chain_of = functools.partial(layers_chain_of, layers, examples=examples, lanes=config.lanes)
    (_, plan), = _plans(chain_of(), share, rate, ("keep",))
    kept = compiled(plan)
    _give(ring, kept, model, shares)
    outcomes = ring.compute.run_layers([job.fields["weight_base"] for job in kept.commands], [examples] * ring.nodes)
    cycles = {job.name: known(outcome.cycles) for job, outcome in zip(kept.commands, outcomes, strict=True)}
    expected = [model.differentiate(x, labels) for x, labels in shares]
    return [_run(ring, simulation, model, layers, shares, expected, kind, compiled(plan))
            for kind, plan in _plans(chain_of(cycles=cycles), share, rate, tuple(KINDS))]


def _give(ring: Ring, lists: FarLists, model: Model, shares: Sequence[tuple[Numbers, Labels]]) -> None:
    """Write instruction lists, inputs and labels to the nodes, and set gradients to zero."""
    ring.memory.write_activations([lists.words] * ring.nodes, lists.places.lists)
    ring.memory.write_activations([x.ravel().view(np.uint32) for x, _ in shares], lists.places.outputs[0])
    ring.memory.write_activations([labels.astype(np.uint32) for _, labels in shares], lists.places.labels)
    ring.memory.write_gradients([np.zeros(model.size, np.uint32)] * ring.nodes)


def _run(ring: Ring, simulation: VerilatedRing, model: Model, layers: Sequence[Dense],
         shares: Sequence[tuple[Numbers, Labels]], expected: Sequence[tuple[float, Numbers]], kind: str,
         lists: FarLists) -> FarStep:
    """Run the program of a step and compare its results with the expected losses and gradients."""
    nodes, examples = ring.nodes, len(shares[0][1])
    _give(ring, lists, model, shares)
    program = build(Schedule(Kind.NONE), layers, nodes=nodes, costs=Costs(examples=examples),
                    computed=Computed(lists.commands, [examples] * nodes), depth=len(lists.commands))
    local = Operation.LAYERS, Operation.MOVE_OUT, Operation.MOVE_IN
    ring.programs.load([[[op for op in queue if op.operation in local] for queue in program.commands(rank, nodes)]
                        for rank in range(nodes)])
    before = _moved(simulation)
    cycles = ring.programs.run(collectives=0).outcome.cycles
    moved = _moved(simulation) - before
    gradients, losses = ring.memory.read_gradients(model.size), ring.memory.read_activations(lists.places.loss, 1)
    same = all(np.float32(loss) == losses[rank, 0]
               and np.array_equal(gradient.view(np.uint32), gradients[rank].view(np.uint32))
               for rank, (loss, gradient) in enumerate(expected))
    return _step(kind, lists.plan, cycles=cycles, moved=moved, same=same)


def _node(parameters: int, programs: Programs, compute: Compute) -> NodeConfig:
    """Create a node configuration with memories for the model's parameters."""
    words = up(parameters, GROUP)
    return NodeConfig(topology=SingleRing(max_nodes=1), memories=Memories(gradient=words, weight=words, planes=0),
                      masking=False, sparsify=False, programs=programs, compute=compute)


def far_steps(widths: Sequence[int], *, examples: int, share: float, rate: float) -> list[FarStep]:
    """Run a random perceptron on a simulated node of four by four units, under each policy.

    The node has enough memory for the perceptron's maps, so all can be kept or all moved; see :func:`run_policies`.
    """
    layers = layers_of(widths)
    maps = sum(examples * width for width in widths)
    config = _node(sum(layer.length for layer in layers), Programs(depth=8 * len(widths), move_queue=True), Compute(
        rows=4, activations=1 << (maps + maps // 2).bit_length(), far=1 << maps.bit_length()))
    model = perceptron(widths[0], widths[1:-1], widths[-1], align=GROUP)
    model.initialize(0)
    generator = np.random.default_rng(0)
    x = generator.standard_normal((examples, widths[0])).astype(np.float32)
    labels = generator.integers(0, widths[-1], examples)
    with _open_node(config) as (ring, simulation):
        return run_policies(ring, simulation, model, layers, [(x, labels)], share=share, rate=rate)


@contextlib.contextmanager
def _open_node(config: NodeConfig) -> Iterator[tuple[Ring, VerilatedRing]]:
    """Open one simulated node and its simulation."""
    with open_ring(config, nodes=1, arithmetic=Arithmetic.NATIVE) as opened:
        time = PortTime(lambda: opened.simulation.cycle)
        device = Device(BackdoorTransport(opened.transports[0], opened.simulation, 0, config, time), config,
                        name="node 0")
        ring = Ring([device])
        ring.connect()
        yield ring, opened.simulation


def run_text_policies(ring: Ring, simulation: VerilatedRing, model: Transformer, sequence: Characters, *,
                      share: float, rate: float, kinds: Sequence[str] = tuple(KINDS)) -> list[FarStep]:
    """Compute the gradients of a sequence on all nodes under each policy with a plan; see :func:`run_policies`. The
    nodes must support sequence functions."""
    config = ring.devices[0].config
    operations = operations_of(model.config, Array(rows=config.compute.rows, lanes=config.lanes))
    simulation.set_far_speed(latency=FAR_LATENCY, rate=rate)
    ring.memory.write_weights(model.parameters)
    loss, gradient = model.differentiate(collate([sequence]))

    def computer_of(plan: MapPlan) -> FarTextComputer:
        """Create a computer for a plan. The plan's lists and the sequence must already be on the nodes."""
        computer = FarTextComputer(ring, compile_far_text(
            operations, plan, rate=rate, sequences=1, words=config.compute.activations, far_words=config.far_words))
        computer.prepare()
        computer.give([[sequence]] * ring.nodes)
        return computer

    modelled = operations.chain(further=False)
    policies = (Policy.REMAKE,) * len(modelled.maps)
    remade = run(modelled, policies, budget=2 * modelled.words)
    assert remade is not None
    chain = _measured(ring, operations, computer_of(MapPlan(
        modelled, Decision(policies, remade), 2 * modelled.words)).lists)
    steps = []
    for kind, plan in _plans(chain, share, rate, kinds):
        ring.memory.write_gradients([np.full(model.size, np.nan, np.float32)] * ring.nodes)
        computer = computer_of(plan)
        before = _moved(simulation)
        cycles = computer.run()
        moved = _moved(simulation) - before
        same = computer.losses() == [loss] * ring.nodes and bool(
            (ring.memory.read_gradients(model.size).view(np.uint32) == gradient.view(np.uint32)).all())
        steps.append(_step(kind, plan, cycles=cycles, moved=moved, same=same))
    return steps


def _measured(ring: Ring, operations: TextOperations, lists: FarText) -> Chain:
    """Return a chain with the measured cycles of a plan's lists on the nodes' current sequence."""
    works = lists.commands[0]
    outcomes = ring.compute.run_layers([part.fields["weight_base"] for part in works],
                                       [lists.whole.context] * ring.nodes)
    taken: collections.Counter[str] = collections.Counter()
    for work, outcome in zip(works, outcomes, strict=True):
        taken[work.name.split(",", maxsplit=1)[0]] += known(outcome.cycles)
    cycles = {lists.steps[name]: count for name, count in taken.items()} | {(): 0}
    return operations.chain(further=False, cycles=lambda numbers: cycles[tuple(numbers)])


def far_text_steps(*, share: float, rate: float) -> list[FarStep]:
    """Run a sequence of the text model, with random parameters and characters, on a simulated node of four by four
    units, under each policy.

    The node has enough memory for the sequence, and all maps can be moved; see :func:`run_text_policies`.
    """
    model = Transformer(CONFIG)
    model.initialize(0)
    sequence = np.random.default_rng(0).integers(1, CONFIG.characters, CONFIG.context + 1)
    config = _node(model.size, Programs(move_queue=True), Compute(
        rows=4, activations=16_384, scale_mask=True, sequences=True, buffer_tags=True, far=8192))
    with _open_node(config) as (ring, simulation):
        return run_text_policies(ring, simulation, model, sequence, share=share, rate=rate)
