"""Golden nodes that run lists and moves of the text model, with some maps in far memory, match the model."""

import functools

import numpy as np
import pytest

from hdl.features.compute.layer_list import PADDING, Place
from host.driver.planned_lists import PlanError
from host.features.compute.instructions import Array
from host.features.compute.memory.chain import KINDS, Decision, MapPlan, Policy, decide
from host.features.compute.memory.chain import run as timeline_of
from host.features.compute.text_lists import TextOperations, compile_text, engine_of
from host.features.far.lists import compile_far_text, fit_text
from host.models.text import collate
from sim.golden.features.compute.row_owners import RowOwners
from sim.golden.features.programs.program_nodes import ProgramNodes
from tests.host.features.compute.test_text_lists import NAN, SMALL, TEXT, model_of, sequences_of
from tests.refusals import refuses

ARRAY = Array(rows=4, lanes=4)
WORDS, FAR = 16_384, 8192


@functools.cache
def operations_of(config=TEXT, array=ARRAY):
    return TextOperations(compile_text(config, array=array, sequences=1, words=1 << 16, scaled_again=True), array)


class Owned(ProgramNodes):
    """Golden nodes with buffer tags, which also record the highest end address of all buffer words written so far."""

    def __init__(self, lists, **options):
        super().__init__(1, **options)
        self.lists, self.top, self.owners = lists, 0, RowOwners(WORDS // self.engine.lanes)

    def execute(self, command, ranks, *, odd=0):
        fields, memory = command.fields[0], self.activations[0]
        if command.operation != "LAYERS":
            super().execute(command, ranks, odd=odd)
            if command.operation == "MOVE_IN":
                rows = np.arange(fields["weight_base"], fields["weight_base"] + fields["length"]) // 4
                self.owners.write(rows)
            return
        before = memory.copy()
        memories = {Place.GRADIENTS: self.gradients[0], Place.WEIGHTS: self.weights[0], Place.ACTIVATIONS: memory}
        outcome = self.engine.run(memories, base=fields["weight_base"], length=fields["length"],
                                   offset=fields["state_base"], owners=self.owners)
        assert outcome.status.name == "OK", outcome
        written = np.flatnonzero(memory != before)
        self.top = max(self.top, *written[written < self.lists.whole.data] + 1, 0)


def run(lists, model, sequences, seed, array=ARRAY):
    """Run sequences on a node in a command order chosen by the seed; return the node and the losses."""
    nodes = Owned(lists, gradient_words=model.size, weights=model.parameters.view(np.uint32), planes=0,
                  engine=engine_of(array), activation_words=WORDS, far_words=FAR)
    nodes.activations[:] = NAN
    memory = nodes.activations[0]
    memory[lists.base:lists.end] = lists.words
    programs = [lists.program(further=further) for further in (False, True)]
    for number, sequence in enumerate(sequences):
        tokens = np.array([0, PADDING], np.uint32).repeat(lists.whole.context)
        tokens[:len(sequence) - 1] = sequence[:-1]
        tokens[lists.whole.context:lists.whole.context + len(sequence) - 1] = sequence[1:]
        base = lists.whole.data + number * lists.whole.stride
        memory[base:base + len(tokens)] = tokens
        queues = programs[number > 0].placed(1)
        for queue in queues:
            for command in queue:
                if command.operation == "LAYERS":
                    command.fields[0]["state_base"] = number * lists.whole.stride
        nodes.run(queues, seed=seed)
    places = lists.whole.data + lists.whole.stride * np.arange(len(sequences)) + 2 * lists.whole.context
    return nodes, memory[places].view(np.float32)


def check_bits(lists, config, lengths, seeds, array=ARRAY):
    model, sequences = model_of(config, 3), sequences_of(config, lengths)
    loss, gradient = model.differentiate(collate(sequences))
    for seed in range(seeds):
        nodes, losses = run(lists, model, sequences, seed, array)
        assert float(sum(losses, np.float32(0))) == loss
        np.testing.assert_array_equal(nodes.gradients[0], gradient.view(np.uint32))
        assert nodes.top <= lists.base
    for further in (False, True):
        moved = sum(task.fields["length"] for task in lists.program(further=further).tasks if task.queue == 2)
        assert moved == lists.plan.decision.run.far_words


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("share", "rate"), [(0.6, 1 / 4), (0.75, 1 / 8), (0.5, 1 / 4)])
def test_are_the_model(kind, share, rate):
    """Losses and gradients of two sequences match the model under all policies, in any order that queues and waits
    allow, and no row is read as part of a different buffer."""
    operations = operations_of()
    chain = operations.chain(further=True)
    budget = chain.words if kind == "keep" else int(share * chain.words)
    decision = decide(chain, budget=budget, rate=rate, kind=kind)
    lists = compile_far_text(operations, MapPlan(chain, decision, budget), rate=rate, sequences=2,
                             words=WORDS, far_words=FAR)
    assert decision.run.peak <= budget
    check_bits(lists, TEXT, (16, 7), 2)
    again = sum(command.multiplications for command in lists.commands[0] if command.name.startswith("remake"))
    assert again == decision.run.multiplications


@pytest.mark.parametrize(("config", "array"), [(TEXT, ARRAY), (SMALL, Array(rows=2, lanes=4))], ids=["text", "small"])
def test_random_policies(config, array):
    """Random policies give correct results for the text model, and for a model with two layers and 13 maps."""
    operations = operations_of(config, array)
    chain = operations.chain(further=False)
    for seed in range(4):
        generator = np.random.default_rng(seed)
        policies = tuple(Policy(int(number)) for number in generator.integers(0, 3, len(chain.maps)))
        rate = float(generator.choice([1 / 16, 1 / 4, 1]))
        budget = next(words for words in range(chain.words // 4 // 32 * 32, 2 * chain.words, 32)
                      if timeline_of(chain, policies, budget=words, rate=rate))
        decision = Decision(policies, timeline_of(chain, policies, budget=budget, rate=rate))
        lists = compile_far_text(operations, MapPlan(chain, decision, budget), rate=rate, sequences=2,
                                 words=WORDS, far_words=FAR)
        lists.program(further=False).check()
        check_bits(lists, config, (config.context, 3), 1, array)


def test_cycles():
    """If a sequence keeps all maps, the modelled cycles of all its lists together equal the cycles of its chain, and
    are close to the cycles of lists that are not split."""
    operations = operations_of()
    for further, whole in ((False, 67_700), (True, 70_337)):
        chain = operations.chain(further=further)
        assert chain.cycles == whole
        together = [range(operations.saved.turn + 1),
                    range(operations.saved.turn + 1, len(operations.operations(further=further)))]
        assert 0 < chain.cycles - sum(operations.cycles(item, further=further) for item in together) < 13 * 40
    assert [(item.name, item.words, item.sources, item.needs, item.reads) for item in chain.maps] == [
        ("normal norm_0", 512, (), (), ()), ("parts 0", 1536, (), (0,), ()), ("weights 0", 512, (1,), (1,), (1,)),
        ("heads 0", 512, (1, 2), (1, 2), ()), ("normal feed_norm_0", 512, (3,), (3,), ()),
        ("rise_0", 1536, (), (4,), ()), ("normal norm", 512, (5,), (3, 5), ())]
    assert chain.loss_reads == ()


class TestFit:
    def lists_of(self, kind, activations=6144, **options):
        return fit_text(operations_of(), **{"activations": activations, "kind": kind, "rate": 1 / 4, "sequences": 4,
                                            "words": WORDS, "far_words": FAR, **options})

    @pytest.mark.parametrize(("kind", "words", "cycles", "moved", "again"), [
        ("swap", 5696, 1.0, 5120, 0), ("recompute", 5728, 1.062, 0, 57_344), ("mixed", 5696, 1.0, 5120, 0)])
    def test_words(self, kind, words, cycles, moved, again):
        """For each kind of plan, a sequence's buffers fit in 6,144 words, and the costs are as expected."""
        lists = self.lists_of(kind)
        timeline = lists.plan.decision.run
        assert (lists.base, timeline.far_words, timeline.multiplications) == (words, moved, again)
        assert round(timeline.cycles / lists.plan.chain.cycles, 3) == cycles
        assert lists.cycles[1] == timeline.cycles > lists.cycles[0]
        assert lists.line.startswith(f"activations: planned, {words:,} words, at most ")

    @pytest.mark.parametrize(("kind", "options", "message"), [
        ("keep", {}, "Activations must be at least 7,776 words for a plan of kind keep, not 6,144"),
        ("mixed", {"activations": 4672}, "Activations must be at least 5,664 words for a plan of kind mixed, not "
                                         "4,672"),
        ("swap", {"far_words": 512}, "Maps that are swapped must fit into the 512 words of the far memory, not take "
                                     "2,560"),
        ("swap", {"words": 7000}, "4 sequences of nodes that compute need 7,904 elements of the activation memory, "
                                  "with lists, which has 7,000: take smaller batches")])
    def test_no_room(self, kind, options, message):
        refuses(message, self.lists_of, kind, **options, error=PlanError)
