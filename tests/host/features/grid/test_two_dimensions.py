"""Two-dimensional updates on Verilated grids match the golden model, with and without codecs."""

import numpy as np
import pytest

from host.driver.optimizer_settings import Rule, Settings
from host.features.codebook.codebooks import codebook
from host.features.grid.grid import Shape
from host.labs.bench.grid_speed import COMMANDS, UPDATE, limit, measure
from sim.golden import ring as golden
from sim.golden.codecs import GRADIENT_CODECS, WEIGHT_CODECS
from sim.golden.features.grid import grid as golden_grid
from tests.host.features.grid.grids import open_grid
from tests.host.rings import CONFIGS, random

MOMENTUM = {"gradient_scale": 0.25, "learning_rate": 0.5, "first_decay": 0.75}


@pytest.mark.parametrize(("name", "rows", "columns", "length"), [
    ("engines", 2, 3, 1000), ("centroid", 2, 3, 900), ("mx9", 2, 3, 1300), ("centroid", 2, 4, 700),
    ("mx9", 2, 4, 700), ("mx9", 2, 2, 33), ("centroid", 1, 3, 700), ("mx9", 3, 1, 700)])
def test_updates(name, rows, columns, length):
    """Weights, master weights, state, residuals and words match the golden model after each of three steps, with
    gradients in ``zero_value``, ``raw`` and ``mx9`` and weights in ``raw``, ``centroid16`` and ``mx9``."""
    config = CONFIGS[name]
    generator = np.random.default_rng(rows * 16 + columns)
    codec, gradient_codec = WEIGHT_CODECS[config.weights.codec], GRADIENT_CODECS[config.gradients]
    master = golden.bits(random(generator, length))
    state = [np.zeros(length, np.uint32) for _ in range(min(config.memories.planes, 1))]
    residuals = np.zeros((rows, columns, length), np.uint32)
    numbers = golden.settings(Rule.MOMENTUM, clip=np.inf, **MOMENTUM)
    with open_grid(rows, columns, config=config) as (grid, _):
        plan = grid.grid.plan(Shape.GRID)
        grid.switch(plan)
        rings = grid.rings(plan)
        if config.codebook_words:
            centroids = codebook(config.weights.codec, golden.floats(master))
            rings.memory.write_codebook(centroids)
            codec = codec.bind(centroids)
        write = rings.memory.write_master if config.weights.has_master else rings.memory.write_weights
        write(golden.floats(master))
        rings.memory.clear_state(length)
        if config.has_residual:
            rings.memory.clear_residual(length)
        rings.settings.write(Settings(rule=Rule.MOMENTUM, **MOMENTUM))
        for step in range(3):
            gradients = golden.bits(random(generator, (rows * columns, length), density=0.8))
            rings.memory.write_gradients(list(golden.floats(gradients)))
            rings.counters.clear()
            rings.collectives.fused_update(length)
            update = golden_grid.fused_update(
                gradients.reshape(rows, columns, length), master, state, numbers, weight_codec=codec,
                gradient_codec=gradient_codec, residuals=residuals, segment=config.segment, lanes=config.lanes)
            master, state = update.master, update.state
            assert (rings.memory.read_weights(length).view(np.uint32) == update.weights).all(), step
            gradients_left = rings.memory.read_gradients(length).view(np.uint32)
            assert (gradients_left == update.gradients.reshape(-1, length)).all(), step
            assert (rings.memory.read_state(length).view(np.uint32) == state[0]).all(), step
            if config.weights.has_master:
                assert (rings.memory.read_master(length).view(np.uint32) == master).all(), step
            if config.has_residual:
                residual = rings.memory.read_residual(length).view(np.uint32)
                assert (residual == residuals.reshape(-1, length)).all(), step
            assert [node["WORDS_SENT"] for node in rings.counters.read()] == update.words.reshape(-1).tolist(), step


@pytest.mark.parametrize(("name", "rows", "columns"), [("engines", 2, 4), ("centroid", 2, 3)])
def test_exact_sums(name, rows, columns):
    """Sums of small integers have the same bits in a flat ring, in two dimensions with rows or columns first, and in
    a two-dimensional update."""
    config, length = CONFIGS[name], 600
    values = np.random.default_rng(columns).integers(-100, 100, (rows * columns, length)).astype(np.float32)
    total = values.sum(axis=0)
    with open_grid(rows, columns, config=config) as (grid, _):
        plan = grid.grid.plan(Shape.FLAT)
        grid.switch(plan)
        ring = grid.ring(plan)
        ring.memory.write_gradients(list(values[list(plan.order)]))
        ring.collectives.all_reduce(length)
        assert (ring.memory.read_gradients(length) == total).all()
        plan = grid.grid.plan(Shape.GRID)
        grid.switch(plan)
        rings = grid.rings(plan)
        for first in (0, 1):
            rings.memory.write_gradients(list(values))
            for number in (first, 1 - first):
                rings.collectives.all_reduce(length, ring=number)
            assert (rings.memory.read_gradients(length) == total).all(), first
        if not config.weights.has_master:  # weights start at zero, and the step size is one
            rings.memory.write_weights(np.zeros(length, np.float32))
            rings.settings.write(Settings(rule=Rule.SGD, gradient_scale=1, learning_rate=-1))
            rings.memory.write_gradients(list(values))
            rings.collectives.fused_update(length)
            assert (rings.memory.read_weights(length) == total).all()


def test_cycles():
    """Queued commands take little longer than commands run one at a time. `make bench` measures long vectors and
    compares them with a flat ring."""
    with open_grid(2, 4, config=CONFIGS["centroid"], latency=16) as (grid, _):
        cycles = measure(grid, 2048)
    row = {"name": COMMANDS, "config": "2 x 4, K=2048, weights centroid16, gradients raw"}
    assert sum(cycles["queued"]) <= limit(row) * sum(cycles["alone"])
    assert limit({**row, "name": UPDATE}) == np.inf
    assert limit({"name": UPDATE, "config": "2 x 4, K=2048, weights raw, gradients raw"}) == 1.04
