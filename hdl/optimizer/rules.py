# amaranth: UnusedElaboratable=no
# The constructor creates the arithmetic because its latencies are needed even without elaboration.
"""Update rules, their settings, and one lane of the floating-point datapath that computes them."""

import dataclasses

from amaranth.hdl import Cat, Module, Mux, Signal, unsigned
from amaranth.lib import data, enum, wiring
from amaranth.lib.wiring import In, Out

from hdl.floating.add import FloatAdder
from hdl.floating.compare import MagnitudeLimiter
from hdl.floating.divide import FloatDivider
from hdl.floating.format import FP32
from hdl.floating.multiply import FloatMultiplier
from hdl.floating.square_root import FloatSquareRoot
from hdl.streams.delay import DelayLine

__all__ = [
    "MAX_PLANES", "ONE", "RULES", "SIGN", "Rule", "Traits", "UpdateLane", "check_rules", "has_rule",
    "planes_used", "settings_layout",
]


class Rule(enum.IntEnum, shape=unsigned(4)):
    """Update rule selected in register OPTIMIZER, which computes new weights from gradients."""

    SGD = 0
    MOMENTUM = 1
    ADAM = 2
    ADAMW = 3

    @property
    def planes(self):
        """Number of state planes that the rule needs."""
        return RULES[self].planes


@dataclasses.dataclass(frozen=True, kw_only=True)
class Traits:
    """Properties of a rule that the burst and the datapath depend on.

    Parameters
    ----------
    planes : int
        Number of state planes that the rule reads and writes, starting with plane 0.
    adaptive : bool
        Whether the step is divided by the square root of the second plane.
    decoupled : bool
        Whether weight decay acts on the weight instead of the gradient.
    """

    planes: int
    adaptive: bool = False
    decoupled: bool = False


RULES = {
    Rule.SGD: Traits(planes=0),
    Rule.MOMENTUM: Traits(planes=1),
    Rule.ADAM: Traits(planes=2, adaptive=True),
    Rule.ADAMW: Traits(planes=2, adaptive=True, decoupled=True),
}


#: Maximum number of state planes of any rule.
MAX_PLANES = max(traits.planes for traits in RULES.values())


def planes_used(rule, planes):
    """Return a bit mask of the state planes, out of ``planes``, that a rule uses."""
    return Cat(
        Cat(rule == each for each, traits in RULES.items() if traits.planes > plane).any() for plane in range(planes)
    )


def has_rule(rule, planes):
    """Return whether a node with ``planes`` state planes supports a rule; False for invalid rule numbers."""
    return Cat(rule == each for each, traits in RULES.items() if traits.planes <= planes).any()


def check_rules(rules):
    """Raise ValueError unless ``rules`` is a nonempty tuple of distinct rules."""
    if (
        not isinstance(rules, tuple)
        or not rules
        or not all(isinstance(rule, Rule) for rule in rules)
        or len(set(rules)) != len(rules)
    ):
        raise ValueError(f"Rules must be a tuple of different rules, not {rules!r}")


def settings_layout():
    """Layout of the settings of an update, with floats as bits; see docs/optimizer/rules.md for the equations."""
    return data.StructLayout(
        {
            "rule": Rule,
            "nesterov": 1,
            "gradient_scale": FP32.width,
            "clip": FP32.width,
            "weight_factor": FP32.width,
            "learning_rate": FP32.width,
            "first_decay": FP32.width,
            "first_gain": FP32.width,
            "second_decay": FP32.width,
            "second_gain": FP32.width,
            "epsilon": FP32.width,
        }
    )


#: Encodings of 1.0 and -0.0; -0.0 has only the sign bit set.
ONE = FP32.bias << FP32.fraction_bits
SIGN = 1 << FP32.width - 1


class UpdateLane(wiring.Component):
    """Compute one new weight per cycle from the sum of its gradients.

    The gradient is g = limit(gradient_scale * sum), plus weight_factor * weight unless weight decay is off or
    decoupled. From g, the rule computes a step d:

    - :attr:`Rule.SGD` has d = g;
    - :attr:`Rule.MOMENTUM` has m' = first_decay * m + first_gain * g and d = m', or with ``nesterov`` d =
      first_decay * m' + g;
    - :attr:`Rule.ADAM` and :attr:`Rule.ADAMW` have m' as above, v' = second_decay * v + (second_gain * g) * g, and
      d = m' / (sqrt(v') + epsilon).

    The new weight is weight - learning_rate * d, where ADAMW replaces weight by weight_factor * weight.

    Each operation rounds once, to nearest even. All rules of a lane share its arithmetic and have the same latency:
    an operation that a rule does not need adds -0.0, or multiplies or divides by 1.0, which changes no number.
    Results are undefined for a rule that the lane does not support.

    There is no handshake: operands are sampled when the arithmetic needs them, and results appear when it produces
    them. All properties below are counted from the cycle of ``total``. ``settings`` must be stable while any operand
    is in flight and in the cycle before.

    Parameters
    ----------
    rules : tuple of Rule
        Supported rules. SGD needs three multipliers and two adders; momentum six and four (including one of each for
        Nesterov's step); Adam and AdamW eight and five, a square root and a divider.
    dsps : int
        DSP blocks per multiplier: 4, 2 or 1.

    Members
    -------
    settings : In(settings_layout())
    total : In(32)
        The reduced gradient.
    weight : In(32)
    state : In(32).array(planes)
    new_state : Out(32).array(planes)
    new_weight : Out(32)
    """

    def __init__(self, *, rules=tuple(Rule), dsps=4):
        check_rules(rules)
        self._rules = rules
        self._planes = max(RULES[rule].planes for rule in rules)
        self._adaptive = any(RULES[rule].adaptive for rule in rules)
        self._decoupled = any(RULES[rule].decoupled for rule in rules)
        self._dsps = dsps
        # One unit of each kind, created only to read its latency.
        self._multiplier = FloatMultiplier(dsps=dsps)
        self._adder = FloatAdder()
        self._limiter = MagnitudeLimiter()
        self._root = FloatSquareRoot()
        self._divider = FloatDivider()
        super().__init__(
            {
                "settings": In(settings_layout()),
                "total": In(FP32.width),
                "weight": In(FP32.width),
                "state": In(FP32.width).array(self._planes),
                "new_state": Out(FP32.width).array(self._planes),
                "new_weight": Out(FP32.width),
            }
        )

    @property
    def rules(self):
        return self._rules

    @property
    def planes(self):
        """Number of state planes that the lane's rules need."""
        return self._planes

    @property
    def multiplier_latency(self):
        return self._multiplier.latency

    @property
    def adder_latency(self):
        return self._adder.latency

    @property
    def limiter_latency(self):
        return self._limiter.latency

    @property
    def root_latency(self):
        return self._root.latency

    @property
    def divider_latency(self):
        return self._divider.latency

    @property
    def weight_offset(self):
        """Cycles from the summed gradient until the weight must be supplied."""
        return self.limiter_latency

    @property
    def _gradient(self):
        """Latency in cycles from the summed gradient to the gradient after weight decay."""
        return self.multiplier_latency + self.limiter_latency + self.adder_latency

    @property
    def _multiply_add(self):
        return self.multiplier_latency + self.adder_latency

    @property
    def state_offsets(self):
        """For each plane, cycles from ``total`` until its state must be supplied."""
        return tuple(self._gradient + plane * self._multiply_add for plane in range(self._planes))

    @property
    def state_latencies(self):
        """Latency in cycles from the summed gradient to each plane's new state."""
        return tuple(offset + self._multiply_add for offset in self.state_offsets)

    @property
    def _step(self):
        """Latency in cycles from the summed gradient to the optimizer's step."""
        looks_ahead = 2 * self._multiply_add if self._planes else 0
        adapts = self.root_latency + self.adder_latency + self.divider_latency if self._adaptive else 0
        return self._gradient + looks_ahead + adapts

    @property
    def latency(self):
        """Latency in cycles from the summed gradient to the new weight."""
        return self._step + self._multiply_add

    def elaborate(self, platform):
        m = Module()
        settings = self.settings

        def unit(name, component, a, b):
            m.submodules[name] = component
            m.d.comb += [component.a.eq(a), component.b.eq(b)]
            return component.o

        def multiply(name, a, b):
            return unit(name, FloatMultiplier(dsps=self._dsps), a, b)

        def add(name, a, b):
            return unit(name, FloatAdder(), a, b)

        def delay(name, value, cycles):
            m.submodules[name] = line = DelayLine(shape=FP32.width, cycles=cycles)
            m.d.comb += line.i.eq(value)
            return line.o

        def chosen(trait):
            """Return a register that is set if the command's rule, which is then stable, has the given trait."""
            flag = Signal(name=trait)
            with m.Switch(settings.rule):
                for rule in self._rules:
                    with m.Case(rule):
                        m.d.sync += flag.eq(bool(getattr(RULES[rule], trait)))
            return flag

        stateful, adaptive, decoupled = chosen("planes"), chosen("adaptive"), chosen("decoupled")
        couples = Signal()
        m.d.sync += couples.eq(~decoupled & settings.weight_factor[:-1].any())

        # Scale and clip the gradient and apply weight decay. Both kinds of decay use the decayed weight.
        scaled = multiply("scale", settings.gradient_scale, self.total)
        m.submodules.limiter = limiter = MagnitudeLimiter()
        m.d.comb += [limiter.i.eq(scaled), limiter.limit.eq(settings.clip)]
        decayed = multiply("decay", settings.weight_factor, self.weight)
        gradient = add("couple", Mux(couples, decayed, SIGN), limiter.o)
        weight = delay("weight_line", self.weight, self.multiplier_latency)
        start = Mux(decoupled, decayed, weight) if self._decoupled else weight
        start = delay("start_line", start, self._step - self.limiter_latency)

        # Compute the step. The second multiplier and adder compute Adam's second moment or Nesterov's look-ahead.
        step = gradient
        if self._planes:
            kept = multiply("first_decay", settings.first_decay, self.state[0])
            gained = multiply("first_gain", Mux(stateful, settings.first_gain, ONE), gradient)
            first = add("first", Mux(stateful, kept, SIGN), gained)
            m.d.comb += self.new_state[0].eq(first)
            delayed = delay("gradient_line", gradient, self.adder_latency)
            if not self._adaptive:
                again = multiply("ahead", settings.first_decay, first)
                late = delay("late_gradient_line", delayed, 2 * self.multiplier_latency)
                straight = delay("first_line", first, self.multiplier_latency)
                step = add(
                    "look", Mux(settings.nesterov & stateful, again, SIGN),
                    Mux(settings.nesterov & stateful, late, straight)
                )
            else:
                gain = multiply("second_gain", settings.second_gain, delayed)
                late = delay("late_gradient_line", delayed, self.multiplier_latency)
                square = multiply("square", gain, late)
                late = delay("later_gradient_line", late, self.multiplier_latency)
                straight = delay("first_line", first, self.multiplier_latency)
                ahead = Signal()  # Nesterov's step; without it, and without a second plane, the first addend is -0.0
                m.d.sync += ahead.eq(settings.nesterov & stateful & ~adaptive)
                again = multiply(
                    "second_decay", Mux(adaptive, settings.second_decay, settings.first_decay),
                    Mux(adaptive, self.state[1], first)
                )
                second = add(
                    "second", Mux(adaptive | ahead, again, SIGN), Mux(adaptive, square, Mux(ahead, late, straight))
                )
                m.d.comb += self.new_state[1].eq(second)
                m.submodules.root = root = FloatSquareRoot()
                m.d.comb += root.a.eq(second)
                denominator = add("epsilon", root.o, settings.epsilon)
                straight = delay("straight_line", straight, self.adder_latency)
                numerator = delay(
                    "numerator_line", Mux(adaptive, straight, second), self.root_latency + self.adder_latency
                )
                step = unit("divide", FloatDivider(), numerator, Mux(adaptive, denominator, ONE))

        moved = multiply("rate", settings.learning_rate, step)
        m.d.comb += self.new_weight.eq(add("move", start, moved ^ SIGN))
        return m
