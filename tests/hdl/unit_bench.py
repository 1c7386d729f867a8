# amaranth: UnusedElaboratable=no
"""Test factory for a unit with streams: one description of the unit yields all of its tests.

Example
-------
::

    BENCH = UnitBench(lambda lanes: RowSum(lanes=lanes), model, drive)

    test_lockstep = BENCH.lockstep([(1,), (4,)], cycles=2_000)
    test_reset = BENCH.resets([(4,)], (1, 5, 30))
    test_cocotb = BENCH.cocotb([(4,)])

``drive`` draws random beats; ``model`` predicts every cycle of the ports that it names and every offered payload.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import cocotb
import numpy as np
import pytest

from sim import formal, regression
from sim.payload import pack
from sim.streams import STALLS, Monitor, Sink, Source, cycles, stall_array, stalls, start
from sim.verilated.vectors import Feed, Unit

#: Number of cycles of a run without stalls, in addition to one cycle per input beat.
SPARE = 500


@dataclasses.dataclass(frozen=True)
class Drive:
    """Stimuli of a run: beats of the input streams, values of other inputs, and data for the model.

    ``cycles`` is the length of the run; by default, it is more than twice the number of beats.
    """

    beats: Mapping[str, np.ndarray]
    drawn: Any = None
    inputs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    cycles: int | None = None


@dataclasses.dataclass(frozen=True)
class Want:
    """Expected port values and, for each output stream, its beats and the index of the offered beat.

    Without ``offered``, all beats must arrive by the end of the run. Port values may be paired with the cycles to
    compare, and beats with a mask of the bits to compare.
    """

    ports: Mapping[str, Any]
    beats: Mapping[str, Any]
    offered: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, trace, rows, stream="o", without=()):
        """Create an expectation from the handshakes of a golden trace with a single output stream."""
        ports = {name.replace("_", "__"): value for name, value in vars(trace).items()
                 if name.endswith(("_valid", "_ready")) and name not in without}
        return cls(ports, {stream: rows}, {stream: trace.offered})


@dataclasses.dataclass(frozen=True)
class Run:
    """Trace of a run, together with its stimuli and expected values."""

    trace: Mapping[str, np.ndarray]
    want: Want
    drive: Drive

    def moves(self, stream="o"):
        """Return the cycles in which a stream transfers a beat."""
        return np.flatnonzero(self.trace[f"{stream}__valid"] & self.trace[f"{stream}__ready"])


def sinks(source):
    """For each run with the input stall pattern ``source``, yield a seed and the output stall pattern."""
    for number, sink in enumerate(STALLS):
        seed = 1 + number + len(STALLS) * STALLS.index(source)
        print(f"seed {seed}")
        yield seed, sink


def packed(layout, items):
    """Pack objects, each with one attribute per field, into the payloads of a port."""
    return pack(layout, {name: np.array([getattr(item, name) for item in items]) for name in layout.members})


def _pairs(beats):
    return beats if isinstance(beats, tuple) else (beats, np.full_like(beats, np.iinfo(beats.dtype).max))


def numbers(rows):
    """Convert the payloads of a port to Python integers."""
    return [int.from_bytes(row.tobytes(), "little") for row in rows]


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def passes_beats(dut):
    """Reset while beats are in transit; the beats are then sent again and must arrive exactly once."""
    p = regression.parameters()

    def sources(kind):
        return [cocotb.start_soon(Source(dut, name, len(getattr(dut, f"{name}__payload")),
                                         stalls=stalls(kind, seed=seed)).send(rows))
                for seed, (name, rows) in enumerate(p["sources"].items())]

    await start(dut)
    for name, value in p["inputs"].items():
        getattr(dut, name).value = value
    for name in p["sinks"]:
        getattr(dut, f"{name}__ready").value = 1
    before = sources("none")
    await cycles(dut, p["cut"])
    for task in before:
        task.cancel()
    dut.rst.value = 1
    for name in p["sources"]:
        getattr(dut, f"{name}__valid").value = 0
    await cycles(dut, 1)
    dut.rst.value = 0
    widths = {name: len(getattr(dut, f"{name}__payload")) for name in (*p["sources"], *p["sinks"])}
    monitors = {name: Monitor(dut, name, width) for name, width in widths.items()}
    sinks = {name: Sink(dut, name, widths[name], stalls=stalls(p["stalls"], seed=9 + seed))
             for seed, name in enumerate(p["sinks"])}
    received = {name: cocotb.start_soon(sinks[name].receive(len(rows))) for name, (rows, _) in p["sinks"].items()}
    sources(p["stalls"])
    for name, (rows, bits) in p["sinks"].items():
        beats = await received[name]
        assert [beat & mask for beat, mask in zip(beats, bits, strict=True)] == [
            row & mask for row, mask in zip(rows, bits, strict=True)], name
    await cycles(dut, 30)
    counts = {name: len(beats) for name, beats in p["sources"].items()} | {
        name: len(rows) for name, (rows, _) in p["sinks"].items()}
    assert {name: len(monitor.beats) for name, monitor in monitors.items()} == counts


def under_cocotb(component, kind, beats, wanted, *, cut=30, inputs=None, name=None):
    """Send beats under cocotb after a reset in mid-stream, and check the output beats."""
    regression.run(component, module=__name__, name=name, parameters={
        "stalls": kind, "cut": cut, "inputs": dict(inputs or {}),
        "sources": {stream: numbers(rows) for stream, rows in beats.items()},
        "sinks": {stream: [numbers(rows) for rows in _pairs(want)] for stream, want in wanted.items()}})


class UnitBench:
    """Test bench of a parameterized unit.

    Parameters
    ----------
    make : callable
        Function that creates the component for a case, given its parameters.
    model : callable
        Function that returns the expectation (:class:`Want`) of a component, given ``drawn`` of its drive and two
        dictionaries: the cycles when each source may begin to offer and when each sink is ready.
    drive : callable
        Function that draws the stimuli (:class:`Drive`) of a case from a generator.
    name : callable or None
        Function that names the Verilog of a case; by default, the component's class name is used.
    rate : float
        Probability per cycle that a source or sink is willing in the geometric pattern.
    simulate : callable or None
        Function that simulates the component of a case, for components that are not Verilated units.
    """

    def __init__(self, make, model, drive, *, name=None, rate=0.5, simulate=None):
        self._model, self._drive, self._rate = model, drive, rate
        self.make = functools.cache(make)
        self.unit = functools.cache(lambda *case: simulate(self.make(*case), *case) if simulate else Unit(
            self.make(*case), name=name and name(*case)))

    def _streams(self, case):
        """Names of all streams of a unit."""
        unit = self.unit(*case)
        return [port.name.removesuffix("__valid") for port in (*unit.inputs, *unit.outputs)
                if port.name.endswith("__valid")]

    def check(self, case=(), *, seed=1, kinds="none", count=None, drive=None, reset=True):
        """Run the unit and compare every cycle with the model.

        ``kinds`` is one stall pattern for all streams or a mapping keyed by stream; ``count`` is the number of cycles
        or a function of the case.
        """
        unit = self.unit(*case)
        drive = drive or self._drive(np.random.default_rng(seed), *case)
        if callable(count):
            count = count(*case)
        if count is None:
            count = drive.cycles or SPARE + 2 * sum(map(len, drive.beats.values()))
        patterns = {
            name: stall_array(kinds if isinstance(kinds, str) else kinds[name], count, seed=seed + number,
                              rate=self._rate) for number, name in enumerate(self._streams(case))}
        willing = {name: patterns[name] for name in drive.beats}
        ready = {name: pattern for name, pattern in patterns.items() if name not in willing}
        if reset:
            unit.reset()
        trace = unit.lockstep(sources={name: Feed(rows, willing[name]) for name, rows in drive.beats.items()},
                              sinks=ready, inputs=drive.inputs, seed=seed)
        want = self._model(self.make(*case), drive.drawn, willing, ready)
        for port, value in want.ports.items():
            value, counts = value if isinstance(value, tuple) else (value, slice(None))
            np.testing.assert_array_equal(trace[port][counts], value[counts], f"{port}, {case}, {seed=}")
        run = Run(trace, want, drive)
        for name, beats in want.beats.items():
            note = f"{name}, {case}, {seed=}"
            rows, bits = _pairs(beats)
            offered = want.offered.get(name)
            if offered is None:
                offers, index = run.moves(name), np.arange(len(rows))
                assert len(offers) == len(rows), note
            else:
                offers = np.flatnonzero(offered >= 0)
                np.testing.assert_array_equal(trace[f"{name}__valid"] != 0, offered >= 0, note)
                index = offered[offers]
            got = trace[f"{name}__payload"][offers]
            np.testing.assert_array_equal(got & bits[index], rows[index] & bits[index], note)
        return run

    def lockstep(self, cases=((),), *, count=None, seeds=1, least=1):
        """Create a lockstep test of every combination of input and output stall patterns.

        Each run must have offers in at least ``least`` cycles.
        """
        @pytest.mark.parametrize("source", STALLS)
        @pytest.mark.parametrize("case", cases, ids=str)
        def test(case, source):
            inputs = {port.name.removesuffix("__valid") for port in self.unit(*case).inputs}
            for number, sink in enumerate(STALLS):
                for trial in range(seeds):
                    seed = 1 + trial + seeds * (number + len(STALLS) * STALLS.index(source))
                    print(f"seed {seed}")
                    kinds = _Kinds(inputs, source, sink, number + trial)
                    run = self.check(case, seed=seed, kinds=kinds, count=count)
                    for offered in run.want.offered.values():
                        assert np.count_nonzero(offered >= 0) >= least, f"{seed=}"

        return test

    def random(self, cases, *, seeds=2, count=None):
        """Create a test that compares every cycle under random stalls of all streams."""
        @pytest.mark.parametrize("case", cases, ids=str)
        def test(case):
            for seed in range(seeds):
                self.check(case, seed=seed, kinds="geometric", count=count)

        return test

    def resets(self, cases, cuts, *, count=None, drive=None):
        """Create a test that a reset, after each number of cycles in ``cuts``, discards all contents."""
        drive = drive or self._drive

        @pytest.mark.parametrize("cut", cuts)
        @pytest.mark.parametrize("case", cases, ids=str)
        def test(case, cut):
            unit, generator = self.unit(*case), np.random.default_rng(cut)
            before = drive(generator, *case)
            unit.reset()
            unit.lockstep(
                sources={name: Feed(rows) for name, rows in before.beats.items()}, cycles=cut,
                sinks={name: cut % 3 != 0 for name in self._streams(case) if name not in before.beats},
                inputs={name: rows[:cut] if np.ndim(rows) else rows for name, rows in before.inputs.items()})
            self.check(case, seed=cut, count=count, drive=drive(generator, *case))

        return test

    def cocotb(self, cases=((),), *, cut=30, seed=1, name=None, drive=None):
        """Create a cocotb test of all beats, after a shorter run that is cut off by a reset."""
        @pytest.mark.parametrize("kind", ["none", "geometric"])
        @pytest.mark.parametrize("case", cases, ids=str)
        def test(case, kind):
            component, driven = self.make(*case), (drive or self._drive)(np.random.default_rng(seed), *case)
            always = np.ones(SPARE + 4 * sum(map(len, driven.beats.values())), bool)
            patterns = dict.fromkeys(component.signature.members, always)
            want = self._model(component, driven.drawn, patterns, patterns)
            under_cocotb(component, kind, driven.beats, want.beats, cut=cut, inputs=driven.inputs, name=name)

        return test


class _Kinds(dict):
    """Stall patterns, keyed by stream. The first input and output get the given patterns, and all other streams get
    the patterns that follow."""

    def __init__(self, inputs, source, sink, turn):
        super().__init__()
        self._inputs, self._first, self._turn = inputs, {True: source, False: sink}, turn
        self._counts = {True: 0, False: 0}

    def __missing__(self, name):
        side = name in self._inputs
        index = STALLS.index(self._first[side]) + self._counts[side] * (1 + self._turn)
        self._counts[side] += 1
        self[name] = STALLS[index % len(STALLS)]
        return self[name]


def offers(make, *, depth, mode="prove"):
    """Create a formal test that the unit holds each offer until it is accepted."""
    return lambda: formal.prove(formal.Offers(make()), depth=depth, mode=mode)
