# amaranth: UnusedElaboratable=no
"""Owners of rows beside a memory, against the golden model of every cycle: hdl/features/compute/row_owners.py."""

import dataclasses

import numpy as np
import pytest
from amaranth.hdl import Module, ResetInserter
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hdl.features.compute.layer_list import OWNER_BITS
from hdl.features.compute.row_owners import RowOwners
from hdl.guard import window_layout
from hdl.memory import LanedMemory, read_signature, write_signature
from sim.golden.features.compute.row_owners import RowOwners as Golden
from sim.streams import STALLS, stall_array
from sim.verilated.vectors import Unit
from tests.refusals import refuses

ROWS, LANES = 64, 2
GROUP_ROWS = 32 // LANES
CYCLES = 3_000
#: Rows that are read and written.
FEW = np.array([*range(14), ROWS - 2, ROWS - 1])


class Bench(wiring.Component):
    """A memory with a reader and a writer that have owners, in front of a host that has none; ``clear`` resets the
    owners alone. If it is guarded, rows of the engine are those of a window, which is told."""

    def __init__(self, *, guarded=False):
        self._guarded = guarded
        super().__init__({
            "read": In(read_signature(ROWS, LANES)), "read_owner": In(OWNER_BITS),
            "write": In(write_signature(ROWS, LANES)), "write_owner": In(OWNER_BITS),
            "host_read": In(read_signature(ROWS, LANES)), "host_write": In(write_signature(ROWS, LANES)),
            "clear": In(1), "dead": Out(1), "row": Out(range(ROWS)),
            **({"window": In(window_layout(ROWS * LANES))} if guarded else {}),
        })

    def elaborate(self, platform):
        m = Module()
        m.submodules.memory = memory = LanedMemory(
            rows=ROWS, lanes=LANES, readers=2, writers=2, watched=True,
            **({"owners": ((0,), (0,))} if self._guarded else {}))
        owners = RowOwners(rows=ROWS, **({"lanes": LANES} if self._guarded else {}))
        if self._guarded:
            m.d.comb += [memory.window.eq(self.window), owners.window.eq(self.window)]
        m.submodules.owners = ResetInserter(self.clear)(owners)
        for index, (read, write) in enumerate(((self.read, self.write), (self.host_read, self.host_write))):
            wiring.connect(m, reader=wiring.flipped(read), memory=memory.read[index])
            wiring.connect(m, writer=wiring.flipped(write), memory=memory.write[index])
        wiring.connect(m, memory=memory.written, owners=owners.written)
        m.d.comb += [
            owners.read.valid.eq(self.read.valid & self.read.ready), owners.read.row.eq(self.read.row),
            owners.read.owner.eq(self.read_owner), owners.write.eq(self.write.valid & self.write.ready),
            owners.owner.eq(self.write_owner), self.dead.eq(owners.dead), self.row.eq(owners.row),
        ]
        return m


@pytest.fixture(scope="module")
def unit():
    return Unit(Bench(), name="RowOwners")


@pytest.fixture(scope="module")
def guarded():
    return Unit(Bench(guarded=True), name="GuardedRowOwners")


@dataclasses.dataclass
class Found:
    """Expected ``dead`` and ``row``, per cycle."""

    dead: np.ndarray
    row: np.ndarray


def expected(given, taken, owners, clear, window=(0, ROWS // GROUP_ROWS)):
    """Outputs that follow from what the memory has granted and taken in each cycle, of an engine with a window."""
    base, size = (GROUP_ROWS * groups for groups in window)
    cycles = len(clear)
    found = Found(np.zeros(cycles, bool), np.zeros(cycles, int))
    now, lowest = [None] * RowOwners.latency, None
    for cycle in range(cycles):
        if now[0] is not None:
            lowest = now[0] if lowest is None else min(lowest, now[0])
        found.dead[cycle], found.row[cycle] = lowest is not None, lowest or 0
        wrong = None
        if taken["read"][cycle] and given["read__row"][cycle] < size:
            wrong = owners.dead([given["read__row"][cycle] + base], given["read_owner"][cycle])
            wrong = None if wrong is None else wrong - base
        now = [*now[1:], wrong]
        if taken["write"][cycle] and given["write__keep"][cycle] and given["write__row"][cycle] < size:
            owners.write(given["write__row"][cycle] + base, given["write_owner"][cycle])
        if taken["host_write"][cycle] and given["host_write__keep"][cycle]:
            owners.write(given["host_write__row"][cycle])
        if clear[cycle]:
            now, lowest = [None] * RowOwners.latency, None
    return found


def play(unit, given, clear, owners, note, window=None):
    """Give inputs of every cycle, and compare; the model goes on with the same ``owners``."""
    if window is not None:
        given = {**given, "window": np.full(len(clear), window[0] | window[1] << 2)}
    unit.reset()
    trace = unit.lockstep(sources={}, sinks={}, cycles=len(clear), inputs={**given, "clear": clear})
    taken = {name: trace[f"{name}__valid"].astype(bool) & trace[f"{name}__ready"].astype(bool)
             for name in ("read", "write", "host_write")}
    found = expected(given, taken, owners, clear, *([] if window is None else [window]))
    np.testing.assert_array_equal(trace["dead"], found.dead, note)
    np.testing.assert_array_equal(trace["row"][found.dead], found.row[found.dead], note)
    return taken, found


def traffic(generator, cycles, kind, seed, *, owners=3, rows=FEW):
    """Reads and writes of both sides at any time, of few rows, so that they meet."""
    given = {f"{name}__{field}": generator.choice(limit, size=cycles)
             for name in ("read", "write", "host_read", "host_write")
             for field, limit in (("row", rows), *((("keep", np.arange(1 << LANES)),) if "write" in name else ()))}
    given |= {f"{name}_owner": generator.integers(owners, size=cycles) for name in ("read", "write")}
    rates = {"read": 0.8, "write": 0.5, "host_read": 0.2, "host_write": 0.1}
    for place, (name, rate) in enumerate(rates.items()):
        given[f"{name}__valid"] = stall_array(kind, cycles, seed=seed + place) & (generator.random(cycles) < rate)
        given[f"{name}__valid"][-2:] = False  # what is taken is in the memory at the end
    return given


def written(unit, generator, kind, seed, *window):
    """Owners once the host has written all rows: a reset of the unit leaves what was in the memory."""
    owners, count = Golden(ROWS), ROWS + 2
    clean = {name: np.zeros(count, int) for name in traffic(generator, 1, kind, seed)}
    clean |= {"host_write__row": np.arange(count) % ROWS, "host_write__keep": np.ones(count, int),
              "host_write__valid": np.arange(count) < ROWS}
    play(unit, clean, np.zeros(count, bool), owners, f"{seed=}", *window)
    return owners


@pytest.mark.parametrize("kind", STALLS)
def test_every_cycle(unit, kind):
    """Reads and writes of both sides in any order, and resets of the owners at any point, which change no number."""
    seed = 100 + STALLS.index(kind)
    generator = np.random.default_rng(seed)
    owners = written(unit, generator, kind, seed)
    assert not owners.numbers.any()
    rows = []
    for _ in range(3):
        given = traffic(generator, CYCLES, kind, seed)
        clear = generator.random(CYCLES) < 0.05
        taken, found = play(unit, given, clear, owners, f"{seed=}")
        assert taken["read"].any()
        rows += found.row[found.dead].tolist()
    assert {0, ROWS - 1} <= set(rows)


@pytest.mark.parametrize("window", [(1, 2), (2, 1), (0, 0), (0, 4)])
def test_window(guarded, window):
    """Only rows of the window are stamped and compared; numbers stay with their rows when the window moves."""
    seed = 10 * window[0] + window[1]
    generator = np.random.default_rng(seed)
    owners = written(guarded, generator, "none", seed, window)
    # Two rows at each limit of a window, as it names them and as the host does.
    edges = np.array([0, 1, 15, 16, 17, 31, 32, 33, 47, 48, 63])
    for part in (window, (1, 1), window):
        given = traffic(generator, CYCLES, "geometric", seed, rows=edges)
        clear = generator.random(CYCLES) < 0.05
        _, found = play(guarded, given, clear, owners, f"{seed=} {part=}", part)
        assert found.dead.any() == (part[1] > 0)


def test_latency(unit):
    """A read of row 5 as another's is found after ``latency`` cycles; then the lowest row counts."""
    zeros = dict.fromkeys(traffic(np.random.default_rng(0), 1, "none", 0), 0)
    cycles = 20
    given = {name: np.zeros(cycles, int) for name in zeros}
    for cycle, row in ((0, 5), (1, 3), (2, 9)):
        given["write__valid"][cycle], given["write__row"][cycle] = 1, row
        given["write__keep"][cycle], given["write_owner"][cycle] = 1, 200
    for cycle, row, owner in ((5, 5, 200), (6, 5, 0), (8, 5, 72), (10, 9, 1), (12, 3, 201)):
        given["read__valid"][cycle], given["read__row"][cycle], given["read_owner"][cycle] = 1, row, owner
    _, found = play(unit, given, np.zeros(cycles, bool), Golden(ROWS), "")
    assert np.flatnonzero(found.dead)[0] == 8 + RowOwners.latency
    assert found.row[8 + RowOwners.latency:].tolist() == [5] * 4 + [3] * (cycles - 15)


@pytest.mark.parametrize("rows", [1, True, 2.0])
def test_constructor_errors(rows):
    message = f"Row count must be an integer of at least 2, not {rows!r}"
    refuses(message, RowOwners, rows=rows)
