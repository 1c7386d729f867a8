# amaranth: UnusedElaboratable=no
# Units are created even where they are not elaborated, because their latencies are needed.
"""Operand formats of a matrix product: rounding, and multiplication in the array."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

from amaranth.hdl import unsigned

from hdl.features.compute.feature import FP32, OPERAND_NAMES
from hdl.floating.format import FP32 as BINARY32
from hdl.floating.multiply import FloatMultiplier
from hdl.registry import codes, feature, feature_of_format

__all__ = ["OPERANDS", "Operands", "ScalarOperands",
           "operands_of", "scalar_of"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Operands:
    """An operand format.

    Parameters
    ----------
    code : int
        Number of the format in an instruction.
    """

    code: int

    @property
    def terms(self):
        """Number of terms added to a sum in one step."""
        return 1

    def make_array(self, name, *, rows, columns, dsps):
        """Create an array of ``rows`` x ``columns`` units with ``dsps`` DSP blocks each, for format ``name``."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScalarOperands(Operands):
    """Format for operands that are multiplied one by one, in a :class:`~hdl.features.compute.array.MacArray`.

    Parameters
    ----------
    a, b : shape
        Shapes of the factors in the array. Columns also accept unrounded numbers as initial values of sums.
    rounder : callable, optional
        Creates a unit that converts elements to factors, with ``exact`` set for columns; by default, no conversion.
    multiplier : callable
        Creates a unit that multiplies factors using a given number of DSP blocks; the product is in binary32.
    """

    a: Any
    b: Any
    rounder: Callable[..., Any] | None
    multiplier: Callable[[int], Any]

    @property
    def rounding(self):
        """Cycles from an element to its factor."""
        return 0 if self.rounder is None else self.rounder(exact=False).latency

    def product_latency(self, dsps):
        """Cycles from elements to their product."""
        return self.rounding + self.multiplier(dsps).latency

    def make_array(self, name, *, rows, columns, dsps):
        from hdl.features.compute.array import MacArray

        return MacArray(rows=rows, columns=columns, dsps=dsps, operands=name)


@functools.cache
def _operands_of(owner):
    return feature(owner).operands()


class _Operands(Mapping):
    """Formats keyed by name, in order of code; formats of features are imported on first use."""

    def __getitem__(self, name):
        if name == FP32:
            return _FP32
        if name not in OPERAND_NAMES:
            raise KeyError(name)
        return _operands_of(feature_of_format(name))[name]

    def __iter__(self):
        return iter(OPERAND_NAMES)

    def __len__(self):
        return len(OPERAND_NAMES)


_FP32 = ScalarOperands(code=0, a=unsigned(BINARY32.width), b=unsigned(BINARY32.width), rounder=None,
                       multiplier=lambda dsps: FloatMultiplier(dsps=dsps))

#: Formats by name.
OPERANDS = _Operands()


def operands_of(name):
    """Return the format called ``name``; raise ValueError if there is no such format."""
    if name not in OPERAND_NAMES:
        raise ValueError(f"Operands must be one of {', '.join(OPERAND_NAMES)}, not {name!r}")
    return OPERANDS[name]


def scalar_of(name):
    """Return the scalar format called ``name``; raise ValueError if there is no such format."""
    names = [candidate for candidate in OPERAND_NAMES if candidate == FP32 or not codes(candidate).blocks]
    if name not in names:
        raise ValueError(f"Operands must be one of {', '.join(names)}, not {name!r}")
    return OPERANDS[name]
