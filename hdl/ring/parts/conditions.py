"""Conditions for part descriptions, as named functions.

Conditions on a command are functions of its ``setup`` (:func:`hdl.ring.parts.part.part_setup_layout`). Conditions on
a record are functions of a sequence's ``record`` (:func:`hdl.ring.order.record_layout`) and, if needed, the
``setup``.
"""

from hdl.ring.order import Phase

__all__ = ["always", "has_blocks", "has_coded_weights", "has_elements", "has_plain_weights", "has_words", "is_final",
           "is_fused", "is_gather", "is_not_update", "is_reduce_scatter", "is_scatter", "is_sum", "is_update",
           "is_weights", "moves_weights"]


# Conditions on a command.

def is_fused(setup):
    """Return whether the scatter-reduce ends in the optimizer."""
    return setup.fused


def is_sum(setup):
    """Return whether the scatter-reduce ends in the gradient memory."""
    return setup.sum


def is_reduce_scatter(setup):
    """Return whether the command is a reduce-scatter, which writes back its last sums without encoding."""
    return setup.sum & ~setup.gather


def moves_weights(setup):
    """Return whether the command sends weights on the ring."""
    return ~setup.sum


def has_coded_weights(setup):
    """Whether weights pass through the weight codec."""
    return setup.coded


def has_plain_weights(setup):
    """Return whether weights are sent uncoded by a node that has a weight codec."""
    return ~setup.coded


def has_blocks(setup):
    """Return whether a broadcast sends weights in a block format."""
    return setup.format != 0


def has_words(setup):
    """Return whether a broadcast sends weights as uncoded words, on a node with broadcast formats."""
    return setup.format == 0


# Conditions on a record.

def has_elements(record):
    """Return whether a record's segment has elements."""
    return record.length != 0


def always(record, setup):
    """Return True, as a condition that selects all records."""
    return 1


def is_scatter(record):
    """Return whether a record belongs to the scatter-reduce."""
    return record.phase == Phase.SCATTER


def is_gather(record):
    """Return whether a record belongs to the all-gather."""
    return ~is_scatter(record)


def is_final(record):
    """Return whether a received block becomes its final sum."""
    return is_scatter(record) & record.last


def is_weights(record, setup):
    """Whether a packet contains weights."""
    return is_gather(record) & ~setup.sum


def is_update(record, setup):
    """Return whether the optimizer updates the record's segment."""
    return setup.fused


def is_not_update(record, setup):
    """Return whether the record's segment is sent without an update."""
    return ~setup.fused
