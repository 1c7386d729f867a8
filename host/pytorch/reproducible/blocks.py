"""Arithmetic of the blocks of a sum: what each implementation provides, and which one a device uses."""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from host.pytorch.reproducible import compiled_blocks
from host.pytorch.reproducible.tensor_blocks import TensorBlocks

__all__ = ["Blocks", "Memory", "blocks_of"]

#: Function that returns a vector of so many int32, with any contents.
Memory = Callable[[int], torch.Tensor]


class Blocks(Protocol):
    """Arithmetic of the blocks of a sum. All implementations have the same bits.

    Parameters
    ----------
    fields : Tensor
        Exponent fields of all groups; at least one.
    bits : int
        Bits of each addend.
    width : int
        Bits of a sum. With at most 16, a word holds two.
    memory : Memory
        Memory that the blocks use until the end of the sum.
    """

    def __init__(self, fields: torch.Tensor, bits: int, width: int, memory: Memory) -> None: ...

    @staticmethod
    def magnitudes(vectors: Sequence[torch.Tensor], largest: torch.Tensor, memory: Memory) -> None:
        """Write the largest bit pattern of each group over all vectors, without signs."""

    def encode(self, blocks: Sequence[int], addends: Sequence[Sequence[torch.Tensor]],
               parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """Write the words of each block, and return their checksums.

        A block has a list of addends, which are binary32, or integers as int32; its words are the sums of the
        addends' integers.
        """

    def checksums(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """Checksums of the words of blocks, shape (blocks, 2), int64: the sum of words and the sum of their prefix
        sums, modulo 2**32."""

    def finish(self, parts: Sequence[torch.Tensor], results: Sequence[torch.Tensor]) -> None:
        """Write the sums of all blocks as binary32."""


def blocks_of(device: torch.device) -> type[Blocks]:
    """The fastest implementation on a device: compiled for a CPU if there is a compiler, else tensor operations."""
    if device.type == "cpu" and compiled_blocks.is_available():
        return compiled_blocks.CompiledBlocks
    return TensorBlocks
