"""Table of the row unit's passes: executed on whole matrices, the passes give the functions' results."""

import numpy as np
import pytest

from hdl.features.compute.layer_list import RowFunction
from hdl.features.compute.row_pass import FIRST_PASS, LOADS, PASSES, STORES, A, B, C, D, Load, Result, Store
from sim.golden.features.compute import row_functions
from sim.golden.summation import canonical, row_sums

FACTOR, EPSILON = np.float32(0.11), np.float32(1e-5)
NOTHING, ONE = np.float32(-0.0), np.float32(1)


def _interpret(function, loaded):
    """Execute a function's passes with a start operand; return the stored results and reciprocal deviations."""
    work, sums, scalars, deviation, stored = None, [], [], loaded[Load.DEVIATION], []
    for step in PASSES[function]:
        made = []
        for half in range(1 + step.twice):
            total = [*sums, None, None][half]
            scalar, second = [*scalars, None, None][:2]
            a = {A.X: loaded[Load.X], A.Y: loaded[Load.Y], A.WORK: work, A.SUM: total}[step.a]
            b = {B.NOTHING: NOTHING, B.START: loaded[Load.START]}.get(step.b)
            b = -{B.SUM: total, B.SCALAR: scalar}[step.b] if b is None else b
            added = canonical(a + b)
            c = {C.ONE: ONE, C.Y: loaded[Load.Y], C.SAME: added, C.SCALE: loaded[Load.SCALE], C.FACTOR: FACTOR,
                 C.DEVIATION: deviation, C.SECOND_SCALAR: None if second is None else -second,
                 C.ONE_AND_Y: (ONE, loaded[Load.Y])[half]}[step.c]
            d = {D.NOTHING: NOTHING, D.START: loaded[Load.START], D.WORK: work, D.SHIFT: loaded[Load.SHIFT],
                 D.EPSILON: EPSILON}[step.d]
            made.append(canonical(added * c + d))
        if step.summed:
            sums = [row_sums(result) for result in made]
        if step.kept:
            work = made[0]
        if step.result == Result.SCALAR:
            scalars = made
        if step.result == Result.ROOT:
            deviation = canonical(ONE / np.sqrt(made[0]))
        if step.result in (Result.STORED, Result.STORED_IF_STARTED):
            stored.append(made[0])
    return stored, deviation


def _want(function, loaded):
    """Results that a function must store, according to the golden model."""
    x, y, start = (loaded[load] for load in (Load.X, Load.Y, Load.START))
    scaled = loaded[Load.SCALE], loaded[Load.SHIFT]
    match function:
        case RowFunction.SCALE:
            return [x * scaled[0] + scaled[1]]
        case RowFunction.NORM:
            normal, _ = row_functions.norm(x + start, EPSILON, FACTOR)
            return [x + start, normal, normal * scaled[0] + scaled[1]]
        case RowFunction.NORM_BACK:
            return [x * y, row_functions.norm_back(x, y, loaded[Load.DEVIATION], scaled[0], FACTOR) + start]
        case RowFunction.SOFTMAX_BACK:
            return [row_functions.softmax_back(x, y, FACTOR)]
        case RowFunction.CLEAR:
            return []
        case _:
            return [x + start]


@pytest.mark.parametrize("function", RowFunction)
def test_passes(function):
    generator = np.random.default_rng(int(function))
    shapes = {Load.SCALE: (1, 13), Load.SHIFT: (1, 13), Load.DEVIATION: (9, 1)}
    loaded = {load: generator.standard_normal(shapes.get(load, (9, 13))).astype(np.float32) for load in Load}
    stored, deviation = _interpret(function, loaded)
    want = _want(function, loaded)
    assert len(stored) == len(want)
    for actual, expected in zip(stored, want, strict=True):
        np.testing.assert_array_equal(actual.view(np.uint32), canonical(expected).view(np.uint32))
    if function == RowFunction.NORM:
        np.testing.assert_array_equal(
            deviation, row_functions.norm(loaded[Load.X] + loaded[Load.START], EPSILON, FACTOR)[1])


def test_table():
    """The passes of a function use only its loads and store all of its targets; pass numbers are consecutive."""
    assert set(LOADS) == set(PASSES) == set(STORES) == set(RowFunction)
    assert list(FIRST_PASS.values()) == [sum(len(PASSES[item]) for item in RowFunction if item < function)
                                         for function in RowFunction]
    for function, passes in PASSES.items():
        assert all(item.needs == Load.END or item.needs in LOADS[function] for item in passes)
        stored = [item.result for item in passes if item.result in (Result.STORED, Result.STORED_IF_STARTED)]
        targets = [store for store in STORES[function] if store != Store.DEVIATION]
        if function != RowFunction.CLEAR:
            assert len(stored) == len(targets)
            assert [item == Result.STORED_IF_STARTED for item in stored] == [item == Store.THIRD for item in targets]
