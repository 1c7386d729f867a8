"""Building blocks of the floating-point pipelines."""

from types import SimpleNamespace

from amaranth.hdl import C, Cat, Mux, Signal, Value
from amaranth.utils import ceil_log2

__all__ = [
    "Mark", "check_interval", "fold", "leading_zeros", "normalise", "normalising_steps", "register", "round_and_pack",
    "shift_left", "shift_right", "substitute", "wait",
]


def register(m, stage, **values):
    """Add registers for values at the end of a pipeline stage.

    The registers are not reset: a pipeline without handshakes has no state except the numbers in flight.

    Returns
    -------
    SimpleNamespace
        The values one cycle later, under the same names.
    """
    later = {}
    for name, value in values.items():
        later[name] = Signal(Value.cast(value).shape(), name=f"{stage}_{name}", reset_less=True)
        m.d.sync += later[name].eq(value)
    return SimpleNamespace(**later)


def wait(m, name, value, cycles):
    """Delay a value by ``cycles`` registers."""
    for _ in range(cycles):
        value = register(m, name, later=value).later
    return value


def substitute(unit, platform):
    """Return a platform's replacement for a unit's gateware, with the same ports, results and latency.

    Only simulation platforms may have a method ``get_floating_unit``.

    Returns
    -------
    Module or None
        The replacement, or None if the unit's own gateware is used.
    """
    find = getattr(platform, "get_floating_unit", None)
    return None if find is None else find(unit)


def check_interval(interval):
    """Raise ValueError unless a recurrence can be folded over ``interval`` cycles."""
    if interval not in (1, 2, 4, 8):
        raise ValueError(f"Interval must be 1, 2, 4 or 8, not {interval!r}")


def fold(trials, interval):
    """Distribute trials over the stages of a loop through which each number passes ``interval`` times.

    A number enters every ``interval`` cycles. No number in flight may pass the entry in that cycle, so the number of
    stages and the interval must be coprime. Therefore the number of stages is odd, and the last stage may have two
    trials.
    """
    rows = -(-trials // interval)
    return [1] * rows if rows % 2 else [*[1] * (rows - 2), 2]


def leading_zeros(m, value):
    """Count the zeros above the most significant set bit.

    Returns
    -------
    count : Value
        Number of leading zeros; all ones if ``value`` is zero.
    none : Value
        1 if ``value`` is zero.
    """
    if len(value) == 1:
        return C(0, 0), ~value[0]
    if len(value) == 2:  # no multiplexer, since Verilog cannot express one with zero width
        return ~value[1], ~value.any()
    # A signal for the expression: in Verilog, the whole expression would be repeated for each of its slices.
    bits = Signal(len(value), name=f"bits{len(value)}")
    m.d.comb += bits.eq(value)
    value = bits
    lower_width = 1 << (ceil_log2(len(value)) - 1)
    padding = 2 * lower_width - len(value)
    high, high_none = leading_zeros(m, value[lower_width - padding:])
    low, low_none = leading_zeros(m, Cat(C(0, padding), value[:lower_width - padding]))
    none = Signal(name=f"none{len(value)}")
    count = Signal(len(high) + 1, name=f"zeros{len(value)}")
    m.d.comb += none.eq(high_none & low_none)
    m.d.comb += count.eq(Cat(Mux(high_none, low, high), high_none))
    return count, none


class Mark:
    """One-hot mark, ``number`` positions below the highest one; all zeros if ``number`` is too large.

    Normalisation must stop at exponent zero, where the subnormal numbers begin: the leading-zero count of a number
    ORed with this mark is at most ``number``. One stage decodes the mark into rows and columns, and the next stage
    combines them in the logic of the count.

    Parameters
    ----------
    number : Value
        Unsigned number.
    width : int
        Number of positions.
    """

    def __init__(self, number, width):
        self._width = width
        self.rows = Cat(number[3:] == row for row in range(-(-width // 8)))
        self.columns = Cat(number[:3] == column for column in range(8))

    def place(self, rows, columns):
        """Return the one-hot mark, given its rows and columns from registers."""
        return Cat(row & column for row in rows for column in columns)[:self._width][::-1]


def shift_left(m, value, amount):
    """Shift left within the width of ``value``, coarse steps first."""
    for bit in reversed(range(len(amount))):
        shifted = Signal(len(value), name=f"left{1 << bit}")
        m.d.comb += shifted.eq(Mux(amount[bit], value.shift_left(1 << bit), value))
        value = shifted
    return value


def normalising_steps(width):
    """Return the steps with which :func:`normalise` can normalise any nonzero number, as one list per stage.

    The first stage also unpacks an operand and has room for one step; all other stages have room for two.
    """
    steps = [1 << bit for bit in reversed(range(ceil_log2(width)))]
    return [steps[:1], *(steps[index:index + 2] for index in range(1, len(steps), 2))]


def normalise(m, value, steps):
    """Shift left within the width of ``value``, skipping any step that would shift out a one.

    Coarse steps come first. Unlike :func:`leading_zeros` followed by :func:`shift_left`, this function can be split
    into several stages, and each step yields one bit of the count.

    Returns
    -------
    shifted : Value
    taken : Value
        One bit per step, with the finest step in the lowest bit.
    """
    taken = []
    for step in steps:
        bits = Signal(len(value), name=f"unshifted{step}")
        shifted = Signal(len(value), name=f"normal{step}")
        empty = Signal(name=f"empty{step}")
        m.d.comb += bits.eq(value)
        m.d.comb += empty.eq(~bits[-step:].any())
        m.d.comb += shifted.eq(Mux(empty, bits.shift_left(step), bits))
        value = shifted
        taken.append(empty)
    return value, Cat(reversed(taken))


def shift_right(m, value, amount, *, width):
    """Shift right, coarse steps first, and detect ones that are shifted out.

    Returns
    -------
    window : Value
        The lowest ``width`` bits of the result. Higher bits are dropped.
    lost : Value
        One bit per step, set if it shifted out a one. OR these bits in the next stage, to keep this stage short.
    """
    lost = []
    for bit in reversed(range(len(amount))):
        step = 1 << bit
        shifted = Signal(min(len(value), width + step - 1), name=f"right{step}")
        m.d.comb += shifted.eq(Mux(amount[bit], value[step:], value))
        lost.append(amount[bit] & value[:step].any())
        value = shifted
    return value, Cat(lost)


def round_and_pack(m, format, *, sign, exponent, significand, sticky, infinite, nan):
    """Round to nearest even and assemble the result, in the last stage of a pipeline.

    The exponent counts from the hidden bit: the exponent field is ``exponent + 1`` for a normal number, and 0, with
    an ``exponent`` of 0, for a subnormal number. A single addition therefore combines hidden bit, rounding carry
    and exponent, and rounding a subnormal number up to the smallest normal number is not a special case.

    Parameters
    ----------
    exponent : Value
        Exponent field of a normal result, minus one.
    significand : Value
        Hidden bit, fraction and one guard bit.
    sticky : Value
        OR of all bits below the guard bit.
    infinite : Value
        Replaces the number with an infinity.
    nan : Value
        Replaces any result with the canonical NaN.

    Returns
    -------
    View of ``format.layout``
        The registered result.
    """
    result = Signal(format.layout, name="result", reset_less=True)
    lowest, hidden = significand[1], significand[-1]
    # The lowest bit of this sum only generates the carry: guard and (sticky or odd).
    rounded = Signal(1 + format.fraction_bits + format.exponent_bits)
    m.d.comb += rounded.eq(
        Cat(significand[:-1], exponent) + Cat(sticky | lowest, C(0, format.fraction_bits), hidden))
    with m.If(infinite | nan):
        m.d.sync += result.exponent.eq(format.exponent_ones)
        m.d.sync += result.fraction.eq(nan.shift_left(format.fraction_bits - 1))
    with m.Else():
        m.d.sync += Cat(result.fraction, result.exponent).eq(rounded[1:])
    m.d.sync += result.sign.eq(sign & ~nan)
    return result
