# amaranth: UnusedElaboratable=no
"""Control-word units of nodes with slots, which pass words to and from units in the link ends."""

from hdl.features.replay.control_word import ControlType
from hdl.features.replay.control_words import ControlUnit
from hdl.features.replay.unit_words import UnitWords

__all__ = ["describe"]


def _record_words(config):
    return UnitWords(name="record_words")


def _clock_words(config):
    return UnitWords(name="clock_words")


def _place_words(config):
    return UnitWords(name="place_words")


def describe(config):
    """Describe the control-word units: for records or, on a ring with two jobs, receiver space; for TIME; and for
    positions."""
    if config.link.jobs == 1:
        records = ControlUnit("records", (ControlType.LAP, ControlType.RECORD), _record_words, "record_words")
    else:
        records = ControlUnit("rooms", (ControlType.COLLECT, ControlType.GRANT), _record_words, "record_words")
    clock = ControlUnit("clock", (ControlType.SYNC,), _clock_words, "clock_words")
    places = ControlUnit("places", (ControlType.PLACE,), _place_words, "place_words")
    return (records, clock, places) if config.link.messages else (records, clock)
