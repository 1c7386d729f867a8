"""Kernels of packets with bfloat16 elements."""

from pathlib import Path

from sim.arithmetic.format_source import FormatSource
from sim.golden.codecs import Codec

__all__ = ["source"]


def source(codec: Codec) -> FormatSource:
    """Kernels of the codec; the format has no parameters."""
    return FormatSource(path=Path(__file__).parent / "bfloat16.cpp")
