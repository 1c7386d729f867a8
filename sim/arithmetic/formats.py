"""Compiled codecs of the ring, and compiled arithmetic of a rank at each hop.

Results are bit-identical to the golden models: the codecs of :data:`sim.golden.codecs.CODECS`,
:func:`sim.golden.floating.add`, and the steps of :mod:`sim.golden.ring`. All arrays are one-dimensional,
contiguous arrays of ``uint32``. Elements are binary32 bit patterns.

The kernels of each format form a separate library, which is compiled when it is first used.
"""

import ctypes
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hdl.registry import FEATURES as REGISTRY
from hdl.registry import feature_of_format
from sim.arithmetic.format_source import FormatSource, header
from sim.arithmetic.library import COMMON, FLAGS, address, built, checked, prototype
from sim.arithmetic.library import load as load_functions
from sim.golden import floating
from sim.golden.codecs import CODECS, RAW, Codec
from sim.golden.lazy_table import LazyTable, OnDemand
from sim.golden.ring import Part
from sim.golden.zero_value import GROUP
from sim.verilated.toolchain import ToolError, compiler, without_comments

__all__ = ["FEATURES", "PIECE", "TEXT", "Kernels", "add", "arithmetic", "base_of", "kernels", "load",
           "names", "nonzeros"]

Bits = npt.NDArray[np.uint32]
_Source = Callable[[Any], FormatSource]

_FOLDER = Path(__file__).parent

#: C++ source of additions and hops.
TEXT = without_comments(_FOLDER / "formats.cpp")

#: Number of elements that a hop processes at a time. In every format, they fill a whole number of words.
PIECE = 1024

#: Argument types of the compiled functions; see :func:`sim.arithmetic.library.prototype`.
_ARITHMETIC = {"add": "NAAA", "nonzeros": "NANA", "patterns": "NAANA", "load": "NNAA", "store": "NNAA",
               "step": "AANNAAAA", "hop": "AANNNAAAAA", "pack": "ANNNAA", "unpack": "ANNNAA"}
_CODEC = {"encode": "ANAA", "decode": "ANANA"}


def _same(source: _Source) -> _Source:
    return source


#: For each feature that adds formats with kernels, the function that returns the kernels of a codec.
FEATURES: LazyTable[_Source] = LazyTable({
    "bf16": OnDemand("sim.arithmetic.features.bf16.kernel:source", _same),
    "mx": OnDemand("sim.arithmetic.features.mx.kernel:source", _same),
    "nvfp4": OnDemand("sim.arithmetic.features.nvfp4.kernel:source", _same),
    "codebook": OnDemand("sim.arithmetic.features.codebook.kernel:source", _same),
    "table": OnDemand("sim.arithmetic.features.table.kernel:source", _same),
})


def load(*, flags: Sequence[str] = FLAGS, text: str = TEXT) -> ctypes.CDLL:
    """Load the library of additions and hops, compiling it if necessary."""
    files = {"formats.cpp": text, "common.h": COMMON, "blocks.h": without_comments(_FOLDER / "blocks.h"),
             "constants.h": header({"PIECE": PIECE, "GROUP": GROUP})}
    return load_functions(built("formats", files, flags=flags), _ARITHMETIC)


@functools.cache
def arithmetic() -> ctypes.CDLL:
    """Return the library of additions and hops of this process.

    Raises
    ------
    ToolError
        No compiler is available, or the compiled additions differ from the golden model.
    """
    loaded = load()
    if not _adds(loaded):
        raise ToolError(f"{compiler()} must make sums that are rounded to nearest even and may be subnormal, and its "
                        f"library does not; CXX must name a compiler without options such as -ffast-math")
    return loaded


def _adds(library: ctypes.CDLL) -> bool:
    """Whether sums with ties, subnormal numbers, infinities and NaNs are bit-identical to the golden model."""
    numbers = np.array([0, 1, 2, 0x7F_FFFF, 0x80_0000, 0x3380_0000, 0x3F80_0000, 0x3F80_0001, 0x7F7F_FFFF,
                        0x7F80_0000, 0x7F80_0001, 0x7FC0_0000], np.uint32)
    numbers = np.concatenate([numbers, numbers | np.uint32(1 << 31)])
    a, b = (pairs.reshape(-1) for pairs in np.meshgrid(numbers, numbers))
    sums = np.empty_like(a)
    library.add(len(a), address(a), address(b), address(sums))
    return np.array_equal(sums, floating.add(a, b))


class Kernels:
    """Kernels of one codec; :func:`kernels` returns them.

    Parameters
    ----------
    codec : Codec
        Golden model, with its codebook.
    source : FormatSource
        Source of the kernels.
    flags : sequence of str
        Compiler options.
    """

    def __init__(self, codec: Codec, source: FormatSource, *, flags: Sequence[str] = FLAGS) -> None:
        self.codec = codec
        self.source = source
        self._table = None if source.codebook is None else address(source.codebook)
        library = ctypes.CDLL(str(built(source.path.stem, source.files(), flags=flags)))
        for name, arguments in _CODEC.items():
            prototype(library, name, arguments, ctypes.c_int64)
        self._encode, self._decode = library.encode, library.decode
        #: Addresses of the functions that encode and decode a packet, for :func:`arithmetic`.
        self.entries = tuple(ctypes.cast(function, ctypes.c_void_p) for function in (self._encode, self._decode))

    def encode(self, x: Bits, words: Bits) -> int:
        """Encode elements as the words of a packet.

        Parameters
        ----------
        x : array of shape (count,)
            Elements, as bit patterns.
        words : array of shape (codec.max_words(count),)
            Array that receives the words; it must not overlap ``x``.

        Returns
        -------
        int
            Number of words; only with a table of exponents may it be less than the length of ``words``.
        """
        source = checked("Elements", x)
        target = checked("Words", words, self.codec.max_words(len(x)), written=True)
        result: int = self._encode(self._table, len(x), source, target) if len(x) else 0
        return result

    def decode(self, words: Bits, out: Bits) -> None:
        """Decode a packet into ``out``, an array with one entry per element; the arrays must not overlap.

        Raises
        ------
        ValueError
            The words are not a packet of ``len(out)`` elements.
        """
        source, target = checked("Words", words), checked("Elements", out, written=True)
        most = self.codec.max_words(len(out))
        if self.source.fixed and len(words) != most:
            raise ValueError(f"Words of {len(out)!r} elements must be {most!r}, not {len(words)!r}")
        if len(out) and self._decode(self._table, len(out), source, len(words), target) < 0:
            raise ValueError(f"Words must be a packet of {len(out)!r} elements, not {len(words)!r} other words")

    def hop(self, gradient: Bits, *, part: Part | None = None, received: Bits | None = None,
            residual: Bits | None = None, words: Bits | None = None, result: Bits | None = None) -> None:
        """Perform one rank's hop for one block: add its gradient to the received sum, and encode the new sum.

        The block is one packet. A packet with a multiple of 128 elements fills whole words. Therefore a block of
        several such packets, the last of which may be shorter, has the same words as a single packet.

        Parameters
        ----------
        gradient : array of shape (count,)
            Gradient of this rank, in which -0 counts as +0.
        part : Part, optional
            Elements of the block. Gradient, residual and result are then vectors that contain these elements.
        received : array of shape (codec.max_words(count),), optional
            Words of the sum of the previous ranks; omitted by the first rank of a block.
        residual : array of shape (count,), optional
            Coding errors of this rank, which are added to its gradient, and then replaced. They are unused if the
            codec is exact or without ``words``.
        words : array of shape (codec.max_words(count),), optional
            Array for the words of the new sum; it may be ``received``. Omitted if the sum is not encoded.
        result : array of shape (count,), optional
            Array for the decoded words, or for the sum if it is not encoded; it may be ``gradient``.
        """
        if not self.codec.gradients:
            raise ValueError("Codec must be one for gradients, not for weights only")
        part = _whole(gradient) if part is None else part
        size = self.codec.max_words(part.count)
        if self.codec.exact or words is None:
            residual = None
        packets = [None if x is None else checked(name, x, size, written=written) for name, x, written in (
            ("Received words", received, False), ("Words", words, True))]
        vectors = [None if x is None else base_of(name, x, part, written=written) for name, x, written in (
            ("Gradient", gradient, False), ("Residuals", residual, True), ("Result", result, True))]
        arithmetic().hop(*self.entries, self.codec.max_words(PIECE), part.count, part.stride, packets[0],
                         *vectors[:2], packets[1], vectors[2])

    def pack(self, memory: Bits, part: Part, words: Bits) -> None:
        """Encode the elements of a part of a vector, as the words of :meth:`hop`."""
        self._check_fixed()
        arithmetic().pack(self.entries[0], self.codec.max_words(PIECE), part.count, part.stride,
                          base_of("Memory", memory, part),
                          checked("Words", words, self.codec.max_words(part.count), written=True))

    def unpack(self, words: Bits, memory: Bits, part: Part) -> None:
        """Replace the elements of a part of a vector by those of words; the inverse of :meth:`pack`."""
        self._check_fixed()
        arithmetic().unpack(self.entries[1], self.codec.max_words(PIECE), part.count, part.stride,
                            checked("Words", words, self.codec.max_words(part.count)),
                            base_of("Memory", memory, part, written=True))

    def _check_fixed(self) -> None:
        if self._table is not None or not self.source.fixed:
            raise ValueError("Codec must have packets of a fixed size and no codebook")


def _whole(vector: Bits) -> Part:
    """All elements of a vector, as a part of stride 1."""
    return Part(0, slice(0, 1), np.array([len(vector)]), 0, 1)


def base_of(name: str, memory: Bits, part: Part, *, written: bool = False) -> int:
    """Address of the first element of a part; raises ValueError unless the vector contains the whole part."""
    base = checked(name, memory, written=written)
    if part.count:
        last = part.first + (part.count - 1) // GROUP * GROUP * part.stride + (part.count - 1) % GROUP
        if last >= len(memory):
            raise ValueError(f"{name} must be of at least {last + 1} numbers, not {len(memory)!r}")
    return base + 4 * part.first


def kernels(name: str, codebook: npt.ArrayLike | None = None) -> Kernels:
    """Kernels of a codec of :data:`sim.golden.codecs.CODECS`.

    Parameters
    ----------
    name : str
        Name of the codec.
    codebook : array of uint32, optional
        Its codebook, as for ``bind`` of the codec.

    Raises
    ------
    ValueError
        The codec has no kernels.
    ToolError
        No compiler is available.
    """
    return _kernels(name, None if codebook is None else tuple(np.asarray(codebook, np.uint32).tolist()))


@functools.lru_cache(maxsize=64)
def _kernels(name: str, codebook: tuple[int, ...] | None) -> Kernels:
    if name not in names():
        raise ValueError(f"Codec must be one of {', '.join(names())}, not {name!r}")
    codec = CODECS[name] if codebook is None else CODECS[name].bind(codebook)
    source = _raw if name == RAW else FEATURES[feature_of_format(name)]
    return Kernels(codec, source(codec))


def _raw(codec: Codec) -> FormatSource:
    return FormatSource(path=_FOLDER / "raw.cpp")


def names() -> tuple[str, ...]:
    """Names of the codecs that have kernels, in the order of :data:`sim.golden.codecs.CODECS`."""
    added = {name for feature, entry in REGISTRY.items() if feature in FEATURES for name in entry.formats}
    return tuple(name for name in CODECS if name == RAW or name in added)


def add(a: Bits, b: Bits, out: Bits) -> None:
    """Add arrays of equal length like :func:`sim.golden.floating.add`; ``out`` may be ``a`` or ``b``."""
    arithmetic().add(len(a), checked("Addends", a), checked("Addends", b, len(a)),
                     checked("Sums", out, len(a), written=True))


def nonzeros(x: Bits, segment: int) -> npt.NDArray[np.int64]:
    """Number of elements other than +0 and -0 in each segment of ``segment`` elements; the last may be shorter."""
    if segment < 1:
        raise ValueError(f"Segment must be at least 1, not {segment!r}")
    counts = np.empty(-(-len(x) // segment), np.int64)
    arithmetic().nonzeros(len(x), checked("Elements", x), segment, address(counts))
    return counts
