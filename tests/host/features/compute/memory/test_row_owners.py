"""The golden engine's buffer tags detect reads of overwritten buffers, without false alarms."""

import itertools

import numpy as np
import pytest

from hdl.control.protocol import EventStatus
from hdl.features.compute.layer_list import ROW_BIT, Place
from hdl.group import GROUP
from host.features.codebook_layers.layers import shared
from host.features.compute.instructions import Array
from host.features.compute.lists import compile_lists
from host.features.compute.memory.checker import dead_reads, overlaps
from host.features.compute.memory.plan import Room
from host.models.layer_shapes import layers_of
from host.models.layers import perceptron
from sim.golden.features.compute.row_owners import RowOwners
from tests.features.compute.owned_programs import LANES, draw, engine
from tests.host.features.compute.test_lists import engine_of, give, memories_of, shared_layers

ROWS = 1024
LIST = LANES * ROWS


def test_overlaps_in_programs():
    """In each of 100 plans, every overlap in rows that are read again is detected. Before each plan, a correct plan
    runs on the same memory, which still holds the tags of other programs, without a false alarm."""
    seed = 1
    generator = np.random.default_rng(seed)
    owners, memory = RowOwners(2 * ROWS), np.zeros(2 * LIST, np.uint32)
    memories = {Place.ACTIVATIONS: memory, Place.WEIGHTS: memory.copy(), Place.GRADIENTS: memory.copy()}
    detected = passes = 0
    while detected < 100 or passes < 1000:
        for program, good in zip(draw(generator, rows=ROWS, most=10, shrink=4), (True, False), strict=True):
            if program is None:
                continue
            program.give(generator, memory, owners, LIST)
            outcome = engine().run(memories, base=LIST, length=1, owners=owners)
            expected = EventStatus.OK if good else EventStatus.READ_DEAD
            assert outcome.status is expected, f"{seed=}, pass {passes}, {outcome}"
            passes, detected = passes + good, detected + (not good)
    assert detected >= 100


class Pass:
    """Repeated passes of a perceptron on one memory, where rows keep their buffer tags between passes.

    Parameters
    ----------
    model : Model
    layers : sequence of Dense
    array : Array
    examples : int
    plan : Plan, optional
    """

    def __init__(self, model, layers, array, examples, plan=None):
        self.model, self.array = model, array
        self.lists = compile_lists(layers, array=array, examples=examples, words=8192, plan=plan)
        self.memories = memories_of(model, self.lists)
        self.owners = RowOwners(8192 // array.lanes)

    def run(self, generator, count):
        """Write a batch and run all lists; return the first outcome other than OK, or else the last outcome."""
        inputs, outputs = self.lists.places.layers[0].inputs, self.lists.places.layers[-1].outputs
        before = self.memories[Place.ACTIVATIONS].copy()
        give(self.memories, self.lists, generator.standard_normal((count, inputs)).astype(np.float32),
             generator.integers(0, outputs, count))
        self.owners.write(np.flatnonzero(before != self.memories[Place.ACTIVATIONS]) // self.array.lanes)
        for command in self.lists.commands:
            outcome = engine_of(self.array).run(self.memories, base=command.fields["weight_base"], length=count,
                                                owners=self.owners)
            if outcome.status is not EventStatus.OK:
                break
        return outcome


def networks():
    """Models, layers and arrays that together need every kind of product; some models use codebooks."""
    for widths, array in (((16, 8, 8, 5), Array(rows=2, lanes=4)), ((8, 16, 24, 4), Array(rows=1, lanes=8))):
        inputs, *hidden, outputs = widths
        model = perceptron(inputs, hidden, outputs, align=GROUP)
        model.initialize(1)
        yield model, layers_of(widths), array
        tables = shared(model, 16, lanes=array.lanes, align=GROUP)
        tables.initialize(1)
        yield tables, shared_layers(tables), array


@pytest.mark.parametrize("number", range(4))
def test_networks(number):
    """Batches of any size run in one memory without READ_DEAD; overlaps of live buffers are detected."""
    model, layers, array = [*networks()][number]
    generator = np.random.default_rng(number)
    passes = Pass(model, layers, array, 8)
    for count in (8, 3, 7, 1, 8):
        assert passes.run(generator, count).status is EventStatus.OK
    plan = passes.lists.plan
    rooms = {item.name: Room(plan.places[item.name], item.words, item.first, item.end) for item in plan.lifetimes}
    profile = passes.lists.programs[0].profile(rooms, engine_of(array))
    detected = 0
    for kept, moved in itertools.permutations(plan.words, 2):
        if {kept, moved} == {"inputs", "labels"}:  # the host writes both, so their rows have no buffer tag
            continue
        places = {**plan.places, moved: plan.places[kept]}
        wrong = Pass(model, layers, array, 8, plan=type(plan)(**{**vars(plan), "places": places}))
        outcome = wrong.run(generator, 8)
        # Reads by the host after the lists have run are not checked.
        dead = [item for item in dead_reads(profile, places) if item.operation < len(profile.operations) - 1]
        # An instruction is rejected if its target overlaps one of its operands.
        expected = {EventStatus.READ_DEAD, EventStatus.BAD_INSTRUCTION} if dead else {
            EventStatus.OK, EventStatus.BAD_INSTRUCTION}
        assert outcome.status in expected, (kept, moved, dead)
        if outcome.status is EventStatus.READ_DEAD:
            assert overlaps(profile, places), (kept, moved)
            assert outcome.detail >> ROW_BIT == dead[0].word // array.lanes, (kept, moved, dead)
            detected += 1
    assert detected > 3
