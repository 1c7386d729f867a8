"""Training steps of a perceptron for speed measurements, with images small enough for default nodes."""

from host.labs.job_speed.lab import train


def test_training():
    losses, figures, seconds = train(8, inputs=64, hidden=32)
    assert figures.elements == 8 * 2410
    assert figures.bound <= figures.cycles < 2 * figures.bound
    assert losses[-1] < losses[0] - 0.03
    assert seconds > 0
