import numpy as np
import pytest

from sim.golden.optimizer import NEVER, Burst, Model, Rule, Settings, reduce, update

NAN = 0x7FC00000


def bits(*values):
    return np.array(values, np.float32).view(np.uint32)


def test_reduce_is_a_balanced_tree():
    # 2**24 swallows a one, but not a two: so the order shows.
    big, one = 2.0**24, 1.0
    assert reduce([bits(big), bits(one), bits(one)]) == bits(big)
    assert reduce([bits(one), bits(one), bits(big)]) == bits(big + 2)
    assert reduce([bits(big), bits(one), bits(one), bits(one)]) == bits(big + 2)
    # (0 1) (2 3) (4 5) 6: the odd one waits for a partner, and finds it in the next level.
    assert reduce([bits(x) for x in (0, 0, 0, 0, big, one, one)]) == bits(big)
    assert reduce([bits(x) for x in (0, 0, 0, 0, one, big, -big)]) == bits(0)
    assert reduce([bits(-0.0)]) == 0x80000000
    assert reduce([bits(-0.0), bits(0.0)]) == 0


def test_sgd():
    total, weights = bits(4, -4, np.inf, np.nan, 0), bits(1, 1, 1, 1, -0.0)
    new_weights, state = update(total, weights, [bits(7)], Settings(Rule.SGD, *map(int, bits(0.5, 0.25))))
    assert new_weights.tolist() == [*bits(0.5, 1.5, -np.inf), NAN, 0x80000000]
    assert state[0] == bits(7)


def test_momentum():
    total, weights, state = bits(4, 0, 1e-45), bits(1, 1, 0), bits(2, -8, 1e-45)
    settings = Settings(Rule.MOMENTUM, *map(int, bits(0.5, 0.25, 0.75)))
    new_weights, new_state = update(total, weights, [state], settings)
    # The last element is the smallest subnormal number: half and a quarter of it become zero, three quarters one.
    assert new_state[0].tolist() == bits(3.5, -6, 1e-45).tolist()
    assert new_weights.tolist() == bits(0.125, 2.5, 0).tolist()


@pytest.mark.parametrize("rule", Rule)
def test_every_operation_rounds_once(rule):
    generator = np.random.default_rng(1)
    total, weights, state = generator.standard_normal((3, 10_000)).astype(np.float32)
    scale, rate, momentum = np.array([0.3, 0.1, 0.9], np.float32)
    settings = Settings(rule, *map(int, bits(scale, rate, momentum)))
    new_weights, new_state = update(bits(total)[...], bits(weights), [bits(state)], settings)
    step = scale * total if rule == Rule.SGD else momentum * state + scale * total
    assert (new_weights.view(np.float32) == weights - rate * step).all()
    assert (new_state[0].view(np.float32) == (state if rule == Rule.SGD else step)).all()


MODEL = Model(workers=2, lanes=2, depth=4, update_lanes=2, adder=2, multiplier=1)
SETTINGS = Settings(Rule.SGD, *map(int, bits(1, 1)))


def run(bursts, *, stalls=None, cycles=100):
    fills = {"weights": [bits(*range(burst.count)) for burst in bursts]}
    for worker in range(2):
        fills[f"gradients__{worker}"] = [bits(*[worker] * b.count) for b in bursts if b.active >> worker & 1]
    return MODEL.run(bursts, SETTINGS, fills, stalls=stalls or {}, cycles=cycles)


def test_one_burst_by_hand():
    # r = 2. q = 2 to read, 1 + 2 + 1 + 2 to update, 3 through the queue.
    assert (MODEL.reducer_latency, MODEL.update_latency) == (2, 11)
    trace = run([Burst(3, 0b11)], cycles=20)
    # Two beats fill in cycles 0 and 1, enter in 2 and 3, and are offered 13 cycles later.
    assert (trace.begins, trace.ends) == ([2], [16])
    assert np.flatnonzero(trace.signals["weights__valid"]).tolist() == [0, 1]
    assert trace.signals["weights__ready"].all()
    assert np.flatnonzero(trace.signals["broadcast__0__valid"]).tolist() == [15, 16]
    assert np.flatnonzero(trace.signals["bursts"]).tolist() == [13]
    assert np.flatnonzero(trace.signals["idle"]).tolist() == [0, 17, 18, 19]
    rows = trace.rows["weights_out"]
    assert rows.elements.reshape(-1)[:3].tolist() == bits(-1, 0, 1).tolist()
    assert rows.keep.tolist() == [3, 1]
    assert rows.last.tolist() == [0, 1]


def test_bursts_in_a_row():
    trace = run([Burst(4, 0b11)] * 4)
    assert trace.begins == [2, 4, 6, 8]
    assert trace.ends == [16, 18, 20, 22]


def test_worker_that_is_not_active():
    trace = run([Burst(4, 0b01), Burst(4, 0b00)])
    assert trace.rows["weights_out"].elements.reshape(-1).tolist() == bits(0, 1, 2, 3, 0, 1, 2, 3).tolist()


def test_two_banks():
    """Without a command, a stream of gradients stops after two fills, and goes on as soon as one is drained."""
    late = np.arange(100) >= 10
    trace = run([Burst(4, 0b11)] * 3, stalls={"command": late})
    assert np.flatnonzero(trace.signals["gradients__0__ready"] == 0)[0] == 4
    assert trace.begins == [11, 13, 15]
    # Drained in cycles 11 and 12, filled in 13 and 14.
    assert trace.signals["gradients__0__ready"][4:16].tolist() == [0] * 9 + [1, 1, 1]


def test_port_that_never_moves():
    trace = run([Burst(4, 0b11)] * 20, stalls={"broadcast__0": np.zeros(300, bool)}, cycles=300)
    assert trace.ends[-1] == NEVER
    assert trace.beat["weights_out"].max() + 1 == MODEL.queue_depth
    assert trace.signals["broadcast__0__valid"][-1]
    assert not trace.signals["command__ready"][-1]
