"""Helpers for proofs of specifications of units."""

import pytest
from amaranth.hdl import Assume, Signal, Value

from sim import formal


def held(m, *values):
    """Make inputs keep their first-cycle values in all cycles."""
    begun = Signal()
    m.d.sync += begun.eq(1)
    for value in map(Value.cast, values):
        before = Signal(len(value), name="before")
        m.d.sync += before.eq(value)
        m.d.comb += Assume(~begun | (before == value))


def refuted(claim, *, depth, mode="bmc"):
    """Check that a claim is not proven: either it has a counterexample or it cannot be decided."""
    with pytest.raises(formal.RefutedError):
        formal.prove(claim, depth=depth, mode=mode)
