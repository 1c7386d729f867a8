"""Products of operands in blocks: docs/compute/formats.md."""

from hdl.feature import Feature

__all__ = ["FEATURE", "BlockOperandsFeature"]


class BlockOperandsFeature(Feature):
    """The compute engine multiplies blocks of numbers with one exponent."""

    requires = ("compute",)


FEATURE = BlockOperandsFeature()
