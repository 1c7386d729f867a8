"""Products of operands in blocks, see docs/compute/formats.md."""

from hdl.feature import Feature

__all__ = ["FEATURE", "BlockOperandsFeature"]


class BlockOperandsFeature(Feature):
    """Products of blocks of numbers with one exponent in the compute engine."""

    requires = ("compute",)


FEATURE = BlockOperandsFeature()
