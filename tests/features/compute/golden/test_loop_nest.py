import collections

import numpy as np
import pytest

from sim.golden.features.compute import loop_nest as model

NESTS = [model.LoopNest(rows=1, lanes=4, blocks=8), model.LoopNest(rows=4, lanes=4, blocks=16),
         model.LoopNest(rows=2, lanes=8, blocks=32)]


def _jobs(nest, count):
    generator = np.random.default_rng(1)
    while count:
        numbers = generator.integers((1, 1, 1, 0, 0, 0, 0, 0, 0), (20, 40, 12, 4, 3, 3, 5, 3, 2)).tolist()
        names = ("m", "n", "k", "tile", "row_tiles", "column_tiles", "rounds", "order", "resume")
        job = model.Job(**dict(zip(names, numbers, strict=True)))
        if nest.legal(job):
            count -= 1
            yield job


@pytest.mark.parametrize("nest", NESTS)
def test_every_term_once_in_order(nest):
    """Each sum of each tile adds every term once, in ascending order, from panels that are already loaded."""
    for job in _jobs(nest, 60):
        stride = nest.strides(job)
        terms, beats, loads, releases = collections.defaultdict(list), 0, [0, 0], [0, 0]
        base, position = {}, None
        for step in nest.steps(job):
            if step.panel is not None:
                loads = [loads[0] + step.panel.a, loads[1] + step.panel.b]
                base = {name: getattr(step.panel, name) for name in "mnk"}
            for tile, walked in step.tiles:
                position = (tile.m, tile.n) if tile is not None else position
                beats += len(walked)
                rounds = [walked[start:start + 8] for start in range(0, len(walked), 8)]
                opening = sum(part[0].initial for part in rounds)
                assert opening == (nest.rows if tile is not None and tile.initial else 0)
                for count, part in enumerate(rounds[opening:]):
                    terms[position].append(base["k"] + count)
                    block = nest.block(0, count // nest.lanes)
                    i = [nest.lanes * (beat.a & ~block) + beat.part * nest.rows for beat in part]
                    assert [x // nest.rows for x in i] == [
                        (position[0] - base["m"]) // nest.rows + slot // (8 >> job.tile) for slot in range(8)]
                releases = [releases[0] + walked[-1].release_a, releases[1] + walked[-1].release_b]
        assert set(terms) == {(m, n) for m in range(0, job.m, nest.rows << job.tile)
                              for n in range(0, job.n, nest.lanes * 8 >> job.tile)}
        assert all(order == list(range(job.k)) for order in terms.values()), job
        assert beats == nest.cycles(job), job
        assert loads == releases
        assert stride["k"] * stride["m"] <= max(nest.blocks * nest.lanes ** 2, stride["k"] * nest.lanes)


@pytest.mark.parametrize(("change", "legal"), [
    ({}, True), ({"m": 0}, False), ({"k": 0}, False), ({"order": 3}, False), ({"rounds": 5}, False),
    ({"rounds": 4, "tile": 3}, True), ({"rounds": 4, "tile": 3, "row_tiles": 1}, False)])
def test_legal(change, legal):
    assert model.LoopNest(rows=4, lanes=4, blocks=32).legal(model.Job(**{"m": 5, "n": 6, "k": 7, **change})) == legal


def test_blocks():
    """The high bits of a term's block number are given by the term's group, in bit-reversed order."""
    nest = model.LoopNest(rows=4, lanes=4, blocks=16)
    assert [nest.block(1, term) for term in range(4)] == [1, 9, 5, 13]
