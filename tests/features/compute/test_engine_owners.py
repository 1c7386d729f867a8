# amaranth: UnusedElaboratable=no
"""Test buffer tags through a node's ports only: hdl/features/compute/engine.py and row_owners.py."""

import numpy as np
import pytest

from hdl.control.protocol import EventStatus, Opcode, Status
from hdl.control.registers import register
from hdl.features.compute.layer_list import (
    INSTRUCTION_WORDS,
    ROW_BIT,
    Kind,
    Place,
    RowFunction,
    VectorProgram,
    centroid_layout,
    gemm_layout,
    row_layout,
    vector_layout,
)
from sim.golden.features.compute.compute import pack
from sim.golden.features.compute.row_owners import RowOwners
from tests.features.compute.engine_requests import (
    CONFIG,
    LIST,
    POP,
    READ_ALL,
    compare,
    exchange,
    fill,
    golden,
    layers,
    write,
)
from tests.features.compute.lists import END, WORDS, at
from tests.features.compute.owned_programs import LANES, draw
from tests.features.compute.test_engine import node, random_memories
from tests.hdl.host_requests import event, push, request

__all__ = ["node"]

#: Number of memory rows in front of the list, which buffers can use.
ROWS = LIST // LANES


class Model:
    """Model of a node's memories and buffer tags, with the requests to send and their expected results."""

    def __init__(self, generator):
        self.memories = random_memories(generator)
        self.owners = RowOwners(WORDS[2] // CONFIG.lanes)
        self.requests, self.expected = fill(self.memories), []

    @property
    def activations(self):
        return self.memories[Place.ACTIVATIONS]

    def write(self, address, words):
        self.activations[address:address + len(words)] = words
        self.owners.write(np.arange(address, address + len(words)) // LANES)
        self.requests.append(write(Place.ACTIVATIONS, address, words))

    def run(self, *instructions, length=1):
        """Write a list, run it on the model, and add the host requests for it. Return the expected result."""
        self.write(LIST, np.concatenate([*instructions, END]))
        outcome = golden.run(self.memories, base=LIST, length=length, owners=self.owners)
        self.requests += [push(**layers(LIST, length=length)), POP, *READ_ALL]
        self.expected.append((outcome, {space: memory.copy() for space, memory in self.memories.items()}))
        return outcome

    def check(self, unit, note="", *, cycles=60_000):
        """Send all requests to the node, and compare its events and memories with the model."""
        responses = exchange(unit, *self.requests, cycles=cycles)
        assert {response[1] for response in responses} == {Status.OK}
        responses = [response for response in responses if len(response) > 3]  # keep only events and memory contents
        assert len(responses) == 4 * len(self.expected), note
        for number, (outcome, after) in enumerate(self.expected):
            ended, *memories = responses[4 * number:4 * number + 4]
            assert (event(ended).status, event(ended).detail) == (outcome.status, outcome.detail), f"{number}, {note}"
            compare(memories, after, f"{number}, {note}")
        self.requests, self.expected = [], []


def copied(source, target, *, rows=2, owners=(0, 0), **fields):
    """Product ONES · B that writes the column sums of the matrix at ``source`` to each row at ``target``."""
    return pack(gemm_layout(), {
        "kind": Kind.GEMM, "m": rows, "n": LANES, "k": rows,
        "tile": 2, "row_tiles": 1, "column_tiles": 1, "rounds": 3,
        "a": at(Place.ONES, 0), "b": at(Place.ACTIVATIONS, source) | {"owner": owners[0]}, "stride_b": LANES,
        "c": at(Place.ACTIVATIONS, target) | {"owner": owners[1]}, "stride_c": LANES, **fields})


def test_overlaps(node):
    """Overlapping buffers in ten memory plans are detected; valid plans run to the end and match the model."""
    seed = 5
    generator = np.random.default_rng(seed)
    model, caught, passes = Model(generator), 0, 0
    while caught < 10:
        for program, good in zip(draw(generator, rows=ROWS, most=9, shrink=16), (True, False), strict=True):
            if program is None or len(program.words) > WORDS[2] - LIST:
                continue
            addresses = LANES * np.arange(program.given.start, program.given.stop)[:, None] + np.arange(LANES)
            model.write(int(addresses[0, 0]), generator.random(addresses.size).astype(np.float32).view(np.uint32))
            outcome = model.run(program.words[:-INSTRUCTION_WORDS])
            assert outcome.status is (EventStatus.OK if good else EventStatus.READ_DEAD), f"{seed=}"
            passes, caught = passes + good, caught + (not good)
    assert passes >= 10
    node.reset()
    model.check(node, f"{seed=}, {passes} passes", cycles=400_000)


def test_lowest_row(node):
    """A list ends after the first instruction that reads dead rows, and the event reports the lowest such row."""
    model = Model(np.random.default_rng(1))
    stamps = [copied(0, base, owners=(0, owner)) for base, owner in ((64, 3), (32, 4), (96, 255))]
    dead = copied(32, 128, rows=18, owners=(255, 5))
    outcome = model.run(*stamps, dead, copied(128, 400, owners=(5, 6)))
    assert (outcome.status, outcome.detail) == (EventStatus.READ_DEAD, 32 // LANES << ROW_BIT | 3)
    # The gate is read after the operands, but the event reports the gate's dead row because its number is lower.
    gated = copied(64, 128, owners=(1, 5), gated=1, gate=at(Place.ACTIVATIONS, 32) | {"owner": 1}, stride_gate=LANES)
    assert model.run(gated).detail == 32 // LANES << ROW_BIT
    assert model.run(copied(96, 128, owners=(255, 5))).status is EventStatus.OK
    node.reset()
    model.check(node)


#: Instructions on activations: layout, fields, first row and number of rows of each operand, and names of targets.
BASES = {"a": (0, 4), "b": (16, 4), "start": (32, 4), "gate": (48, 4), "c": (64, 4)}
PRODUCT = gemm_layout(), {
    "kind": Kind.GEMM, "m": 4, "n": 4, "k": 4, "rounds": 2, "initial": 1, "gated": 1,
    **{f"stride_{name}": LANES for name in BASES}}, BASES, ("c",)
ROWS_BASES = {"source": (0, 2), "labels": (16, 1), "target": (32, 2), "loss": (48, 1)}
FUNCTION = vector_layout(), {
    "kind": Kind.VECTOR, "rows": 2, "columns": LANES, "stride_source": LANES, "stride_target": LANES,
    "stride_labels": 0}, ROWS_BASES, ("target", "loss")
INDEXED_BASES = {"x": (0, 4), "indices": (16, 1), "start": (32, 4), "table": (48, 4), "gate": (64, 4),
                 "target": (80, 4)}
INDEXED = centroid_layout(), {
    "kind": Kind.CENTROID, "rows": 4, "columns": 4, "outputs": 4, "initial": 1, "gated": 1,
    **{f"stride_{name}": LANES for name in INDEXED_BASES if name != "table"}}, INDEXED_BASES, ("target",)

SOFTMAX = vector_layout(), {
    "kind": Kind.VECTOR, "function": VectorProgram.SOFTMAX, "rows": 20, "columns": LANES, "stride_source": LANES,
    "stride_target": LANES}, {"source": (0, 20), "target": (32, 20)}, ("target",)


def of_rows(function, targets, *, rows=2, columns=5, **bases):
    """ROWS instruction with two memory rows per matrix row; all row numbers are 0, so only table row 0 is used."""
    return row_layout(), {
        "kind": Kind.ROWS, "function": function, "rows": rows, "columns": columns, "count": 3,
        "started": int("start" in bases), **{f"stride_{name}": 2 * LANES for name in (
            "x", "start", "target", "second", "third", *(() if "numbers" in bases else "y"))}}, {
        {"numbers": "y"}.get(name, name): operand for name, operand in bases.items()}, targets


NORMED = of_rows(RowFunction.NORM, ("target", "second", "third", "deviation"), x=(0, 4), start=(8, 4), scale=(16, 2),
                 shift=(24, 2), target=(32, 4), second=(40, 4), third=(48, 4), deviation=(56, 1))
NORMED_BACK = of_rows(RowFunction.NORM_BACK, ("target", "second"), x=(0, 4), y=(8, 4), start=(16, 4), scale=(24, 2),
                      deviation=(32, 1), target=(40, 4), second=(48, 4))
GATHERED = of_rows(RowFunction.GATHER, ("target",), x=(0, 2), numbers=(8, 1), start=(16, 4), target=(24, 4))
COPIED = of_rows(RowFunction.GATHER, ("target",), x=(0, 2), numbers=(8, 1), target=(24, 4))
SCATTERED = of_rows(RowFunction.SCATTER, ("target",), x=(0, 4), numbers=(8, 1), target=(24, 2))
TABLE = of_rows(RowFunction.SCATTER, (), target=(24, 2), x=(0, 4), numbers=(8, 1))
CLEARED = of_rows(RowFunction.CLEAR, ("target",), target=(0, 4))


@pytest.mark.parametrize(("layout", "fields", "bases", "targets"), [
    PRODUCT, FUNCTION, INDEXED, SOFTMAX, NORMED, NORMED_BACK, GATHERED, COPIED, SCATTERED, TABLE, CLEARED],
    ids=["product", "function", "indexed", "softmax", "norm", "norm back", "gather", "copy", "scatter", "table",
         "clear"])
def test_each_operand(node, layout, fields, bases, targets):
    """Dead rows are detected at both ends of each operand, and each target's first and last rows are tagged."""
    model = Model(np.random.default_rng(4))
    places = {name: at(Place.ACTIVATIONS, LANES * row) for name, (row, _) in bases.items()}

    def instruction(**owners):
        return pack(layout, fields | {name: base | {"owner": owners.get(name, 0)} for name, base in places.items()})

    def clear():
        model.write(0, np.zeros(LANES * ROWS, np.uint32))

    for name, (row, count) in bases.items():
        for dead in {row, row + count - 1}:
            clear()
            if name in targets:
                outcome = model.run(instruction(**{name: 7}), copied(LANES * dead, 400, rows=1, owners=(8, 0)))
                assert outcome.detail == dead << ROW_BIT | 1, name
            else:
                outcome = model.run(copied(384, LANES * dead, rows=1, owners=(0, 7)), instruction(**{name: 8}))
                assert outcome.detail == dead << ROW_BIT | 1, name
            assert outcome.status is EventStatus.READ_DEAD, name
    node.reset()
    model.check(node, cycles=200_000)


def test_any(node):
    """After the host writes to a row, instructions may read it under any buffer number; buffer 0 may read any row."""
    model = Model(np.random.default_rng(2))
    assert model.run(copied(0, 64, owners=(9, 3)), copied(64, 96, owners=(0, 4))).status is EventStatus.OK
    assert model.run(copied(64, 128, owners=(4, 0))).detail == 64 // LANES << ROW_BIT
    model.write(64 + 1, np.array([5], np.uint32))
    assert model.run(copied(64, 128, rows=1, owners=(4, 0))).status is EventStatus.OK
    assert model.run(copied(64, 128, owners=(4, 0))).detail == 64 // LANES + 1 << ROW_BIT
    assert model.run(copied(0, 64, owners=(0, 0)), copied(64, 96, owners=(7, 7))).status is EventStatus.OK
    node.reset()
    model.check(node)


def test_refused(node):
    """A rejected list leaves the buffer tags unchanged; a list ended by a wrong label also reports dead rows."""
    model = Model(np.random.default_rng(3))
    wrong = copied(0, 64, owners=(0, 3)), copied(0, 64, owners=(0, 3), order=3)
    assert model.run(*wrong).status is EventStatus.BAD_INSTRUCTION
    assert model.run(copied(64, 96, owners=(4, 4))).status is EventStatus.OK
    rows = {"kind": Kind.VECTOR, "rows": 2, "columns": LANES, "stride_source": LANES, "stride_target": LANES,
            "stride_labels": 1, "source": at(Place.ACTIVATIONS, 0),
            "labels": at(Place.ACTIVATIONS, 128) | {"owner": 2},
            "target": at(Place.ACTIVATIONS, 160) | {"owner": 5}, "loss": at(Place.ACTIVATIONS, 203) | {"owner": 6}}
    model.write(128, np.array([0, LANES], np.uint32))
    assert model.run(pack(vector_layout(), rows)).status is EventStatus.BAD_INSTRUCTION
    for base, owner in ((160, 6), (200, 5)):
        assert model.run(copied(base, 224, rows=1, owners=(owner, 0))).detail == base // LANES << ROW_BIT
    outcome = model.run(copied(0, 128, owners=(0, 3)), pack(vector_layout(), rows))
    assert (outcome.status, outcome.detail) == (EventStatus.READ_DEAD, 128 // LANES << ROW_BIT | 1)
    node.reset()
    model.check(node)


@pytest.mark.parametrize("cycles", [700, 1_000, 1_300, 1_600])
def test_reset(node, cycles):
    """A reset keeps buffer tags and contents but clears errors; the host can then take over the rows."""
    model = Model(np.random.default_rng(cycles))
    model.run(copied(0, 64, owners=(0, 3)))
    model.run(copied(64, 96, owners=(4, 4)))
    node.reset()
    model.check(node)
    node.reset()
    model.run(copied(0, 128, owners=(3, 3)))
    model.run(copied(64, 96, owners=(4, 4)))
    assert [outcome.status for outcome, _ in model.expected] == [EventStatus.OK, EventStatus.READ_DEAD]
    model.check(node)
    model.run(copied(0, 256, rows=32, owners=(0, 7)), copied(256, 128, rows=32, owners=(8, 8)))
    exchange(node, *model.requests, cycles=cycles)
    node.reset()
    model = Model(np.random.default_rng(1))
    model.run(copied(256, 128, rows=32, owners=(8, 8)))
    model.run(copied(0, 256, rows=32, owners=(0, 7)), copied(256, 128, rows=32, owners=(8, 8)))
    model.check(node, f"{cycles=}")


@pytest.mark.parametrize("delay", [1, 3, 6])
def test_link_reset(node, delay):
    """If a link reset ends a command, dead reads of that command are not attributed to the next command."""
    model = Model(np.random.default_rng(delay))
    control = register("CONTROL").address
    node.reset()
    dead = copied(0, 256, rows=32, owners=(0, 7)), copied(256, 128, rows=32, owners=(8, 8))
    words = np.concatenate([*dead, END])
    pause = [request(Opcode.PING, 32, *range(32))] * delay
    responses = exchange(
        node, *model.requests, write(Place.ACTIVATIONS, LIST, words), push(**layers(LIST, length=1)), *pause,
        request(Opcode.WRITE_REGISTER, 1, control, 1), POP, request(Opcode.WRITE_REGISTER, 1, control, 0))
    assert event(next(response for response in responses if len(response) == 6)).status in (
        EventStatus.LINK_RESET, EventStatus.READ_DEAD)
    model.requests = fill(model.memories)
    model.run(copied(256, 128, rows=32, owners=(8, 8)))
    model.check(node)
