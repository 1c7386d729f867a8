# amaranth: UnusedElaboratable=no
import functools

import numpy as np
import pytest
from amaranth.hdl import Shape

from hdl.features.block_operands.block_former import BANKS, BlockFormer, block_layout, opening_layout
from hdl.features.compute.multiply_accumulate import SLOTS
from hdl.features.compute.operands import operands_of
from sim.golden.features.block_operands.operands import block_terms
from sim.golden.features.compute import mac_array
from sim.golden.operands import operands_of as golden_operands
from sim.payload import unpack
from sim.streams import STALLS, stall_array
from sim.verilated.vectors import Feed, Unit
from tests.features.compute.terms import KINDS, rows_of, scales_of, tile_of

#: Row count, column count and format of each simulated unit.
FORMERS = ((2, 2, "mx9"), (1, 2, "mxfp4_e2m1"), (1, 2, "mxfp4_e2m1_up"), (1, 2, "nvfp4"))


@functools.cache
def _former(rows, columns, name):
    component = BlockFormer(rows=rows, columns=columns, codec=operands_of(name).codec)
    return component, Unit(component), golden_operands(name).block


def _tiles(generator, former, lengths, *, kinds=KINDS):
    """Draw tiles with ``lengths`` terms each; about a third of the tiles start with initial values."""
    return [tile_of(generator, kinds[number % len(kinds)], rows=former[0], columns=former[1], rounds=int(rounds),
                    initial=generator.random() < 0.3, tile=int(generator.integers(3)))
            for number, rounds in enumerate(lengths)]


def _blocks(model, tiles):
    """Expected blocks in order, as factors (slots, lanes, terms), exponents (slots, lanes) and marks."""
    blocks = []
    for number, beats in enumerate(tiles):
        terms = ~beats.initial
        lanes = np.concatenate([beats.a, beats.b], axis=1)[terms]
        vectors = np.moveaxis(lanes.reshape(-1, SLOTS, lanes.shape[1]), 0, -1)
        factors, exponents = block_terms(model, np.ascontiguousarray(vectors))
        count = factors.shape[2]
        for block in range(count):
            marks = {"bank": number % BANKS, "begins": block == 0, "ends": block == count - 1,
                     "initial": beats.initial.any(), "common": 0, "tile": beats.tile[0]}
            blocks.append((factors[:, :, block], exponents[:, :, block], marks))
    return blocks


def _run(former, tiles, *, source="none", room=True, cycles=None, seed=1):
    _component, unit, _ = _former(*former)
    beats = mac_array.concatenate(tiles)
    length = cycles or 4 * len(beats) + 1500
    willing = stall_array(source, length, seed=seed, rate=0.9)
    return unit.lockstep(sources={"i": Feed(rows_of(beats), willing)}, sinks={}, cycles=length,
                         inputs={"room": room[:length] if np.ndim(room) else int(room)}, seed=seed), beats


def _elements(layout, values):
    """Unpack an array port's trace into an array of shape (cycles, elements)."""
    shape = Shape.cast(layout.elem_shape)
    parts = values.astype(np.int64)[:, None] >> np.arange(layout.length) * shape.width & (1 << shape.width) - 1
    return parts - (parts >> shape.width - 1 << shape.width) if shape.signed else parts


def _check(former, tiles, trace, *, seed):
    """Compare factors, exponents and marks of all blocks with the model; return the blocks' start cycles."""
    component, _, model = _former(*former)
    ports = component.signature.members
    factors, scales = (np.concatenate([_elements(ports[name].shape, trace[name]) for name in pair], axis=1)
                          for pair in (("a", "b"), ("a_scales", "b_scales")))
    marks = unpack(block_layout(), trace["block"])
    starts, wanted = np.flatnonzero(trace["start"]), _blocks(model, tiles)
    assert len(starts) == len(wanted), f"{seed=}"
    firsts = (starts[:, None] + np.arange(SLOTS) * model.block).ravel()
    np.testing.assert_array_equal(np.flatnonzero(trace["first"]), firsts, f"{seed=}")
    for start, (terms, shared, block) in zip(starts, wanted, strict=True):
        part = slice(start, start + SLOTS * model.block)
        for name, value in block.items():
            np.testing.assert_array_equal(marks[name][part], value, f"{name}, {seed=}")
        got = factors[part].reshape(SLOTS, model.block, -1).swapaxes(1, 2)
        at_first = scales[part].reshape(SLOTS, model.block, -1)
        want = scales_of(model, shared)
        np.testing.assert_array_equal(at_first, np.broadcast_to(want[:, None], at_first.shape), f"{seed=}")
        meant = shared != model.nan
        np.testing.assert_array_equal(got[meant], terms[meant], f"{seed=}")
    return starts


@pytest.mark.parametrize("former", FORMERS)
@pytest.mark.parametrize("source", STALLS)
def test_blocks(former, source):
    """Tiles of whole and partial blocks give the expected factors, exponents and marks."""
    _, unit, model = _former(*former)
    seed = 1 + STALLS.index(source)
    print(f"seed {seed}")
    generator = np.random.default_rng(seed)
    lengths = [1, model.block - 1, model.block, model.block + 1, 2 * model.block,
               *generator.integers(1, 3 * model.block, 15)]
    tiles = _tiles(generator, former, lengths)
    unit.reset()
    trace, _ = _run(former, tiles, source=source, seed=seed)
    _check(former, tiles, trace, seed=seed)
    assert np.count_nonzero(trace["begins"]) == len(tiles)


@pytest.mark.parametrize("former", FORMERS)
def test_pace(former):
    """Whole blocks are accepted without pauses, and each starts ``latency`` cycles after its last beat."""
    component, unit, model = _former(*former)
    generator = np.random.default_rng(2)
    tiles = [tile_of(generator, "ordinary", rows=former[0], columns=former[1], rounds=model.block, initial=False,
                     tile=0) for _ in range(6)]
    unit.reset()
    trace, beats = _run(former, tiles)
    starts = _check(former, tiles, trace, seed=2)
    assert starts.tolist() == [(number + 1) * SLOTS * model.block + component.latency for number in range(6)]
    assert np.flatnonzero(trace["i__valid"] & trace["i__ready"]).tolist() == list(range(len(beats)))


@pytest.mark.parametrize("former", FORMERS)
def test_room(former):
    """While ``room`` is low, no new tile begins; the input stalls once both halves of the buffer are full."""
    _, unit, model = _former(*former)
    generator = np.random.default_rng(3)
    tiles = _tiles(generator, former, [2 * model.block, model.block, 3 * model.block], kinds=["ordinary"])
    cycles = SLOTS * model.block
    length = 20 * cycles
    room = np.ones(length, bool)
    room[cycles + 20:8 * cycles] = False
    unit.reset()
    trace, _ = _run(former, tiles, room=room, cycles=length, seed=3)
    starts = _check(former, tiles, trace, seed=3)
    begins = np.flatnonzero(trace["begins"])
    assert room[begins].all()
    assert len(begins) == 3
    assert starts[1] < 4 * cycles  # the second block belongs to the first tile
    assert begins[1] == 8 * cycles
    assert not trace["i__ready"][5 * cycles:8 * cycles].any()


@pytest.mark.parametrize("former", FORMERS)
def test_openings(former):
    """Initial values are output one cycle later, with the correct bank, slot and row."""
    rows, columns, _ = former
    _component, unit, _ = _former(*former)
    generator = np.random.default_rng(4)
    tiles = [tile_of(generator, "ordinary", rows=rows, columns=columns, rounds=3, initial=number % 2 == 0, tile=0)
             for number in range(6)]
    unit.reset()
    trace, beats = _run(former, tiles, source="geometric", seed=4)
    _check(former, tiles, trace, seed=4)
    opening = unpack(opening_layout(rows, columns), trace["opening"])
    there = opening["valid"].astype(bool)
    taken = np.flatnonzero(trace["i__valid"] & trace["i__ready"])[beats.initial]
    np.testing.assert_array_equal(np.flatnonzero(there), taken + 1)
    np.testing.assert_array_equal(opening["elements"][there], beats.b[beats.initial])
    np.testing.assert_array_equal(opening["row"][there], beats.rows[beats.initial].argmax(axis=1))
    np.testing.assert_array_equal(opening["slot"][there], np.flatnonzero(beats.initial) % SLOTS)
    np.testing.assert_array_equal(opening["bank"][there], np.repeat([0, 2, 0], rows * SLOTS))


@pytest.mark.parametrize("former", FORMERS)
def test_reset(former):
    """Tiles are correct even if a reset occurs while a block is being stored or read."""
    _, unit, model = _former(*former)
    generator = np.random.default_rng(5)
    cycles = SLOTS * model.block
    for cut in (3, cycles // 2 + 1, cycles + 9, 2 * cycles + 30):
        unit.reset()
        _run(former, _tiles(generator, former, [80, 50, 60]), cycles=cut)
        unit.reset()
        tiles = _tiles(generator, former, [5, model.block + 3])
        trace, _ = _run(former, tiles, seed=cut)
        _check(former, tiles, trace, seed=cut)
