"""Arithmetic of the blocks of a sum: the interface of its implementations, and the choice of one for a device."""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from host.pytorch.reproducible import compiled_blocks
from host.pytorch.reproducible.tensor_blocks import TensorBlocks

__all__ = ["Blocks", "Memory", "blocks_of"]

#: Function that returns an uninitialized int32 vector of a given length.
Memory = Callable[[int], torch.Tensor]


class Blocks(Protocol):
    """Interface of the arithmetic of a sum's blocks. All implementations give the same bits.

    Parameters
    ----------
    fields : Tensor
        Exponent fields of all groups, of which there is at least one.
    bits : int
        Number of bits of each addend.
    width : int
        Number of bits of a sum. With at most 16 bits, a word holds two sums.
    memory : Memory
        Allocates memory that the blocks use until the end of the sum.
    """

    def __init__(self, fields: torch.Tensor, bits: int, width: int, memory: Memory) -> None: ...

    @staticmethod
    def magnitudes(vectors: Sequence[torch.Tensor], largest: torch.Tensor, memory: Memory) -> None:
        """Write the largest bit pattern of each group, without signs and over all vectors, to ``largest``."""

    def encode(self, blocks: Sequence[int], addends: Sequence[Sequence[torch.Tensor]],
               parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """Write the words of each block to ``parts``, and return their checksums.

        Each block has a list of addends: binary32, which is converted to integers, or integers in int32. The block's
        words are the sums of the integers.
        """

    def checksums(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the checksums of blocks as int64 of shape (blocks, 2): the sum of a block's words and the sum of
        their prefix sums, modulo 2**32."""

    def finish(self, parts: Sequence[torch.Tensor], results: Sequence[torch.Tensor]) -> None:
        """Convert the words of all blocks to sums in binary32, and write them to ``results``."""


def blocks_of(device: torch.device) -> type[Blocks]:
    """Return the fastest implementation for a device: compiled code on a CPU with a compiler, otherwise PyTorch."""
    if device.type == "cpu" and compiled_blocks.is_available():
        return compiled_blocks.CompiledBlocks
    return TensorBlocks
