# amaranth: UnusedElaboratable=no
import dataclasses
import functools

import numpy as np
import pytest

from hdl.floating.format import FP16
from hdl.optimizer.burst import StreamedOptimizer
from hdl.optimizer.burst_controller import command_layout
from hdl.optimizer.fixed_point import INT16, INT18, FixedFormat
from hdl.optimizer.rules import Rule as HardwareRule
from sim.golden.fixed_point import FixedSettings
from sim.golden.optimizer import Rule, Settings, update
from sim.golden.optimizer_burst import NEVER, Burst, Model
from sim.payload import pack
from sim.streams import STALLS, stall_array
from sim.verilated.optimizer import Lockstep, beats, floats, operands, settings_bits
from tests.hdl.compression.packets import kept
from tests.hdl.unit_bench import under_cocotb
from tests.refusals import refused

# The shapes cover every reducer-tree size in every format, every rule in five configurations, other sets of rules,
# all lanes together or in slices, and banks of one beat, which are shorter than any pipeline.
ALL = tuple(HardwareRule)
MOMENTUM = (HardwareRule.SGD, HardwareRule.MOMENTUM)
SGD = (HardwareRule.SGD,)
SHAPES = [
    {"workers": 1, "lanes": 1, "depth": 1, "rules": ALL},
    {"workers": 2, "lanes": 4, "depth": 64, "update_lanes": 2, "rules": ALL},
    {"workers": 3, "lanes": 4, "depth": 24, "update_lanes": 1, "rules": ALL},
    {"workers": 4, "lanes": 2, "depth": 8, "update_lanes": 1, "broadcasts": 4, "rules": MOMENTUM},
    {"workers": 5, "lanes": 1, "depth": 16, "rules": MOMENTUM},
    {"workers": 6, "lanes": 2, "depth": 8, "update_lanes": 1, "rules": ALL, "dsps": 1},
    {"workers": 7, "lanes": 1, "depth": 32, "rules": MOMENTUM},
    {"workers": 8, "lanes": 8, "depth": 32, "update_lanes": 1, "rules": ALL},
    {"workers": 2, "lanes": 4, "depth": 4, "rules": MOMENTUM},
    {"workers": 1, "lanes": 2, "depth": 8, "rules": SGD},
    {"workers": 2, "lanes": 1, "depth": 16, "update_interval": 2, "rules": ALL},
    {"workers": 3, "lanes": 2, "depth": 8, "update_interval": 4, "rules": ALL, "dsps": 2},
    {"workers": 8, "lanes": 1, "depth": 32, "update_interval": 8, "rules": ALL},
    {"workers": 1, "lanes": 1, "depth": 1, "update_interval": 4, "rules": SGD},
    {"workers": 2, "lanes": 4, "depth": 4, "update_interval": 4, "rules": MOMENTUM},
    *({"workers": workers, "lanes": 2, "depth": 16, "format": format, "rules": MOMENTUM}
      for workers in range(1, 9) for format in (INT16, INT18)),
    {"workers": 3, "lanes": 4, "depth": 16, "update_lanes": 1, "format": FixedFormat(width=8), "rules": SGD},
]
CASES = [(index, Rule(rule.value)) for index, shape in enumerate(SHAPES) for rule in shape["rules"]]

CORNERS = np.array([0x00000000, 0x80000000, 0x00000001, 0x807FFFFF, 0x00800000, 0x3F800000, 0xBF800001, 0x7F7FFFFF,
                    0x7F800000, 0xFF800000, 0x7FC00000, 0x7F800001], np.uint32)


@functools.cache
def pair(index):
    return Lockstep(**SHAPES[index])


@functools.cache
def width(index):
    return StreamedOptimizer(**SHAPES[index]).lane.weight.shape().width


def as_bits(*values):
    return [int(bits) for bits in np.array(values, np.float32).view(np.uint32)]


def settings(rule, index=0, *, nesterov=True):
    if "format" in SHAPES[index]:
        scale, rate, momentum = (round(value * (1 << 16)) for value in (0.25, 0.1, 0.9))
        return FixedSettings(rule, gradient_scale=scale, learning_rate=rate, momentum=momentum)
    names = ("gradient_scale", "learning_rate", "clip", "weight_factor", "first_decay", "first_gain", "second_decay",
             "second_gain", "epsilon")
    factor = 0.999 if rule == Rule.ADAMW else 0.01
    values = as_bits(0.25, 0.1, 2.5, factor, 0.9, 0.8, 0.99, 0.01, 1e-8)
    return Settings(rule, nesterov=nesterov, **dict(zip(names, values, strict=True)))


def ordinary(generator, index=0):
    """Draw numbers like those in training, with squares for the second moment."""
    def draw(name, count):
        if "format" in SHAPES[index]:
            return np.clip(generator.standard_normal(count) * 2.0 ** (width(index) - 4), -(2.0 ** (width(index) - 1)),
                           2.0 ** (width(index) - 1) - 1).astype(np.int32).astype(np.uint32) % (1 << width(index))
        values = generator.standard_normal(count).astype(np.float32)
        return (values * values if name == "state__1" else values).view(np.uint32)
    return draw


def anything(generator, index):
    """Draw corner values, arbitrary bit patterns and ordinary numbers."""
    mask = np.uint32((1 << width(index)) - 1)

    def draw(name, count):
        kind = generator.integers(3, size=count)
        wild = generator.integers(1 << 32, size=count, dtype=np.uint32)
        usual = ordinary(generator, index)(name, count)
        return np.choose(kind, [generator.choice(CORNERS, count), wild, usual]) & mask
    return draw


def run_dry(pair, bursts):
    """Return a number of cycles that is enough for all data, even with the slowest stall pattern."""
    return 2000 + (12 + pair.model.interval) * sum(burst.count for burst in bursts)


test_parameters = refused(StreamedOptimizer, {}, [
    ({"workers": 0}, "Worker count must be between 1 and 8, not 0"),
    ({"workers": 9}, "Worker count must be between 1 and 8, not 9"),
    ({"workers": "2"}, "Worker count must be between 1 and 8, not '2'"),
    ({"lanes": 3}, "Lane count must be 1, 2, 4 or 8, not 3"),
    ({"update_lanes": 8}, "Update lane count must be 1, 2, 4 or 8 and at most 4, not 8"),
    ({"update_lanes": 3}, "Update lane count must be 1, 2, 4 or 8 and at most 4, not 3"),
    ({"depth": 6}, "Depth must be a positive multiple of 4 lanes, not 6"),
    ({"depth": 0}, "Depth must be a positive multiple of 4 lanes, not 0"),
    ({"broadcasts": 0}, "Broadcast port count must be a positive integer, not 0"),
    ({"rules": ()}, "Rules must be a tuple of different rules, not ()"),
    ({"format": FP16}, f"Format must be FP32 or a FixedFormat, not {FP16!r}"),
    ({"format": 32}, "Format must be FP32 or a FixedFormat, not 32"),
    ({"dsps": 3}, "DSP block count must be 4, 2 or 1, not 3"),
    ({"update_interval": 3}, "Update interval must be 1, 2, 4 or 8, not 3"),
    ({"update_interval": 2, "format": INT16}, "Update interval must be 1 in fixed point, not 2"),
    ({"update_interval": 2, "update_lanes": 1}, "Update interval must be 1 with fewer update lanes than 4, not 2"),
])


@pytest.mark.parametrize("index", range(len(SHAPES)))
def test_latencies(index):
    model = pair(index).model
    component = pair(index).component
    assert component.reducer_latency == model.reducer_latency
    if component.interval == 1:
        levels = [0, 1, 2, 2, 3, 3, 3, 3][SHAPES[index]["workers"] - 1]
        assert component.reducer_latency == levels * component.adder_latency
    assert component.update_latency == model.update_latency
    assert component.latency == component.reducer_latency + component.update_latency
    assert component.queue_depth == model.queue_depth


@pytest.mark.parametrize(("index", "rule"), CASES)
def test_isolated_burst(index, rule):
    model = pair(index).model
    for count in {1, model.lanes, max(model.depth - 1, 1), model.depth}:
        bursts = [Burst(count, (1 << model.workers) - 1)]
        draw = ordinary(np.random.default_rng(count), index)
        fills = operands(pair(index).model, bursts, settings(rule, index), draw)
        pair(index).unit.reset()
        trace = pair(index).run(bursts, settings(rule, index), fills, cycles=800)
        beats = -(-count // model.update_lanes)
        filled = -(-count // model.lanes)  # first cycle after the fills; they start in cycle 0
        interval = model.interval
        decided = filled + (interval > 1)  # decided one cycle early if the interval is more than one cycle
        assert trace.begins == [-(-decided // interval) * interval]
        assert trace.ends[0] - trace.begins[0] + 1 == (
            interval * (beats - 1) + 1 + model.reducer_latency + model.update_latency)


@pytest.mark.parametrize(("index", "rule"), CASES)
def test_steady_bursts(index, rule):
    model = pair(index).model
    bursts = [Burst(model.depth, (1 << model.workers) - 1)] * 64
    fills = operands(pair(index).model, bursts, settings(rule, index), ordinary(np.random.default_rng(1), index))
    pair(index).unit.reset()
    trace = pair(index).run(bursts, settings(rule, index), fills, cycles=800 + 64 * model.depth * model.interval)
    assert set(np.diff(trace.begins)) == {model.depth // model.update_lanes * model.interval}
    assert set(np.diff(trace.ends)) == {model.depth // model.update_lanes * model.interval}
    # From the first beat of the second burst on, every lane accepts a parameter in every interval.
    assert 63 * model.depth * model.interval == model.update_lanes * (trace.ends[-1] - trace.ends[0])


@pytest.mark.parametrize("kind", [*STALLS, "mixed"])
@pytest.mark.parametrize(("index", "rule"), CASES)
def test_lockstep(index, rule, kind):
    model = pair(index).model
    for seed in range(3):
        print(f"seed {seed}")
        generator = np.random.default_rng(seed)
        scalars = settings(rule, index, nesterov=seed % 2 == 0)
        bursts = [Burst(int(generator.integers(1, model.depth + 1)), int(generator.integers(1 << model.workers)))
                  for _ in range(10)]
        bursts += [Burst(model.depth, (1 << model.workers) - 1)] * 4
        fills = operands(pair(index).model, bursts, scalars, anything(generator, index))
        cycles = run_dry(pair(index), bursts)
        patterns = {name: stall_array(generator.choice(STALLS) if kind == "mixed" else kind, cycles,
                                      seed=int(generator.integers(1 << 30)), rate=generator.uniform(0.2, 0.9))
                    for name in ["command", *model.inputs(), *model.outputs()]}
        pair(index).unit.reset()
        trace = pair(index).run(bursts, scalars, fills, stalls=patterns, cycles=cycles, seed=seed + 1)
        assert max(trace.ends) < cycles
        assert trace.signals["idle"][-1]
        assert trace.signals["bursts"].sum() == len(bursts)
        # All ports have sent every weight once and in order, with the values of the golden model.
        for port in range(model.broadcasts):
            assert (trace.rows[f"broadcast__{port}"].elements == trace.rows["weights_out"].elements).all()


def test_slow_ports():
    """One port or all ports can stall for a thousand cycles without losing or repeating data."""
    model = pair(1).model
    bursts = [Burst(model.depth, 0b11), Burst(5, 0b01), Burst(17, 0b11), Burst(model.depth, 0b10)] * 2
    fills = operands(pair(1).model, bursts, settings(Rule.ADAM), ordinary(np.random.default_rng(1)))
    ports = ["command", *model.inputs(), *model.outputs()]
    late = np.arange(4000) >= 1000
    for patterns in [*({port: late} for port in ports), dict.fromkeys(ports, late)]:
        pair(1).unit.reset()
        trace = pair(1).run(bursts, settings(Rule.ADAM), fills, stalls=patterns, cycles=4000)
        assert max(trace.ends) < 4000
        assert trace.signals["idle"][-1]


@pytest.mark.parametrize("port", ["weights_out", "state_out__0", "state_out__1", "broadcast__0"])
def test_dead_port(port):
    """If a port never accepts a row, all other ports stop after the number of rows that fill the stalled port's
    queue."""
    model = pair(1).model
    bursts = [Burst(model.depth, 0b11)] * 16
    fills = operands(pair(1).model, bursts, settings(Rule.ADAM), ordinary(np.random.default_rng(1)))
    pair(1).unit.reset()
    dead = {port: np.zeros(3000, bool)}
    trace = pair(1).run(bursts, settings(Rule.ADAM), fills, stalls=dead, cycles=3000)
    assert trace.ends[-1] == NEVER
    assert not trace.signals["idle"][-1]
    for other in {*pair(1).model.outputs()} - {port}:
        assert trace.beat[other].max() + 1 == model.queue_depth


def test_reset_within_bursts():
    model = pair(1).model
    bursts = [Burst(model.depth, 0b11)] * 3
    fills = operands(pair(1).model, bursts, settings(Rule.ADAM), ordinary(np.random.default_rng(1)))
    for cycle in range(3, 230, 13):
        pair(1).unit.reset()
        pair(1).drive(bursts, settings(Rule.ADAM), fills, stalls={}, cycles=cycle)
        pair(1).unit.reset()
        pair(1).run(bursts, settings(Rule.SGD), fills | {"state__0": [], "state__1": []}, cycles=400)


def test_settings_change_while_idle():
    generator = np.random.default_rng(1)
    pair(1).unit.reset()
    for rule in (Rule.SGD, Rule.ADAMW, Rule.MOMENTUM, Rule.ADAM, Rule.SGD):
        scalars = dataclasses.replace(settings(rule), learning_rate=as_bits(generator.uniform(0.1, 1))[0])
        bursts = [Burst(9, 0b11), Burst(64, 0b01)]
        fills = operands(pair(1).model, bursts, scalars, ordinary(generator))
        trace = pair(1).run(bursts, scalars, fills, cycles=600)
        assert trace.signals["idle"][-1]


def test_fills_of_other_lengths():
    """Elements of a fill beyond the end of a burst or bank are ignored; missing elements read as +0.0."""
    model = pair(1).model
    bursts = [Burst(5, 0b11), Burst(64, 0b11), Burst(64, 0b11), Burst(33, 0b11)]
    fills = operands(pair(1).model, bursts, settings(Rule.MOMENTUM), ordinary(np.random.default_rng(1)))
    draw = ordinary(np.random.default_rng(2))
    fills["gradients__0"] = [draw("", count) for count in (32, 96, 1, 33)]
    fills["gradients__1"] = [draw("", count) for count in (8, 64, 64, 64)]
    pair(1).unit.reset()
    trace = pair(1).run(bursts, settings(Rule.MOMENTUM), fills, cycles=600)
    assert max(trace.ends) < 600
    # In the third burst, the first worker sent only one element, so all later state depends only on the second
    # worker.
    third = trace.rows["state_out__0"].elements[2 + 16:2 + 32].reshape(-1)
    operands_of_third = (fills[name][2] for name in ("gradients__1", "weights", "state__0"))
    gradient, weights, state = operands_of_third
    assert (third[1:] == update(gradient, weights, [state], settings(Rule.MOMENTUM))[1][0][1:]).all()
    assert model.depth == 64


def test_not_finite():
    """The `nonfinite` pulse depends only on the burst's reduced gradients and precedes `bursts`."""
    bursts = [Burst(5, 0b11)]
    unity, infinite = as_bits(1.0, np.inf)
    for index, worker, expected in [(4, 0, True), (4, 1, True), (6, 0, False), (None, 0, False)]:
        fills = {"weights": [np.full(5, unity, np.uint32)]}
        for number in range(2):
            fills[f"gradients__{number}"] = [np.full(8, unity, np.uint32)]
        if index is not None:
            fills[f"gradients__{worker}"][0][index] = infinite
        pair(1).unit.reset()
        trace = pair(1).run(bursts, settings(Rule.SGD), fills, cycles=200)
        assert trace.signals["nonfinite"].sum() == expected
        if expected:
            assert np.argmax(trace.signals["nonfinite"]) < np.argmax(trace.signals["bursts"])


# A small unit is used, because neither its size nor Adam's arithmetic matters here.
STREAMED = {"workers": 2, "lanes": 2, "depth": 16, "update_lanes": 1}


@pytest.mark.parametrize(("rule", "kind"), [
    (Rule.SGD, "none"), (Rule.MOMENTUM, "geometric"), (Rule.MOMENTUM, "freeze"), (Rule.SGD, "alternating")])
def test_cocotb(rule, kind):
    """Under cocotb, every weight is updated, even after a reset has interrupted earlier bursts."""
    component, scalars = StreamedOptimizer(**STREAMED, rules=MOMENTUM), settings(rule)
    generator = np.random.default_rng(7)
    model, layout = Model(**STREAMED, arithmetic=floats(component.lane)), component.weights.payload.shape()
    bursts = [Burst(int(generator.integers(1, model.depth + 1)), int(generator.integers(4))) for _ in range(12)]
    fills = operands(model, bursts, scalars, anything(generator, 0))
    sent = {name: beats(stream, layout) for name, stream in fills.items()}
    sent["command"] = pack(command_layout(model.workers, model.depth), {
        "count": [burst.count for burst in bursts], "active": [burst.active for burst in bursts]})
    wanted = {name: pack(layout, {"elements": rows.elements.reshape(-1, 2), "keep": rows.keep, "last": rows.last})
              for name, rows in model.run(bursts, scalars, fills, stalls={}, cycles=1).rows.items()}
    under_cocotb(component, kind, sent, {name: (rows, kept(rows, model.lanes)) for name, rows in wanted.items()},
                 inputs={"settings": settings_bits(component, scalars)})
