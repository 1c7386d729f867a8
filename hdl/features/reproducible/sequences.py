"""Sequences and conditions for the parts of the datapath that sum integers."""

from amaranth.hdl import Cat, Mux

from hdl.group import GROUP
from hdl.ring.parts.conditions import has_elements, is_gather, is_scatter
from hdl.ring.sequences import Path, Sequence

__all__ = ["ROUNDED", "SUMS", "field_words", "groups_in", "groups_of", "has_ahead", "has_payload", "is_gathered_sum"]


class _Sums(Sequence):
    name = "sums"

    def scatter(self, command):
        return Path(steps=Mux(command.setup.fused | command.setup.sum, command.sums, 0), first=command.own)


class _Rounded(Sequence):
    name = "rounded"

    def scatter(self, command):
        return Path(steps=command.setup.fused | command.setup.sum, first=command.following)

    def gather(self, command):
        setup = command.setup
        return Path(steps=Mux(setup.sum, command.gathers, 0), first=command.own)


#: Sequence of local gradients as they are added to packets; the last step of a segment completes its sum.
SUMS = _Sums()
#: Sequence of sums as they are rounded: the node's own sums and, in an all-reduce, received ones.
ROUNDED = _Rounded()


def has_ahead(record):
    """Return whether a packet has exponents."""
    return record.ahead != 0


def has_payload(record):
    """Return whether a packet has elements or exponents."""
    return has_elements(record) | has_ahead(record)


def groups_of(elements):
    """Return the number of groups in a number of elements."""
    return (elements + (GROUP - 1)) >> 5


def groups_in(record, setup):
    """Return the number of groups in a packet's elements."""
    return groups_of(record.length)


def field_words(elements):
    """Return the number of words for the exponents of a number of elements, with four groups per word."""
    return (elements + (4 * GROUP - 1)) >> 7


def is_gathered_sum(record, setup):
    """Return whether a packet contains complete sums."""
    return is_gather(record) & setup.sum & ~setup.alone


def is_partial_sum(record, setup):
    """Return whether a packet contains incomplete sums."""
    return is_scatter(record) & ~setup.alone


def mask(sinks, chosen):
    """Return the output mask of a demultiplexer; ``chosen`` maps members of the enumeration ``sinks`` to their
    bits."""
    return Cat(chosen.get(sink, 0) for sink in sinks)
