"""Expected port values of a unit in every cycle, and their comparison with the Verilated unit."""

import collections

import numpy as np

from sim.golden.features.replay.control_words import Message


def packet(words):
    """Return the words of a packet, each as (word, last)."""
    return [(int(word), int(n == len(words) - 1)) for n, word in enumerate(words)]


def whole(words):
    """Return the words of a complete message, each with its first and last flags."""
    return [Message(word, int(not n), last) for n, (word, last) in enumerate(packet(words))]


def payload(beat):
    """Encode a beat: a (word, last) pair, a word of a message, or a number; None is encoded as 0."""
    match beat:
        case Message(data, first, last):
            return data | first << 32 | last << 33
        case data, last:
            return data | last << 32
    return beat or 0


def compare(unit, rows, free=None):
    """Run a unit on the inputs in ``rows``; compare valid payloads, and other outputs unless ``free`` is set."""
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
        self._any = collections.defaultdict(list)  # for each output and cycle, whether any value is accepted

    def note(self, **values):
        for name, value in values.items():
            self._rows[name].append(int(value))

    def value(self, name, value):
        """Append an output's value in the next cycle; None means that any value is accepted."""
        self._any[name].append(value is None)
        self.note(**{name: value or 0})

    def stream(self, name, beat, ready):
        """Append a stream's state in the next cycle: the offered beat or None, and ``ready``."""
        self.note(**{f"{name}__valid": beat is not None, f"{name}__payload": payload(beat), f"{name}__ready": ready})

    def __getitem__(self, name):
        return self._rows[name]

    def compare(self, unit):
        """Run a Verilated unit on the recorded inputs and compare its outputs."""
        compare(unit, {name: np.array(values, np.uint64) for name, values in self._rows.items()}, self._any)
