# amaranth: UnusedElaboratable=no
"""Compare the buffer tags of a memory with the golden model: hdl/features/compute/row_owners.py."""

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
#: Numbers of memory rows that random traffic accesses.
FEW = np.array([*range(14), ROWS - 2, ROWS - 1])


class Bench(wiring.Component):
    """Memory with buffer tags, accessed by an engine with buffer numbers and by a host; ``clear`` resets only the
    tags. If ``guarded``, the engine's rows are relative to the input ``window``."""

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
    """Expected values of the outputs ``dead`` and ``row`` in each cycle."""

    dead: np.ndarray
    row: np.ndarray


def expected(inputs, taken, owners, clear, window=(0, ROWS // GROUP_ROWS)):
    """Compute the expected outputs from the accesses accepted in each cycle, for an engine with a window."""
    base, size = (GROUP_ROWS * groups for groups in window)
    cycles = len(clear)
    outcome = Found(np.zeros(cycles, bool), np.zeros(cycles, int))
    now, lowest = [None] * RowOwners.latency, None
    for cycle in range(cycles):
        if now[0] is not None:
            lowest = now[0] if lowest is None else min(lowest, now[0])
        outcome.dead[cycle], outcome.row[cycle] = lowest is not None, lowest or 0
        wrong = None
        if taken["read"][cycle] and inputs["read__row"][cycle] < size:
            wrong = owners.dead([inputs["read__row"][cycle] + base], inputs["read_owner"][cycle])
            wrong = None if wrong is None else wrong - base
        now = [*now[1:], wrong]
        if taken["write"][cycle] and inputs["write__keep"][cycle] and inputs["write__row"][cycle] < size:
            owners.write(inputs["write__row"][cycle] + base, inputs["write_owner"][cycle])
        if taken["host_write"][cycle] and inputs["host_write__keep"][cycle]:
            owners.write(inputs["host_write__row"][cycle])
        if clear[cycle]:
            now, lowest = [None] * RowOwners.latency, None
    return outcome


def play(unit, inputs, clear, owners, note, window=None):
    """Run the unit on the given inputs and compare its outputs with the model, which updates ``owners``."""
    if window is not None:
        inputs = {**inputs, "window": np.full(len(clear), window[0] | window[1] << 2)}
    unit.reset()
    trace = unit.lockstep(sources={}, sinks={}, cycles=len(clear), inputs={**inputs, "clear": clear})
    taken = {name: trace[f"{name}__valid"].astype(bool) & trace[f"{name}__ready"].astype(bool)
             for name in ("read", "write", "host_write")}
    outcome = expected(inputs, taken, owners, clear, *([] if window is None else [window]))
    np.testing.assert_array_equal(trace["dead"], outcome.dead, note)
    np.testing.assert_array_equal(trace["row"][outcome.dead], outcome.row[outcome.dead], note)
    return taken, outcome


def traffic(generator, cycles, kind, seed, *, owners=3, rows=FEW):
    """Draw reads and writes by engine and host in only a few rows, so that accesses collide."""
    inputs = {f"{name}__{field}": generator.choice(limit, size=cycles)
              for name in ("read", "write", "host_read", "host_write")
              for field, limit in (("row", rows), *((("keep", np.arange(1 << LANES)),) if "write" in name else ()))}
    inputs |= {f"{name}_owner": generator.integers(owners, size=cycles) for name in ("read", "write")}
    rates = {"read": 0.8, "write": 0.5, "host_read": 0.2, "host_write": 0.1}
    for index, (name, rate) in enumerate(rates.items()):
        inputs[f"{name}__valid"] = stall_array(kind, cycles, seed=seed + index) & (generator.random(cycles) < rate)
        inputs[f"{name}__valid"][-2:] = False  # time for all accepted writes to reach the memory
    return inputs


def written(unit, generator, kind, seed, *window):
    """Write all rows through the host port, since a reset keeps their buffer tags; return the model's tags."""
    owners, count = Golden(ROWS), ROWS + 2
    clean = {name: np.zeros(count, int) for name in traffic(generator, 1, kind, seed)}
    clean |= {"host_write__row": np.arange(count) % ROWS, "host_write__keep": np.ones(count, int),
              "host_write__valid": np.arange(count) < ROWS}
    play(unit, clean, np.zeros(count, bool), owners, f"{seed=}", *window)
    return owners


@pytest.mark.parametrize("kind", STALLS)
def test_every_cycle(unit, kind):
    """The outputs match the model for any reads, writes and resets; a reset keeps the buffer tags."""
    seed = 100 + STALLS.index(kind)
    generator = np.random.default_rng(seed)
    owners = written(unit, generator, kind, seed)
    assert not owners.numbers.any()
    rows = []
    for _ in range(3):
        inputs = traffic(generator, CYCLES, kind, seed)
        clear = generator.random(CYCLES) < 0.05
        taken, outcome = play(unit, inputs, clear, owners, f"{seed=}")
        assert taken["read"].any()
        rows += outcome.row[outcome.dead].tolist()
    assert {0, ROWS - 1} <= set(rows)


@pytest.mark.parametrize("window", [(1, 2), (2, 1), (0, 0), (0, 4)])
def test_window(guarded, window):
    """Only rows in the window are tagged and checked; rows keep their buffer tags when the window moves."""
    seed = 10 * window[0] + window[1]
    generator = np.random.default_rng(seed)
    owners = written(guarded, generator, "none", seed, window)
    # Rows next to the limits of a window, as numbered by the engine and by the host.
    edges = np.array([0, 1, 15, 16, 17, 31, 32, 33, 47, 48, 63])
    for part in (window, (1, 1), window):
        inputs = traffic(generator, CYCLES, "geometric", seed, rows=edges)
        clear = generator.random(CYCLES) < 0.05
        _, outcome = play(guarded, inputs, clear, owners, f"{seed=} {part=}", part)
        assert outcome.dead.any() == (part[1] > 0)


def test_latency(unit):
    """A dead read of row 5 is reported after ``latency`` cycles; a later dead read of a lower row replaces it."""
    zeros = dict.fromkeys(traffic(np.random.default_rng(0), 1, "none", 0), 0)
    cycles = 20
    inputs = {name: np.zeros(cycles, int) for name in zeros}
    for cycle, row in ((0, 5), (1, 3), (2, 9)):
        inputs["write__valid"][cycle], inputs["write__row"][cycle] = 1, row
        inputs["write__keep"][cycle], inputs["write_owner"][cycle] = 1, 200
    for cycle, row, owner in ((5, 5, 200), (6, 5, 0), (8, 5, 72), (10, 9, 1), (12, 3, 201)):
        inputs["read__valid"][cycle], inputs["read__row"][cycle], inputs["read_owner"][cycle] = 1, row, owner
    _, outcome = play(unit, inputs, np.zeros(cycles, bool), Golden(ROWS), "")
    assert np.flatnonzero(outcome.dead)[0] == 8 + RowOwners.latency
    assert outcome.row[8 + RowOwners.latency:].tolist() == [5] * 4 + [3] * (cycles - 15)


@pytest.mark.parametrize("rows", [1, True, 2.0])
def test_constructor_errors(rows):
    message = f"Row count must be an integer of at least 2, not {rows!r}"
    refuses(message, RowOwners, rows=rows)
