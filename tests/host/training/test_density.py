import dataclasses
import math

import numpy as np
import pytest

from host.models.digits import digits
from host.models.layers import perceptron
from host.training.optimizers import SGD
from host.training.sparsifier import Threshold
from sim.golden import ring as golden
from sim.golden.masking import sparsify
from tests.refusals import refused, refused_values, refuses

SMALLEST = 2.0 ** -126
NODES, EPOCHS, BATCH = 4, 14, 128


BASE = {"density": 0.1, "nodes": 4, "steps": 10}
test_shares = refused(Threshold, BASE, [
    ({name: value}, f"{name.capitalize()} must be above 0 and at most 1, not {value!r}")
    for name in ("density", "ramp", "gain") for value in (0, -0.1, 1.1, math.nan)])
test_counts = refused(Threshold, BASE, [
    ({f"{name}s": value}, f"{name.capitalize()} count must be at least 1, not {value!r}")
    for name in ("node", "step") for value in (0, -1)])
test_decay = refused_values(Threshold, BASE, "decay", [0.5, math.inf, math.nan],
                            "Decay must be a finite number of at least 1")
test_limit = refused_values(Threshold, BASE, "limit", [1.0, math.inf, math.nan],
                            "Limit must be a finite number above 1")


@pytest.mark.parametrize(("decay", "ramp"), [(1.0, 0.5), (8.0, 0.6), (8.0, 1.0), (4.0, 0.1)])
@pytest.mark.parametrize("nodes", [2, 4, 8])
def test_targets(nodes, decay, ramp):
    """Target densities decrease by the given factor during the ramp, and their mean equals the density."""
    steps = 10_000
    threshold = Threshold(density=0.1, nodes=nodes, steps=steps, decay=decay, ramp=ramp)
    targets = np.array([threshold.target(step) for step in range(1, steps + 1)])
    assert targets.mean() == pytest.approx(2 * 0.1 / nodes, rel=1e-3)
    assert targets[0] / targets[-1] == pytest.approx(decay, rel=1e-2)
    assert (np.diff(targets) <= 0).all()
    assert (targets[int(ramp * steps):] == targets[-1]).all()


def test_all_is_kept_at_most():
    threshold = Threshold(density=1, nodes=2, steps=10, decay=8)
    assert threshold.target(1) == 1 > threshold.target(10)


def _constant(**options):
    """Threshold controller for two nodes with a constant target density of 0.25 on each."""
    return Threshold(density=0.25, nodes=2, steps=100, decay=1, **options)


def _gradients(*values):
    return np.array(values, np.float32).reshape(2, -1)


def test_first_threshold_is_a_quantile():
    """The first threshold is a quantile of the magnitudes on all nodes: two of the eight elements are kept."""
    assert _constant().choose(_gradients(1, -2, 3, 4, -5, 6, 7, -8)) == 7
    assert _constant().choose(_gradients(0, 0, 0, 0, 0, 0, 0, 3)) == 3
    assert _constant().choose(_gradients(0, 0, 0, 0, 0, np.nan, -np.inf, 3)) == 3
    assert _constant().choose(_gradients(0, 0, 0, 0, 0, 0, 0, 1e-45)) == SMALLEST


def test_zeros_begin_nothing():
    threshold = _constant()
    for _ in range(3):
        assert threshold.choose(_gradients(0, 0, np.nan, np.inf)) == SMALLEST
        threshold.observe(2)
    assert threshold.choose(_gradients(1, 2, 3, 4)) == 4


def test_vectors_without_elements():
    threshold = _constant()
    assert threshold.choose(_gradients()) == SMALLEST
    threshold.observe(0)


@pytest.mark.parametrize(("dropped", "factor"), [
    (8, math.exp(-0.3)), (7, math.exp(-0.15)), (6, 1), (5, math.exp(0.15)), (4, math.exp(0.3)), (1, 2), (0, 2)])
def test_later_thresholds_follow(dropped, factor):
    threshold = _constant()
    gradients = _gradients(1, 2, 3, 4, 5, 6, 7, 8)
    threshold.choose(gradients)
    threshold.observe(dropped)
    # Gradients of later steps do not affect the choice.
    chosen = threshold.choose(100 * gradients)
    assert chosen == float(np.float32(chosen))
    assert chosen == pytest.approx(7 * factor, rel=1e-6)


def test_too_much_is_made_up_for():
    """The first of 100 steps keeps all eight elements instead of two. To make up for this, the remaining steps may
    keep a total of 24 vectors instead of 24.75."""
    threshold = _constant()
    gradients = _gradients(1, 2, 3, 4, 5, 6, 7, 8)
    chosen = []
    for dropped in (0, 6, 6):
        chosen.append(threshold.choose(gradients))
        threshold.observe(dropped)
    assert chosen[1] == 14
    assert chosen[2] == pytest.approx(14 * math.exp(0.3 * (24.75 / 24 - 1)), rel=1e-6)


def test_too_little_is_not_made_up_for():
    threshold = _constant()
    gradients = _gradients(1, 2, 3, 4, 5, 6, 7, 8)
    chosen = []
    for dropped in (8, 6, 6):
        chosen.append(threshold.choose(gradients))
        threshold.observe(dropped)
    assert chosen[1] == chosen[2] == float(np.float32(7 * math.exp(-0.3)))


@pytest.mark.parametrize("steps", [1, 2, 20])
def test_what_is_left_may_be_nothing(steps):
    """Target densities stay above zero even if every step keeps all elements, and are defined even after the last
    step."""
    threshold = Threshold(density=0.25, nodes=2, steps=steps)
    for _ in range(steps + 5):
        before = threshold.choose(_gradients(1, 2, 3, 4, 5, 6, 7, 8))
        threshold.observe(0)
    threshold.observe(8)
    assert before < float(np.finfo(np.float32).max)


def test_thresholds_are_numbers():
    """Even if too few or too many elements are sent for a long time, the threshold becomes neither infinite nor zero,
    because it could not recover from these values."""
    for dropped, last in ((8, SMALLEST), (0, float(np.finfo(np.float32).max))):
        threshold = _constant()
        for _ in range(400):
            chosen = threshold.choose(_gradients(1, 2, 3, 4, 5, 6, 7, 8))
            threshold.observe(dropped)
        assert chosen == last


@pytest.mark.parametrize("dropped", [-1, 9])
def test_dropped(dropped):
    threshold = _constant()
    threshold.choose(_gradients(1, 2, 3, 4, 5, 6, 7, 8))
    refuses(f"Dropped elements must be at most 8, not {dropped}", threshold.observe, dropped)


@pytest.mark.parametrize("scale", [1e-3, 1, 1e3])
def test_density_is_reached(scale):
    """The mean density is reached even if the scale of gradients changes so much that early gradients do not predict
    later ones."""
    generator = np.random.default_rng(1)
    steps, densities = 300, []
    threshold = Threshold(density=0.25, nodes=2, steps=steps)
    errors = np.zeros((2, 1000), np.uint32)
    for step in range(steps):
        spread = scale if step else 1.0
        gradients = (spread * 0.99 ** step * generator.normal(size=(2, 1000))).astype(np.float32)
        kept, errors = sparsify(golden.bits(gradients), errors, int(golden.bits([threshold.choose(gradients)])[0]))
        dropped = kept.size - int(np.count_nonzero(kept))
        threshold.observe(dropped)
        densities.append(1 - dropped / kept.size)
    assert 0.19 < np.mean(densities) <= 0.25


# --- tests of training


def _train(seed, density=None):
    """Train on digits with four golden nodes; return the accuracy, and the density of each step and hop."""
    data = digits()
    model = perceptron(data.train_x.shape[1], (64,), data.classes)
    model.initialize(seed)
    optimizer = SGD(learning_rate=0.5, momentum=0.9)
    order = np.random.default_rng((seed, 1))
    batches = -(-len(data.train_x) // BATCH)
    steps = EPOCHS * batches
    weights, state = golden.bits(model.parameters), [np.zeros(model.size, np.uint32)]
    errors = np.zeros((NODES, model.size), np.uint32)
    threshold = None if density is None else Threshold(density=density, nodes=NODES, steps=steps)
    densities = []
    for step in range(steps):
        if step % batches == 0:
            cut = np.array_split(order.permutation(len(data.train_x)), batches)
        batch = cut[step % batches]
        gradients = [model.differentiate(data.train_x[share], data.train_y[share])[1]
                     for share in np.array_split(batch, NODES)]
        sent = golden.bits(np.stack(gradients))
        if threshold is not None:
            sent, errors = sparsify(sent, errors, int(golden.bits([threshold.choose(gradients)])[0]))
            threshold.observe(sent.size - int(np.count_nonzero(sent)))
        settings = dataclasses.asdict(optimizer.settings(
            step + 1, gradient_scale=1 / len(batch), learning_rate=optimizer.learning_rate * (1 - step / steps)))
        settings.pop("packed_state")
        update = golden.fused_update(sent, weights, state, golden.settings(**settings))
        weights, state = update.weights, update.state
        densities.append(update.traffic.density)
        model.parameters[...] = golden.floats(weights)
    return model.accuracy(data.test_x, data.test_y), np.array(densities)


def test_digits():
    """The mean density over hops and steps is at most 0.1, and accuracy is within one point of dense runs.

    The bounds for single seeds are wider than the results, since processors add in different orders.
    """
    differences = []
    for seed in range(8):
        dense, _ = _train(seed)
        sparse, densities = _train(seed, density=0.1)
        assert 0.05 < densities.mean() <= 0.1, f"{seed=}"
        differences.append(sparse - dense)
    assert min(differences) >= -0.02, differences
    assert np.mean(differences) >= -0.01, differences


@pytest.mark.parametrize(("before", "after"), [(8, 4), (4, 8), (8, 5.0), (8, 7)])
def test_nodes_leave_and_come(before, after):
    """The mean density over hops stays within its bound if the number of nodes changes during the run."""
    generator = np.random.default_rng(4)
    first = Threshold(density=0.1, nodes=before, steps=200)
    second = Threshold(density=0.1, nodes=after, steps=200)
    means, controller, nodes = [], first, before
    for step in range(200):
        if step == 90:
            state = first.state()
            second.succeed(state)
            assert second.state()["_threshold"] == state["_threshold"]
            assert second.state()["_left"] / second.state()["_ahead"] == pytest.approx(
                state["_left"] / state["_ahead"])
            controller, nodes = second, after
        gradients = [generator.standard_normal(500).astype(np.float32)]
        threshold = controller.choose(gradients)
        kept = int((np.abs(gradients[0]) >= threshold).sum())
        controller.observe(500 - kept)
        means.append(kept / 500 * nodes / 2)
    assert np.mean(means) <= 0.102
    assert np.mean(means) >= 0.09


def test_no_end():
    """If the length of a run is unknown, target densities are not corrected, and only the threshold is passed on to
    the successor."""
    first, second = (Threshold(density=0.1, nodes=nodes, steps=None) for nodes in (8, 4))
    first.choose([np.ones(10, np.float32)])
    second.succeed(first.state())
    assert second.state() == first.state()
    assert second.target(9) == 2 * first.target(9)
