"""Arithmetic of a sum's blocks on any device, with tensor operations."""

from collections.abc import Callable, Sequence

import torch

from host.pytorch.reproducible import arithmetic
from host.pytorch.reproducible.arithmetic import BLOCK, GROUP, PACKED_WIDTH

__all__ = ["TensorBlocks"]


class TensorBlocks:
    """Implementation of :class:`~host.pytorch.reproducible.blocks.Blocks` for all devices."""

    def __init__(self, fields: torch.Tensor, bits: int, width: int, memory: Callable[[int], torch.Tensor]) -> None:
        self._bits, self._packed = bits, width <= PACKED_WIDTH
        groups = len(fields)
        sizes = [groups, groups, min(BLOCK, groups * GROUP)]
        up, down, scratch = memory(sum(sizes)).split(sizes)
        self._up = arithmetic.quantizing_scales(fields, bits, BLOCK // GROUP, up)
        # Unpacking multiplies integers by 2**16, which the factors must undo.
        self._down = arithmetic.rounding_scales(fields, bits + 16 * self._packed, BLOCK // GROUP, down)
        self._scratch = scratch.view(torch.float32)
        self._offsets = arithmetic.offsets(fields.device)

    @staticmethod
    def magnitudes(vectors: Sequence[torch.Tensor], largest: torch.Tensor,
                   memory: Callable[[int], torch.Tensor]) -> None:
        """Write the largest bit pattern of each group, without signs and over all vectors, to ``largest``."""
        scratch = memory(min(BLOCK, len(largest) * GROUP)).view(torch.float32)
        largest.zero_()
        for number, vector in enumerate(vectors):
            for part, own in zip(vector.split(BLOCK), largest.split(BLOCK // GROUP), strict=True):
                if number:
                    torch.maximum(own, arithmetic.magnitudes(part, scratch[:len(part)]), out=own)
                else:
                    arithmetic.magnitudes(part, scratch[:len(part)], own)

    def encode(self, blocks: Sequence[int], addends: Sequence[Sequence[torch.Tensor]],
               parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """Write the words of each block to ``parts``, and return their checksums."""
        sums = []
        for block, own, words in zip(blocks, addends, parts, strict=True):
            self._encode(block, own, words)
            sums.append(arithmetic.partial_sums(words))
        return arithmetic.checksums(sums)

    def _encode(self, block: int, addends: Sequence[torch.Tensor], words: torch.Tensor) -> None:
        if not addends:
            words.zero_()
        for number, addend in enumerate(addends):
            if self._packed:
                arithmetic.pack(self._halves(block, addend), words, add=number > 0)
            elif addend.dtype == torch.int32:
                words.copy_(words + addend if number else addend)
            elif number:
                words += self._integers(block, addend, self._scratch[:len(addend)])
            else:
                self._integers(block, addend, words.view(torch.float32))

    def _halves(self, block: int, addend: torch.Tensor) -> arithmetic.Halves:
        if addend.dtype == torch.int32:
            low, high = addend.view(2, -1)
            return low, high
        return arithmetic.quantize_halves(addend, self._up[block], self._bits, self._offsets,
                                          self._scratch[:len(addend)])

    def _integers(self, block: int, addend: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        """Convert an addend to integers, and return them as int32 in ``memory``."""
        quantized = arithmetic.quantize(addend, self._up[block], self._bits, memory)
        return memory.view(torch.int32).copy_(quantized)

    def checksums(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the checksums of the words of each block."""
        return arithmetic.checksums([arithmetic.partial_sums(part) for part in parts])

    def finish(self, parts: Sequence[torch.Tensor], results: Sequence[torch.Tensor]) -> None:
        """Convert the words of all blocks to sums in binary32, and write them to ``results``."""
        for words, factors, result in zip(parts, self._down, results, strict=True):
            scratch = self._scratch[:len(result)]
            integers = arithmetic.unpack(words, scratch.view(torch.int32)) if self._packed else words
            arithmetic.round_sum(integers, factors, result, scratch)
