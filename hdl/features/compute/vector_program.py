"""Program of the vector unit: a table of multiply-add steps that each run for all threads of a lane."""

import dataclasses
import enum

from hdl.floating.format import FP32

__all__ = ["EXPONENTIAL", "LOGARITHM", "QUOTIENT", "ROOT_HALF_FRACTION", "SCALE", "STEPS", "SUM", "THREADS", "Addend",
           "Count", "Factor", "Loop", "Step", "Take"]

#: Number of threads per lane, and of cycles per step: the multiply-add's latency plus two registers.
THREADS = 16

ONE = FP32.bias << FP32.fraction_bits
NEGATIVE_ZERO = 1 << (FP32.width - 1)

#: Constants of docs/numbers.md: 1 / ln 2, 1.5 * 2^23, ln 2 in two parts; polynomials, lowest power first.
_LOG2_E, _MAGIC = 0x3FB8_AA3B, 0x4B40_0000
_LN2_HIGH, _LN2_LOW = 0x3F31_7200, 0x35BF_BE8E
_EXP = (0x3F00_0000, 0x3E2A_AA6E, 0x3D2A_AA75, 0x3C09_05B8, 0x3AB6_A193)
_LOG = (0xBEFF_FFFF, 0x3EAA_AAA7, 0xBE80_0103, 0x3E4C_D1F6, 0xBE2A_4441, 0x3E11_4B9D, 0xBE06_2926, 0x3E03_4B72,
        0xBDA1_1BFE)

#: Smallest argument for which the exponential is computed: -104.
LEAST = 0xC2D0_0000
#: Fraction bits of sqrt(1/2); if a fraction is at least this, the logarithm halves the significand.
ROOT_HALF_FRACTION = 0x35_04F3
#: Power of two that scales up an exponential, so that only the last product can round.
SCALE = 64


class Factor(enum.IntEnum):
    """Choice of the first factor in a step; it applies to every thread."""

    RESULT = 0
    """Result of the previous step."""
    LIMITED = 1
    """Result of the previous step, but at least -104."""
    SCALED = 2
    """Result of the previous step, times two to the power of :data:`SCALE` minus the count."""
    SIGNIFICAND = 3
    """Result of the previous step, divided by two to the power of the count."""
    COUNT = 4
    """The count as a number."""
    ELEMENT = 5
    """Element of the matrix."""


class Addend(enum.IntEnum):
    """Choice of the addend in a step; it applies to every thread."""

    CONSTANT = 0
    """The step's constant."""
    RESULT = 1
    """Result of the previous step."""
    KEPT = 2
    """The kept number."""
    LARGEST = 3
    """Largest element of the row, negated."""
    CHOSEN = 4
    """Difference at the label of the row, negated."""


class Count(enum.IntEnum):
    """Integer that a step extracts from the previous result and keeps for later steps."""

    NONE = 0
    POWER = 1
    """Negated integer in the low bits of a sum with 1.5 · 2^23."""
    EXPONENT = 2
    """Exponent of a number of at least 1, with a significand between the square roots of 1/2 and of 2."""


class Take(enum.IntEnum):
    """Destination of the previous step's result."""

    NOTHING = 0
    ELEMENT = 1
    """The results replace the elements with which the completed iteration of the loop began."""
    CHOSEN = 2
    """Difference of the row, if the element is at the row's label."""
    TOTAL = 3
    """Total of the row."""
    LOSS = 4
    """Loss of the row, in place of the difference."""


class Loop(enum.IntEnum):
    """Choice of the next step."""

    NEXT = 0
    ELEMENTS = 1
    """The program's first step, until all elements are done."""
    COLUMNS = 2
    """The same step, once for each column; the first time, the addend is the constant."""
    END = 3
    """No further step."""


@dataclasses.dataclass(frozen=True)
class Step:
    """One step of a program: every thread computes ``a · b + c``.

    Members
    -------
    a : Factor
    b : int or None
        Constant, or None for the kept number.
    c : Addend
    constant : int
    keep : bool
        Whether to keep the first factor for later steps.
    count : Count
    take : Take
    loop : Loop
    """

    a: Factor = Factor.RESULT
    b: int | None = None
    c: Addend = Addend.CONSTANT
    constant: int = NEGATIVE_ZERO
    keep: bool = False
    count: Count = Count.NONE
    take: Take = Take.NOTHING
    loop: Loop = Loop.NEXT


def _polynomial(coefficients):
    """Steps of Horner's rule for the previous result, with coefficients from the lowest power up."""
    *rest, second, first = coefficients
    return (Step(b=first, constant=second, keep=True), *(Step(constant=constant) for constant in reversed(rest)))


#: Steps of the exponential of each element minus its row's largest: x - max; x · log₂e + 1.5 · 2²³, with n in the low
#: bits; (x - n h) - n l; polynomial; ((p r) r + r) + 1; the power of two.
EXPONENTIAL = (
    Step(a=Factor.ELEMENT, b=ONE, c=Addend.LARGEST, take=Take.ELEMENT),
    Step(a=Factor.LIMITED, b=_LOG2_E, constant=_MAGIC, keep=True, take=Take.CHOSEN),
    Step(a=Factor.COUNT, b=_LN2_HIGH, c=Addend.KEPT, count=Count.POWER),
    Step(a=Factor.COUNT, b=_LN2_LOW, c=Addend.RESULT),
    *_polynomial(_EXP),
    Step(),
    Step(c=Addend.KEPT),
    Step(b=ONE, constant=ONE),
    Step(a=Factor.SCALED, b=(FP32.bias - SCALE) << FP32.fraction_bits, loop=Loop.ELEMENTS),
)

#: Steps that add up the exponentials of each row; they follow one step that stores the last exponentials.
SUM = (
    Step(b=ONE, take=Take.ELEMENT),
    Step(a=Factor.ELEMENT, b=ONE, c=Addend.RESULT, constant=0, loop=Loop.COLUMNS),
)

#: Steps of the logarithm of the sum minus the difference at the label: m - 1; polynomial; (((p m) m + n l) + m) + n
#: h.
LOGARITHM = (
    Step(a=Factor.SIGNIFICAND, b=ONE, constant=NEGATIVE_ZERO | ONE, count=Count.EXPONENT, take=Take.TOTAL),
    *_polynomial(_LOG),
    Step(),
    Step(),
    Step(a=Factor.COUNT, b=_LN2_LOW, c=Addend.RESULT),
    Step(b=ONE, c=Addend.KEPT),
    Step(a=Factor.COUNT, b=_LN2_HIGH, c=Addend.RESULT),
    Step(b=ONE, c=Addend.CHOSEN),
    Step(b=ONE, take=Take.LOSS, loop=Loop.END),
)

#: Single step for quotients and losses; the addend is -1.0 at the label, or the sum of the losses so far.
QUOTIENT = (Step(a=Factor.ELEMENT, b=ONE),)

STEPS = (*EXPONENTIAL, *SUM, *LOGARITHM, *QUOTIENT)
"""All steps, in order of execution."""
