"""Rows of the processor time of all-reduces."""

from host.jobs import speed


def test_rows():
    """Figures of `make bench` compare processor time with the bar."""
    row, = speed.rows({10_000: (0.15, 0.6)})
    assert (row["measured"], row["bound"], row["ratio"]) == (0.15, 0.3, 0.5)
    assert "0.60 s with simulated host ports" in row["config"]
