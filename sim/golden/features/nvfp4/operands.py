"""Golden model of operands in NVFP4 blocks."""

from sim.golden.features.block_operands.operands import block_operands
from sim.golden.features.nvfp4.nvfp4 import NVFP4 as FORMAT

__all__ = ["NVFP4"]

NVFP4 = block_operands(7, FORMAT(), delay=3)
