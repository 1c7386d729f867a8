"""Golden model of lossless bfloat16 compression: exponent codes, words and elements."""

import dataclasses
import heapq
import itertools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sim.golden import planes

__all__ = ["Code", "PrefixCode", "code_lengths"]

Bits = npt.NDArray[np.uint32]
Integers = npt.NDArray[np.int64]

_SYMBOLS = 16
_LONGEST = 6


def code_lengths(counts: npt.ArrayLike, longest: int) -> Integers:
    """Code lengths of the optimal prefix code with lengths up to ``longest`` (package-merge)."""
    weights = [int(count) for count in np.asarray(counts)]
    if len(weights) < 2 or len(weights) > 1 << longest:
        raise ValueError(f"Symbols must be 2 to {1 << longest}, not {len(weights)!r}")
    coins = sorted((count, symbol, (symbol,)) for symbol, count in enumerate(weights))
    packages: list[tuple[int, int, tuple[int, ...]]] = []
    for _ in range(longest):
        packages = list(heapq.merge(coins, packages))
        packages = [(a[0] + b[0], len(weights), a[2] + b[2])
                    for a, b in zip(packages[::2], packages[1::2], strict=False)]
    chosen = list(itertools.chain.from_iterable(package[2] for package in packages[:len(weights) - 1]))
    return np.bincount(chosen, minlength=len(weights))


@dataclasses.dataclass(frozen=True)
class Code:
    """Prefix code for fifteen exponents, given as the code length of each exponent and finally of the escape code.

    Lengths are in ascending order, from 1 to at most 6, and the code is complete.
    """

    exponents: tuple[int, ...]
    lengths: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.exponents) != _SYMBOLS - 1 or len(set(self.exponents)) != _SYMBOLS - 1:
            raise ValueError(f"Exponents must be 15 different ones, not {self.exponents!r}")
        if min(self.exponents) < 0 or max(self.exponents) > 255:
            raise ValueError(f"Exponents must be of eight bits, not {self.exponents!r}")
        lengths = self.lengths
        ascending = list(lengths) == sorted(lengths)
        if len(lengths) != _SYMBOLS or min(lengths) < 1 or max(lengths) > _LONGEST or not ascending:
            raise ValueError(f"Lengths must be 16 from 1 to 6 in ascending order, not {lengths!r}")
        if sum((1 << _LONGEST) >> length for length in lengths) != 1 << _LONGEST:
            raise ValueError(f"Lengths must be those of a complete code, not {lengths!r}")

    @classmethod
    def fitted(cls, elements: npt.ArrayLike, *, longest: int = 6) -> "Code":
        """Fit the shortest code to the given elements; if ``longest`` is 4, all codes have four bits."""
        counts = np.bincount(np.asarray(elements, np.uint32) >> 7 & 0xFF, minlength=256)
        order = np.argsort(-counts, kind="stable")[:_SYMBOLS - 1]
        escapes = counts.sum() - counts[order].sum()
        lengths = code_lengths([*counts[order], 0], longest)
        # The escape gets the longest code, which belongs to the least common symbols.
        if escapes > counts[order[-1]]:
            lengths = np.sort(code_lengths([*counts[order], escapes], longest))
        ranks = np.argsort(lengths[:-1], kind="stable")
        return cls(tuple(int(exponent) for exponent in order[ranks]), tuple(sorted(int(n) for n in lengths)))

    @property
    def codes(self) -> list[str]:
        """Code words of all exponents and of the escape, as bit strings."""
        number, before = 0, 0
        codes = []
        for length in self.lengths:
            number <<= length - before
            codes.append(f"{number:0{length}b}")
            number, before = number + 1, length
        return codes

    @property
    def words(self) -> Bits:
        """Words of the code table in a packet."""
        lengths = np.array(self.lengths, np.uint8)
        return planes.bytes_to_words(np.concatenate([
            np.array([*self.exponents, 0], np.uint8), lengths[::2] | lengths[1::2] << 4]))


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrefixCode:
    """Packet format of losslessly compressed bfloat16 elements, one per beat; it has no parameters."""

    table_words = 6

    def words(self, lengths: Sequence[int]) -> int:
        """Return the number of words in a packet, given the code lengths of the elements (with any escaped exponent)
        and of the end mark. Each element also takes one byte for its sign and fraction."""
        return self.table_words + (sum(lengths) + 8 * len(lengths) + 31) // 32

    def encode(self, elements: npt.ArrayLike, code: Code) -> Bits:
        """Compress one or more bfloat16 encodings."""
        values = np.asarray(elements, np.uint32)
        if not len(values):
            raise ValueError("Elements must be at least one, not none")
        *known, escape = code.codes
        of = dict(zip(code.exponents, known, strict=True))

        def backwards(value: int) -> str:
            return f"{value:08b}"[::-1]

        parts = []
        for element in values.tolist():
            exponent = element >> 7 & 0xFF
            parts += [backwards(element & 0x7F | element >> 15 << 7), of.get(exponent, escape + backwards(exponent))]
        parts += [backwards(0), escape, backwards(code.exponents[0])]
        bits = np.frombuffer("".join(parts).encode(), np.uint8) & 1
        return np.concatenate([code.words, planes.bytes_to_words(np.packbits(bits, bitorder="little"))])

    def decode(self, words: npt.ArrayLike) -> Bits:
        """Decode the elements of a packet."""
        packet = np.asarray(words, np.uint32)
        data = packet[:6].astype("<u4").view(np.uint8)
        lengths = [int(byte) >> shift & 15 for byte in data[16:] for shift in (0, 4)]
        code = Code(tuple(data[:15].tolist()), tuple(lengths))
        symbols = {bits: symbol for symbol, bits in enumerate(code.codes)}
        text = "".join(f"{int(word):032b}"[::-1] for word in packet[6:])
        index = 0

        def take(count: int) -> str:
            nonlocal index
            index += count
            if index > len(text):
                raise ValueError("Packet must tell its end, not end before")
            return text[index - count:index]

        elements = []
        while True:
            raw = int(take(8)[::-1], 2)
            bits = take(1)
            while bits not in symbols:
                bits += take(1)
            if symbols[bits] < _SYMBOLS - 1:
                exponent = code.exponents[symbols[bits]]
            else:
                exponent = int(take(8)[::-1], 2)
                if exponent == code.exponents[0]:
                    break
            elements.append(raw & 0x7F | raw >> 7 << 15 | exponent << 7)
        if len(text) - index >= 32:
            raise ValueError(f"Packet must end with the word that tells its end, not {(len(text) - index) // 32!r} "
                             f"words behind")
        return np.array(elements, np.uint32)
