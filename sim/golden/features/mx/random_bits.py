"""Golden model of the random bits for stochastic rounding."""

import numpy as np
import numpy.typing as npt

__all__ = ["RANDOM_BITS", "STATE_BITS", "RandomBits", "random_state"]

#: Number of random bits per element.
RANDOM_BITS = 8

#: Width of the shift register: bit t is the XOR of bits t - 127 and t - 64.
STATE_BITS = 127

_WORD_MASK = (1 << 64) - 1


def _splitmix64(state: int) -> int:
    """Return the splitmix64 output (Steele, Lea and Flood, 2014) for a state."""
    word = state
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 & _WORD_MASK
    word = (word ^ word >> 27) * 0x94D049BB133111EB & _WORD_MASK
    return word ^ word >> 31


def random_state(seed: int) -> int:
    """Return the initial state of the shift register: two splitmix64 outputs, but never zero."""
    low, high = (_splitmix64(seed + step * 0x9E3779B97F4A7C15 & _WORD_MASK) for step in (1, 2))
    return (high << 64 | low) & ((1 << STATE_BITS) - 1) or 1


class RandomBits:
    """Shift register that supplies random bits for stochastic rounding."""

    def __init__(self, seed: int) -> None:
        state = random_state(seed)
        self._bits = np.array([state >> bit & 1 for bit in range(STATE_BITS)], np.uint8)

    def take(self, count: int) -> npt.NDArray[np.int64]:
        """Take :data:`RANDOM_BITS` bits for each element, as integers with the first bit in the lowest position."""
        wanted = count * RANDOM_BITS
        bits = np.concatenate([self._bits, np.zeros(wanted, np.uint8)])
        # Up to 64 new bits can be computed at a time, since they do not depend on each other.
        for start in range(STATE_BITS, len(bits), 64):
            stop = min(start + 64, len(bits))
            bits[start:stop] = bits[start - 127:stop - 127] ^ bits[start - 64:stop - 64]
        self._bits = bits[wanted:]
        return bits[:wanted].reshape(-1, RANDOM_BITS).astype(np.int64) @ (1 << np.arange(RANDOM_BITS))
