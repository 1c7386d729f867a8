"""Arithmetic of a sum's blocks on a CPU, in compiled code that reads and writes each element once per step.

The code is compiled when it is first used, and kept in the cache folder. It uses as many threads as PyTorch.
"""

import ctypes
import functools
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from host.pytorch.reproducible.arithmetic import BLOCK, GROUP, PACKED_WIDTH
from host.pytorch.reproducible.tensor_blocks import TensorBlocks
from sim.arithmetic import library
from sim.arithmetic.library import FLAGS
from sim.verilated.toolchain import ToolError, compiler, without_comments

__all__ = ["CompiledBlocks", "build", "is_available"]

#: C++ source of the kernels.
KERNELS = without_comments(Path(__file__).parent / "kernels.cpp")

#: Argument types of each kernel; see :func:`sim.arithmetic.library.prototype`.
_ARGUMENTS = {"magnitudes": "NANA", "integers": "NAANNA", "pairs": "NAANNA", "copies": "NANNA", "checksums": "NAA",
              "sums": "NAANA", "pair_sums": "NAANA"}


def build() -> Path:
    """Compile the kernels unless they are already compiled; return the path of the library."""
    return library.built("reproducible", {"reproducible.cpp": KERNELS, "common.h": library.COMMON}, flags=FLAGS)


@functools.cache
def _library() -> ctypes.CDLL:
    """Return the library of kernels, loaded into this process."""
    return library.load(build(), _ARGUMENTS)


@functools.cache
def is_available() -> bool:
    """Return whether the kernels can be compiled and give the same bits as PyTorch; warn if the bits differ."""
    try:
        _library()
    except (ToolError, OSError):
        return False
    if not _same_bits():
        warnings.warn(f"Compiled sums must have the bits of PyTorch's operations, which are used in their place: CXX "
                      f"must name a compiler without options such as -fassociative-math, not {compiler()}",
                      stacklevel=2)
        return False
    return True


def _same_bits() -> bool:
    """Compare the kernels with tensor operations, for subnormal numbers, ties, and large elements."""
    ties = torch.arange(-16, 16) + 0.5
    elements = torch.cat([torch.arange(-16, 16) * 2.0 ** -140, torch.arange(-16, 16) * 2.0 ** 123, ties, ties * 3])
    fields = torch.tensor([1, 254, 131, 133], dtype=torch.uint8)
    for bits, width in ((32, 32), (6, 6)):
        results = []
        for kind in (CompiledBlocks, TensorBlocks):
            blocks = kind(fields, bits, width, lambda size: torch.empty(size, dtype=torch.int32))
            words = torch.empty(len(elements) if width > PACKED_WIDTH else len(elements) // 2, dtype=torch.int32)
            sums = torch.empty_like(elements)
            checksums = blocks.encode([0], [[elements]], [words])
            blocks.finish([words], [sums])
            results.append((words.tolist(), checksums.tolist(), sums.view(torch.int32).tolist()))
        if results[0] != results[1]:
            return False
    return True


@functools.cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="sums")


def _each(work: Callable[[int], None], count: int) -> None:
    """Call ``work`` with each number below ``count``, in PyTorch's number of threads. Kernels release the GIL."""
    threads = min(torch.get_num_threads(), count)
    if threads > 1:
        list(_pool(torch.get_num_threads()).map(work, range(count)))
    else:
        for number in range(count):
            work(number)


class CompiledBlocks:
    """Implementation of :class:`~host.pytorch.reproducible.blocks.Blocks` for a CPU."""

    def __init__(self, fields: torch.Tensor, bits: int, width: int, memory: Callable[[int], torch.Tensor]) -> None:
        self._bits, self._packed = bits, width <= PACKED_WIDTH
        self._fields = fields.split(BLOCK // GROUP)

    @staticmethod
    def magnitudes(vectors: Sequence[torch.Tensor], largest: torch.Tensor,
                   memory: Callable[[int], torch.Tensor]) -> None:
        """Write the largest bit pattern of each group, without signs and over all vectors, to ``largest``."""
        results, splits = largest.split(BLOCK // GROUP), [vector.split(BLOCK) for vector in vectors]

        def work(block: int) -> None:
            result = results[block]
            for number, split in enumerate(splits):
                _library().magnitudes(len(result), split[block].data_ptr(), number, result.data_ptr())

        if not vectors:
            largest.zero_()
        _each(work, len(results))

    def encode(self, blocks: Sequence[int], addends: Sequence[Sequence[torch.Tensor]],
               parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """Write the words of each block to ``parts``, and return their checksums."""
        result = torch.empty(len(parts), 2, dtype=torch.int64)

        def work(index: int) -> None:
            self._encode(self._fields[blocks[index]], addends[index], parts[index])
            self._checksums(parts[index], result[index])

        _each(work, len(parts))
        return result

    def _encode(self, fields: torch.Tensor, addends: Sequence[torch.Tensor], words: torch.Tensor) -> None:
        if not addends:
            ctypes.memset(words.data_ptr(), 0, 4 * len(words))
        kernel = _library().pairs if self._packed else _library().integers
        for number, addend in enumerate(addends):
            if addend.dtype == torch.float32:
                kernel(len(fields), addend.data_ptr(), fields.data_ptr(), self._bits, number, words.data_ptr())
            else:
                _library().copies(len(words), addend.data_ptr(), self._packed, number, words.data_ptr())

    def checksums(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the checksums of the words of each block."""
        result = torch.empty(len(parts), 2, dtype=torch.int64)
        _each(lambda index: self._checksums(parts[index], result[index]), len(parts))
        return result

    @staticmethod
    def _checksums(words: torch.Tensor, result: torch.Tensor) -> None:
        _library().checksums(len(words), words.data_ptr(), result.data_ptr())

    def finish(self, parts: Sequence[torch.Tensor], results: Sequence[torch.Tensor]) -> None:
        """Convert the words of all blocks to sums in binary32, and write them to ``results``."""
        kernel = _library().pair_sums if self._packed else _library().sums

        def work(block: int) -> None:
            fields = self._fields[block]
            kernel(len(fields), parts[block].data_ptr(), fields.data_ptr(), self._bits, results[block].data_ptr())

        _each(work, len(parts))
        if parts and not results[0].is_inference():
            torch.autograd.graph.increment_version(results[0])  # record a change, as in-place operations do
