"""Conditions used in the descriptions of parts, as named functions.

Conditions on a command are functions of its ``setup`` (:func:`hdl.ring.parts.part.part_setup_layout`). Conditions on
a record are functions of the ``record`` of a sequence (:func:`hdl.ring.order.record_layout`) and the ``setup``,
unless the record is enough.
"""

from hdl.ring.order import Phase

__all__ = ["always", "has_blocks", "has_coded_weights", "has_plain_weights", "has_words", "is_final", "is_fused",
           "is_gather", "is_not_update", "is_reduce_scatter", "is_scatter", "is_sum", "is_update", "is_weights",
           "moves_weights"]


# Conditions on a command.

def is_fused(setup):
    """Whether the scatter-reduce ends in the optimizer."""
    return setup.fused


def is_sum(setup):
    """Whether the scatter-reduce ends in the gradient memory."""
    return setup.sum


def is_reduce_scatter(setup):
    """Whether the command is a reduce-scatter, which writes its last sums back without encoding them."""
    return setup.sum & ~setup.gather


def moves_weights(setup):
    """Whether the command moves weights on the ring."""
    return ~setup.sum


def has_coded_weights(setup):
    """Whether weights pass through the weight codec."""
    return setup.coded


def has_plain_weights(setup):
    """Whether weights are moved uncoded in a node with a weight codec."""
    return ~setup.coded


def has_blocks(setup):
    """Whether a broadcast moves weights in a block format."""
    return setup.format != 0


def has_words(setup):
    """Whether a broadcast sends the weights as uncoded words, on a node with broadcast formats."""
    return setup.format == 0


# Conditions on a record.

def always(record, setup):
    """Condition of an instruction that selects all records."""
    return 1


def is_scatter(record):
    """Whether a record belongs to the scatter-reduce."""
    return record.phase == Phase.SCATTER


def is_gather(record):
    """Whether a record belongs to the all-gather."""
    return ~is_scatter(record)


def is_final(record):
    """Whether a received block becomes its final sum."""
    return is_scatter(record) & record.last


def is_weights(record, setup):
    """Whether a packet contains weights."""
    return is_gather(record) & ~setup.sum


def is_update(record, setup):
    """Whether the record's segment is updated by the optimizer."""
    return setup.fused


def is_not_update(record, setup):
    """Whether the segment of a record is moved without an update."""
    return ~setup.fused
