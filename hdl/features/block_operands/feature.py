"""Products of block-format operands; see docs/compute/formats.md."""

from hdl.feature import Feature

__all__ = ["FEATURE", "BlockOperandsFeature"]


class BlockOperandsFeature(Feature):
    """Feature of the compute engine: products of blocks that have a shared exponent."""

    requires = ("compute",)


FEATURE = BlockOperandsFeature()
