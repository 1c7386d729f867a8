# amaranth: UnusedElaboratable=no
"""Memories, the guard and guarded memories: comparison with a model, and proofs for all rows and windows."""

import numpy as np
import pytest
from amaranth.hdl import Assert, Assume, Cat, Module, ResetSignal, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In

from hdl.guard import Guard, window_layout
from hdl.memory import READ_LATENCY, LanedMemory, read_signature, write_signature
from sim import formal
from sim.verilated.vectors import Unit
from tests.refusals import refuses

ROWS, LANES = 64, 2
GROUPS, GROUP_ROWS = 4, 16
OWNERS = (0, 1), (1, 0)
POWERS = np.array([1, 1 << 32], np.uint64)


def test_constructor_errors():
    refuses("Elements of a guarded memory must be a multiple of 32, not 40", Guard, rows=5, lanes=8)


def test_guard():
    """The guard's decision is correct for every row and window."""
    unit = Unit(Guard(rows=ROWS, lanes=LANES))
    row, base, size, of_memory = (each.ravel() for each in np.meshgrid(
        np.arange(ROWS), np.arange(GROUPS), np.arange(GROUPS + 1), [False, True]))
    trace = unit.run({"row": row, "window": base | size << 2, "whole": of_memory})
    inside = of_memory | (row < GROUP_ROWS * size)
    assert (trace["allowed"] == inside).all()
    fits = inside & (base + size <= GROUPS)
    assert (trace["place"][fits] == (row + np.where(of_memory, 0, GROUP_ROWS * base))[fits]).all()
    assert fits.sum() > 100
    assert Guard.latency == 0


def whole(row, base, size):
    """Memory row that corresponds to a row of a window, or None if this row is outside the window."""
    return row + GROUP_ROWS * base if row < GROUP_ROWS * size else None


def check(unit, generator, rows, cycles, *, readers, writers, window=None, throttled=False):
    """Check simultaneous reads and writes: order, words, zeros, and flags of accesses outside the window.

    A read returns the words of all writes before the cycle of its grant, and waits if the row was written
    in the previous cycle. With a window, the last reader and the last writer belong to the host. Returns the number
    of reads that waited, of reads outside the window, and of conflicts between engine and host.
    """
    asks, offers = generator.random((readers, cycles)) < 0.6, generator.random((writers, cycles)) < 0.4
    read_rows, write_rows = generator.choice(rows, (readers, cycles)), generator.choice(rows, (writers, cycles))
    words = generator.integers(1, 1 << 32, (writers, cycles, LANES), dtype=np.uint64)
    keep = generator.integers(0, 1 << LANES, (writers, cycles))
    enables = generator.random(cycles) < (0.4 if throttled else 1)
    inputs = {"enable": enables} if throttled else {}
    if window is not None:
        inputs["window"] = np.full(cycles, window[0] | window[1] << 2)
    for n in range(readers):
        inputs |= {f"read__{n}__valid": asks[n], f"read__{n}__row": read_rows[n]}
    for n in range(writers):
        inputs |= {f"write__{n}__valid": offers[n], f"write__{n}__row": write_rows[n], f"write__{n}__keep": keep[n],
                   f"write__{n}__elements": words[n] @ POWERS}
    unit.reset()
    trace = unit.run(inputs)

    def place_of(row, *, host):
        return row if window is None or host else whole(row, *window)

    content = np.zeros((ROWS, LANES), np.uint64)
    served, latest, landed, strays, waited, zeros, meetings = 0, None, None, 0, 0, 0, 0
    for cycle in range(cycles - READ_LATENCY):
        assert window is None or trace["strays"][cycle] == strays, f"{cycle=}"
        assert trace["written__valid"][cycle] == (landed is not None), f"{cycle=}"
        assert landed is None or trace["written__row"][cycle] == landed, f"{cycle=}"
        strays = 0
        asking = []
        for n in ((served + 1 + n) % readers for n in range(readers)):
            written, by_host = latest or (None, False)
            waits = read_rows[n, cycle] == written
            if window and latest and by_host != (n == readers - 1):  # conflicts with the host are detected per group
                waits = read_rows[n, cycle] % GROUP_ROWS == written % GROUP_ROWS
                meetings += asks[n, cycle] and waits
            waited += asks[n, cycle] and waits
            if asks[n, cycle] and not waits and enables[cycle]:
                asking.append(n)
        for name, when in (("ready", cycle), ("response", cycle + READ_LATENCY)):
            assert [n for n in range(readers) if trace[f"read__{n}__{name}"][when]] == asking[:1], f"{cycle=}"
        if asking:
            served = asking[0]
            row = place_of(read_rows[served, cycle], host=served == readers - 1)
            elements = trace[f"read__{served}__elements"][cycle + READ_LATENCY]
            assert elements == (0 if row is None else content[row] @ POWERS), f"{cycle=}"
            if row is None:
                strays |= 1 << OWNERS[0][served]
                zeros += 1
        first = next((n for n in range(writers) if offers[n, cycle] and enables[cycle]), None)
        for n in range(writers):
            ready = enables[cycle] and not offers[:n, cycle].any()
            assert trace[f"write__{n}__ready"][cycle] == ready, f"{cycle=}"
        latest = landed = None
        if first is not None:
            host = first == writers - 1
            latest = (write_rows[first, cycle], host) if keep[first, cycle] else None
            target = place_of(write_rows[first, cycle], host=host)
            if target is None:
                strays |= 1 << OWNERS[1][first]
            else:
                landed = target if keep[first, cycle] else None
                kept = (keep[first, cycle] >> np.arange(LANES) & 1).astype(bool)
                content[target, kept] = words[first, cycle, kept]
    return waited, zeros, meetings


@pytest.mark.parametrize(("readers", "writers", "throttled"), [(1, 1, False), (3, 2, False), (4, 3, False),
                                                               (2, 2, True)])
def test_memory(readers, writers, throttled):
    """With a throttle, ports are served only in enabled cycles."""
    options = {"readers": readers, "writers": writers, "throttled": throttled}
    unit = Unit(LanedMemory(rows=3, lanes=LANES, watched=True, **options))
    waited, *_ = check(unit, np.random.default_rng(readers), range(3), 4000, **options)
    assert waited > 100


@pytest.mark.parametrize(("base", "size"), [(0, 4), (1, 2), (2, 2), (3, 0), (0, 1)])
def test_guarded_memory(base, size):
    unit = Unit(LanedMemory(rows=ROWS, lanes=LANES, readers=3, writers=3, watched=True, owners=OWNERS),
                name="GuardedMemory")
    edges = [0, 1, 15, 16, 17, 31, 32, 33, 47, 48, 63]  # there are only a few row addresses, so that accesses collide
    _, zeros, meetings = check(unit, np.random.default_rng(10 * base + size), edges, 3000, readers=3, writers=3,
                               window=(base, size))
    assert (zeros > 100) == (size < GROUPS)
    assert meetings > 100


class Inside(wiring.Component):
    """Specification of a guarded memory, for arbitrary port inputs and any constant window: an engine reads the
    requested row in the window or zero, and writes only rows in the window; accesses outside are reported; words for
    the host never answer an engine; and no row is read while it is written.
    """

    def __init__(self):
        super().__init__({
            "read": In(read_signature(*_SMALL)).array(3), "write": In(write_signature(*_SMALL)).array(2),
            "window": In(window_layout(_SMALL[0] * _SMALL[1])),
        })

    def elaborate(self, platform):
        m = Module()
        rows, lanes = _SMALL
        m.submodules.unit = unit = LanedMemory(rows=rows, lanes=lanes, readers=3, writers=2, owners=((0, 1), (1,)))
        for name in ("read", "write"):
            for outer, inner in zip(getattr(self, name), getattr(unit, name), strict=True):
                wiring.connect(m, outer=wiring.flipped(outer), inner=inner)
        before, settled = Signal.like(self.window), Signal()
        m.d.sync += [before.eq(self.window), settled.eq(1)]
        begin = Signal(range(rows + 1))
        end = Signal(range(2 * rows + 1))
        accesses = unit.accesses
        m.d.comb += [
            unit.window.eq(self.window), begin.eq(self.window.base * (32 // lanes)),
            end.eq(begin + self.window.size * (32 // lanes)),
            Assume(~ResetSignal()), Assume(~settled | (before == self.window)),
            Assume((self.window.size == 0) | (self.window.base + self.window.size <= rows * lanes // 32)),
            Assert(~accesses.reads | accesses.read_by_host
                   | ((accesses.read_row >= begin) & (accesses.read_row < end))),
            Assert(~accesses.writes | accesses.written_by_host
                   | ((accesses.written_row >= begin) & (accesses.written_row < end))),
        ]
        outside = Signal(3)
        reported, passed, hosts = Signal(2), Signal(), Signal()
        taken = [port.valid & port.ready for port in unit.read]
        m.d.comb += outside.eq(Cat(*(granted & (port.row >= self.window.size * (32 // lanes))
                                     for granted, port in zip(taken, unit.read[:2], strict=False)),
                                   unit.write[0].valid & (unit.write[0].row >= self.window.size * (32 // lanes))))
        # The port that was served in the previous cycle, and the memory row that this port requested.
        served, asked = Signal(3), Signal(range(2 * rows))
        m.d.sync += [reported.eq(Cat(outside[0], outside[1] | outside[2])), served.eq(Cat(taken)),
                     passed.eq(accesses.reads), hosts.eq(accesses.read_by_host)]
        for granted, port, first in zip(taken, unit.read, (begin, begin, 0), strict=True):
            with m.If(granted):
                m.d.sync += asked.eq(port.row + first)
        blank = Signal(2)
        m.d.sync += blank.eq(Cat(outside[:2].any(), blank[0]))
        m.d.comb += [
            Assert(~settled | (unit.strays == reported)),
            Assert(passed | ~settled | (unit.read[0].elements.as_value() == 0)),
            Assert(~blank[1] | (unit.read[0].elements.as_value() == 0)),
            Assert(~hosts | ~(unit.read[0].response | unit.read[1].response)),
            Assert(~settled | (accesses.read_by_host == served[2])),
            Assert(~served.any() | ~accesses.reads | (accesses.read_row == asked)),
            Assert(~(served.any() & accesses.reads & accesses.writes
                     & (accesses.read_row == accesses.written_row))),
        ]
        return m


_SMALL = 64, 1


def test_accesses_are_inside():
    formal.prove(Inside(), depth=4)
