"""The golden model of pipelines, by hand."""

import numpy as np

from tests.hdl.pipelines import together

ALWAYS = np.ones(20, bool)


def test_cycles():
    """A pair in every cycle; a result after the last pair of each four, its latency later."""
    ports, offered = together(np.arange(12) % 4 == 3, latency=5, willing={"a": ALWAYS, "b": ALWAYS}, ready=ALWAYS)
    for name in "ab":
        assert np.flatnonzero(ports[f"{name}__valid"] & ports[f"{name}__ready"]).tolist() == list(range(12))
    assert np.flatnonzero(offered >= 0).tolist() == [3 + 5, 7 + 5, 11 + 5]
    assert offered[[8, 12, 16]].tolist() == [0, 1, 2]


def test_each_side_waits_for_the_other():
    """A beat is taken when both are on offer."""
    ports, offered = together(ALWAYS[:4], latency=2, willing={"a": ALWAYS, "b": np.arange(20) >= 6}, ready=ALWAYS)
    assert ports["a__valid"][:6].all()
    assert not ports["a__ready"][:6].any()
    assert ports["b__ready"][:6].all()
    for name in "ab":
        assert np.flatnonzero(ports[f"{name}__valid"] & ports[f"{name}__ready"]).tolist() == [6, 7, 8, 9]
    assert np.flatnonzero(offered >= 0).tolist() == [8, 9, 10, 11]


def test_a_result_that_waits():
    """A result that waits stays on offer, and the pipeline before it does not move."""
    ports, offered = together(ALWAYS[:6], latency=2, willing={"i": ALWAYS}, ready=np.arange(20) >= 10)
    assert offered.tolist()[:16] == [-1, -1, *[0] * 9, 1, 2, 3, 4, 5]
    assert np.flatnonzero(ports["i__valid"] & ports["i__ready"]).tolist() == [0, 1, 10, 11, 12, 13]
