"""Kernels that encode and decode packets of bfloat16 elements."""

from pathlib import Path

from sim.arithmetic.format_source import FormatSource
from sim.golden.codecs import Codec

__all__ = ["source"]


def source(codec: Codec) -> FormatSource:
    """Return the kernels of the bfloat16 codec, which has no parameters."""
    return FormatSource(path=Path(__file__).parent / "bfloat16.cpp")
