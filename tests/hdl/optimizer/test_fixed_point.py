# amaranth: UnusedElaboratable=no
import dataclasses
import functools

import numpy as np
import pytest
from amaranth.lib import data

from hdl.optimizer.fixed_point import (
    FRACTION_BITS,
    INT16,
    INT18,
    SCALAR_WIDTH,
    FixedFormat,
    FixedLane,
    FixedReducer,
    MultiplierBlock,
    fixed_settings_layout,
)
from hdl.optimizer.rules import Rule as HardwareRule
from sim.golden import fixed_point as golden
from sim.golden.fixed_point import Fixed, FixedSettings, from_bits, quantise, to_bits
from sim.golden.optimizer import Rule
from sim.payload import pack, to_int
from sim.verilated import vectors
from sim.verilated.vectors import Unit
from tests.hdl.floating import pipeline
from tests.refusals import refused, refused_values

COUNT = 60_000
ONE = 1 << FRACTION_BITS
BOTH = (HardwareRule.SGD, HardwareRule.MOMENTUM)
SETS = {"both": BOTH, "sgd": (HardwareRule.SGD,), "momentum": (HardwareRule.MOMENTUM,)}
CASES = [("both", Rule.SGD), ("both", Rule.MOMENTUM), ("sgd", Rule.SGD), ("momentum", Rule.MOMENTUM)]
WIDTHS = [8, 16, 18]
WORKERS = [1, 2, 3, 8]


test_format = refused_values(
    FixedFormat, {}, "width", [7, 19, 16.0, None], "Width must be an integer between 8 and 18")
test_format_of_reducer, test_format_of_lane = (refused_values(
    factory, base, "format", [None, 16, (16,)], "Format must be a FixedFormat", error=TypeError)
    for factory, base in ((FixedReducer, {"workers": 2}), (FixedLane, {})))
test_workers_of_reducer, test_workers_of_lane = (refused_values(
    factory, {}, "workers", [0, 9, 2.0, None], "Worker count must be between 1 and 8")
    for factory in (FixedReducer, FixedLane))
test_rules = refused_values(
    FixedLane, {}, "rules", [(), [HardwareRule.SGD], (HardwareRule.SGD, HardwareRule.SGD), (0,), None],
    "Rules must be a tuple of different rules")
test_other_rules = refused(FixedLane, {}, [
    ({"rules": (*BOTH, rule)}, f"Rule of a fixed-point lane must be SGD or MOMENTUM, not {rule!r}")
    for rule in HardwareRule if rule not in BOTH])
test_primitive_of_block, test_primitive_of_lane = (refused_values(
    factory, {}, "primitive", [2, None, "MULT18X18D"], "Use of the primitive must be True or False")
    for factory in (MultiplierBlock, FixedLane))


def test_names():
    assert (INT16.width, INT18.width) == (16, 18)
    assert FixedFormat(width=18) == INT18
    assert (golden.FRACTION_BITS, golden.SCALAR_WIDTH) == (FRACTION_BITS, SCALAR_WIDTH)


@pytest.mark.parametrize(("workers", "levels"), [(1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (6, 3), (7, 3), (8, 3)])
@pytest.mark.parametrize("width", WIDTHS)
def test_reducer_properties(width, workers, levels):
    reducer = FixedReducer(workers=workers, format=FixedFormat(width=width))
    assert (reducer.latency, reducer.adder_latency, reducer.width) == (levels, 1, width + levels)
    assert len(reducer.o) == len(FixedLane(workers=workers, format=FixedFormat(width=width)).total) == width + levels


@pytest.mark.parametrize(("name", "expected"), [
    ("sgd", (0, (), (), 9, 12)), ("momentum", (1, (0,), (7,), 10, 13)), ("both", (1, (0,), (7,), 10, 13))])
def test_lane_properties(name, expected):
    planes, offsets, latencies, weight_offset, latency = expected
    component = FixedLane(rules=SETS[name])
    assert (component.planes, component.state_offsets, component.state_latencies) == (planes, offsets, latencies)
    assert (component.weight_offset, component.latency) == (weight_offset, latency)
    assert (component.format, component.rules) == (INT18, SETS[name])
    assert (len(component.state), len(component.new_state)) == (planes, planes)
    model = Fixed(rules=tuple(Rule[rule.name] for rule in SETS[name]))
    assert (model.planes, model.state, model.new_state, model.weight, model.latency, model.summing(2)) == (
        planes, offsets, latencies, weight_offset, latency, component.adder_latency)


def draw(generator, width, count=COUNT):
    """Draw bit patterns; every third one is a corner case."""
    half = 1 << width - 1
    corners = np.array([0, 1, 2, half - 2, half - 1, half, half + 1, 2 * half - 2, 2 * half - 1, half // 2,
                        3 * half // 2], np.uint32)
    bits = generator.integers(1 << width, size=count, dtype=np.uint32)
    bits[::3] = generator.choice(corners, len(bits[::3]))
    return generator.permutation(bits)


@pytest.mark.parametrize("workers", range(1, 9))
@pytest.mark.parametrize("width", WIDTHS)
def test_sums(width, workers):
    generator = np.random.default_rng([width, workers])
    elements = draw(generator, width, COUNT * workers).reshape(COUNT, workers)
    ends = [1 << width - 1, (1 << width - 1) - 1]
    elements[:2] = np.array(ends, np.uint32)[:, None]  # all workers send the same extreme number
    format = FixedFormat(width=width)
    reducer = FixedReducer(workers=workers, format=format)
    outputs = Unit(reducer).run({"i": packed(elements, width)}, drain=reducer.latency)
    want = Fixed(width=width, workers=workers).reduce(elements.T)
    assert from_bits(want, reducer.width)[:2].tolist() == [-workers << width - 1, workers * ends[1]]
    assert (outputs["o"][reducer.latency:] == want).all()


def packed(elements, width):
    return pack(data.StructLayout({"i": data.ArrayLayout(width, elements.shape[1])}), {"i": elements})


@functools.cache
def lane(width, workers, name, primitive=False):
    component = FixedLane(format=FixedFormat(width=width), workers=workers, rules=SETS[name], primitive=primitive)
    return component, Unit(component)


def delayed(values, cycle, settle):
    """Pad ``values`` with ``settle`` zeros in total, so that they begin in the given cycle."""
    return np.concatenate([np.zeros(cycle, np.uint32), values, np.zeros(settle - cycle, np.uint32)])


def check(component, unit, workers, rule, generator):
    """Apply new operands and scalars in every cycle, each with its own timing, and compare all results."""
    width = component.format.width
    model = Fixed(width=width, workers=workers)
    widths = (model.total_width, width, width, *[SCALAR_WIDTH] * 3)
    operands = [draw(generator, bits) for bits in widths]
    for index, (bits, values) in enumerate(zip(widths, operands, strict=True)):
        # The first values are all combinations of extreme operands.
        values[:1 << len(widths)] = (1 << bits - 1) - (np.arange(1 << len(widths)) >> index & 1)
    total, weight, velocity, scale, rate, momentum = operands
    settle = component.latency

    # Scalars are constant during a command; here they change with the operands to cover more values.
    times = {"total": (total, 0), "weight": (weight, component.weight_offset), "gradient_scale": (scale, 0),
             "momentum": (momentum, 0),
             "learning_rate": (rate, component.weight_offset - component.multiplier_latency)}
    inputs = {name: delayed(*values, settle) for name, values in times.items()}
    inputs["settings"] = pack(fixed_settings_layout(), {"rule": np.full(COUNT + settle, int(rule)), **{
        name: inputs.pop(name) for name in ("gradient_scale", "learning_rate", "momentum")}})
    if component.planes:
        inputs["state__0"] = delayed(velocity, component.state_offsets[0], settle)
    outputs = unit.run(inputs)
    new_weight, new_state = model.update(total, weight, [velocity], FixedSettings(rule, scale, rate, momentum))
    wrong = np.flatnonzero(outputs["new_weight"][settle:] != new_weight)
    assert wrong.size == 0, f"weight {wrong[0]}: {outputs['new_weight'][settle:][wrong[0]]:x}"
    if rule == Rule.MOMENTUM:
        got = outputs["new_state__0"][component.state_latencies[0]:][:COUNT]
        wrong = np.flatnonzero(got != new_state[0])
        assert wrong.size == 0, f"state {wrong[0]}: {got[wrong[0]]:x}, not {new_state[0][wrong[0]]:x}"


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(("name", "rule"), CASES)
def test_values(name, rule, width, workers):
    seed = [int(rule), width, workers]
    print(f"seed {seed}")
    check(*lane(width, workers, name), workers, rule, np.random.default_rng(seed))


@pytest.mark.parametrize("workers", [4, 5, 6, 7])
def test_other_sums(workers):
    """Sums wider than the 18 bits of a multiplier block are correct, for all supported widths."""
    for width in (17, 18):
        check(*lane(width, workers, "both"), workers, Rule.MOMENTUM, np.random.default_rng([width, workers]))


def block():
    """Model of the MULT18X18D functions used by the lane, based on the block's description."""
    bits = range(SCALAR_WIDTH)
    inputs = [*(f"A{n}" for n in bits), *(f"B{n}" for n in bits), *(f"C{n}" for n in bits), "SIGNEDA", "SIGNEDB",
              "SOURCEA", "SOURCEB", "CLK0", "CE0", "RST0", "RST1"]
    outputs = [f"P{n}" for n in range(2 * SCALAR_WIDTH)]
    registers = {f"REG_{register}_{what}": value for register in ("INPUTA", "INPUTB", "PIPELINE", "OUTPUT")
                 for what, value in (("CLK", "NONE"), ("CE", "CE0"), ("RST", "RST0"))}
    parameters = {**registers, "GSR": "ENABLED", "RESETMODE": "SYNC"}

    def vector(letter, width):
        return f"{{{', '.join(f'{letter}{n}' for n in reversed(range(width)))}}}"

    def registered(register, name, value):
        top = 35 if register in ("PIPELINE", "OUTPUT") else 17
        return f"""
  reg [{top}:0] {name}_held;
  wire {name}_reset = REG_{register}_RST == "RST0" ? RST0 : RST1;
  always @(posedge CLK0) if ({name}_reset) {name}_held <= 0; else if (CE0) {name}_held <= {value};
  wire [{top}:0] {name} = REG_{register}_CLK == "CLK0" ? {name}_held : {value};
"""

    ports = [*(f"input {name}" for name in inputs), *(f"output {name}" for name in outputs)]
    declared = [f'  parameter {name} = "{value}";' for name, value in parameters.items()]
    lines = "\n"
    return f"""
module MULT18X18D({', '.join(ports)});
{lines.join(declared)}
{registered("INPUTA", "a", vector("A", 18))}{registered("INPUTB", "b", vector("B", 18))}
  wire [35:0] wide_a = {{{{18{{SIGNEDA & a[17]}}}}, a}};
  wire [35:0] wide_b = {{{{18{{SIGNEDB & b[17]}}}}, b}};
  wire [35:0] exact = wide_a * wide_b;
{registered("PIPELINE", "inner", "exact")}{registered("OUTPUT", "outer", "inner")}
  assign {vector("P", 36)} = outer;
endmodule
"""


@pytest.mark.parametrize(("workers", "name", "rule"), [
    (1, "both", Rule.SGD), (1, "both", Rule.MOMENTUM), (1, "sgd", Rule.SGD), (8, "both", Rule.MOMENTUM)])
def test_primitive_is_the_same(monkeypatch, workers, name, rule):
    """The lane with a model of MULT18X18D matches the lane without it in every cycle."""
    convert = vectors.convert

    def with_block(component, *, name, arithmetic):
        design = convert(component, name=name, arithmetic=arithmetic)
        assert "MULT18X18D #(" in design.text
        return dataclasses.replace(design, text=design.text + block())

    monkeypatch.setattr(vectors, "convert", with_block)
    check(*lane(18, workers, name, primitive=True), workers, rule, np.random.default_rng(workers))


def test_training():
    """After 500 momentum steps on a quadratic loss, the error against float64 is within the rounding bound.

    The gradient of a weight is slope * (weight - target); each of two workers sends half of it, rounded. In each
    step, each half is rounded by at most 1/2, which gradient_scale reduces to 1/2 in total; rounding the state adds
    another 1/2, and rounding the weight another 1/2. Since the step is linear, the accumulated error is at most the
    sum, over all steps, of these errors times the magnitudes of the powers of the step's matrix.
    """
    count, steps = 64, 500
    scale, rate, momentum = ONE // 2, quantise(0.1, SCALAR_WIDTH, FRACTION_BITS), quantise(0.9, SCALAR_WIDTH, 16)
    generator = np.random.default_rng(500)
    slope = np.linspace(0.2, 1.0, count)
    target = np.floor(generator.uniform(-50_000, 50_000, count))
    start = np.floor(generator.uniform(-10_000, 10_000, count))

    reducer, component = FixedReducer(workers=2), FixedLane(workers=2)
    sums, updates = Unit(reducer), Unit(component)
    settings = to_int(fixed_settings_layout(), {
        "rule": int(Rule.MOMENTUM), "gradient_scale": scale, "learning_rate": int(rate), "momentum": int(momentum)})

    def step(gradients, weights, velocity):
        rows = packed(to_bits(gradients, 18).T, 18)
        total = sums.run({"i": rows}, drain=reducer.latency)["o"][reducer.latency:]
        settle = component.latency
        inputs = {"total": delayed(total, 0, settle), "state__0": delayed(to_bits(velocity, 18), 0, settle),
                  "weight": delayed(to_bits(weights, 18), component.weight_offset, settle)}
        outputs = updates.run({**inputs, "settings": settings})
        new_velocity = outputs["new_state__0"][component.state_latencies[0]:][:count]
        return from_bits(outputs["new_weight"][settle:], 18), from_bits(new_velocity, 18)

    s, r, u = (float(golden.dequantise(scalar, FRACTION_BITS)) for scalar in (scale, rate, momentum))
    weights, velocity = start.astype(np.int64), np.zeros(count, np.int64)
    exact_weights, exact_velocity = start.copy(), np.zeros(count)
    # Matrix that propagates state and weight errors through a step, errors added by each step, and the error bound.
    matrix = np.moveaxis(np.array([[u + 0 * slope, s * slope], [-r * u + 0 * slope, 1 - r * s * slope]]), 2, 0)
    added = np.array([s * 2 * 0.5 + 0.5, r * (s * 2 * 0.5 + 0.5) + 0.5])
    power, bound = np.broadcast_to(np.eye(2), (count, 2, 2)), np.zeros((count, 2))
    for number in range(steps):
        gradient = slope * (weights - target) / 2
        weights, velocity = step(quantise([gradient, gradient], 18, 0), weights, velocity)
        exact_velocity = u * exact_velocity + s * slope * (exact_weights - target)
        exact_weights = exact_weights - r * exact_velocity
        bound += np.abs(power) @ added
        power = power @ matrix
        assert (abs(velocity - exact_velocity) <= bound[:, 0] + 1e-6).all(), f"state in step {number}"
        assert (abs(weights - exact_weights) <= bound[:, 1] + 1e-6).all(), f"weights in step {number}"
    assert bound[:, 1].max() < 23
    assert abs(weights - target).max() < 23


def test_timing():
    """Under cocotb, one result per cycle appears at its latency; a reset does not affect the pipeline."""
    component, count = FixedLane(), 200
    generator, model = np.random.default_rng(1), Fixed()
    total, weight, velocity = (draw(generator, 18, count) for _ in range(3))
    settings = FixedSettings(Rule.MOMENTUM, 3 * ONE // 4, ONE // 10, 9 * ONE // 10)
    new_weight, (new_state,) = model.update(total, weight, [velocity], settings)
    bits = to_int(fixed_settings_layout(), {
        name: int(getattr(settings, name)) for name in fixed_settings_layout().members})
    settle, early = component.latency, component.latency - component.state_latencies[0]
    pipeline.check(component, {
        "settings": [bits] * (count + settle), "total": delayed(total, 0, settle),
        "state__0": delayed(velocity, component.state_offsets[0], settle),
        "weight": delayed(weight, component.weight_offset, settle)}, {
        "new_weight": delayed(new_weight, 0, settle), "new_state__0": delayed(new_state[early:], 0, settle + early)})
