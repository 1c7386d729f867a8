"""Hooks of DistributedDataParallel, in a process group of this process alone, on a ring that stands in for more."""

import copy

import numpy as np
import pytest

from tests.host.pytorch.stand_in import standing_in
from tests.host.rings import CONFIGS

torch = pytest.importorskip("torch")
torch.set_num_threads(1)  # as in tests/host/training/test_torch.py

import torch.distributed as dist  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

from host.pytorch import hooks  # noqa: E402

LOSSY = CONFIGS["mx9"]


@pytest.fixture
def model():
    """A model in a group of one rank."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    torch.manual_seed(6)
    yield DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(),
                                                      torch.nn.Linear(16, 4)))
    dist.destroy_process_group()


def gradients(model):
    """Gradient of each parameter, of the same loss each time."""
    model.zero_grad()
    model(torch.linspace(-1, 1, 40).reshape(5, 8)).square().sum().backward()
    return [parameter.grad.numpy().copy() for parameter in model.parameters()]


def test_local(model):
    expected = gradients(copy.deepcopy(model.module))
    model.register_comm_hook(None, hooks.local_gradients)
    for found, exact in zip(gradients(model), expected, strict=True):
        np.testing.assert_array_equal(found, exact)


def test_errors(model, monkeypatch):
    """The loss of a codec is added to the next gradient of the same parameter, whatever the buckets."""
    expected = gradients(copy.deepcopy(model.module))
    with standing_in(monkeypatch, LOSSY, 0, 1) as ring:
        monkeypatch.setattr(hooks, "client", lambda: ring)
        model.register_comm_hook(hooks.Feedback(model.module.parameters()), hooks.with_errors)
        found = [gradients(model) for _ in range(16)]
    for number, exact in enumerate(expected):
        steps = np.array([one[number] for one in found])
        lost = np.abs(steps[0] - exact).max()
        assert 0 < np.abs(steps.mean(axis=0) - exact).max() < lost / 4


@pytest.mark.parametrize(("node", "keeps"), [("default", False), ("mx9", True)])
def test_mixed(model, monkeypatch, node, keeps):
    """Gradients of the nodes' optimizer stay local, and the others are summed, here of two ranks like this one."""
    expected = gradients(copy.deepcopy(model.module))
    parameters = list(model.module.parameters())
    hooks.own(parameters[1:3])
    others = [parameters[0], parameters[3]]
    with standing_in(monkeypatch, CONFIGS[node], 1, 1) as ring:
        monkeypatch.setattr(hooks, "client", lambda: ring)
        model.register_comm_hook(hooks.Feedback(others) if keeps else None, hooks.mixed)
        found = gradients(model)
    for number, (one, exact) in enumerate(zip(found, expected, strict=True)):
        if number in (1, 2):
            np.testing.assert_array_equal(one, exact)
        else:  # exact sums of two, or with a codec's loss
            np.testing.assert_allclose(one, 2 * exact, rtol=0, atol=0.02 * np.abs(2 * exact).max() if keeps else 0)
