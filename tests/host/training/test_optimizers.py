import dataclasses
import math

import numpy as np
import pytest

from hdl.control.registers import REGISTERS, Access, Kind
from host.driver.optimizer_settings import Rule, Settings
from host.training.optimizers import LEARNING_RATES, SGD, Adam, AdamW, OptimizerName, create, falls, moments_note
from sim.golden import moments
from sim.golden import optimizer as golden
from tests.refusals import refuses


class TestErrors:
    @pytest.mark.parametrize(("make", "message"), [
        (lambda: SGD(learning_rate=-1), "Learning rate must be a finite number from 0 to 3.40282e+38, not -1"),
        (lambda: SGD(learning_rate=math.nan),
         "Learning rate must be a finite number from 0 to 3.40282e+38, not nan"),
        (lambda: Adam(learning_rate=math.inf),
         "Learning rate must be a finite number from 0 to 3.40282e+38, not inf"),
        (lambda: SGD(learning_rate=1, weight_decay=-0.5),
         "Weight decay must be a finite number from 0 to 3.40282e+38, not -0.5"),
        (lambda: AdamW(weight_decay=math.inf),
         "Weight decay must be a finite number from 0 to 3.40282e+38, not inf"),
        (lambda: SGD(learning_rate=1, clip=-1.0), "Clip must be None or a finite number of 0 or more, not -1.0"),
        (lambda: Adam(clip=math.inf), "Clip must be None or a finite number of 0 or more, not inf"),
        (lambda: SGD(learning_rate=1, momentum=-0.9),
         "Momentum must be a finite number from 0 to 3.40282e+38, not -0.9"),
        (lambda: SGD(learning_rate=1, dampening=math.nan), "Dampening must be a finite number, not nan"),
        (lambda: SGD(learning_rate=1, nesterov=True),
         "Nesterov's momentum must be above zero and its dampening zero, not 0.0 and 0.0"),
        (lambda: SGD(learning_rate=1, momentum=0.9, dampening=0.1, nesterov=True),
         "Nesterov's momentum must be above zero and its dampening zero, not 0.9 and 0.1"),
        (lambda: Adam(betas=(0.9, 1.0)), "Betas must be two numbers of at least 0 and below 1, not (0.9, 1.0)"),
        (lambda: AdamW(betas=(0.9,)), "Betas must be two numbers of at least 0 and below 1, not (0.9,)"),
        (lambda: Adam(eps=-1e-8), "Epsilon must be a finite number from 0 to 3.40282e+38, not -1e-08"),
    ])
    def test_arguments(self, make, message):
        refuses(message, make)

    @pytest.mark.parametrize("optimizer", [SGD(learning_rate=1), Adam(), AdamW()], ids=lambda kind: kind.name)
    def test_step(self, optimizer):
        refuses("Step must be at least 1, not 0", optimizer.settings, 0, gradient_scale=1)


class TestKinds:
    @pytest.mark.parametrize(("optimizer", "name", "rule", "planes"), [
        (SGD(learning_rate=1), "sgd", Rule.SGD, 0),
        (SGD(learning_rate=1, momentum=0.9), "momentum", Rule.MOMENTUM, 1),
        (SGD(learning_rate=1, momentum=0.9, nesterov=True), "nesterov", Rule.MOMENTUM, 1),
        (Adam(), "adam", Rule.ADAM, 2),
        (AdamW(), "adamw", Rule.ADAMW, 2),
    ], ids=lambda value: str(value) if isinstance(value, str) else None)
    def test_name_rule_and_planes(self, optimizer, name, rule, planes):
        assert (optimizer.name, optimizer.rule, optimizer.planes) == (name, rule, planes)
        assert optimizer.settings(1, gradient_scale=1).rule is rule

    def test_defaults_of_torch(self):
        assert Adam() == Adam(learning_rate=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, clip=None)
        assert AdamW() == AdamW(learning_rate=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=1e-2, clip=None)
        assert SGD(learning_rate=1) == SGD(learning_rate=1, momentum=0, dampening=0, nesterov=False, weight_decay=0)

    def test_frozen(self):
        with pytest.raises(dataclasses.FrozenInstanceError):
            Adam().learning_rate = 1


class TestSettings:
    def test_sgd(self):
        optimizer = SGD(learning_rate=0.5, weight_decay=0.25, clip=3)
        expected = Settings(rule=Rule.SGD, gradient_scale=0.1, learning_rate=0.5, clip=3, weight_factor=0.25)
        assert optimizer.settings(1, gradient_scale=0.1) == optimizer.settings(9, gradient_scale=0.1) == expected
        assert SGD(learning_rate=0.5).settings(1, gradient_scale=1).clip == math.inf

    def test_momentum_starts_with_the_gradient(self):
        """Dampening has no effect in the first step, as in PyTorch."""
        optimizer = SGD(learning_rate=0.5, momentum=0.75, dampening=0.25)
        expected = Settings(rule=Rule.MOMENTUM, gradient_scale=1, learning_rate=0.5, first_decay=0.75, first_gain=1)
        assert optimizer.settings(1, gradient_scale=1) == expected
        assert optimizer.settings(2, gradient_scale=1) == dataclasses.replace(expected, first_gain=0.75)

    def test_nesterov(self):
        optimizer = SGD(learning_rate=0.5, momentum=0.75, nesterov=True)
        assert optimizer.settings(3, gradient_scale=1) == Settings(
            rule=Rule.MOMENTUM, gradient_scale=1, learning_rate=0.5, first_decay=0.75, first_gain=1, nesterov=True)

    def test_adam(self):
        optimizer = Adam(learning_rate=0.5, betas=(0.5, 0.75), eps=0.125, weight_decay=2)
        assert optimizer.settings(1, gradient_scale=1) == Settings(
            rule=Rule.ADAM, gradient_scale=1, learning_rate=0.5 * 0.5 / 0.5, epsilon=0.125 * 0.5, weight_factor=2,
            first_decay=0.5, first_gain=0.5, second_decay=0.75, second_gain=0.25)
        later = optimizer.settings(2, gradient_scale=1)
        assert later.learning_rate == 0.5 * math.sqrt(0.4375) / 0.75
        assert later.epsilon == 0.125 * math.sqrt(0.4375)

    def test_adam_in_the_long_run(self):
        settings = Adam(learning_rate=0.5).settings(10**6, gradient_scale=1)
        assert (settings.learning_rate, settings.epsilon) == (0.5, 1e-8)

    def test_adamw(self):
        optimizer = AdamW(learning_rate=0.5, weight_decay=0.25)
        plain = Adam(learning_rate=0.5).settings(3, gradient_scale=1)
        assert optimizer.settings(3, gradient_scale=1) == dataclasses.replace(
            plain, rule=Rule.ADAMW, weight_factor=1 - 0.5 * 0.25)

    def test_scheduled_learning_rate(self):
        """A learning rate schedule replaces the optimizer's rate everywhere, even in AdamW's weight decay."""
        for optimizer in (SGD(learning_rate=1), Adam(learning_rate=1), AdamW(learning_rate=1, weight_decay=0.5)):
            scheduled = optimizer.settings(4, gradient_scale=1, learning_rate=0.25)
            assert scheduled == dataclasses.replace(optimizer, learning_rate=0.25).settings(4, gradient_scale=1)
            assert optimizer.settings(4, gradient_scale=1, learning_rate=0).learning_rate == 0


class TestRegisters:
    def test_names(self):
        """Every setting of the optimizer has a register, and all other registers with floating-point values are for
        masks."""
        floats = {entry.name for entry in REGISTERS if entry.kind is Kind.FLOAT32 and entry.access is Access.SETTING}
        floats -= {"MASK_ALTERNATIVE", "MASK_THRESHOLD"}
        assert set(Settings(rule=Rule.SGD, gradient_scale=1, learning_rate=1).registers()) == floats | {"OPTIMIZER"}
        assert {field.name for field in dataclasses.fields(Settings)} == (
            {name.lower() for name in floats} | {"rule", "nesterov", "packed_state"})
        assert {field.name for field in dataclasses.fields(golden.Settings)} | {"packed_state"} == (
            {field.name for field in dataclasses.fields(Settings)})

    def test_values(self):
        values = Settings(rule=Rule.ADAMW, gradient_scale=0.1, learning_rate=2, epsilon=1e-46, nesterov=True,
                          packed_state=True).registers()
        assert values["OPTIMIZER"] == 0b11_0011
        assert values["GRADIENT_SCALE"] == float(np.float32(0.1)) != 0.1
        assert values["EPSILON"] == 0
        assert values["CLIP"] == math.inf

    @pytest.mark.parametrize("rule", list(Rule))
    def test_rules_are_those_of_the_golden_model(self, rule):
        assert golden.Rule(rule).name == rule.name
        assert golden.Rule(rule).planes == rule.planes
        assert len(Rule) == len(golden.Rule)


class TestCreate:
    @pytest.mark.parametrize("name", list(OptimizerName))
    def test_name_and_rate(self, name):
        assert create(name).name == name.value
        assert create(name).learning_rate == LEARNING_RATES[name]
        assert create(name, learning_rate=0.125).learning_rate == 0.125

    def test_parameters(self):
        options = {"learning_rate": 1, "momentum": 0.5, "dampening": 0.25, "weight_decay": 2, "clip": 3}
        assert create(OptimizerName.MOMENTUM, **options) == SGD(**options)
        assert create(OptimizerName.NESTEROV, learning_rate=1).nesterov
        assert create(OptimizerName.SGD, learning_rate=1, weight_decay=2) == SGD(learning_rate=1, weight_decay=2)
        assert create(OptimizerName.ADAM, learning_rate=1, clip=3) == Adam(learning_rate=1, clip=3)
        assert create(OptimizerName.ADAMW, learning_rate=1) == AdamW(learning_rate=1)
        assert create(OptimizerName.ADAMW, learning_rate=1, weight_decay=0) == AdamW(learning_rate=1, weight_decay=0)

    @pytest.mark.parametrize("name", [member for member in OptimizerName if member is not OptimizerName.MOMENTUM])
    def test_dampening_is_for_momentum(self, name):
        refuses(f"Optimizer with dampening must be momentum, not {name.value}", create, name, dampening=0.5)

    @pytest.mark.parametrize("name", [OptimizerName.MOMENTUM, OptimizerName.NESTEROV])
    def test_no_momentum(self, name):
        refuses(f"Momentum of optimizer {name.value} must not be zero: take sgd", create, name, momentum=0.0)


class TestMoments:
    @pytest.mark.parametrize(("decay", "expected"), [
        (0.0, True), (0.9, True), (0.99, True), (0.996, True), (1 - 1 / 258, True), (1 - 1 / 258 + 1e-6, False),
        (0.998, False), (1 - 2**-9, False), (0.999, False)])
    def test_falls(self, decay, expected):
        """``falls`` returns True if all stored moments decay within 400 steps, and False if some do not."""
        assert falls(decay) is expected
        values = np.arange(128, 256, dtype=np.float32)
        for _ in range(400):
            values = moments.unpack(moments.pack((values * np.float32(decay)).view(np.uint32)), 128).view(np.float32)
        assert (values.max() < 129) == expected
        if 1 - decay <= 2**-9:
            np.testing.assert_array_equal(values, np.arange(128, 256))  # exact decay by 0.999 gives at most 171

    def test_note(self):
        text = ("moments as bfloat16 stop decaying with b2 = 0.999, momentum = 0.998: a step takes less than half of "
                "their last bit from them; store them as fp32, or take at most 0.996")
        optimizers = [Adam(), AdamW(), SGD(1, momentum=0.998), SGD(1, momentum=1), SGD(1)]
        assert moments_note(optimizers, packed_state=True) == text
        assert moments_note(optimizers, packed_state=False) is None
        assert moments_note([Adam(betas=(0.9, 0.996)), SGD(1, momentum=0.9)], packed_state=True) is None
