"""Test a sample of every kind of link fault (``make faults`` runs many more)."""

import pytest

from sim.verilated.features.replay.faulty_link import Fault, FaultyLink
from tests.faults.parts import is_wrong


@pytest.fixture(scope="module")
def link():
    return FaultyLink()


@pytest.mark.parametrize("kind", Fault)
@pytest.mark.parametrize("stalls", [False, True], ids=["full", "stalls"])
def test_faults(link, kind, stalls):
    result = {"kind": kind.name, "hanging": 1}
    for latency in (2, 16, 64):
        result |= link.run(kind, latency=latency, faults=500, seed=latency, stalls=stalls)
        assert result["faults"] >= 500 or kind is Fault.NOISE
        assert not is_wrong(result)
        assert result["restarts"] or kind is Fault.START
        assert (result["controls"] > 100) == stalls or kind is Fault.STORM
        if latency == 16 and not stalls and kind in (Fault.FLIP, Fault.DROP, Fault.DOUBLE, Fault.SWAP):
            assert result["measured"] == 500
            assert 60 < result["lost"] / result["measured"] < result["most"] <= 80
