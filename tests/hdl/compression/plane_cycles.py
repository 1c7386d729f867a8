"""Cycle models for packing and unpacking bit planes, shared by all codecs with tables."""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from sim.golden import stream
from sim.golden.planes import PLANE

Flags = npt.NDArray[np.bool_]


@dataclasses.dataclass(frozen=True)
class Trace(stream.Trace):
    """Handshakes of a codec in each cycle; arrays for absent inputs are empty."""

    scan_valid: Flags
    scan_ready: Flags


class Packer:
    """Computes the cycles in which a packer accepts chunks of bytes and loads beats of words."""

    def __init__(self, words: int, ready: npt.ArrayLike) -> None:
        self.output = stream.Output(ready)
        self.size = 4 * words
        self._place = 0
        self._left = 0  # cycle in which the previous chunk leaves the input register
        self._packed = -1  # cycle in which the previous chunk is completely packed

    def free(self, cycle: int) -> int:
        """Return the first cycle, not before ``cycle``, in which a chunk would be accepted."""
        return max(cycle, self._left)

    def take(self, cycle: int, count: int, *, align: bool = False, last: bool = False) -> int:
        """Offer a chunk from the given cycle on; return the cycle in which it is accepted."""
        taken = self.free(cycle)
        self._left = max(taken, self._packed) + 1
        total = self._place + count
        padded = (total + 3) // 4 * 4 if align or last else total
        if padded >= self.size or last:
            self._left = self.output.load(self._left)
        self._packed = self._left
        if (last and padded > self.size) or padded == 2 * self.size:
            self._packed = self.output.load(self._left + 1)
            padded = 0
        self._place = 0 if last else padded % self.size
        return taken


class Unpacker:
    """Computes the cycles in which an unpacker accepts beats of words and shows their bytes."""

    def __init__(self, words: int, count: int, willing: npt.ArrayLike) -> None:
        self.feed = stream.Feed(count, willing)
        self._size = 4 * words
        self._place = 0
        self._front = self.feed.accept(0) + 1  # cycle in which the current beat became the front beat
        self._back = self.feed.accept(self._front)  # cycle in which the next beat is accepted

    def shown(self, count: int) -> int:
        """Return the first cycle in which the next ``count`` bytes are available at the output."""
        behind = self._place + count > self._size
        return max(self._front, self._back if behind else 0) + 1

    def take(self, cycle: int, count: int, *, align: bool = False, last: bool = False) -> None:
        """Consume bytes in a cycle; with ``last``, they are the last bytes of their packet."""
        self._place += count
        if align:
            self._place = -(-self._place // 4) * 4
        if self._place > self._size or (self._place == self._size and not last):
            self._place -= self._size
            self._leave(cycle)
        if last or self._place == self._size:
            self._place = 0
            self._leave(cycle + 1)

    def _leave(self, cycle: int) -> None:
        """Let the front beat leave, and move the next beat to the front."""
        self._front = max(self._back + 1, cycle)
        self._back = self.feed.accept(self._front)


def chunks(count: int, size: int) -> list[int]:
    """Return the sizes of the chunks that carry ``count`` bytes."""
    return [min(size, count - start) for start in range(0, count, size)]


class Registers:
    """Register stages of an encoder, with the cycle in which the previous beat leaves each stage."""

    def __init__(self, feed: stream.Feed, stages: int) -> None:
        self._feed = feed
        self._left = [0] * (stages + 1)

    @property
    def free(self) -> int:
        """First cycle in which the next beat may be accepted."""
        return self._left[0]

    def beat(self, opened: int, leave: Callable[[int], int], *, real: bool) -> None:
        """Advance by one beat, or by the zeros at the end; ``leave`` returns the cycle in which the last register is
        left.
        """
        cycle = self._left[0] + 1
        if real:
            cycle = self._feed.accept(max(self._left[0], opened)) + 1
        for stage, following in enumerate(self._left[1:]):
            cycle = max(cycle, following)
            self._left[stage] = cycle
            cycle += 1
        self._left[-1] = leave(cycle)


class Eights:
    """Bit planes of eight codes, which move to the packer in one or more chunks."""

    def __init__(self, packer: Packer) -> None:
        self._packer = packer
        self._taken = 0  # cycle in which the last chunk of the previous codes was accepted

    def give(self, cycle: int, opened: int, sizes: Sequence[int], *, held: bool, last: bool) -> tuple[int, int]:
        """Return the cycles, not before ``cycle``, in which codes leave their register and their last chunk is
        accepted.
        """
        if not held:
            taken = self._packer.take(max(cycle, opened), sizes[0], last=last)
            return taken, taken
        left = max(cycle, self._taken)
        self._taken = left
        for number, size in enumerate(sizes):
            self._taken = self._packer.take(
                max(self._taken + 1, opened), size, last=last and number == len(sizes) - 1)
        return left, self._taken


class Decoding:
    """Decoder of valid packets that consumes the bytes of tables and looks up codes."""

    def __init__(self, words: int, packets: Sequence[npt.ArrayLike], willing: npt.ArrayLike,
                 ready: npt.ArrayLike) -> None:
        self._size = 4 * words
        self._unpacker = Unpacker(words, sum(-(-len(np.asarray(packet)) // words) for packet in packets), willing)
        self._output = stream.Output(ready)
        self._free = 0  # first cycle in which bytes may be consumed
        self._looked = 0  # cycle in which the last beat of codes is accepted for look-up
        self._loaded = 0  # cycle in which the last beat of codes is output

    def take(self, count: int, *, align: bool = False) -> None:
        """Consume bytes of a table."""
        cycle = max(self._free, self._unpacker.shown(count))
        self._unpacker.take(cycle, count, align=align)
        self._free = cycle + 1

    def codes(self, count: int, width: int, lanes: int, *, tabled: bool = True) -> None:
        """Consume the bytes of a packet's codes; the next table must wait until all of them have been looked up."""
        eights = count // width
        for eight in range(eights):
            sizes = chunks(width, self._size)
            for number, size in enumerate(sizes):
                closing = number == len(sizes) - 1
                cycle = max(self._free, self._unpacker.shown(size), self._looked if closing else 0)
                self._unpacker.take(cycle, size, last=closing and eight == eights - 1)
                self._free = cycle + 1
            for _ in range(PLANE // lanes):
                self._looked = max(self._free, self._looked + 1, self._loaded)
                self._loaded = self._output.load(self._looked + 1)
        if tabled:
            self._free = max(self._free, self._looked + 1)

    @property
    def trace(self) -> Trace:
        """Return the handshakes of every cycle."""
        feed, none = self._unpacker.feed, np.zeros(0, np.bool_)
        return Trace(feed.valid, feed.ready, self._output.offered >= 0, self._output.offered, none, none)
