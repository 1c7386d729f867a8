"""Products of operands in blocks, see docs/compute/formats.md."""

from hdl.feature import Feature

__all__ = ["FEATURE", "BlockOperandsFeature"]


class BlockOperandsFeature(Feature):
    """Feature that adds products of blocks with a shared exponent to the compute engine."""

    requires = ("compute",)


FEATURE = BlockOperandsFeature()
