"""Traces of simulated units: beats of a stream, or outputs in every cycle."""

import numpy as np

from sim.verilated.vectors import unpack


def moved(trace, port="o"):
    """Return the cycles in which a stream transferred beats, and the payloads of these beats."""
    when = np.flatnonzero(trace[f"{port}__valid"].astype(bool) & trace[f"{port}__ready"].astype(bool))
    return when, trace[f"{port}__payload"][when]


def taken(trace, port, layout):
    """Return the cycles in which a stream transferred beats, and the fields of these beats."""
    when, payload = moved(trace, port)
    return when, unpack(layout, payload)


def compare(unit, inputs, expected):
    """Run a unit, compare its outputs with the predictions of a model, and return the trace."""
    unit.reset()
    trace = unit.run({name: np.array([row[name] for row in inputs]) for name in inputs[0]})
    for name in dict.fromkeys(name for row in expected for name in row):
        due = {cycle: row[name] for cycle, row in enumerate(expected) if name in row}
        np.testing.assert_array_equal(trace[name][list(due)], list(due.values()), name)
    return trace
