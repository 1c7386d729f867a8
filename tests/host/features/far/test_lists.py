"""Golden nodes that run lists and moves of a perceptron, with some outputs in far memory, match the model."""

import dataclasses

import numpy as np
import pytest

from hdl.group import GROUP
from host.cycles.estimate import Costs
from host.driver.planned_lists import PlanError
from host.features.compute.instructions import Array
from host.features.compute.memory.chain import MapPlan, decide
from host.features.far.lists import Versions, compile_far, layers_chain_of
from host.features.programs.program import Queue
from host.features.programs.schedules import Computed, Kind, Schedule, build
from host.models.layer_shapes import layers_of
from host.models.layers import perceptron
from sim.golden.features.compute.compute import Engine
from sim.golden.features.programs.program_nodes import ProgramNodes

WIDTHS = (16, *(16,) * 5, 10)
EXAMPLES = 8
ARRAY = Array(rows=2, lanes=4)
WORDS, FAR = 4096, 2048


def lists_of(kind, *, share=0.6, rate=1 / 16, **options):
    layers = layers_of(WIDTHS)
    chain = layers_chain_of(layers, examples=EXAMPLES, lanes=ARRAY.lanes)
    budget = chain.words if kind == "keep" else int(chain.words * share)
    decision = decide(chain, budget=budget, rate=rate, kind=kind)
    return layers, compile_far(layers, MapPlan(chain, decision, budget), array=ARRAY, examples=EXAMPLES, **{
        "words": WORDS, "far_words": FAR, **options})


def batch(seed):
    generator = np.random.default_rng(seed)
    return (generator.standard_normal((EXAMPLES, WIDTHS[0])).astype(np.float32),
            generator.integers(0, WIDTHS[-1], EXAMPLES))


def program_of(layers, lists, nodes=1):
    """Program of one step: the given lists and moves, and a fused update."""
    return build(Schedule(Kind.NONE), layers, nodes=nodes, costs=Costs(examples=EXAMPLES),
                 computed=Computed(lists.commands, [EXAMPLES] * nodes))


@pytest.mark.parametrize("kind", ["keep", "swap", "recompute", "mixed"])
def test_are_the_model(kind):
    """Losses and gradients match the model under all policies, in any order that queues and waits permit."""
    layers, lists = lists_of(kind)
    model = perceptron(WIDTHS[0], WIDTHS[1:-1], WIDTHS[-1], align=GROUP)
    model.initialize(0)
    x, labels = batch(1)
    loss, gradient = model.differentiate(x, labels)
    program = program_of(layers, lists)
    queues = [[item for item in queue if item.operation in ("LAYERS", "MOVE_OUT", "MOVE_IN")]
              for queue in program.placed(1)]
    moved = sum(task.fields["length"] for task in program.tasks if task.queue == Queue.MOVE)
    assert moved == lists.plan.decision.run.far_words
    again = sum(EXAMPLES * item.multiplications for item in lists.commands if item.name.startswith("remake"))
    assert again == lists.plan.decision.run.multiplications
    for seed in range(4):
        nodes = ProgramNodes(1, gradient_words=model.size, weights=model.parameters.view(np.uint32), planes=0,
                      engine=Engine(rows=ARRAY.rows, lanes=ARRAY.lanes), activation_words=WORDS, far_words=FAR)
        nodes.activations[:] = 0x7FC0_0001
        memory = nodes.activations[0]
        places = lists.places
        memory[places.lists:lists.end] = lists.words
        memory[places.outputs[0]:places.outputs[0] + x.size] = x.ravel().view(np.uint32)
        memory[places.labels:places.labels + EXAMPLES] = labels
        nodes.run([queues[0], [], queues[2]] if len(queues) > 2 else [queues[0]], seed=seed)
        assert memory[places.loss] == np.float32(loss).view(np.uint32)
        np.testing.assert_array_equal(nodes.gradients[0], gradient.view(np.uint32))
    assert lists.plan.decision.run.peak <= lists.plan.budget
    assert max((item.base + item.length for command in lists.commands for item in (*command.reads, *command.writes)
                if item.space == "far"), default=0) == lists.far <= FAR


@pytest.mark.parametrize(("options", "message"), [
    ({"words": 1024}, r"^Maps, other buffers and lists must take at most the 1,024 elements of a node's activation "
                      r"memory, not [\d,]+$"),
    ({"far_words": 64}, r"^Maps that are swapped must fit into the 64 words of the far memory, not take \d+$")])
def test_what_has_no_room(options, message):
    with pytest.raises(PlanError, match=message):
        lists_of("swap", **options)


def test_no_places():
    _, lists = lists_of("swap")
    with pytest.raises(PlanError, match=r"^Saved maps must have places within 200 words, not \d+: take a larger"):
        Versions(lists.plan.chain, lists.plan.decision).places(200)


@pytest.mark.parametrize(("wrong", "message"), [
    (lambda plan: dataclasses.replace(plan, budget=200),
     r"^Timeline must take at most the 200 words of the budget, not \d+$"),
    (lambda plan: dataclasses.replace(plan, decision=dataclasses.replace(plan.decision, policies=())),
     r"^Policies must be one for each of 5 maps, not 0$")])
def test_wrong_plans(wrong, message):
    _, lists = lists_of("swap")
    with pytest.raises(ValueError, match=message):
        wrong(lists.plan)


def test_chain():
    """A chain of maps can be built from measured cycles instead of modelled ones."""
    layers = layers_of((16, 16, 16, 10))
    cycles = {f"{name} {number}": 100 * number + len(name)
              for name in ("forward", "backward") for number in (1, 2, 3)}
    chain = layers_chain_of(layers, examples=8, lanes=4, cycles=cycles)
    assert [(entry.words, entry.forward, entry.backward, entry.multiplications) for entry in chain.maps] == [
        (128, 107, 208 + 108, 2048), (128, 207, 308, 2048)]
    assert chain.loss == 307
    assert chain.cycles == sum(cycles.values())
