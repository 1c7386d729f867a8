"""Optimizers that run on the nodes, compared with PyTorch's optimizers and with `Job.step`, in one process."""

import inspect
import io
import pydoc

import numpy as np
import pytest

from host.jobs.simulate import simulate
from host.training import optimizers as nodes
from tests.host.pytorch.stand_in import standing_in
from tests.host.rings import CONFIGS
from tests.refusals import refuses

torch = pytest.importorskip("torch")
torch.set_num_threads(1)  # the reason is given in tests/host/training/test_torch.py

from host.pytorch import optimizers as module  # noqa: E402
from host.pytorch.optimizers import SGD, Adam, AdamW  # noqa: E402

STEPS = 4

#: For each case: the optimizer, its arguments (also valid for torch.optim), and the equivalent optimizer of a job.
CASES = {
    "sgd": (SGD, {"lr": 0.1}, nodes.SGD(0.1)),
    "decay": (SGD, {"lr": 0.1, "weight_decay": 0.01}, nodes.SGD(0.1, weight_decay=0.01)),
    "momentum": (SGD, {"lr": torch.tensor(0.1), "momentum": 0.9, "dampening": 0.3},
                 nodes.SGD(float(torch.tensor(0.1)), momentum=0.9, dampening=0.3)),
    "nesterov": (SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}, nodes.SGD(0.1, momentum=0.9, nesterov=True)),
    "adam": (Adam, {"lr": 0.01, "betas": (0.8, 0.99), "eps": 1e-6, "foreach": False},
             nodes.Adam(0.01, betas=(0.8, 0.99), eps=1e-6)),
    "adam with decay": (Adam, {"weight_decay": 0.1}, nodes.Adam(1e-3, weight_decay=0.1)),
    "adam, decoupled": (Adam, {"weight_decay": 0.1, "decoupled_weight_decay": True},
                        nodes.AdamW(1e-3, weight_decay=0.1)),
    "adamw": (AdamW, {"fused": False}, nodes.AdamW(1e-3, weight_decay=0.01)),
}


@pytest.fixture
def ring(monkeypatch):
    """Client of a ring with two ranks: the gradients of one are zero, and those of the other are twice this
    process's, so the mean is exact."""
    with standing_in(monkeypatch, CONFIGS["default"], 0, 2) as client:
        monkeypatch.setattr(module, "client", lambda: client)
        yield client


def parameters():
    generator = torch.Generator().manual_seed(5)
    return [torch.nn.Parameter(torch.randn(shape, generator=generator)) for shape in ((7, 9), (9,), (3, 3, 5))]


def differentiate(tensors, step):
    generator = torch.Generator().manual_seed(100 + step)
    for parameter in tensors:
        parameter.grad = torch.randn(parameter.shape, generator=generator)


def flat(tensors):
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors]).numpy().copy()


def bits(array):
    return np.ascontiguousarray(array, np.float32).view(np.uint32)


@pytest.mark.parametrize("case", CASES)
def test_steps(ring, case):
    """Weights equal the weights of `Job.step` bit for bit; weights and state equal PyTorch's except for roundings."""
    kind, options, own = CASES[case]
    ours, plain = parameters(), parameters()
    optimizer, theirs = kind(ours, **options), getattr(torch.optim, kind.__name__)(plain, **options)
    length = len(flat(ours))
    with simulate(nodes=2, length=length, optimizer=own, node=CONFIGS["default"]) as job:
        job.load(flat(ours))
        for step in range(STEPS):
            for side in (ours, plain):
                differentiate(side, step)
            gradients = flat(parameter.grad for parameter in ours)
            weights, _ = job.step(np.stack([0 * gradients, 2 * gradients]))
            optimizer.step()
            theirs.step()
            np.testing.assert_array_equal(bits(flat(ours)), bits(weights))
    # Weights and terms are below 4, so their last bit is at most 2 ** -22; each step has several roundings.
    np.testing.assert_allclose(flat(ours), flat(plain), rtol=0, atol=8 * STEPS * 2 ** -22)
    state, expected = optimizer.state_dict(), theirs.state_dict()
    assert state["state"].keys() == expected["state"].keys()
    for number, ones in expected["state"].items():
        for name, value in ones.items():
            if value is not None:  # momentum_buffer is None without momentum
                torch.testing.assert_close(state["state"][number][name], value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", [SGD, Adam, AdamW])
def test_arguments(kind):
    """These optimizers have all arguments of PyTorch's, with the same defaults, and only ``clip`` in addition."""
    own, theirs = (inspect.signature(cls).parameters for cls in (kind, getattr(torch.optim, kind.__name__)))
    for name, parameter in theirs.items():
        assert (own[name].default, own[name].kind) == (parameter.default, parameter.kind), name
    assert set(own) - set(theirs) == {"clip"}


@pytest.mark.parametrize("kind", [SGD, Adam, AdamW])
def test_wrong_arguments(kind):
    """Unknown arguments are rejected, as well as arguments of PyTorch that the nodes do not support."""
    for name in set(inspect.signature(kind).parameters) - {"params", *kind._taken, "foreach", "fused"}:
        with pytest.raises(ValueError, match=f"^{name} must be left out with an optimizer on the nodes, not True$"):
            kind(parameters(), **{name: True})
    with pytest.raises(TypeError, match=f"^{kind.__name__}: got an unexpected keyword argument 'learning_rate'$"):
        kind(parameters(), learning_rate=0.1)
    refuses(f"{kind.__name__}: too many positional arguments", kind, parameters(), 0.1, *(0,) * 9, error=TypeError)
    assert kind(parameters(), 0.25).param_groups[0]["lr"] == 0.25
    assert "lr: float | torch.Tensor = 0.001" in pydoc.render_doc(kind)


def test_clip(ring):
    """`clip` has the same effect as `clip_grad_value_` applied to the mean gradient."""
    ours, plain = parameters(), parameters()
    optimizer, theirs = SGD(ours, lr=0.5, clip=0.25), torch.optim.SGD(plain, lr=0.5)
    for side in (ours, plain):
        differentiate(side, 0)
    torch.nn.utils.clip_grad_value_(plain, 0.25)
    optimizer.step()
    theirs.step()
    np.testing.assert_allclose(flat(ours), flat(plain), rtol=0, atol=2 ** -21)


def test_saved(ring):
    """A new optimizer continues from a saved state bit for bit, including parameter names and schedules."""
    model, again = (torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Linear(5, 3)) for _ in range(2))
    for network in (model, again):
        network[0].bias.requires_grad_(False)
    first, second = ([{"params": list(network[0].named_parameters())},
                      {"params": list(network[1].named_parameters()), "lr": 0.1}] for network in (model, again))
    optimizer, other = AdamW(first, lr=0.01), AdamW(second, lr=0.5)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.1)
    for step in range(3):
        differentiate([parameter for parameter in model.parameters() if parameter.requires_grad], step)
        optimizer.step(lambda: torch.tensor(1.0))
        schedule.step()
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    content = torch.load(file)  # with weights_only, the default
    again.load_state_dict(content["model"])
    other.load_state_dict(content["optimizer"])
    assert [group["param_names"] for group in other.param_groups] == [["weight"], ["weight", "bias"]]
    assert [group["lr"] for group in other.param_groups] == pytest.approx([0.001, 0.01])
    before = flat(model.parameters())
    for network, by in ((model, optimizer), (again, other)):
        differentiate([parameter for parameter in network.parameters() if parameter.requires_grad], 9)
        by.step()
    np.testing.assert_array_equal(bits(flat(model.parameters())), bits(flat(again.parameters())))
    assert (bits(flat(model.parameters())) != bits(before)).any()
    saved = other.state_dict()["gradring"]
    assert saved["steps"] == [4, 4]
