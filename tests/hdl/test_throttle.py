# amaranth: UnusedElaboratable=no
import numpy as np
import numpy.typing as npt

from hdl.throttle import RATE_BITS, Throttle
from tests.hdl import pysim
from tests.refusals import refuses

#: Period of the throttle in cycles; at a rate of n, it enables n cycles per period.
FULL = 1 << 16


def enabled(rate: int, cycles: int, *, total: int = 0) -> npt.NDArray[np.int64]:
    """Return the number of enabled cycles among the first n cycles, for each n from 0 to ``cycles``."""
    numbers = np.arange(cycles + 1, dtype=np.int64)
    return numbers if rate == 0 else (total + rate * numbers) // FULL


def test_parameters():
    refuses("paced must be True or False, not 1", Throttle, paced=1)


def enables(rates, cycles, *, steps=None):
    """Output ``enable`` of a throttle that uses each rate for ``cycles`` cycles; it is sampled one cycle later."""
    dut = Throttle(paced=steps is not None)
    levels = []

    async def bench(ctx):
        for rate in rates:
            ctx.set(dut.rate, rate)
            for cycle in range(cycles):
                if steps is not None:
                    ctx.set(dut.step, int(steps[cycle]))
                await ctx.tick()
                levels.append(ctx.get(dut.enable))

    pysim.simulate(dut, bench)
    return np.array(levels)


def test_known_answers():
    """A rate of 21,845 enables 333 or 334 of every 1,000 cycles. A rate of 0, as after a reset, enables every
    cycle."""
    counts = np.concatenate([[0], np.cumsum(enables([21845], 4000))])
    assert set(counts[1000:] - counts[:-1000]) == {333, 334}
    assert enables([0], 100).all()


def test_as_the_model():
    """A sequence of rates matches the model; the accumulator keeps its value when the rate changes."""
    rates = [1, FULL - 1, 0x8000, 21845, 0, 3, *np.random.default_rng(1).integers(0, FULL, 6).tolist()]
    rows, total = enables(rates, 700).reshape(len(rates), 700), 0
    for rate, row in zip(rates, rows, strict=True):
        counts = enabled(rate, 700, total=total)
        assert (np.concatenate([[0], np.cumsum(row)]) == counts).all(), rate
        total = (total + rate * 700) % FULL


def test_paced():
    """``enable`` is constant between steps. A paced throttle enables steps in the same pattern as an unpaced one
    enables cycles."""
    steps = np.random.default_rng(2).random(3000) < 0.25
    levels = enables([40000], 3000, steps=steps)
    assert (levels[steps] == np.diff(enabled(40000, steps.sum()))).all()
    assert (levels[1:][~steps[1:]] == levels[:-1][~steps[1:]]).all()


def test_every_rate_in_every_window():
    """At any rate, W * rate / 65,536 of any W successive cycles are enabled, with an error of less than one cycle."""
    assert RATE_BITS == 16
    windows = np.array([1, 2, 3, 7, 10, 64, 100, 333, 1000, 4096, 65535, 65536, 100003])
    generator = np.random.default_rng(3)
    for rate in range(1, FULL):
        first = generator.integers(0, FULL)  # the accumulator may have any initial value
        in_window = (first + rate * windows) // FULL - first // FULL
        assert (np.abs(in_window * FULL - windows * rate) < FULL).all(), rate
    for rate in (1, 2, 21845, 0x8000, 40000, FULL - 1):
        counts = enabled(rate, 2 * FULL)
        for window in (1, 10, 1000, 4096):
            in_window = counts[window:] - counts[:-window]
            assert (np.abs(in_window * FULL - window * rate) < FULL).all(), (rate, window)
