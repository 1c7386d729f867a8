# amaranth: UnusedElaboratable=no
# The constructor builds the arithmetic because its latencies are needed even without elaboration.
"""Fixed-point optimizer arithmetic for small FPGAs: the sum over workers, and the datapath of one lane."""

from dataclasses import dataclass

from amaranth.hdl import C, Cat, ClockSignal, Instance, Module, Mux, Signal, signed
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from hdl.floating.stages import register
from hdl.optimizer.rules import RULES, Rule, check_rules

__all__ = ["FRACTION_BITS", "INT16", "INT18", "SCALAR_WIDTH", "FixedFormat", "FixedLane", "FixedReducer",
           "MultiplierBlock", "fixed_settings_layout"]

#: Width in bits of a scalar and of each operand of a multiplier block.
SCALAR_WIDTH = 18
#: Number of fraction bits of a scalar; its range is [-2, 2).
FRACTION_BITS = 16

_ADDER_LATENCY = 1
_SATURATION_LATENCY = 2


@dataclass(frozen=True, kw_only=True)
class FixedFormat:
    """Element format of signed two's complement integers.

    The host chooses the binary point, since an update is linear in gradients, weights and state.

    Parameters
    ----------
    width : int
        Number of bits per element, 8 to 18.
    """

    width: int

    def __post_init__(self):
        if not isinstance(self.width, int) or not 8 <= self.width <= SCALAR_WIDTH:
            raise ValueError(f"Width must be an integer between 8 and {SCALAR_WIDTH}, not {self.width!r}")


INT16 = FixedFormat(width=16)
INT18 = FixedFormat(width=18)


def fixed_settings_layout():
    """Layout of an update's scalars: signed, with :data:`FRACTION_BITS` fraction bits."""
    scalar = signed(SCALAR_WIDTH)
    return data.StructLayout({"rule": Rule, "gradient_scale": scalar, "learning_rate": scalar, "momentum": scalar})


class MultiplierBlock(wiring.Component):
    """Multiply two signed integers in one ECP5 DSP block with registers before, within and after it.

    The product is on ``o`` :attr:`latency` cycles after its operands. Registers have no reset.

    Parameters
    ----------
    primitive : bool
        Instantiate MULT18X18D and use its internal registers, which Yosys does not infer. Simulators then need a
        model of the primitive. Both variants have the same outputs in every cycle.

    Members
    -------
    a, b : In(signed(18))
    clear : In(1)
        Replace the product that appears in the next cycle with zero.
    o : Out(signed(36))
    """

    latency = 3

    a: In(signed(SCALAR_WIDTH))
    b: In(signed(SCALAR_WIDTH))
    clear: In(1)
    o: Out(signed(2 * SCALAR_WIDTH))

    def __init__(self, *, primitive=False):
        if primitive not in (False, True):
            raise ValueError(f"Use of the primitive must be True or False, not {primitive!r}")
        self._primitive = primitive
        super().__init__()

    def elaborate(self, platform):
        m = Module()
        if not self._primitive:
            operands = register(m, "operands", a=self.a, b=self.b)
            inner = register(m, "inner", product=operands.a * operands.b)
            outer = register(m, "outer", product=Mux(self.clear, 0, inner.product))
            m.d.comb += self.o.eq(outer.product)
            return m
        ports = {"i_CLK0": ClockSignal(), "i_CE0": C(1, 1), "i_RST0": self.clear, "i_RST1": C(0, 1),
                 "i_SIGNEDA": C(1, 1), "i_SIGNEDB": C(1, 1), "i_SOURCEA": C(0, 1), "i_SOURCEB": C(0, 1)}
        for n in range(SCALAR_WIDTH):
            ports |= {f"i_A{n}": self.a[n], f"i_B{n}": self.b[n], f"i_C{n}": C(0, 1)}
        for n in range(2 * SCALAR_WIDTH):
            ports[f"o_P{n}"] = self.o[n]
        for stage in ("INPUTA", "INPUTB", "PIPELINE", "OUTPUT"):
            ports |= {f"p_REG_{stage}_CLK": "CLK0", f"p_REG_{stage}_CE": "CE0",
                      f"p_REG_{stage}_RST": "RST0" if stage == "OUTPUT" else "RST1"}
        m.submodules.block = Instance("MULT18X18D", p_GSR="DISABLED", p_RESETMODE="SYNC", **ports)
        return m


class FixedReducer(wiring.Component):
    """Add one element from each worker in a balanced tree indexed by worker.

    Each level adds one bit, so nothing saturates and the order does not matter. A single worker's element passes
    unchanged. Latency is :attr:`latency` cycles, one per level; throughput is one sum per cycle. There is no
    handshake, and registers have no reset.

    Parameters
    ----------
    workers : int
        Number of elements to add, 1 to 8.
    format : FixedFormat

    Members
    -------
    i : In(ArrayLayout(signed(format.width), workers))
    o : Out(signed(:attr:`width`))
    """

    def __init__(self, *, workers, format=INT18):
        if not isinstance(workers, int) or not 1 <= workers <= 8:
            raise ValueError(f"Worker count must be between 1 and 8, not {workers!r}")
        if not isinstance(format, FixedFormat):
            raise TypeError(f"Format must be a FixedFormat, not {format!r}")
        self._workers = workers
        self._format = format
        super().__init__({
            "i": In(data.ArrayLayout(signed(format.width), workers)),
            "o": Out(signed(self.width)),
        })

    @property
    def adder_latency(self):
        return _ADDER_LATENCY

    @property
    def latency(self):
        """Latency in cycles from the elements to their sum."""
        return _ADDER_LATENCY * ceil_log2(self._workers)

    @property
    def width(self):
        """Width of the sum in bits."""
        return self._format.width + ceil_log2(self._workers)

    def elaborate(self, platform):
        m = Module()
        level = list(self.i)
        while len(level) > 1:
            pairs = zip(level[::2], level[1::2], strict=False)
            sums = [register(m, "level", sum=left + right).sum for left, right in pairs]
            if len(level) % 2:
                sums.append(register(m, "level", waiting=level[-1]).waiting)
            level = sums
        m.d.comb += self.o.eq(level[0])
        return m


class FixedLane(wiring.Component):
    """Compute one new weight per cycle from the sum of its gradients, in fixed point.

    With round(x) = floor(x + 1/2), which rounds half up, and sat(x) as the nearest number in the format,

    - :attr:`Rule.SGD` has d = sat(round(gradient_scale * sum));
    - :attr:`Rule.MOMENTUM` has d = sat(round(momentum * state + gradient_scale * sum)), which is also the new state;

    and the new weight is sat(weight - round(learning_rate * d)). Sums and products are exact: each of the two steps
    rounds once and saturates once. The host includes dampening in gradient_scale.

    Rounding half up costs no logic: the half for the first step is the low bit of a carry chain, and the half for the
    second step is the borrow of the subtraction. This rounding is unbiased except for ties, which are one in 65,536
    of evenly spread products.

    Operands are taken, and results appear, when the arithmetic needs or produces them: counted from the cycle of
    ``total``, the planes of the state are taken :attr:`state_offsets` and the weight :attr:`weight_offset` cycles
    later; the new state appears :attr:`state_latencies` and the new weight :attr:`latency` cycles later. There is no
    handshake, and nothing is reset. ``settings`` must not change while operands are in flight, and ``settings.rule``
    must be one of ``rules``.

    Parameters
    ----------
    format : FixedFormat
        Format of gradients, weights and state.
    workers : int
        Number of gradients in a sum, 1 to 8.
    rules : tuple of Rule
        Rules to choose from: :attr:`Rule.SGD`, :attr:`Rule.MOMENTUM` or both.
    primitive : bool
        See :class:`MultiplierBlock`.

    Members
    -------
    settings : In(fixed_settings_layout())
    total : In(signed(width of the reducer's sum))
        The reduced gradient.
    weight : In(format.width)
    state : In(format.width).array(planes)
    new_state : Out(format.width).array(planes)
    new_weight : Out(format.width)
    """

    def __init__(self, *, format=INT18, workers=1, rules=(Rule.SGD, Rule.MOMENTUM), primitive=False):
        if not isinstance(format, FixedFormat):
            raise TypeError(f"Format must be a FixedFormat, not {format!r}")
        check_rules(rules)
        for rule in rules:
            if rule not in (Rule.SGD, Rule.MOMENTUM):
                raise ValueError(f"Rule of a fixed-point lane must be SGD or MOMENTUM, not {rule!r}")
        self._format = format
        self._rules = rules
        self._total_width = FixedReducer(workers=workers, format=format).width
        self._scale = MultiplierBlock(primitive=primitive)
        self._decay = MultiplierBlock(primitive=primitive)
        self._rate = MultiplierBlock(primitive=primitive)
        super().__init__({
            "settings": In(fixed_settings_layout()),
            "total": In(signed(self._total_width)),
            "weight": In(format.width),
            "state": In(format.width).array(self.planes),
            "new_state": Out(format.width).array(self.planes),
            "new_weight": Out(format.width),
        })

    @property
    def format(self):
        """Format of gradients, weights and state."""
        return self._format

    @property
    def rules(self):
        return self._rules

    @property
    def planes(self):
        """Number of state planes required by the rules."""
        return max(RULES[rule].planes for rule in self._rules)

    @property
    def multiplier_latency(self):
        return self._scale.latency

    @property
    def adder_latency(self):
        return _ADDER_LATENCY

    @property
    def _step_latency(self):
        """Latency in cycles from the summed gradient to the step d: product, rounding addition, momentum addition,
        saturation."""
        return self.multiplier_latency + (self.planes + 1) * _ADDER_LATENCY + _SATURATION_LATENCY

    @property
    def state_offsets(self):
        """Cycles from the summed gradient until the state of each plane is needed."""
        return (0,) * self.planes

    @property
    def state_latencies(self):
        """Latency in cycles from the summed gradient to the new state of each plane."""
        return (self._step_latency,) * self.planes

    @property
    def weight_offset(self):
        """Cycles from the summed gradient until the weight is needed."""
        return self._step_latency + self.multiplier_latency

    @property
    def latency(self):
        """Latency in cycles from the summed gradient to the new weight."""
        return self.weight_offset + _ADDER_LATENCY + _SATURATION_LATENCY

    def elaborate(self, platform):
        m = Module()
        m.submodules.scale = scale = self._scale
        m.submodules.rate = rate = self._rate
        width = self._format.width
        scalars = self.settings

        # A sum of up to 18 bits fits in the block. For a wider sum, the block takes the low 18 bits, signed; the
        # bits are multiplied outside, as Booth digits from -2 to 2. The rounding addition adds both products.
        low = self.total[:SCALAR_WIDTH].as_signed()
        m.d.comb += [scale.a.eq(scalars.gradient_scale), scale.b.eq(low)]
        product = scale.o
        settled = scale.latency
        if self.planes:
            m.submodules.decay = decay = self._decay
            m.d.comb += [decay.a.eq(scalars.momentum), decay.b.eq(self.state[0].as_signed())]
            if Rule.SGD in self._rules:
                m.d.comb += decay.clear.eq(scalars.rule == Rule.SGD)
            product = register(m, "accumulated", sum=decay.o + product).sum
            settled += _ADDER_LATENCY
        if self._total_width > SCALAR_WIDTH:
            rest = _times_digits(m, scalars.gradient_scale, self.total[SCALAR_WIDTH - 1:].as_signed(), settled)
            half = Cat(C(1, SCALAR_WIDTH - FRACTION_BITS + 1), rest).as_signed()
        else:
            half = C(1, signed(2))

        # A product can reach 2 ** total_width. If a second product is equally large, the sum needs one more bit.
        step_width = self._total_width + 2 + (self.planes and self._total_width == width)
        rounded = Signal(signed(step_width + 1))
        m.d.comb += rounded.eq(product[FRACTION_BITS - 1:].as_signed() + half)
        step = _saturate(m, "step", register(m, "rounded", step=rounded[1:]).step, width)
        if self.planes:
            m.d.comb += self.new_state[0].eq(step)

        # Subtracting an odd number of halves from twice the weight borrows from the weight, which rounds half up.
        difference = Signal(signed(width + 3))
        m.d.comb += [
            rate.a.eq(scalars.learning_rate),
            rate.b.eq(step),
            difference.eq(self.weight.as_signed().shift_left(1) - rate.o[FRACTION_BITS - 1:].as_signed()),
            self.new_weight.eq(_saturate(m, "weight", register(m, "moved", weight=difference[1:]).weight, width)),
        ]
        return m


def _saturate(m, stage, value, width):
    """Saturate to ``width`` bits within two cycles.

    The reset and set inputs of flip-flops produce the two ends of the range, without LUTs. Yosys infers them if the
    flip-flops' initial value equals the reset or set value.
    """
    sign = value[-1]
    beyond = Signal(name=f"{stage}_beyond")
    m.d.comb += beyond.eq(value[width - 1:] != sign.replicate(len(value) - width + 1))
    held = register(m, f"{stage}_held", sign=sign, rest=Mux(beyond, 0, value[:width - 1]), above=beyond & ~sign)
    ends = Signal(width - 1, name=f"{stage}_ends", init=-1, reset_less=True)
    m.d.sync += ends.eq(Mux(held.above, -1, held.rest))
    return Cat(ends, register(m, f"{stage}_ends", sign=held.sign).sign).as_signed()


def _times_digits(m, factor, digits, latency):
    """Multiply ``factor`` by ``floor((digits + 1) / 2)``, within ``latency`` cycles.

    The number is recoded into radix-4 Booth digits from -2 to 2, each based on two bits and the next lower bit. The
    multiples selected by the digits are added from the top.
    """
    digits = Cat(digits, digits[-1])
    count = (len(digits) - 1) // 2
    rows = []
    for index in range(count):
        zero = Signal(name=f"zero{index}")
        twice = Signal(name=f"twice{index}")
        below, low, high = digits[2 * index:2 * index + 3]
        m.d.comb += [zero.eq((low == below) & (high == below)), twice.eq((low == below) & (high != below))]
        multiple = Mux(twice, factor.shift_left(1), factor) ^ high.replicate(len(factor) + 1).as_signed()
        rows.append(register(m, f"row{index}", multiple=Mux(zero, 0, multiple), negative=high & ~zero))
    result = C(0, 1)
    for done, row in enumerate(reversed(rows)):
        for _ in range(done):
            row = register(m, "row", **vars(row))
        # The extra low-order bit generates the carry-in that completes the negation of a multiple.
        result = register(m, "multiples", sum=(
            Cat(row.negative, C(0, 2), result).as_signed() + Cat(row.negative, row.multiple).as_signed())[1:]
        ).sum.as_signed()
    for _ in range(latency - 1 - count):
        result = register(m, "product", rest=result).rest
    return result
