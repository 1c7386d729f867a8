"""Golden model of zero-value compression, and of sums of compressed streams.

Streams are arrays of ``uint32`` words, where ``last`` is set on the last word. Elements are bit patterns.
"""


import numpy as np
import numpy.typing as npt

from sim.golden import floating

__all__ = ["GROUP", "add", "add_cycles", "code_cycles", "decode", "encode", "group_sizes"]

Bits = npt.NDArray[np.uint32]
Flags = npt.NDArray[np.bool_]

#: Number of elements covered by one mask word.
GROUP = 32


def encode(elements: npt.ArrayLike) -> Bits:
    """Compress elements. A partial last group is padded with zeros; an empty vector gives no words."""
    values = np.asarray(elements, dtype=np.uint32)
    groups = np.zeros((-(-len(values) // GROUP), GROUP), np.uint32)
    groups.reshape(-1)[:len(values)] = values
    present = (groups & 0x7FFF_FFFF) != 0
    masks = np.packbits(present, axis=1, bitorder="little").view("<u4")
    words = np.concatenate([masks, groups], axis=1)
    wanted: Flags = np.concatenate([np.ones_like(masks, np.bool_), present], axis=1)
    compressed: Bits = words[wanted]
    return compressed


def decode(words: npt.ArrayLike, count: int | None = None) -> Bits:
    """Expand words into ``count`` elements, or into whole groups."""
    stream = np.asarray(words, dtype=np.uint32)
    groups = []
    start = 0
    while start < len(stream):
        present = _present(stream[start])
        stop = start + 1 + int(present.sum())
        if stop > len(stream):
            raise ValueError(f"Stream must end with a whole group, not inside of the one at word {start!r}")
        group = np.zeros(GROUP, np.uint32)
        group[present] = stream[start + 1:stop]
        groups.append(group)
        start = stop
    elements = np.concatenate(groups) if groups else np.zeros(0, np.uint32)
    if count is None:
        return elements
    if not len(elements) - GROUP < count <= len(elements):
        raise ValueError(f"Element count must end in the last group of {len(elements)} elements, not {count!r}")
    return elements[:count]


def add(a: npt.ArrayLike, b: npt.ArrayLike) -> Bits:
    """Add two compressed streams with equal group counts. A zero sum clears its mask bit."""
    left, right = decode(a), decode(b)
    if len(left) != len(right):
        raise ValueError(f"Streams must have equally many groups, not {len(left) // GROUP!r} and "
                         f"{len(right) // GROUP!r}")
    return encode(floating.add(left, right))


def group_sizes(words: npt.ArrayLike) -> npt.NDArray[np.int64]:
    """Return the number of words of each group in a stream, including its mask."""
    stream = np.asarray(words, dtype=np.uint32)
    sizes = []
    start = 0
    while start < len(stream):
        sizes.append(1 + int(stream[start]).bit_count())
        start += sizes[-1]
    return np.array(sizes, np.int64)


def code_cycles(words: npt.ArrayLike, lanes: int) -> int:
    """Minimum number of cycles to convert a stream of one word per cycle to or from ``lanes`` elements per cycle."""
    return int(np.maximum(group_sizes(words), GROUP // lanes).sum())


def add_cycles(a: npt.ArrayLike, b: npt.ArrayLike) -> int:
    """Minimum number of cycles to add two streams: one per group and one per bit set in either mask."""
    positions = (decode(a) != 0) | (decode(b) != 0)
    return len(positions) // GROUP + int(positions.sum())


def _present(mask: int) -> Flags:
    return (int(mask) >> np.arange(GROUP) & 1).astype(np.bool_)
