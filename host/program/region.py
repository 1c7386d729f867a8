"""Regions of memory that commands read and write, and whether two of them meet."""

import dataclasses
import math

from hdl.group import GROUP

__all__ = ["Region"]


@dataclasses.dataclass(frozen=True)
class Region:
    """Elements of a memory that a command touches.

    Parameters
    ----------
    space : str
        Memory, as ``gradients``, ``weights`` or ``state``; any name stands for a space of its own.
    base : int
        First element; a multiple of 32.
    length : int
        Elements. Only the last group may be partial.
    stride : int
        Distance of a group from the one before, in groups; 1 is contiguous.
    alternate : int
        Elements by which the region lies further on in odd passes: a multiple of 32, negative where the
        region lies further back.
    """

    space: str
    base: int
    length: int
    stride: int = 1
    alternate: int = 0

    def __post_init__(self) -> None:
        for name, value in (("base", self.base), ("alternate", self.alternate)):
            if value % GROUP:
                raise ValueError(f"Region's {name} must be a multiple of {GROUP}, not {value!r}")
        if min(self.base, self.base + self.alternate) < 0:
            raise ValueError(f"Region must not begin before element 0, not at {self.base!r} and, in odd passes, "
                             f"{self.base + self.alternate!r}")
        if self.length < 0:
            raise ValueError(f"Region's length must be zero or more, not {self.length!r}")
        if self.stride < 1:
            raise ValueError(f"Region's stride must be at least 1, not {self.stride!r}")

    def __str__(self) -> str:
        end = self.base + self.length
        if self.stride > 1 and self.length > GROUP:
            end = GROUP * (self._groups(0)[-1] + 1)
        every = f", every {self.stride} groups" if self.stride > 1 else ""
        return f"{self.space}[{self.base}:{end}{every}]"

    def _groups(self, odd: int) -> range:
        """Numbers of the groups that the region touches in even passes (0) or odd ones (1)."""
        first = (self.base + odd * self.alternate) // GROUP
        return range(first, first + self.stride * -(-self.length // GROUP), self.stride)

    def meets(self, other: "Region", odd: int = 0, other_odd: int = 0) -> bool:
        """Whether both have an element in common.

        Parameters
        ----------
        odd, other_odd : int
            1 where the pass of this region, or of the other one, is odd.
        """
        return self.space == other.space and _common(self._groups(odd), other._groups(other_odd))


def _common(one: range, other: range) -> bool:
    """Whether two arithmetic progressions have a number in common."""
    if not one or not other:
        return False
    divisor = math.gcd(one.step, other.step)
    distance = other.start - one.start
    if distance % divisor:
        return False
    # The first number from the start of the first progression on that is in both, if neither had an end or the other
    # one a beginning (Chinese remainder theorem).
    modulus = other.step // divisor
    number = one.start + one.step * (distance // divisor * pow(one.step // divisor, -1, modulus) % modulus)
    period = one.step * modulus
    number += max(0, -(-(other.start - number) // period)) * period
    return number <= min(one[-1], other[-1])
