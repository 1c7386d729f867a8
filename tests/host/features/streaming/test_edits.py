"""Edits of a layer-streaming program, and the program banks of nodes: host/features/streaming/edits.py."""

import dataclasses
import random

import pytest

from hdl.compression.registry import FETCH_FORMATS
from host.features.streaming.edits import Banks, Edit, Kind, RefusedError, Structure, edited, make_edit
from host.features.streaming.plan import Worker
from tests.refusals import refuses

WORKER = Worker(weight_words=2 * 4160, gradient_words=2 * 4160, activation_words=8192, far_words=1 << 17)


def structure(**changes):
    fields = {"widths": (64, 64, 64, 10), "formats": ("raw",) * 3, "count": 3, "rate": 0.1, "microbatch": 8,
              "worker": WORKER}
    return Structure(**{**fields, **changes})


def edit(base, kind, value, *, layer=0, number=1, first=1):
    return make_edit(base, number=number, set=first, layer=layer, kind=kind, value=value)


@pytest.mark.parametrize(("layer", "kind", "value", "widths", "formats", "count", "rate"), [
    (2, Kind.ADD, 64, (64, 64, 64, 64, 10), ("raw", "mx6", "mx6", "raw"), 3, 0.5),
    (3, Kind.ADD, 64, (64, 64, 64, 64, 10), ("raw", "mx6", "raw", "raw"), 3, 0.5),
    (2, Kind.REMOVE, 0, (64, 64, 10), ("raw", "raw"), 3, 0.5),
    (1, Kind.FORMAT, "mx4", (64, 64, 64, 10), ("mx4", "mx6", "raw"), 3, 0.5),
    (0, Kind.MICROBATCHES, 5, (64, 64, 64, 10), ("raw", "mx6", "raw"), 5, 0.5),
    (0, Kind.RATE, 0.25, (64, 64, 64, 10), ("raw", "mx6", "raw"), 3, 0.25)])
def test_edited(layer, kind, value, widths, formats, count, rate):
    base = structure(formats=("raw", "mx6", "raw"), rate=0.5)
    result = edited(base, layer, kind, value)
    assert (result.widths, result.formats, result.count, result.rate) == (widths, formats, count, rate)
    assert result.digest != base.digest
    assert result.plan.peak == base.plan.peak == 20_224
    assert [unit.format for unit in result.plan.units] == list(formats)


def test_a_bank_changes_at_its_set():
    base = structure()
    node, rate_edit = Banks(base), edit(base, Kind.RATE, 0.5, first=2)
    node.begin(0)
    refuses("Edit must hold from set 1 on while set 0 runs, not from 2", node.receive, rate_edit, error=RefusedError)
    node.begin(1)
    assert node.receive(rate_edit) == 1
    assert node.current is base
    other = edit(node.following, Kind.FORMAT, "mx9", layer=2, number=2, first=2)
    assert node.receive(other) == 2
    begun = node.begin(2)
    assert (begun.rate, begun.formats) == (0.5, ("raw", "mx9", "raw"))
    assert node.begin(3) is begun


def test_refusals_of_a_node():
    base = structure()
    node, old = Banks(base), edit(base, Kind.RATE, 0.5)
    node.begin(0)
    node.receive(old)
    made = node.following
    for wrong, message in [
            (old, "Edit must be a new one behind number 1, not 1"),
            (dataclasses.replace(old, number=2, set=0), "Edit must hold from set 1 on while set 0 runs, not from 0"),
            (dataclasses.replace(old, number=2, layer=4, kind=Kind.FORMAT, value="mx4"),
             "Edit's layer must be 1 to 3, not 4"),
            (dataclasses.replace(old, number=2, digest="0"), f"Edit must lead to the program {made.digest}, not 0")]:
        refuses(message, node.receive, wrong, error=RefusedError)
        assert node.following is made
    assert node.begin(1) is made
    refuses("Sets must follow each other, 2, not 3", node.begin, 3)


@pytest.mark.parametrize(("layer", "kind", "value", "message"), [
    (2, Kind.ADD, 32, "Edit must add a layer of 64 outputs in front of layer 2, not of 32"),
    (0, Kind.ADD, 64, "Edit's layer must be 1 to 3, not 0"),
    (3, Kind.REMOVE, 0, "Edit must remove a layer with as many outputs as inputs, and not the last, not layer 3 of "
                        "(64, 64, 64, 10)"),
    (1, Kind.FORMAT, "fp8", "Format must be one of raw, mx4, mx6, mx9, not 'fp8'"),
    (0, Kind.RATE, -1.0, "Rate must be a finite number of zero or more, not -1.0"),
    (0, Kind.RATE, "fast", "Value of rate must be a number, not 'fast'"),
    (1, Kind.RATE, 0.5, "Layer of rate must be 0, not 1"),
    (0, Kind.MICROBATCHES, 0, "Microbatches must be 1 or more, not 0"),
    (0, Kind.MICROBATCHES, 1000, "Activations of 1000 microbatches of 8 must take at most the 131,072 words of a "
                                 "worker's far memory, not 2,112,000")])
def test_edits_that_no_program_has(layer, kind, value, message):
    refuses(message, edited, structure(), layer, kind, value, error=RefusedError)


def test_logs():
    sample = edit(structure(), Kind.FORMAT, "mx6", layer=1)
    assert Edit.parse(sample.described()) == sample
    assert Structure.parse(structure().described()) == structure()
    assert sample.line == "edit 1, from set 1 on: format of layer 1 mx6"
    for changes, message in [
            ({"kind": "grow"}, "Edit must be one of add, remove, format, microbatches, rate, not 'grow'"),
            ({"set": -1}, "Edit's set must be a number of zero or more, not -1"),
            ({"number": True}, "Edit's number must be a number of zero or more, not True")]:
        refuses(message, Edit.parse, {**sample.described(), **changes}, error=RefusedError)
    refuses("Edit must have number, set, layer, kind, value, digest, not []", Edit.parse, [], error=RefusedError)


def random_edit(base, generator, **numbers):
    """Draw a random edit that is valid for the given program."""
    for _ in range(100):
        kind = generator.choice(list(Kind))
        layer = 0 if kind in (Kind.RATE, Kind.MICROBATCHES) else generator.randint(1, base.layers)
        value = {Kind.ADD: 64, Kind.REMOVE: 0, Kind.FORMAT: generator.choice(FETCH_FORMATS),
                 Kind.MICROBATCHES: generator.randint(1, 6), Kind.RATE: generator.choice((0.05, 0.1, 0.2))}[kind]
        try:
            made = make_edit(base, layer=layer, kind=kind, value=value, **numbers)
        except RefusedError:
            continue
        if len(edited(base, layer, kind, value).widths) < 12:
            return made
    raise AssertionError("no edit was found")


def test_random_edits_hold_on_all_nodes_at_their_set():
    """Each of 1,000 edits reaches five nodes at different times. An edit is either applied on all nodes from its set
    on, or rejected."""
    seed = 5
    generator = random.Random(seed)
    banks = [Banks(structure()) for _ in range(5)]
    expected = {0: structure()}
    sent, pending, refused, waits, number = [], [], 0, 0, 0
    while len(sent) < 1000 or number <= sent[-1].set:
        while pending:  # a set starts only after all nodes have acknowledged its edits
            waits += 1
            node = generator.choice(sorted({node for _, node in pending}))
            change = next(change for change, other in pending if other == node)  # a node receives its edits in order
            pending.remove((change, node))
            assert banks[node].receive(change) == change.number
            for wrong in (change, dataclasses.replace(change, number=change.number + 1, set=number - 1),
                          dataclasses.replace(change, number=change.number + 1, layer=77)):
                before = banks[node].following
                with pytest.raises(RefusedError):
                    banks[node].receive(wrong)
                assert banks[node].following is before
                refused += 1
        expected.setdefault(number, expected.get(number - 1))
        for node, bank in enumerate(banks):
            assert bank.begin(number) is bank.current
            assert bank.current == expected[number], f"seed {seed}, set {number}, node {node}"
        base = expected[number]
        for _ in range(generator.randint(0, 3) if len(sent) < 1000 else 0):
            change = random_edit(base, generator, number=len(sent) + 1, set=number + 1)
            base = edited(base, change.layer, change.kind, change.value)
            sent.append(change)
            pending += [(change, node) for node in range(5)]
        expected[number + 1] = base
        number += 1
    assert len(sent) >= 1000
    assert waits == 5 * len(sent)
    assert refused == 3 * waits
