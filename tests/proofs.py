"""Helpers for tests that prove the specifications of units."""

import pytest
from amaranth.hdl import Assume, Signal, Value

from sim import formal


def held(m, *values):
    """Make inputs keep the values of the first cycle in all cycles."""
    begun = Signal()
    m.d.sync += begun.eq(1)
    for value in map(Value.cast, values):
        before = Signal(len(value), name="before")
        m.d.sync += before.eq(value)
        m.d.comb += Assume(~begun | (before == value))


def refuted(claim, *, depth, mode="bmc"):
    """Check that a claim cannot be proven, because there is a counterexample or because no decision is reached."""
    with pytest.raises(formal.RefutedError):
        formal.prove(claim, depth=depth, mode=mode)
