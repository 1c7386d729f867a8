# amaranth: UnusedElaboratable=no
# The arithmetic is made in the constructor: its latencies are asked for even where nothing is elaborated.
"""What an update computes: the rules, their settings, and the datapath of one lane."""

import dataclasses

from amaranth.hdl import Module, Mux, Signal, unsigned
from amaranth.lib import data, enum, wiring
from amaranth.lib.wiring import In, Out

from hdl.floating.add import FloatAdder
from hdl.floating.format import FP32
from hdl.floating.multiply import FloatMultiplier

__all__ = ["RULES", "Rule", "Traits", "UpdateLane", "settings_layout"]


class Rule(enum.Enum, shape=unsigned(1)):
    """How a weight follows its gradient."""

    SGD = 0
    MOMENTUM = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Traits:
    """What the burst and the datapath need to know of a rule.

    Parameters
    ----------
    planes : int
        State planes that the rule reads and writes, from plane 0.
    accumulates : bool
        Whether the step follows ``momentum * state[0] + gradient``, which becomes the new state, or the gradient.
    """

    planes: int
    accumulates: bool


RULES = {
    Rule.SGD: Traits(planes=0, accumulates=False),
    Rule.MOMENTUM: Traits(planes=1, accumulates=True),
}


def settings_layout():
    """The scalars of an update, as the registers hold them: floats as bits."""
    return data.StructLayout({"rule": Rule, "gradient_scale": 32, "learning_rate": 32, "momentum": 32})


class UpdateLane(wiring.Component):
    """One new weight per cycle, from the sum of its gradients.

    With g = gradient_scale * sum, the step d is

    - of :attr:`Rule.SGD`, g;
    - of :attr:`Rule.MOMENTUM`, momentum * state + g, which is also the new state;

    and the new weight is weight - learning_rate * d. Each operation rounds once, to nearest even. All rules share the
    three multipliers and two adders: for SGD the addend is -0.0, which leaves every g as it is, +0.0 and -0.0
    included. So one latency holds for all rules.

    Operands are taken, and results appear, where the arithmetic has them: counted from the cycle of ``total``, the
    state is taken in the same cycle, the weight :attr:`weight_offset` cycles later, the new state appears
    :attr:`state_latency` and the new weight :attr:`latency` cycles later. There is no handshake. ``settings`` must
    not change while anything is in flight.

    Parameters
    ----------
    dsps : int
        DSP blocks each multiplier may use: 4, 2 or 1.

    Members
    -------
    settings : In(settings_layout())
    total : In(32)
        The reduced gradient.
    state : In(32)
    weight : In(32)
    new_state : Out(32)
    new_weight : Out(32)
    """

    settings: In(settings_layout())
    total: In(32)
    state: In(32)
    weight: In(32)
    new_state: Out(32)
    new_weight: Out(32)

    def __init__(self, *, dsps=4):
        super().__init__()
        self._scale = FloatMultiplier(dsps=dsps)
        self._decay = FloatMultiplier(dsps=dsps)
        self._accumulate = FloatAdder()
        self._rate = FloatMultiplier(dsps=dsps)
        self._subtract = FloatAdder()

    @property
    def multiplier_latency(self):
        return self._scale.latency

    @property
    def adder_latency(self):
        return self._accumulate.latency

    @property
    def state_latency(self):
        """Cycles from the sum to the new state."""
        return self.multiplier_latency + self.adder_latency

    @property
    def weight_offset(self):
        """Cycles from the sum to the weight that belongs to it."""
        return self.state_latency + self.multiplier_latency

    @property
    def latency(self):
        """Cycles from the sum to the new weight."""
        return self.weight_offset + self.adder_latency

    def elaborate(self, platform):
        m = Module()
        m.submodules.scale = scale = self._scale
        m.submodules.decay = decay = self._decay
        m.submodules.accumulate = accumulate = self._accumulate
        m.submodules.rate = rate = self._rate
        m.submodules.subtract = subtract = self._subtract

        accumulates = Signal()
        with m.Switch(self.settings.rule):
            for rule, traits in RULES.items():
                with m.Case(rule):
                    m.d.comb += accumulates.eq(traits.accumulates)

        sign = 1 << FP32.width - 1
        m.d.comb += [
            scale.a.eq(self.settings.gradient_scale),
            scale.b.eq(self.total),
            decay.a.eq(self.settings.momentum),
            decay.b.eq(self.state),
            accumulate.a.eq(Mux(accumulates, decay.o, sign)),
            accumulate.b.eq(scale.o),
            self.new_state.eq(accumulate.o),
            rate.a.eq(self.settings.learning_rate),
            rate.b.eq(accumulate.o),
            subtract.a.eq(self.weight),
            subtract.b.eq(rate.o ^ sign),
            self.new_weight.eq(subtract.o),
        ]
        return m
