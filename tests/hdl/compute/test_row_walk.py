# amaranth: UnusedElaboratable=no
import functools
import re

import numpy as np
import pytest

from hdl.compute.row_walk import RowWalk, step_layout, walk_layout
from sim import formal
from sim.golden import row_walk as model
from sim.payload import pack, unpack
from sim.streams import STALLS, stall_array
from sim.verilated.vectors import Feed, Unit

ROWS, MOST, LANES = 512, 16, 4
LAYOUTS = walk_layout(ROWS, MOST, LANES, 2), step_layout(ROWS, MOST, LANES, 2)


@functools.cache
def _unit():
    return Unit(RowWalk(rows=ROWS, most=MOST, lanes=LANES, tag=2))


def _walks(generator, count):
    for _ in range(count):
        line, group = generator.integers(0, generator.choice([1, 4, MOST]), 2).tolist()
        yield model.Walk(
            row=int(generator.integers(ROWS // 4)), pitch=int(generator.integers(20)), line=line, group=group,
            lines=int(generator.integers(MOST + 2)), edge=int(generator.integers(MOST + 2)),
            mask=int(generator.integers(1, 1 << LANES)), tag=int(generator.integers(4)))


def _run(walks, willing, ready, *, seed):
    beats = pack(LAYOUTS[0], {name: np.array([getattr(walk, name) for walk in walks]) for name in LAYOUTS[0].members})
    ports = _unit().lockstep(sources={"i": Feed(beats, willing)}, sinks={"o": ready}, seed=seed)
    want = model.trace(walks, willing=willing, ready=ready)
    for port in ("i_valid", "i_ready", "o_valid"):
        np.testing.assert_array_equal(ports[port.replace("_", "__")], getattr(want, port), f"{port}, {seed=}")
    found = [step for walk in walks for step in model.steps(walk, LANES)]
    offers = np.flatnonzero(want.o_valid)
    got = unpack(LAYOUTS[1], ports["o__payload"][offers])
    for name in LAYOUTS[1].members:
        assert got[name].tolist() == [
            getattr(found[index], name) for index in want.offered[offers]], f"{name}, {seed=}"
    return want


@pytest.mark.parametrize(("parameters", "message"), [
    ({"rows": 1}, "Row count must be an integer of at least 2, not 1"),
    ({"most": 1}, "Line count must be an integer of at least 2, not 1"),
])
def test_parameters(parameters, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        RowWalk(**{"rows": 16, "most": 8, "lanes": 4, **parameters})


@pytest.mark.parametrize("source", STALLS)
def test_lockstep(source):
    """Every cycle of every port under stalls on both sides."""
    for number, sink in enumerate(STALLS):
        seed = 1 + number + len(STALLS) * STALLS.index(source)
        print(f"seed {seed}")
        walks = list(_walks(np.random.default_rng(seed), 30))
        willing, ready = (stall_array(kind, 6_000, seed=seed + place) for place, kind in enumerate((source, sink)))
        _unit().reset()
        want = _run(walks, willing, ready, seed=seed)
        assert want.offered.max() > 100


def test_throughput():
    """A step per cycle, from walk to walk, the first one a cycle after its walk."""
    walks = list(_walks(np.random.default_rng(1), 20))
    always = np.ones(6_000, bool)
    _unit().reset()
    want = _run(walks, always, always, seed=1)
    offered = np.flatnonzero(want.o_valid)
    count = sum((walk.line + 1) * (walk.group + 1) for walk in walks)
    assert offered.tolist() == list(range(RowWalk.latency, RowWalk.latency + count))


def test_reset():
    """A reset in the middle of a walk leaves nothing of it."""
    generator = np.random.default_rng(1)
    for cut in (1, 2, 7, 20):
        always = np.ones(cut, bool)
        _run(list(_walks(generator, 5)), always, always, seed=cut)
        _unit().reset()
        always = np.ones(2_000, bool)
        _run(list(_walks(generator, 5)), always, always, seed=cut)
        _unit().reset()


def test_offers_stand_for_all_time():
    formal.prove(formal.Offers(RowWalk(rows=8, most=4, lanes=2)), depth=2)
