"""Measurement of encoding followed by decoding, with every codec: sim/bench/round_trip.py."""

import pytest

from hdl.compression.registry import CODECS, GRADIENT_CODECS
from sim.bench import round_trip


@pytest.mark.parametrize("name", ["raw", "zero_value", "mx9"])
def test_within_the_limit(name):
    """All beats of a packet are decoded, and the first one long before the last one is encoded."""
    first, last = round_trip.measure(name)
    assert 1 < first <= 25 < round_trip.LIMIT
    assert last >= first + round_trip.BEATS - 1


def test_rows(monkeypatch):
    monkeypatch.setattr(round_trip, "measure", lambda name: (15, 90))
    rows = round_trip.rows()
    assert [row["config"] for row in rows] == [
        f"{name}, 4 lanes; 90 to the packet's last beat" for name in GRADIENT_CODECS if not CODECS[name].agreed]
    assert {row["ratio"] for row in rows} == {0.25}
