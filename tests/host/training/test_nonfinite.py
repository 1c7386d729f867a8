"""The error names the step, node, parameter and element of the first gradient that is not finite."""

import random

import numpy as np
import pytest

from host.driver.results import Outcome
from host.training.comparison import refuse_nonfinite
from host.training.nonfinite import first_nonfinite
from host.training.record import TrainingConfig, TrainingError
from host.training.trainer import train
from host.training.workloads import CharacterModel, Classifier
from tests.host.golden import GoldenRing
from tests.host.training.test_workloads import SMALL


def planted(workload, step, node, layer, name, values):
    """Change elements of a parameter's gradient on one node in one step; ``values`` maps indices to new values."""
    calls, differentiate = iter(range(1, 100)), workload.differentiate
    model = workload.model if isinstance(workload, CharacterModel) else workload._model

    def changed(shares, masks):
        results = differentiate(shares, masks)
        if next(calls) == step:
            views = model.views(results[node][1])
            for indices, value in values.items():
                views[layer][name][indices] = value
        return results

    workload.differentiate = changed


@pytest.mark.parametrize("seed", range(44))
def test_perceptron(few, seed):
    draw = random.Random(seed)
    workload = Classifier(few, (12,), align=draw.choice((1, 32)))
    nodes, step = draw.randint(1, 5), draw.randint(1, 3)
    node, layer, value = draw.randrange(nodes), draw.randint(1, 2), draw.choice((np.nan, np.inf, -np.inf))
    inputs, outputs = workload.widths[layer - 1:][:2]
    name, shape = draw.choice((("weight", (outputs, inputs)), ("bias", (outputs,))))
    indices = tuple(draw.randrange(length) for length in shape)
    planted(workload, step, node, 2 * layer - 2, name, {indices: value})
    with pytest.raises(TrainingError) as caught:
        train(GoldenRing(nodes), workload, TrainingConfig(epochs=1, batch=20, hidden=(12,)))
    assert str(caught.value).startswith(f"Step {step}: "), seed
    assert f" ({value} of node {node} is in {name} ({', '.join(map(str, indices))}) of layer {layer}); " in str(
        caught.value), seed


@pytest.mark.parametrize(("layer", "name", "indices"), [
    ("embedding", "character", (3, 5)), ("attention_0", "inward", (7, 1)), ("feed_norm_0", "scale", (2,)),
    ("rise_0", "weight", (5, 4)), ("norm", "shift", (0,)), ("output", "bias", (8,))])
def test_transformer(lines, layer, name, indices):
    workload = CharacterModel(lines, SMALL, chunk=8)
    planted(workload, 2, 1, layer, name, {indices: np.nan})
    text = rf"^Step 2: NaN .* node 1 \(nan of node 1 is in {name} \({', '.join(map(str, indices))}\) of {layer}\); "
    with pytest.raises(TrainingError, match=text):
        train(GoldenRing(3), workload, TrainingConfig(epochs=1, batch=6))


def test_several_elements():
    """The message gives the first node, the node's first non-finite element, and the number of such elements on the
    node."""
    gradients = np.zeros((3, 40), np.float32)
    gradients[2, 4], gradients[1, 35], gradients[1, 20:22] = np.inf, np.nan, -np.inf
    assert first_nonfinite(gradients, (5, 0, 7), lambda index: ("a", "b", (index, 1))) == (
        "-inf of node 0 is in b (20, 1) of a, the first of 3")
    assert first_nonfinite(gradients[2:], (7,), lambda index: None) == "inf of node 7 is in padding at index 4"


def test_nan_beside_an_infinity():
    """If a node reports a NaN, the NaN is named, even if another node has an infinity."""
    gradients = np.zeros((2, 8), np.float32)
    gradients[0, 3], gradients[1, 5] = np.inf, np.nan
    for nodes, text in (((1,), r"of node 1 \(nan of node 1 is in b \(5\) of a\)"),
                        ((), r"by node 0, 1 \(inf of node 0 is in b \(3\) of a\)")):
        with pytest.raises(TrainingError, match=text):
            refuse_nonfinite(Outcome(cycles=1, local_nan=nodes, not_finite=(0, 1)), (0, 1), {7: list(gradients)},
                             lambda index: ("a", "b", (index,)))


def test_sums():
    """If all elements are finite, the first sum that is not finite is named."""
    gradients = np.zeros((2, 40), np.float32)
    gradients[:, 8:] = np.finfo(np.float32).max
    assert first_nonfinite(gradients, (0, 1), lambda index: ("layer 1", "weight", (index,))) == (
        "it is in weight (8) of layer 1, and its addends are finite")
    assert first_nonfinite(gradients[:1], (0,), lambda index: None) is None
    assert first_nonfinite([np.full(3, 32767, np.int16)] * 2, (0, 1), lambda index: None) is None
