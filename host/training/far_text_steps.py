"""Sequences of the text model on a node with a far memory: saved maps kept, moved or made again, by a plan for each
policy.

Lists are run once by themselves, of a plan that makes all maps again, for the cycles that they take; plans are made
with these. Then each sequence runs as a program of three queues, and what it leaves is compared with the model on the
host.
"""

import collections
from collections.abc import Sequence

import numpy as np

from hdl.config import Compute, Memories, NodeConfig, Programs, SingleRing
from hdl.group import GROUP
from host.compute.far_lists import FarText, compile_far_text
from host.compute.instructions import Array
from host.compute.text_lists import TextOperations
from host.driver.device import Device
from host.driver.results import known
from host.driver.ring import Ring
from host.memory.chain import KINDS, Chain, Decision, MapPlan, Policy, decide, run
from host.models.text import Characters, collate
from host.models.text_steps import CONFIG
from host.models.transformer import Transformer
from host.training.far_steps import FarStep
from host.training.far_text import FarTextComputer, operations_of
from host.transports.backdoor import BackdoorTransport, PortTime
from host.transports.session import FAR_LATENCY
from host.transports.verilated import open_ring
from sim.verilated.native import Arithmetic
from sim.verilated.ring import VerilatedRing

__all__ = ["far_text_steps", "run_text_policies"]


def run_text_policies(ring: Ring, simulation: VerilatedRing, model: Transformer, sequence: Characters, *,
                      share: float, rate: float, kinds: Sequence[str] = tuple(KINDS)) -> list[FarStep]:
    """Differentiate a sequence on all nodes under each policy for which there is a plan.

    Parameters
    ----------
    ring : Ring
        Nodes with far memories, three queues and functions of sequences.
    model : Transformer
        Parameters, which nodes are given, and what their gradients are compared with.
    sequence : array of int
    share : float
        Part of the saved words that the activation memory has room for.
    rate : float
        Words per cycle from and to the far memory of each node.
    """
    config = ring.devices[0].config
    operations = operations_of(model.config, Array(rows=config.compute.rows, lanes=config.lanes))
    simulation.set_far_speed(latency=FAR_LATENCY, rate=rate)
    ring.memory.write_weights(model.parameters)
    loss, gradient = model.differentiate(collate([sequence]))

    def lists_of(chain: Chain, decision: Decision, budget: int) -> FarText:
        return compile_far_text(operations, MapPlan(chain, decision, budget), rate=rate, sequences=1,
                                words=config.compute.activations, far_words=config.far_words)

    modelled = operations.chain(further=False)
    policies = (Policy.REMAKE,) * len(modelled.maps)
    found = run(modelled, policies, budget=2 * modelled.words)
    assert found is not None
    chain = _measured(ring, operations, lists_of(modelled, Decision(policies, found), 2 * modelled.words), sequence)
    steps = []
    for kind in kinds:
        budget = chain.words if kind == "keep" else int(share * chain.words)
        decision = decide(chain, budget=budget, rate=rate, kind=kind)
        if decision is None:
            continue
        computer = FarTextComputer(ring, lists_of(chain, decision, budget))
        ring.memory.write_gradients([np.full(model.size, np.nan, np.float32)] * ring.nodes)
        computer.prepare()
        computer.give([[sequence]] * ring.nodes)
        before = sum(simulation.far_memory(0)[1:])
        cycles = known(computer.run())
        moved = sum(simulation.far_memory(0)[1:]) - before
        same = computer.losses() == [loss] * ring.nodes and bool(
            (ring.memory.read_gradients(model.size).view(np.uint32) == gradient.view(np.uint32)).all())
        steps.append(FarStep(
            kind=kind, cycles=cycles, timeline=decision.run.cycles, budget=budget, peak=decision.run.peak,
            far_words=moved, planned=decision.run.far_words, multiplications=decision.run.multiplications, same=same,
            policies=decision.policies))
    return steps


def _measured(ring: Ring, operations: TextOperations, lists: FarText, sequence: Characters) -> Chain:
    """Chain with the cycles of the lists of a plan, which run one behind the other."""
    computer = FarTextComputer(ring, lists)
    computer.prepare()
    computer.give([[sequence]] * ring.nodes)
    works = lists.commands[0]
    outcomes = ring.compute.run_layers([one.fields["weight_base"] for one in works],
                                       [lists.whole.context] * ring.nodes)
    taken: collections.Counter[str] = collections.Counter()
    for work, outcome in zip(works, outcomes, strict=True):
        taken[work.name.split(",", maxsplit=1)[0]] += known(outcome.cycles)
    cycles = {lists.steps[name]: found for name, found in taken.items()} | {(): 0}
    return operations.chain(further=False, cycles=lambda numbers: cycles[tuple(numbers)])


def _node(model: Transformer) -> NodeConfig:
    """A node of four by four units with room for a sequence of the text model, of which all maps can be moved."""
    size = -(-model.size // GROUP) * GROUP
    return NodeConfig(
        topology=SingleRing(max_nodes=1), memories=Memories(gradient=size, weight=size, planes=0), masking=False,
        sparsify=False, programs=Programs(move_queue=True), compute=Compute(
            rows=4, activations=16_384, scale_mask=True, sequences=True, buffer_tags=True, far=8192))


def far_text_steps(*, share: float, rate: float, arithmetic: Arithmetic = Arithmetic.NATIVE) -> list[FarStep]:
    """A sequence of the text model, with random parameters and characters, on one simulated node under each policy;
    see :func:`run_text_policies`."""
    model = Transformer(CONFIG)
    model.initialize(0)
    sequence = np.random.default_rng(0).integers(1, CONFIG.characters, CONFIG.context + 1)
    config = _node(model)
    with open_ring(config, nodes=1, arithmetic=arithmetic) as opened:
        time = PortTime(lambda: opened.simulation.cycle)
        device = Device(BackdoorTransport(opened.transports[0], opened.simulation, 0, config, time), config,
                        name="node 0")
        ring = Ring([device])
        ring.connect()
        return run_text_policies(ring, opened.simulation, model, sequence, share=share, rate=rate)
