"""The perceptron whose steps are timed, with images that default nodes have room for."""

from host.jobs import speed


def test_training():
    losses, figures, seconds = speed.train(8, inputs=64, hidden=32)
    assert figures.elements == 8 * 2410
    assert figures.bound <= figures.cycles < 2 * figures.bound
    assert losses[-1] < losses[0] - 0.03
    assert seconds > 0


def test_rows():
    """Figures of `make bench` have processor time against the bar."""
    row, = speed.rows({10_000: (0.15, 0.6)})
    assert (row["measured"], row["bound"], row["ratio"]) == (0.15, 0.3, 0.5)
    assert "0.60 s with simulated host ports" in row["config"]
