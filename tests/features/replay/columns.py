"""Ports of a unit in every cycle, as seen by a golden model, and their comparison with the unit."""

import collections

import numpy as np

from sim.golden.features.replay.control_words import Message


def packet(words):
    """Words of a packet, each with its ``last``."""
    return [(int(word), int(n == len(words) - 1)) for n, word in enumerate(words)]


def whole(words):
    """Words of a complete message with their positions."""
    return [Message(word, int(not n), last) for n, (word, last) in enumerate(packet(words))]


def payload(beat):
    """Bits of a beat: of a word with its ``last``, or of a word of a message; 0 without a beat."""
    match beat:
        case Message(data, first, last):
            return data | first << 32 | last << 33
        case data, last:
            return data | last << 32
    return beat or 0


def compare(unit, rows, free=None):
    """Run a unit on rows of its ports, and compare outputs: payloads while valid, the rest where not ``free``."""
    unit.reset()
    outputs = unit.run({port.name: rows[port.name] for port in unit.inputs})
    assert outputs.keys() <= rows.keys()
    for name, values in outputs.items():
        due = rows[name]
        if name.endswith("__payload"):
            offered = rows[name.replace("payload", "valid")] != 0
            values, due = values[offered], due[offered]
        if free and name in free:
            values = np.where(free[name], due, values)
        wrong = np.flatnonzero(values != due)
        assert not wrong.size, f"{name} in row {wrong[0]}: {values[wrong[0]]}, not {due[wrong[0]]}"


class Columns:
    def __init__(self):
        self._rows = collections.defaultdict(list)
        self._any = collections.defaultdict(list)  # rows in which an output does not matter

    def note(self, **values):
        """Add a row for the ports of a cycle."""
        for name, value in values.items():
            self._rows[name].append(int(value))

    def value(self, name, value):
        """Add a row for an output; None stands for any value."""
        self._any[name].append(value is None)
        self.note(**{name: value or 0})

    def stream(self, name, beat, ready):
        """Add a row for a stream: a beat or None, and whether it is accepted."""
        self.note(**{f"{name}__valid": beat is not None, f"{name}__payload": payload(beat), f"{name}__ready": ready})

    def __getitem__(self, name):
        return self._rows[name]

    def compare(self, unit):
        """Run a Verilated unit on the inputs, and compare its outputs."""
        compare(unit, {name: np.array(values, np.uint64) for name, values in self._rows.items()}, self._any)
