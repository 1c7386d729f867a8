"""Benchmark rows for the processor time of all-reduces."""

from host.jobs import speed


def test_rows():
    """Rows of `make bench` compare the measured processor time with its limit."""
    row, = speed.rows({10_000: (0.15, 0.6)})
    assert (row["measured"], row["bound"], row["ratio"]) == (0.15, 0.3, 0.5)
    assert "0.60 s with simulated host ports" in row["config"]
