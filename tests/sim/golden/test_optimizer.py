import numpy as np
import pytest

from sim.golden.optimizer import Rule, Settings, limit, reduce, update

NAN = 0x7FC00000


def bits(*values):
    return np.array(values, np.float32).view(np.uint32)


def test_reduce_is_a_balanced_tree():
    # The sum of 2**24 and 1 is 2**24, but adding 2 changes it, so the order of additions matters.
    big, one = 2.0**24, 1.0
    assert reduce([bits(big), bits(one), bits(one)]) == bits(big)
    assert reduce([bits(one), bits(one), bits(big)]) == bits(big + 2)
    assert reduce([bits(big), bits(one), bits(one), bits(one)]) == bits(big + 2)
    # The tree is (0 1) (2 3) (4 5) 6: an element without a partner is paired on the next level.
    assert reduce([bits(x) for x in (0, 0, 0, 0, big, one, one)]) == bits(big)
    assert reduce([bits(x) for x in (0, 0, 0, 0, one, big, -big)]) == bits(0)
    assert reduce([bits(-0.0)]) == 0x80000000
    assert reduce([bits(-0.0), bits(0.0)]) == 0


def scalars(rule, *, nesterov=False, **values):
    return Settings(rule, nesterov=nesterov, **{name: int(bits(value)[0]) for name, value in values.items()})


def test_sgd():
    total, weights = bits(4, -4, np.inf, np.nan, 0), bits(1, 1, 1, 1, -0.0)
    settings = scalars(Rule.SGD, gradient_scale=0.5, learning_rate=0.25)
    new_weights, state = update(total, weights, [bits(7)], settings)
    assert new_weights.tolist() == [*bits(0.5, 1.5, -np.inf), NAN, 0x80000000]
    assert state[0] == bits(7)


def test_momentum():
    total, weights, state = bits(4, 0, 1e-45), bits(1, 1, 0), bits(2, -8, 1e-45)
    settings = scalars(Rule.MOMENTUM, gradient_scale=0.5, learning_rate=0.25, first_decay=0.75)
    new_weights, new_state = update(total, weights, [state], settings)
    # The last element is the smallest subnormal number: half of it rounds to 0, and three quarters of it round to the
    # number itself.
    assert new_state[0].tolist() == bits(3.5, -6, 1e-45).tolist()
    assert new_weights.tolist() == bits(0.125, 2.5, 0).tolist()


@pytest.mark.parametrize(("options", "momentum", "weight"), [
    ({"first_gain": 0.25}, 3, -2),
    ({"nesterov": True}, 9, -11.5),  # m' = 0.5 * 2 + 8 = 9, so the step is 0.5 * 9 + 8
], ids=["dampening", "nesterov"])
def test_options_of_momentum(options, momentum, weight):
    settings = scalars(Rule.MOMENTUM, gradient_scale=1, learning_rate=1, first_decay=0.5, **options)
    new_weights, new_state = update(bits(8), bits(1), [bits(2)], settings)
    assert (new_state[0], new_weights) == (bits(momentum), bits(weight))


@pytest.mark.parametrize("rule", [Rule.SGD, Rule.MOMENTUM])
def test_weight_decay_is_part_of_the_gradient(rule):
    settings = scalars(rule, gradient_scale=0.5, learning_rate=0.25, weight_factor=0.125)
    new_weights, _ = update(bits(4), bits(16), [bits(0)], settings)
    assert new_weights == bits(15)  # 16 - 0.25 * (2 + 2)


def test_no_weight_decay_leaves_the_gradient_alone():
    """Without weight decay, an infinite weight does not make the gradient NaN, and -0.0 does not become +0.0."""
    for zero in (0.0, -0.0):
        settings = scalars(Rule.SGD, gradient_scale=1, learning_rate=1, weight_factor=zero)
        assert update(bits(4, 0), bits(np.inf, -0.0), [], settings)[0].tolist() == bits(np.inf, -0.0).tolist()


def test_clip():
    values = bits(3, -3, 2, -2, 0, -0.0, np.inf, -np.inf)
    assert limit(values, int(bits(2)[0])).tolist() == bits(2, -2, 2, -2, 0, -0.0, 2, -2).tolist()
    assert limit(values, int(bits(np.inf)[0])).tolist() == values.tolist()
    assert limit(np.array([0xFFC00001, 0x7F800001], np.uint32), int(bits(2)[0])).tolist() == [NAN, NAN]
    # Gradients are scaled before they are clipped.
    settings = scalars(Rule.SGD, gradient_scale=0.5, learning_rate=1, clip=1.5)
    assert update(bits(4, -2), bits(0, 0), [], settings)[0].tolist() == bits(-1.5, 1).tolist()


ADAM = {"gradient_scale": 1, "learning_rate": 0.5, "first_decay": 0.5, "first_gain": 0.5, "second_decay": 0.75,
        "second_gain": 0.25, "epsilon": 1}


@pytest.mark.parametrize(("rule", "factor", "gradient", "weight", "start"), [
    (Rule.ADAM, 0, 4, 1, 1),
    (Rule.ADAM, 0.25, 2, 8, 8),  # decay is added to the gradient: 2 + 0.25 * 8
    (Rule.ADAMW, 0.75, 4, 8, 6),  # decay shrinks the weight: 0.75 * 8
])
def test_adam(rule, factor, gradient, weight, start):
    """In both rules, m' = 0.5 * 2 + 0.5 * 4 = 3, v' = 0.75 * 16 + 0.25 * 16 = 16, and d = 3 / (4 + 1)."""
    settings = scalars(rule, **ADAM, **({"weight_factor": factor} if factor else {}))
    new_weights, (first, second) = update(bits(gradient), bits(weight), [bits(2), bits(16)], settings)
    assert (first, second) == (bits(3), bits(16))
    assert new_weights == bits(np.float32(start) - np.float32(0.5) * (np.float32(3) / np.float32(5)))


def test_adam_without_epsilon():
    """If a gradient was always zero, Adam's quotient is NaN without epsilon, since the gradient has no direction."""
    state = [bits(0), bits(0)]
    assert update(bits(0), bits(1), state, scalars(Rule.ADAM, **{**ADAM, "epsilon": 0}))[0] == NAN
    assert update(bits(0), bits(1), state, scalars(Rule.ADAM, **ADAM))[0] == bits(1)


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("rule", Rule)
def test_every_operation_rounds_once(rule, nesterov):
    """If the equations of the golden model are evaluated in numpy's own binary32 arithmetic, the results are the
    same."""
    generator = np.random.default_rng(1)
    total, weights, first, second = generator.standard_normal((4, 10_000)).astype(np.float32)
    second = abs(second)
    names = ("gradient_scale", "learning_rate", "clip", "weight_factor", "first_decay", "first_gain", "second_decay",
             "second_gain", "epsilon")
    values = np.array([0.3, 0.1, 0.5, 0.02, 0.9, 0.1, 0.99, 0.01, 1e-3], np.float32)
    s = dict(zip(names, values, strict=True))
    settings = scalars(rule, nesterov=nesterov, **s)
    new_weights, new_state = update(bits(total)[...], bits(weights), [bits(first), bits(second)], settings)
    g = np.clip(s["gradient_scale"] * total, -s["clip"], s["clip"])
    start = s["weight_factor"] * weights if rule == Rule.ADAMW else weights
    g = g if rule == Rule.ADAMW else g + s["weight_factor"] * weights
    d = g
    if rule != Rule.SGD:
        d = first = s["first_decay"] * first + s["first_gain"] * g
    if rule == Rule.MOMENTUM and nesterov:
        d = s["first_decay"] * first + g
    if rule in (Rule.ADAM, Rule.ADAMW):
        second = s["second_decay"] * second + (s["second_gain"] * g) * g
        d = first / (np.sqrt(second) + s["epsilon"])
    assert (new_weights.view(np.float32) == start - s["learning_rate"] * d).all()
    assert (new_state[0].view(np.float32) == first).all()
    assert (new_state[1].view(np.float32) == second).all()
