"""Loop nest of a product: the factors that a state selects for an array, and the misfit of a state that does not
fit."""

import dataclasses

import pytest

from hdl.features.compute.operands import OPERANDS
from host.features.compute.instructions import Array
from host.features.compute.tiling.costs import product
from host.features.compute.tiling.space import Level, Nest, Plan, Space

ARRAY = Array(rows=4, lanes=4)


def nest(sizes, depths, *, levels=(), array=ARRAY, actual=None, **options):
    return Nest(Space(sizes, depths), array, product(actual or sizes, array, **options), levels)


def factors(plan):
    job = plan.job
    return job.tile, job.row_tiles, job.column_tiles, job.rounds


@pytest.mark.parametrize(("state", "expected"), [
    # A 16 by 8 panel is a single tile. A 64 by 64 panel uses this tile too, which is the lower of the two tiles with
    # 24 operands.
    (((2, 4), (3, 3), (3, 3)), (2, 0, 0, 3)),
    (((0, 6), (4, 2), (0, 6)), (1, 3, 2, 2)),
    # The lowest and narrowest panels that the tiles allow.
    (((4, 2), (2, 4), (1, 5)), (0, 0, 0, 4)),
    (((1, 5), (2, 4), (4, 2)), (3, 0, 0, 4)),
])
def test_two_levels(state, expected):
    plan = nest((64, 64, 64), (2, 2, 2)).plan(state)
    assert factors(plan) == expected
    assert plan.products == 1


@pytest.mark.parametrize(("state", "misfit"), [
    (((5, 1), (2, 4), (4, 2)), 4),  # a tile of 2 by 4; the nearest legal tiles are 4 by 32 and 32 by 4
    (((0, 6), (0, 6), (3, 3)), 1),  # a panel of A has 4,096 elements; the limit is 2,048
    (((0, 6), (0, 6), (0, 6)), 2),
    (((2, 4), (5, 1), (3, 3)), 1),  # panels of two terms would begin inside a row of A
    (((2, 4), (6, 0), (3, 3)), 2),
])
def test_misfits(state, misfit):
    assert nest((64, 64, 64), (2, 2, 2)).plan(state) == misfit


def test_alignment():
    """Panels of two terms fit if A is stored along m and B along n."""
    assert isinstance(nest((64, 64, 64), (2, 2, 2), transpose_a=True).plan(((2, 4), (5, 1), (3, 3))), Plan)


@pytest.mark.parametrize("operands", OPERANDS)
@pytest.mark.parametrize(("sizes", "actual"), [
    ((16, 64, 32), None), ((32, 32, 16), (30, 17, 10)), ((8, 64, 64), (8, 40, 64)), ((16, 128, 16), (13, 128, 16))])
@pytest.mark.parametrize("options", [{}, {"transpose_a": True}, {"transpose_b": True}])
def test_legal_states(operands, sizes, actual, options):
    """For all operand formats and states, a state fits if and only if the loop nest accepts the resulting job."""
    array = Array(rows=2, lanes=4, blocks=16, operands=operands)
    states = nest(sizes, (3, 2, 3), array=array, actual=actual, **options)
    tiles = {states._shape(tile): tile for tile in range(4)}
    refused = 0
    for state in states.space:
        (_, row_tiles, rows), (_, rounds), (_, column_tiles, columns) = state
        tile, plan = tiles.get((rows, columns)), states.plan(state)
        if tile is None:
            assert isinstance(plan, int)
            continue
        job = dataclasses.replace(
            states.job, tile=tile, row_tiles=row_tiles, column_tiles=column_tiles, rounds=rounds)
        assert isinstance(plan, Plan) == array.model.legal(job), state
        assert not isinstance(plan, Plan) or plan.job == job
        refused += not isinstance(plan, Plan)
    assert refused


@pytest.mark.parametrize(("operands", "rounds", "misfit"), [
    ("fp32", 2, 0), ("bf16", 2, 0), ("mx9", 4, 0), ("mx9", 2, 2), ("nvfp4", 3, 1), ("mxfp4_e2m1", 4, 1)])
def test_parted_blocks(operands, rounds, misfit):
    """If a panel of several tiles is shorter than an operand block, its misfit is the number of factors of two that
    it lacks."""
    states = nest((32, 64, 32), (3, 2, 3), array=Array(rows=4, lanes=4, operands=operands))
    plan = states.plan(((0, 1, 4), (6 - rounds, rounds), (2, 0, 3)))
    assert isinstance(plan, Plan) if misfit == 0 else plan == misfit
    assert isinstance(states.plan(((1, 0, 4), (6 - rounds, rounds), (2, 0, 3))), Plan)


def test_tile_level():
    """With three levels, the innermost level is the tile itself, so only the four shapes of tiles fit."""
    states = nest((32, 64, 32), (3, 2, 3))
    assert factors(states.plan(((1, 0, 4), (4, 2), (0, 2, 3)))) == (2, 0, 2, 2)
    assert states.plan(((0, 1, 4), (4, 2), (1, 0, 4))) == 1
    fits = {(state[0][2], state[2][2]) for state in states.space if isinstance(states.plan(state), Plan)}
    assert fits == {(2, 5), (3, 4), (4, 3), (5, 2)}


def test_products():
    """At level PRODUCTS, the loop nest splits m and n, and each product computes one part of the result."""
    levels = Level.PRODUCTS, Level.OUTER, Level.PANEL
    states = nest((64, 64, 64), (3, 2, 3), levels=levels)
    plan = states.plan(((1, 1, 4), (3, 3), (2, 0, 4)))
    assert (plan.rows, plan.columns, plan.job.m, plan.job.n, plan.job.k) == (2, 4, 32, 16, 64)
    assert factors(plan) == (1, 1, 0, 3)
    # A list has room for 32 products and the END instruction.
    assert states.plan(((2, 0, 4), (3, 3), (3, 0, 3))).products == 32
    wide = nest((1024, 64, 1024), (3, 2, 3), levels=levels)
    assert wide.plan(((4, 2, 4), (3, 3), (3, 4, 3))) == 2


def test_sizes_between_powers():
    """A product may be smaller than its search space, which has power-of-two sizes."""
    plan = nest((32, 64, 16), (3, 2, 3), actual=(30, 64, 10), transpose_b=True).plan(((1, 0, 4), (3, 3), (1, 0, 3)))
    assert (plan.job.m, plan.job.n) == (30, 10)
    assert factors(plan) == (2, 0, 0, 3)


def test_arguments():
    job = product((64, 64, 64), ARRAY)
    with pytest.raises(ValueError, match="Levels of m, k and n must be 2, 2 and 2, 3, 2 and 3, or 4, 2 and 4"):
        Nest(Space((64, 64, 64), (2, 3, 2)), ARRAY, job)
    with pytest.raises(ValueError, match="Levels must be 2 by name, not 1"):
        Nest(Space((64, 64, 64), (2, 2, 2)), ARRAY, job, (Level.PANEL,))
    with pytest.raises(ValueError, match="Sizes of a product must be at most those of its space, "):
        Nest(Space((64, 64, 64), (2, 2, 2)), ARRAY, dataclasses.replace(job, m=65))
    with pytest.raises(ValueError, match="Sizes of a product that is cut into products must be"):
        Nest(Space((64, 64, 64), (4, 2, 4)), ARRAY, dataclasses.replace(job, m=60))
