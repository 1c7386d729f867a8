"""Compiled collectives of all ranks of a ring in one process.

The functions have the arguments and schedules of :mod:`sim.golden.ring`; results, residuals and traffic are equal.
Only the operations on elements are compiled; the optimizer of fused updates is not. Gradient codecs without kernels,
such as sums of integers, use the golden model.

All arrays must be arrays of ``uint32``; each vector, or row of several vectors, must be contiguous.
"""

import functools
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from sim.arithmetic import formats
from sim.arithmetic.library import address, checked
from sim.golden import ring
from sim.golden.codecs import CODECS, Codec
from sim.golden.ring import Arithmetic, Part

__all__ = ["CompiledArithmetic", "all_gather", "all_reduce", "distribute", "fused_update", "kernels_of",
           "reduce_scatter"]

Bits = npt.NDArray[np.uint32]


def kernels_of(codec: Codec) -> formats.Kernels | None:
    """Compiled kernels of a golden codec with its codebook, or None if the codec has no kernels."""
    for name in formats.names():
        if CODECS[name].code == codec.code:
            kernels = formats.kernels(name, getattr(codec, "codebook", None) or None)
            return kernels if kernels.codec == codec else None
    return None


class CompiledArithmetic(Arithmetic):
    """Compiled kernels for the golden ring's operations on elements."""

    def __init__(self) -> None:
        self._latest: tuple[Codec | None, formats.Kernels | None] = None, None

    def _kernels(self, codec: Codec) -> formats.Kernels | None:
        """Kernels of a codec, cached because all hops of a collective use the same codec."""
        latest, kernels = self._latest
        if latest is not codec:
            kernels = kernels_of(codec)
            self._latest = codec, kernels
        return kernels

    def read(self, memory: Bits, part: Part) -> Bits:
        """Read the elements of a part of a vector from memory."""
        values = np.empty(part.count, np.uint32)
        formats.arithmetic().load(part.count, part.stride, formats.base_of("Memory", memory, part), address(values))
        return values

    def write(self, memory: Bits, part: Part, values: Bits) -> None:
        """Write the elements of a part of a vector to memory."""
        formats.arithmetic().store(part.count, part.stride, checked("Values", values, part.count),
                                   formats.base_of("Memory", memory, part, written=True))

    def hop(self, gradients: Bits, part: Part, partial: Bits | None, codec: Codec | None = None,
            residuals: Bits | None = None) -> Bits:
        """Add a rank's gradients to a sum, which is encoded and decoded; ``partial`` is overwritten."""
        kernels = self._kernels(codec) if codec is not None and codec.gradients else None
        if codec is not None and kernels is None:
            return super().hop(gradients, part, partial, codec, residuals)
        result = np.empty(part.count, np.uint32) if partial is None else partial
        formats.arithmetic().step(
            *((None, None) if kernels is None else kernels.entries), part.count, part.stride,
            None if partial is None else checked("Sums", partial, part.count, written=True),
            formats.base_of("Gradients", gradients, part),
            None if residuals is None else formats.base_of("Residuals", residuals, part, written=True),
            address(result))
        return result

    def nonzeros(self, values: Bits, part: Part, gradients: Bits | None = None) -> npt.NDArray[np.int64]:
        """Number of elements in each segment that are nonzero in ``values`` or in the gradients."""
        counts = np.zeros(len(part.sizes), np.int64)
        own = None if gradients is None else self.read(gradients, part)
        formats.arithmetic().patterns(part.count, checked("Values", values, part.count),
                                      None if own is None else address(own), max(int(part.sizes[0]), 1),
                                      address(counts))
        return counts

    def through(self, codec: Codec, values: Bits, part: Part) -> tuple[Bits, npt.NDArray[np.int64]]:
        """Encode and decode each segment of ``values``; return the decoded values and the words of each segment."""
        kernels = self._kernels(codec)
        if kernels is None:
            return super().through(codec, values, part)
        result, words = np.empty_like(values), np.empty(codec.max_words(part.count), np.uint32)
        if kernels.source.fixed:
            # Segments begin at block boundaries, so all segments together decode to the same elements as one packet.
            kernels.decode(words[:kernels.encode(values, words)], result)
            return result, np.array([codec.max_words(size) for size in part.sizes.tolist()], np.int64)
        lengths = []
        for segment in _segments(part):
            packet = words[:codec.max_words(segment.stop - segment.start)]
            lengths.append(kernels.encode(values[segment], packet))
            kernels.decode(packet[:lengths[-1]], result[segment])
        return result, np.array(lengths, np.int64)


def _segments(part: Part) -> Iterator[slice]:
    start = 0
    for size in part.sizes.tolist():
        yield slice(start, start + size)
        start += size


_COMPILED = CompiledArithmetic()

all_reduce = functools.partial(ring.all_reduce, arithmetic=_COMPILED)
reduce_scatter = functools.partial(ring.reduce_scatter, arithmetic=_COMPILED)
fused_update = functools.partial(ring.fused_update, arithmetic=_COMPILED)
distribute = functools.partial(ring.distribute, arithmetic=_COMPILED)
all_gather = functools.partial(ring.all_gather, arithmetic=_COMPILED)
