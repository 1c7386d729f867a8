"""Traces of units: beats of a stream, and outputs of every cycle."""

import numpy as np

from sim.verilated.vectors import unpack


def moved(trace, port="o"):
    """Cycles in which beats of a stream were transferred, and their payloads."""
    when = np.flatnonzero(trace[f"{port}__valid"].astype(bool) & trace[f"{port}__ready"].astype(bool))
    return when, trace[f"{port}__payload"][when]


def taken(trace, port, layout):
    """Cycles in which beats of a stream were transferred, and their fields."""
    when, payload = moved(trace, port)
    return when, unpack(layout, payload)


def compare(unit, inputs, expected):
    """Run a unit with given inputs, compare the outputs that the model predicts, and return the trace."""
    unit.reset()
    trace = unit.run({name: np.array([row[name] for row in inputs]) for name in inputs[0]})
    for name in dict.fromkeys(name for row in expected for name in row):
        due = {cycle: row[name] for cycle, row in enumerate(expected) if name in row}
        np.testing.assert_array_equal(trace[name][list(due)], list(due.values()), name)
    return trace
