"""Reproducible sums and microbatches that are used in a wrong or unusual way."""

import copy

import pytest

torch = pytest.importorskip("torch")
torch.set_num_threads(1)  # the reason is given in tests/host/training/test_torch.py

import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

from gradring.torch import reproducible  # noqa: E402


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 3))


def take(network, batches, step, *, until=None):
    """Run all microbatches of a step, or only the microbatches before ``until``."""
    for index in batches(step):
        if index == until:
            break
        network(torch.full((1, 5), 1.0 + index)).square().sum().backward()


def gradients(network):
    return torch.cat([parameter.grad.flatten() for parameter in network.parameters()])


@pytest.mark.parametrize("headroom", [None, 4])
def test_step_again(headroom):
    """A step that was abandoned has the same gradients when it is run again."""
    network = model()
    batches = reproducible.Microbatches(network, 4, headroom=headroom)
    for step in (0, 1):
        take(network, batches, step)
        assert batches.reduce()
    right = gradients(network)
    take(network, batches, 1)
    take(network, batches, 1, until=2)
    with pytest.raises(ValueError, match=r"not all but 2$"):
        batches.reduce()
    take(network, batches, 1)
    assert batches.reduce()
    assert torch.equal(gradients(network), right)


def test_state():
    """If a run resumes from a saved state of its microbatches, its bits are the same."""
    def train(network, batches, steps):
        optimizer = torch.optim.SGD(network.parameters(), lr=1e-4)
        for step in steps:
            take(network, batches, step)
            batches.reduce()
            optimizer.step()

    network = model()
    batches = reproducible.Microbatches(network, 4, headroom=4, width=16)
    train(network, batches, range(3))
    other, state = copy.deepcopy(network), batches.state_dict()
    train(network, batches, range(3, 6))
    resumed = reproducible.Microbatches(other, 4, headroom=4, width=16)
    resumed.load_state_dict(state)
    train(other, resumed, range(3, 6))
    assert all(torch.equal(*pair) for pair in zip(network.parameters(), other.parameters(), strict=True))
    for changed in (reproducible.Microbatches(nn.Linear(3, 2), 4, headroom=4),
                    reproducible.Microbatches(other, 4)):
        with pytest.raises(ValueError, match=r"^State must be of microbatches of the same model, with a headroom"):
            changed.load_state_dict(state)
    reproducible.Microbatches(other, 4).load_state_dict({"fields": None, "skipped": 0})


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float64])
def test_default_type(kind):
    """PyTorch's default type of tensors does not affect the bits of sums."""
    rows = [torch.randn(50, dtype=torch.float32) for _ in range(3)]
    sums = []
    for default in (torch.float32, kind):
        torch.set_default_dtype(default)
        try:
            into = [torch.empty(50, dtype=torch.float32)]
            reproducible.Reducer().reduce([[row] for row in rows], addends=3, into=into, divisor=3)
        finally:
            torch.set_default_dtype(torch.float32)
        sums += into
    assert torch.equal(*sums)


@pytest.mark.parametrize("change", [
    lambda network: network.load_state_dict(copy.deepcopy(network.state_dict()), assign=True),
    lambda network: network[0].bias.requires_grad_(False), lambda network: network.double()])
def test_changed_parameters(change):
    """An error is raised if a script replaces, freezes or converts parameters."""
    network = model()
    batches = reproducible.Microbatches(network, 2)
    take(network, batches, 0)
    change(network)
    with pytest.raises(ValueError, match=r"^Parameters that require gradients must stay as they were: make new "):
        next(batches(1))


def test_within_a_step():
    """Gradients computed after the loop over microbatches, and weights or buffers that change in it, are rejected."""
    network = model()
    batches = reproducible.Microbatches(network, 2)
    take(network, batches, 0)
    network(torch.ones(1, 5)).sum().backward()
    with pytest.raises(ValueError, match=r"^Gradients must be computed within the loop over microbatches, "):
        batches.reduce()
    take(network, batches, 1)
    torch.optim.SGD(network.parameters(), lr=1.0, weight_decay=1.0)
    with torch.no_grad():
        network[0].bias += 1
    with pytest.raises(ValueError, match=r"^Weights must not change within a step: call the optimizer's step\(\) "):
        batches.reduce()
    network = torch.nn.utils.parametrizations.spectral_norm(nn.Linear(5, 3))
    batches = reproducible.Microbatches(network, 2)
    take(network, batches, 0)
    with pytest.raises(ValueError, match=r"^Buffer parametrizations.weight.0._u must not change within a step: on "):
        batches.reduce()


def test_kept_gradients():
    """Gradients are copied if the next microbatch uses their memory again."""
    network = nn.Linear(5, 3)
    batches = reproducible.Microbatches(network, 3)
    means = []
    for shared in (False, True):
        memory = torch.zeros(3, 5)
        for index in batches(0):
            network.weight.grad = memory.zero_() if shared else None
            network(torch.full((1, 5), 1.0 + index)).sum().backward()
        batches.reduce()
        means.append(network.weight.grad)
    assert torch.equal(*means)


def test_unused_parameters():
    """A parameter has no gradient if no microbatch gives it one, and otherwise the mean of all microbatches."""
    network = model()
    batches = reproducible.Microbatches(network, 2)
    for index in batches(0):
        (network[1].weight.sum() if index else network[1].bias.sum()).backward()
    assert batches.reduce()
    assert network[0].weight.grad is network[0].bias.grad is None
    assert (network[1].weight.grad == 0.5).all()
    assert (network[1].bias.grad == 0.5).all()


def test_overflow():
    """If a headroom is given, a step with a sum too large for binary32 is skipped."""
    network = nn.Linear(1, 1, bias=False)
    batches = reproducible.Microbatches(network, 2, headroom=16)
    done = []
    for step, value in enumerate((3e38, 3e38, 1e38)):
        for _ in batches(step):
            (value * network.weight.sum()).backward()
        done.append(batches.reduce())
    assert done == [False, False, True]


def test_subnormals():
    """Every step rejects a processor that flushes subnormal numbers to zero."""
    network = model()
    batches = reproducible.Microbatches(network, 2, headroom=4)
    take(network, batches, 0)
    batches.reduce()
    take(network, batches, 1)
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush subnormal numbers")
    try:
        with pytest.raises(ValueError, match=r"^Subnormal numbers must not be flushed to zero: "):
            batches.reduce()
    finally:
        torch.set_flush_denormal(False)


def test_inference_mode():
    """A Reducer that is first used in inference mode can also be used outside of it."""
    reducer, values = reproducible.Reducer(width=16), torch.ones(33)
    with torch.inference_mode():
        reducer.all_reduce(values.clone())
    reducer.all_reduce(values)
    assert (values == 1).all()


@pytest.mark.parametrize(("call", "text"), [
    (lambda: reproducible.Reducer().all_reduce([1.0]), "Tensors must be of torch.Tensor, not float"),
    (lambda: reproducible.Reducer(width=True), "Width of a sum must be an integer between 4 and 32, not True"),
    (lambda: reproducible.Microbatches(model(), 0),
     "Number of microbatches must be an integer between 1 and 1073741824, not 0"),
    (lambda: reproducible.Microbatches(nn.ReLU(), 2), "Model must have parameters that require gradients"),
    (lambda: next(reproducible.Microbatches(nn.BatchNorm1d(3), 2)(0)),
     r"Running statistics of the model \(BatchNorm1d\) depend on the microbatches of a rank: .*"),
    (lambda: reproducible.Reducer().reduce([[torch.ones(1)]], addends=1, into=[torch.ones(64)]),
     "Tensors of all addends must have the shapes and the device of their sum"),
    (lambda: reproducible.Reducer().reduce([[torch.ones(4)]] * 3, addends=1, into=[torch.ones(4)]),
     "Contributions of all ranks together must be 1, not 3"),
    (lambda: next(reproducible.Microbatches(model(), 2)(-1)), "Step must be an integer between 0 and .*, not -1")])
def test_refused(call, text):
    with pytest.raises(ValueError, match=f"^{text}$"):
        call()


@pytest.fixture
def group():
    """A process group with this process as its only rank."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_hook(group):
    """The hook needs a Reducer and dense gradients, and sums channels-last parameters in their logical order."""
    module = DistributedDataParallel(nn.Linear(5, 3))
    module.register_comm_hook(None, reproducible.average)
    with pytest.raises(TypeError, match=r"State of the hook must be a Reducer, as in register_comm_hook"):
        module(torch.ones(1, 5)).sum().backward()
    torch.manual_seed(1)
    network = nn.Conv2d(5, 7, 3).to(memory_format=torch.channels_last)
    module, inputs = DistributedDataParallel(copy.deepcopy(network)), torch.randn(2, 5, 9, 9)
    module.register_comm_hook(reproducible.Reducer(width=12), reproducible.average)
    batches = reproducible.Microbatches(network, 1, width=12)
    for _ in range(2):
        module.zero_grad()
        module(inputs).square().sum().backward()
        for _ in batches(0):
            network(inputs).square().sum().backward()
        batches.reduce()
        for one, other in zip(module.parameters(), network.parameters(), strict=True):
            assert torch.equal(one.grad, other.grad)


def test_group_that_begins_later():
    """Reducers and microbatches may be created before the process group."""
    reducer = reproducible.Reducer()
    assert reducer.ranks.size == 1
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        reducer.all_reduce(torch.ones(3))
        with pytest.raises(ValueError, match=r"^This rank must be in the process group that sums: "):
            reproducible.Reducer(group=dist.GroupMember.NON_GROUP_MEMBER)
    finally:
        dist.destroy_process_group()
