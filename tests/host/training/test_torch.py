"""Compare the golden model's optimizers, which the gateware matches bit for bit, with PyTorch's.

Both compute in binary32 but order operations differently (see docs/training/theory.md), so each is within a few
roundings of the exact result and the two rarely agree exactly. Differences are therefore measured in ulps of an
update's largest term; see :func:`largest_term`.
"""

import dataclasses

import numpy as np
import pytest

from host.models.digits import digits
from host.models.layers import perceptron
from host.training.optimizers import SGD, Adam, AdamW
from sim.golden import optimizer as golden_optimizer
from sim.golden import ring as golden

torch = pytest.importorskip(
    "torch", reason="PyTorch is not installed: run `make .venv/.torch` for the comparison with torch.optim")
# With two threads, a race once left the first square roots of a process with only 12 correct bits.
torch.set_num_threads(1)

WEIGHTS = 32768
STEPS = [1, 2, 10, 1000]
BATCH = 128

OPTIMIZERS = {
    "sgd": SGD(learning_rate=0.1),
    "sgd with decay": SGD(learning_rate=0.1, weight_decay=0.01),
    "momentum": SGD(learning_rate=0.5, momentum=0.9),
    "momentum with dampening": SGD(learning_rate=0.5, momentum=0.9, dampening=0.3),
    "momentum with dampening and decay": SGD(learning_rate=0.5, momentum=0.9, dampening=0.3, weight_decay=0.01),
    "nesterov": SGD(learning_rate=0.5, momentum=0.9, nesterov=True),
    "nesterov with decay": SGD(learning_rate=0.5, momentum=0.9, nesterov=True, weight_decay=0.01),
    "adam": Adam(),
    "adam, fast": Adam(learning_rate=0.055),
    "adam with decay": Adam(learning_rate=0.01, weight_decay=0.01),
    "adam, other betas": Adam(learning_rate=0.01, betas=(0.8, 0.99), eps=1e-6),
    "adamw": AdamW(),
    "adamw, fast": AdamW(learning_rate=0.05, weight_decay=0.1),
    "clipped momentum": SGD(learning_rate=0.5, momentum=0.9, clip=0.05),
    "clipped adam": Adam(learning_rate=0.01, clip=0.05),
}


def torch_optimizer(optimizer, parameter):
    """Create the corresponding PyTorch optimizer, without fused kernels."""
    options = {"lr": optimizer.learning_rate, "weight_decay": optimizer.weight_decay, "foreach": False}
    if isinstance(optimizer, SGD):
        return torch.optim.SGD([parameter], momentum=optimizer.momentum, dampening=optimizer.dampening,
                               nesterov=optimizer.nesterov, **options)
    kind = torch.optim.AdamW if isinstance(optimizer, AdamW) else torch.optim.Adam
    return kind([parameter], betas=optimizer.betas, eps=optimizer.eps, **options)


def settings(optimizer, step, *, gradient_scale=1.0):
    numbers = dataclasses.asdict(optimizer.settings(step, gradient_scale=gradient_scale))
    numbers.pop("packed_state")
    return golden.settings(**numbers)


def draw(step):
    """Draw gradients, weights and moments over a wide range, some of them zero. In step 1, all moments are zero."""
    generator = np.random.default_rng(step)
    gradients = generator.standard_normal(WEIGHTS) * 10 ** generator.uniform(-4, 0, WEIGHTS)
    weights = generator.standard_normal(WEIGHTS) * 10 ** generator.uniform(-2, 0.5, WEIGHTS)
    first = np.abs(gradients) * generator.standard_normal(WEIGHTS)
    second = first ** 2 * np.exp(generator.standard_normal(WEIGHTS))
    idle = generator.random(WEIGHTS) < 0.05
    gradients[idle] = 0
    for moments in (first, second):
        moments[idle & (generator.random(WEIGHTS) < 0.5)] = 0
        moments *= step > 1
    return [np.asarray(values, dtype=np.float32) for values in (gradients, weights, first, second)]


def step_of_torch(optimizer, step, gradients, weights, first, second):
    """Return the weights after one PyTorch step from the given state."""
    parameter = torch.nn.Parameter(torch.from_numpy(weights.copy()))
    parameter.grad = torch.from_numpy(gradients.copy())
    if optimizer.clip is not None:
        torch.nn.utils.clip_grad_value_([parameter], optimizer.clip)
    other = torch_optimizer(optimizer, parameter)
    if isinstance(optimizer, Adam):
        other.state[parameter].update(step=torch.tensor(float(step - 1)), exp_avg=torch.from_numpy(first.copy()),
                                      exp_avg_sq=torch.from_numpy(second.copy()))
    elif optimizer.momentum and step > 1:
        other.state[parameter]["momentum_buffer"] = torch.from_numpy(first.copy())
    other.step()
    return parameter.detach().numpy()


def step_of_golden(optimizer, step, gradients, weights, first, second):
    state = [golden.bits(plane) for plane in (first, second)[:optimizer.planes]]
    return golden.floats(golden_optimizer.update(
        golden.bits(gradients), golden.bits(weights), state, settings(optimizer, step))[0])


def largest_term(optimizer, step, gradients, weights, first, second):
    """Return the exact new weights, the largest term of each update, and the largest term except the weight.

    The terms are the weight w before and after the update, learning rate · step, and the summands of the step scaled
    by the same factor. For SGD and momentum the summands are g, weight_decay·w, and the terms of m' (momentum·m, g
    and weight_decay·w with their factors). For Adam and AdamW they are the terms of m': b1·m, (1 - b1)·g and (1 -
    b1)·weight_decay·w. If terms cancel, the rounding error of the largest one remains.
    """
    g, w, m, v = (values.astype(np.float64) for values in (gradients, weights, first, second))
    if optimizer.clip is not None:
        g = g.clip(-optimizer.clip, optimizer.clip)
    decayed = np.zeros_like(w) if isinstance(optimizer, AdamW) else optimizer.weight_decay * w
    start, factor = w, np.full_like(w, optimizer.learning_rate)
    if isinstance(optimizer, Adam):
        (b1, b2), rate = optimizer.betas, optimizer.learning_rate
        terms = [b1 * m, (1 - b1) * g, (1 - b1) * decayed]
        v = b2 * v + (1 - b2) * (g + decayed) ** 2
        factor = rate / (1 - b1 ** step) / (np.sqrt(v / (1 - b2 ** step)) + optimizer.eps)
        if isinstance(optimizer, AdamW):
            start = (1 - rate * optimizer.weight_decay) * w
        total = sum(terms)
    elif optimizer.momentum:
        gain = 1 if step == 1 else 1 - optimizer.dampening
        terms = [optimizer.momentum * m, gain * g, gain * decayed]
        total = sum(terms)
        if optimizer.nesterov:
            total = optimizer.momentum * total + g + decayed
            terms = [*(optimizer.momentum * term for term in terms), g, decayed]
    else:
        terms = [g, decayed]
        total = sum(terms)
    exact = start - factor * total
    rest = np.max(np.abs([factor * term for term in [total, *terms]]), axis=0)
    return exact, np.maximum(np.maximum(np.abs(w), np.abs(exact)), rest), rest


class TestOneStep:
    @pytest.mark.parametrize("step", STEPS)
    @pytest.mark.parametrize("name", list(OPTIMIZERS))
    def test_same_state(self, name, step):
        optimizer, state = OPTIMIZERS[name], draw(step)
        ours, theirs = step_of_golden(optimizer, step, *state), step_of_torch(optimizer, step, *state)
        exact, largest, rest = largest_term(optimizer, step, *state)
        ulp = np.spacing(largest.astype(np.float32)).astype(np.float64)
        difference = np.abs(ours.astype(np.float64) - theirs) / ulp
        # The usual case in training: the weight is several times larger than the terms added to it.
        small = rest <= np.abs(state[1]) / 4
        assert small.sum() >= 4096
        print(f"{name}, step {step}: at most {difference[small].max():.2f} ulp where the step is small, "
              f"{difference.max():.2f} ulp anywhere; from the exact result at most "
              f"{np.max(np.abs(ours - exact) / ulp):.2f}, torch {np.max(np.abs(theirs - exact) / ulp):.2f}; "
              f"{np.mean(ours == theirs):.1%} the same")
        # The error on each side is half an ulp from the last rounding plus the error of the step, which has at most
        # five roundings of at most a quarter of an ulp each.
        assert difference[small].max() <= 2
        # Adam has about ten roundings on each side (two factors, two products and a sum for m'; half as much for v',
        # since a root halves relative errors; then the root, its sum with epsilon, the quotient, the learning rate
        # and its product). Where the step exceeds the weight, torch itself is over four ulp from the exact result, so
        # no result, not even the exact one, is within two ulp of it everywhere.
        assert difference.max() <= (6 if optimizer.planes == 2 else 2)

    def test_momentum_alone_is_the_same(self):
        """If the learning rate is a power of two, all bits are equal: torch uses the same order of operations, and
        its final product is exact, so it does not matter that torch does not round it."""
        optimizer = SGD(learning_rate=0.5, momentum=0.9)
        for step in STEPS:
            state = draw(step)
            assert np.array_equal(step_of_golden(optimizer, step, *state), step_of_torch(optimizer, step, *state))


@pytest.mark.parametrize("clip", [0.0, 1e-40, 0.01, 1.0, 3e38])
def test_clipping(clip):
    """Clipping gives the same results as in PyTorch, even for infinities, subnormal numbers and NaN."""
    gradients = np.concatenate([draw(1)[0], np.array(
        [0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 3.4e38, -3.4e38, clip, -clip, 1.0, -1.0], dtype=np.float32)])
    parameter = torch.nn.Parameter(torch.zeros(len(gradients)))
    parameter.grad = torch.from_numpy(gradients.copy())
    torch.nn.utils.clip_grad_value_([parameter], clip, foreach=False)
    ours = golden_optimizer.limit(golden.bits(gradients), int(golden.bits([clip])[0]))
    # If the limit is zero, we return a zero with the sign of the gradient, while torch returns one with the sign of
    # the limit.
    np.testing.assert_array_equal(golden.floats(ours), parameter.grad.numpy())


class TestTraining:
    @pytest.mark.parametrize("optimizer", [
        SGD(learning_rate=0.1), SGD(learning_rate=0.05, momentum=0.9),
        SGD(learning_rate=0.05, momentum=0.9, dampening=0.1, weight_decay=1e-3),
        SGD(learning_rate=0.05, momentum=0.9, nesterov=True), Adam(), Adam(learning_rate=0.01, weight_decay=1e-3),
        AdamW(), AdamW(learning_rate=0.01, clip=0.01),
    ], ids=lambda optimizer: f"{optimizer.name}-{optimizer.learning_rate}")
    def test_loss_curve(self, optimizer):
        """The losses of a digits perceptron agree over 200 steps on the same batches.

        They agree to four digits. Some weights of the two runs differ by an ulp, which changes the loss only in its
        seventh digit. Steps small enough for the loss to fall smoothly do not amplify this difference. (Large steps
        do: an activation within an ulp of zero may gain or lose its gradient, and the runs diverge.)
        """
        data = digits()
        generator = np.random.default_rng(0)
        batches = generator.integers(0, len(data.train_x), (200, BATCH))
        model = perceptron(data.train_x.shape[1], (64,), data.classes)

        def losses(advance):
            for number, batch in enumerate(batches, start=1):
                loss, gradients = model.differentiate(data.train_x[batch], data.train_y[batch])
                advance(number, gradients)
                yield loss / BATCH

        model.initialize(0)
        state = [np.zeros(model.size, dtype=np.uint32) for _ in range(optimizer.planes)]

        def advance_golden(number, gradients):
            weights, state[:] = golden_optimizer.update(
                golden.canonical(golden.bits(gradients)), golden.bits(model.parameters), state,
                settings(optimizer, number, gradient_scale=1 / BATCH))
            model.parameters[...] = golden.floats(weights)

        ours = list(losses(advance_golden))

        model.initialize(0)
        parameter = torch.nn.Parameter(torch.from_numpy(model.parameters.copy()))
        other = torch_optimizer(optimizer, parameter)

        def advance_torch(number, gradients):
            parameter.grad = torch.from_numpy(gradients / np.float32(BATCH))
            if optimizer.clip is not None:
                torch.nn.utils.clip_grad_value_([parameter], optimizer.clip)
            other.step()
            model.parameters[...] = parameter.detach().numpy()

        theirs = list(losses(advance_torch))
        error = np.max(np.abs(np.divide(ours, theirs) - 1))
        print(f"{optimizer}: losses from {theirs[0]:.4f} to {theirs[-1]:.4f} differ by {error:.1e} at most")
        assert theirs[-1] < theirs[0] / 3
        assert error < 1e-4
