"""Test the golden model of the instructions ROWS and SOFTMAX in lists: results, and checks of the operands."""

import numpy as np
import pytest

from hdl.control.protocol import EventStatus
from hdl.features.compute.layer_list import (
    INSTRUCTION_WORDS,
    Kind,
    Place,
    RowFunction,
    VectorProgram,
    row_layout,
    vector_layout,
)
from sim.golden import summation
from sim.golden.features.compute import row_functions
from sim.golden.features.compute.compute import Engine, Outcome, pack
from tests.features.compute.lists import at

ENGINE = Engine(rows=4, lanes=4, sequences=True)
LIST, WORDS = 768, 1024
ROWS, COLUMNS, STRIDE = 5, 6, 12
FACTOR, EPSILON = np.float32(1 / COLUMNS), np.float32(1e-5)
NUMBERS = 701
END = np.zeros(INSTRUCTION_WORDS, np.uint32)

#: Memories and addresses of non-overlapping operands.
PLACES = {"x": (Place.ACTIVATIONS, 0), "y": (Place.ACTIVATIONS, 64), "start": (Place.ACTIVATIONS, 128),
          "target": (Place.ACTIVATIONS, 192), "second": (Place.ACTIVATIONS, 256), "third": (Place.ACTIVATIONS, 320),
          "scale": (Place.WEIGHTS, 0), "shift": (Place.WEIGHTS, 8), "deviation": (Place.GRADIENTS, 4)}


def rows(function, **changes):
    """Build an instruction for five rows, six columns and seven table rows; row numbers are two elements apart."""
    table = function in (RowFunction.GATHER, RowFunction.SCATTER)
    return pack(row_layout(), {
        "kind": Kind.ROWS, "function": function, "started": int(function == RowFunction.ADD), "rows": ROWS,
        "columns": COLUMNS, "count": 7 if table else 0, "factor": int(FACTOR.view(np.uint32)),
        "epsilon": int(EPSILON.view(np.uint32)), **{name: at(*position) for name, position in PLACES.items()},
        **{f"stride_{name}": STRIDE for name in ("x", "y", "start", "target", "second", "third")},
        **({"y": at(Place.ACTIVATIONS, NUMBERS), "stride_y": 2} if table else {}), **changes})


def softmax(**changes):
    return pack(vector_layout(), {
        "kind": Kind.VECTOR, "function": VectorProgram.SOFTMAX, "rows": ROWS, "columns": COLUMNS,
        "source": at(*PLACES["x"]), "stride_source": STRIDE, "target": at(*PLACES["target"]), "stride_target": STRIDE,
        "labels": at(7, (1 << 20) - 4, relative=1), "loss": at(Place.WEIGHTS, 0), "stride_labels": 5, **changes})


@pytest.fixture
def memories():
    generator = np.random.default_rng(1)
    arrays = {space: generator.standard_normal(WORDS).astype(np.float32).view(np.uint32)
              for space in (Place.GRADIENTS, Place.WEIGHTS, Place.ACTIVATIONS)}
    arrays[Place.ACTIVATIONS][NUMBERS:NUMBERS + 10:2] = [6, 0, 3, 0, 6]
    return arrays


def matrix(memories, name, count=ROWS, columns=COLUMNS, stride=STRIDE):
    space, base = PLACES[name]
    return memories[space][base + stride * np.arange(count)[:, None] + np.arange(columns)].view(np.float32)


def vector(memories, name):
    return matrix(memories, name, 1, stride=0)


def run(memories, *instructions, length=ROWS, engine=ENGINE):
    """Run a list; return its outcome and a copy of the memories from before the run."""
    words = np.concatenate([*instructions, END])
    memories[Place.ACTIVATIONS][LIST:LIST + len(words)] = words
    before = {space: memory.copy() for space, memory in memories.items()}
    return engine.run(memories, base=LIST, length=length, offset=4), before


def changed(memories, before):
    return {space: set(np.flatnonzero(memory != before[space])) for space, memory in memories.items()
            if (memory != before[space]).any()}


def extent(*names, count=ROWS):
    """Return the addresses of all elements of matrices in the activation memory."""
    return {PLACES[name][1] + row * STRIDE + column
            for name in names for row in range(count) for column in range(COLUMNS)}


def same(actual, expected):
    np.testing.assert_array_equal(actual.view(np.uint32), np.asarray(expected, np.float32).view(np.uint32))


def softmax_back(memories):
    upstream, weights = matrix(memories, "x"), matrix(memories, "y")
    return weights * (upstream - summation.row_sums(upstream * weights)) * FACTOR


#: Instructions that write one matrix, with the matrix's name and expected contents.
ALONE = {
    "add": (rows(RowFunction.ADD), "target", lambda given: matrix(given, "x") + matrix(given, "start")),
    **{f"add in place of {name}": (rows(RowFunction.ADD, target=at(*PLACES[name])), name,
                                   lambda given: matrix(given, "x") + matrix(given, "start"))
       for name in ("x", "start")},
    "one row for all": (rows(RowFunction.ADD, stride_start=0), "target",
                        lambda given: matrix(given, "x") + vector(given, "start")),
    "scale": (rows(RowFunction.SCALE), "target",
              lambda given: matrix(given, "x") * vector(given, "scale") + vector(given, "shift")),
    "softmax": (softmax(), "target", lambda given: summation.softmax(matrix(given, "x"))),
    "softmax back": (rows(RowFunction.SOFTMAX_BACK, target=at(*PLACES["x"])), "x", softmax_back),
}


@pytest.mark.parametrize(("instruction", "written", "expected"), ALONE.values(), ids=ALONE)
def test_one_matrix(memories, instruction, written, expected):
    outcome, before = run(memories, instruction)
    assert outcome == Outcome(EventStatus.OK, 1)
    same(matrix(memories, written), expected(before))
    assert changed(memories, before) == {Place.ACTIVATIONS: extent(written)}


@pytest.mark.parametrize("started", [0, 1])
def test_norm(memories, started):
    outcome, before = run(memories, rows(RowFunction.NORM, started=started))
    assert outcome == Outcome(EventStatus.OK, 1)
    x = matrix(before, "x") + matrix(before, "start") if started else matrix(before, "x")
    normal, deviation = summation.normalize(x, 1e-5)
    same(matrix(memories, "second"), normal)
    same(matrix(memories, "deviation", 1, ROWS), deviation.T)
    same(matrix(memories, "target"), normal * vector(before, "scale") + vector(before, "shift"))
    written = ("target", "second", "third") if started else ("target", "second")
    assert changed(memories, before) == {
        Place.ACTIVATIONS: extent(*written), Place.GRADIENTS: set(range(4, 4 + ROWS))}
    if started:
        same(matrix(memories, "third"), x)


@pytest.mark.parametrize("started", [0, 1])
def test_norm_back(memories, started):
    outcome, before = run(memories, rows(RowFunction.NORM_BACK, started=started))
    assert outcome == Outcome(EventStatus.OK, 1)
    upstream, normal = matrix(before, "x"), matrix(before, "y")
    same(matrix(memories, "second"), upstream * normal)
    times = upstream * vector(before, "scale")
    gradient = ((times - summation.mean(times)) - normal * summation.mean(times * normal)) * matrix(
        before, "deviation", 1, ROWS).T
    same(matrix(memories, "target"), matrix(before, "start") + gradient if started else gradient)
    assert changed(memories, before) == {Place.ACTIVATIONS: extent("target", "second")}


@pytest.mark.parametrize("started", [0, 1])
def test_gather(memories, started):
    memories[Place.ACTIVATIONS][6 * STRIDE] = 0xFFC0_0001
    outcome, before = run(memories, rows(RowFunction.GATHER, started=started, y=at(Place.ACTIVATIONS, NUMBERS)))
    assert outcome == Outcome(EventStatus.OK, 1)
    gathered = matrix(before, "x", 7)[[6, 0, 3, 0, 6]]
    same(matrix(memories, "target"), summation.canonical(gathered + matrix(before, "start")) if started else gathered)


def test_scatter(memories):
    """Rows with equal row numbers are added one after another; other table rows keep all bits, even those of NaNs."""
    table = PLACES["target"][1]
    memories[Place.ACTIVATIONS][[table + 3 * STRIDE, table + 4 * STRIDE]] = 0xFFC0_0001
    outcome, before = run(memories, rows(RowFunction.SCATTER))
    assert outcome == Outcome(EventStatus.OK, 1)
    sums, x = matrix(before, "target", 7), matrix(before, "x")
    for number, row in zip([6, 0, 3, 0, 6], x, strict=True):
        sums[number] = summation.canonical(sums[number] + row)
    same(matrix(memories, "target", 7), sums)
    assert matrix(memories, "target", 7).view(np.uint32)[[3, 4], 0].tolist() == [0x7FC0_0000, 0xFFC0_0001]


@pytest.mark.parametrize("function", [RowFunction.GATHER, RowFunction.SCATTER])
@pytest.mark.parametrize("number", [7, 0xFFFF_FFFF])
def test_wrong_number(memories, function, number):
    """A function skips rows with an invalid row number, and the command ends after that function."""
    memories[Place.ACTIVATIONS][NUMBERS + 2] = number
    outcome, before = run(memories, rows(function), rows(RowFunction.CLEAR))
    assert outcome == Outcome(EventStatus.BAD_INSTRUCTION, 0)
    if function is RowFunction.GATHER:
        expected, right = row_functions.gather(matrix(before, "x", 7), np.array([6, number, 3, 0, 6]))
        same(matrix(memories, "target"), expected)
        assert not matrix(memories, "target")[1].any()
    else:
        numbers = np.array([6, number, 3, 0, 6])
        expected, right = row_functions.scatter(matrix(before, "target", 7), numbers, matrix(before, "x"))
        same(matrix(memories, "target", 7), expected)
    assert not right


def test_clear(memories):
    outcome, before = run(memories, rows(RowFunction.CLEAR, rows=0), length=3)
    assert outcome == Outcome(EventStatus.OK, 1)
    assert changed(memories, before) == {Place.ACTIVATIONS: extent("target", count=3)}
    assert not matrix(memories, "target", 3).view(np.uint32).any()


@pytest.mark.parametrize("listed", [rows(RowFunction.CLEAR), softmax()], ids=["rows", "softmax"])
def test_an_engine_without(memories, listed):
    outcome, before = run(memories, listed, engine=Engine(rows=4, lanes=4))
    assert outcome == Outcome(EventStatus.BAD_INSTRUCTION, 0)
    assert not changed(memories, before)


#: Operand fields that are invalid for any function that uses the operand.
WILD = {"base": (1 << 20) - 1, "place": 7, "relative": 1}
#: Operands of each function, except its target and, if ``started``, its start.
USED = {"ADD": "x", "SCALE": "x scale shift", "NORM": "x second scale shift deviation",
        "NORM_BACK": "x y second scale deviation", "SOFTMAX_BACK": "x y", "GATHER": "x y", "SCATTER": "x y",
        "CLEAR": ""}


@pytest.mark.parametrize("started", [0, 1])
@pytest.mark.parametrize("function", RowFunction, ids=lambda member: member.name)
def test_operands_without_use(memories, function, started):
    """Each function accepts, rejects or requires a start operand as specified, and ignores operands it does not use.
    """
    begins = function in (RowFunction.ADD, RowFunction.NORM, RowFunction.NORM_BACK, RowFunction.GATHER)
    if (started and not begins) or (not started and function is RowFunction.ADD):
        assert run(memories, rows(function, started=started))[0] == Outcome(EventStatus.BAD_INSTRUCTION, 0)
        return
    used = {"target", *USED[function.name].split(), *(["start"] if started else [])}
    used |= {"third"} if started and function is RowFunction.NORM else set()
    unused = {name: WILD for name in PLACES if name not in used}
    strides = {f"stride_{name}": 3 for name in unused if f"stride_{name}" in row_layout().members}
    assert run(memories, rows(function, started=started, **unused, **strides))[0] == Outcome(EventStatus.OK, 1)
    for name in used:
        assert run(memories, rows(function, started=started, **{name: at(4, PLACES[name][1])}))[0] == Outcome(
            EventStatus.BAD_INSTRUCTION, 0), name
