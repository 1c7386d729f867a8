"""Products of operands in blocks, see docs/compute/formats.md."""

from hdl.feature import Feature

__all__ = ["FEATURE", "BlockOperandsFeature"]


class BlockOperandsFeature(Feature):
    """Feature of the compute engine: products of blocks with a shared exponent."""

    requires = ("compute",)


FEATURE = BlockOperandsFeature()
