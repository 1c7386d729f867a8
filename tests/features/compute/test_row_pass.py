"""Table of the row unit: its passes, carried out on whole matrices, are the functions."""

import numpy as np
import pytest

from hdl.features.compute.layer_list import RowFunction
from hdl.features.compute.row_pass import FIRST_PASS, LOADS, PASSES, STORES, A, B, C, D, Load, Result, Store
from sim.golden.features.compute import row_functions
from sim.golden.summation import canonical, row_sums

FACTOR, EPSILON = np.float32(0.11), np.float32(1e-5)
NOTHING, ONE = np.float32(-0.0), np.float32(1)


def _interpret(function, given):
    """Results that are stored, in order, of passes with a start; and the reciprocals of deviations."""
    work, sums, scalars, deviation, stored = None, [], [], given[Load.DEVIATION], []
    for one in PASSES[function]:
        made = []
        for half in range(1 + one.twice):
            total = [*sums, None, None][half]
            scalar, second = [*scalars, None, None][:2]
            a = {A.X: given[Load.X], A.Y: given[Load.Y], A.WORK: work, A.SUM: total}[one.a]
            b = {B.NOTHING: NOTHING, B.START: given[Load.START]}.get(one.b)
            b = -{B.SUM: total, B.SCALAR: scalar}[one.b] if b is None else b
            added = canonical(a + b)
            c = {C.ONE: ONE, C.Y: given[Load.Y], C.SAME: added, C.SCALE: given[Load.SCALE], C.FACTOR: FACTOR,
                 C.DEVIATION: deviation, C.SECOND_SCALAR: None if second is None else -second,
                 C.ONE_AND_Y: (ONE, given[Load.Y])[half]}[one.c]
            d = {D.NOTHING: NOTHING, D.START: given[Load.START], D.WORK: work, D.SHIFT: given[Load.SHIFT],
                 D.EPSILON: EPSILON}[one.d]
            made.append(canonical(added * c + d))
        if one.summed:
            sums = [row_sums(result) for result in made]
        if one.kept:
            work = made[0]
        if one.result == Result.SCALAR:
            scalars = made
        if one.result == Result.ROOT:
            deviation = canonical(ONE / np.sqrt(made[0]))
        if one.result in (Result.STORED, Result.STORED_IF_STARTED):
            stored.append(made[0])
    return stored, deviation


def _want(function, given):
    """The same by the functions."""
    x, y, start = (given[load] for load in (Load.X, Load.Y, Load.START))
    scaled = given[Load.SCALE], given[Load.SHIFT]
    match function:
        case RowFunction.SCALE:
            return [x * scaled[0] + scaled[1]]
        case RowFunction.NORM:
            normal, _ = row_functions.norm(x + start, EPSILON, FACTOR)
            return [x + start, normal, normal * scaled[0] + scaled[1]]
        case RowFunction.NORM_BACK:
            return [x * y, row_functions.norm_back(x, y, given[Load.DEVIATION], scaled[0], FACTOR) + start]
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
    given = {load: generator.standard_normal(shapes.get(load, (9, 13))).astype(np.float32) for load in Load}
    stored, deviation = _interpret(function, given)
    want = _want(function, given)
    assert len(stored) == len(want)
    for found, expected in zip(stored, want, strict=True):
        np.testing.assert_array_equal(found.view(np.uint32), canonical(expected).view(np.uint32))
    if function == RowFunction.NORM:
        np.testing.assert_array_equal(
            deviation, row_functions.norm(given[Load.X] + given[Load.START], EPSILON, FACTOR)[1])


def test_table():
    """Passes need what is read; what is stored is written; passes of all functions are numbered through."""
    assert set(LOADS) == set(PASSES) == set(STORES) == set(RowFunction)
    assert list(FIRST_PASS.values()) == [sum(len(PASSES[one]) for one in RowFunction if one < function)
                                         for function in RowFunction]
    for function, passes in PASSES.items():
        assert all(one.needs == Load.END or one.needs in LOADS[function] for one in passes)
        stored = [one.result for one in passes if one.result in (Result.STORED, Result.STORED_IF_STARTED)]
        targets = [store for store in STORES[function] if store != Store.DEVIATION]
        if function != RowFunction.CLEAR:
            assert len(stored) == len(targets)
            assert [one == Result.STORED_IF_STARTED for one in stored] == [one == Store.THIRD for one in targets]
