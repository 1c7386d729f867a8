"""Beats of a stream, from the trace of a unit that was run in lockstep."""

import numpy as np

from sim.verilated.vectors import unpack


def moved(trace, port="o"):
    """The cycles in which beats of a stream moved, and their payloads."""
    when = np.flatnonzero(trace[f"{port}__valid"].astype(bool) & trace[f"{port}__ready"].astype(bool))
    return when, trace[f"{port}__payload"][when]


def taken(trace, port, layout):
    """The cycles in which beats of a stream moved, and their fields."""
    when, payload = moved(trace, port)
    return when, unpack(layout, payload)
