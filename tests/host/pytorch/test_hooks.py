"""Hooks of DistributedDataParallel in a group of one process, with a simulated ring that stands for several ranks."""

import contextlib
import copy
import itertools
import random
import zlib

import numpy as np
import pytest

from hdl.config import NodeConfig
from tests.host.pytorch.stand_in import standing_in
from tests.host.rings import CONFIGS
from tests.present import needs

torch = pytest.importorskip("torch")
torch.set_num_threads(1)  # the reason is given in tests/host/training/test_torch.py

import torch.distributed as dist  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

from host.driver.memory import aligned  # noqa: E402
from host.pytorch import hooks, ownership  # noqa: E402
from host.pytorch.jobs import Jobs, Options  # noqa: E402
from host.pytorch.messages import AllReduce, Made, NonFinite  # noqa: E402
from host.pytorch.nonfinite import first_nonfinite  # noqa: E402
from host.pytorch.optimizers import SGD  # noqa: E402
from host.transports.session import TransportName  # noqa: E402
from sim.golden import ring as golden  # noqa: E402
from sim.golden.codecs import CODECS  # noqa: E402

LOSSY = CONFIGS["mx9"]

#: ``_pre_forward`` as in a launched script, where it counts forward passes.
BEGIN = hooks.counted(DistributedDataParallel._pre_forward)


@pytest.fixture
def group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def model(group):
    """A DistributedDataParallel model in a process group with this process as its only rank."""
    torch.manual_seed(6)
    return DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(),
                                                       torch.nn.Linear(16, 4)))


def attached(module, monkeypatch, ring, *, keeps=False):
    """Attach the hook to a module as if the module's process group were a group of the ring."""
    monkeypatch.setattr(hooks, "_ring_of", lambda group: ring)
    monkeypatch.setattr(DistributedDataParallel, "_pre_forward", BEGIN)
    hooks.attach(module, keeps=keeps)


def gradients(model):
    """Gradient of each parameter, for a loss that is always computed from the same input."""
    model.zero_grad()
    model(torch.linspace(-1, 1, 40).reshape(5, 8)).square().sum().backward()
    return [parameter.grad.numpy().copy() for parameter in model.parameters()]


@pytest.mark.parametrize("keeps", [False, True])
def test_buckets(group, monkeypatch, keeps):
    """Averages do not depend on bucket sizes: they have the bits of one long vector in which each parameter begins a
    group."""
    if keeps:
        needs("mx")
    torch.manual_seed(8)
    sizes = (8, 100, 33, 1, 7)
    layers = [torch.nn.Linear(*pair) for pair in itertools.pairwise(sizes)]
    node, factors = NodeConfig(gradients="mx9" if keeps else "raw"), (0.3, 1.7, -0.9)
    results = []
    for bucket in (0.00001, 0.002, 0.01, 25):
        module = DistributedDataParallel(torch.nn.Sequential(*copy.deepcopy(layers)), bucket_cap_mb=bucket)
        with standing_in(monkeypatch, node, *factors, transport=TransportName.GOLDEN) as ring:
            attached(module, monkeypatch, ring, keeps=keeps)
            steps = [gradients(module) for _ in range(2)]  # DDP rebuilds its buckets after the first step
        results.append(np.concatenate([part.reshape(-1) for step in steps for part in step]).view(np.uint32))
    assert all((result == results[0]).all() for result in results)
    if not keeps:
        local = gradients(torch.nn.Sequential(*copy.deepcopy(layers)))
        first = 0
        for part, mean in zip(local, steps[1], strict=True):
            rows = np.stack([np.float32(factor) * part.reshape(-1) for factor in factors]).view(np.uint32)
            total, _ = golden.all_reduce(rows, gradient_codec=CODECS["raw"], block_offset=first // 32 % 3)
            assert (total == mean.reshape(-1).view(np.uint32)).all()
            first += aligned(part.size)


def test_local(model):
    expected = gradients(copy.deepcopy(model.module))
    model.register_comm_hook(None, hooks.local_gradients)
    for local, exact in zip(gradients(model), expected, strict=True):
        np.testing.assert_array_equal(local, exact)


def test_errors(model, monkeypatch):
    """A codec's rounding error of a gradient is added to the parameter's next gradient, even in a different
    bucket."""
    expected = gradients(copy.deepcopy(model.module))
    with standing_in(monkeypatch, LOSSY, 0, 1) as ring:
        attached(model, monkeypatch, ring, keeps=True)
        means = [gradients(model) for _ in range(16)]
    for number, exact in enumerate(expected):
        steps = np.array([step[number] for step in means])
        lost = np.abs(steps[0] - exact).max()
        assert 0 < np.abs(steps.mean(axis=0) - exact).max() < lost / 4


@pytest.mark.parametrize(("node", "keeps"), [("default", False), ("mx9", True)])
def test_owners(model, monkeypatch, node, keeps):
    """While an optimizer on the nodes owns a parameter, the parameter's gradient stays local. Before and after that,
    the gradient is summed; in this test, over two equal ranks."""
    expected = gradients(copy.deepcopy(model.module))
    parameters = list(model.module.parameters())

    def check(local):
        for number, (gradient, exact) in enumerate(zip(gradients(model), expected, strict=True)):
            if number in local:
                np.testing.assert_array_equal(gradient, exact)
            else:  # sum over two ranks, exact or with a codec's error
                np.testing.assert_allclose(gradient, 2 * exact, rtol=0,
                                           atol=0.03 * np.abs(2 * exact).max() if keeps else 0)

    with standing_in(monkeypatch, CONFIGS[node], 1, 1) as ring:
        attached(model, monkeypatch, ring, keeps=keeps)
        check(())
        optimizer = SGD(parameters[1:3], lr=0.5)
        check((1, 2))
        second = SGD(parameters[2:], lr=0.5)
        check((1, 2, 3))
        del optimizer
        check((2, 3))
        del second
        check(())


def test_gradients_of_one_rank(model, monkeypatch):
    """PyTorch's optimizers and gradient clipping reject gradients that stayed local, until the next backward pass."""
    ownership.install()
    parameters = list(model.module.parameters())
    optimizer = torch.optim.SGD(parameters, lr=0.5)
    with standing_in(monkeypatch, CONFIGS["default"], 1, 1) as ring:
        attached(model, monkeypatch, ring)
        owner = SGD(parameters[:1], lr=0.5)
        gradients(model)
        del owner
        with pytest.raises(ValueError, match=r"^Gradients of SGD must be means of all ranks, and 1 of them were "):
            optimizer.step()
        with pytest.raises(ValueError, match=r"^clip_grad_norm_ must have gradients that are summed, not gradients "):
            torch.nn.utils.clip_grad_norm_(parameters, 1)
        gradients(model)
        torch.nn.utils.clip_grad_norm_(parameters, 1)
        optimizer.step()


def test_frozen(model, monkeypatch):
    """Parameters may be frozen and unfrozen at any time; each keeps its own gradient residual."""
    parameters = list(model.module.parameters())
    expected = gradients(copy.deepcopy(model.module))
    with standing_in(monkeypatch, LOSSY, 0, 1) as ring:
        model = DistributedDataParallel(model.module, find_unused_parameters=True)
        attached(model, monkeypatch, ring, keeps=True)
        parameters[0].requires_grad_(False)
        model.zero_grad()
        for _ in range(3):
            model(torch.linspace(-1, 1, 40).reshape(5, 8)).square().sum().backward()
        assert parameters[0].grad is None
        parameters[0].requires_grad_(True)
        means = gradients(model)
    np.testing.assert_allclose(means[2], expected[2], rtol=0, atol=0.03 * np.abs(expected[2]).max())


def test_wrapped_again(model, monkeypatch):
    """A parameter keeps its gradient residual when its module is wrapped again."""
    expected = gradients(copy.deepcopy(model.module))
    with standing_in(monkeypatch, LOSSY, 0, 1) as ring:
        means = []
        for _ in range(8):
            model = DistributedDataParallel(model.module)
            attached(model, monkeypatch, ring, keeps=True)
            means.append(gradients(model))
    for number, exact in enumerate(expected):
        steps = np.array([step[number] for step in means])
        assert 0 < np.abs(steps.mean(axis=0) - exact).max() < np.abs(steps[0] - exact).max() / 3


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_types(group, monkeypatch, dtype):
    """Gradients of types other than float32 are summed over gloo, without any request to the ring."""
    model = DistributedDataParallel(torch.nn.Linear(3, 2, dtype=dtype))
    attached(model, monkeypatch, None, keeps=True)
    model(torch.ones(1, 3, dtype=dtype)).sum().backward()
    assert (model.module.weight.grad == 1).all()


def test_other_group(group):
    """Gradients of a module in another process group are reduced in that group, and nodes cannot own its
    parameters."""
    model = DistributedDataParallel(torch.nn.Linear(3, 2))
    hooks.attach(model, keeps=True)
    model(torch.ones(1, 3)).sum().backward()
    assert (model.module.weight.grad == 1).all()
    optimizer = SGD(model.parameters(), lr=1)
    with pytest.raises(ValueError, match=r"^Parameters of an optimizer of gradring.torch must be in a module "):
        model(torch.ones(1, 3)).sum().backward()
    del optimizer


def test_passes(model, monkeypatch):
    """Each request reports the number of passes that its module has made, not counting passes without a reduction."""
    asked = []

    class Ring:
        def ask(self, request):
            asked.append(request)
            return request.values

    attached(model, monkeypatch, Ring())
    with model.no_sync():
        gradients(model)
    gradients(model)
    model.eval()
    gradients(model)
    with torch.no_grad():
        model(torch.ones(1, 8))
    assert [request.made for request in asked] == [Made(forward=1, backward=1), Made(forward=2, backward=2)]
    assert hooks.passes_of(model.module[0].weight) is not hooks.OTHERS
    assert hooks.passes_of(torch.ones(1)) is hooks.OTHERS


class Requests:
    """Stub of a ring that stores requests, and answers each sum with the request's own values."""

    def __init__(self):
        self.asked = []

    def ask(self, request):
        self.asked.append(request)
        return getattr(request, "values", 0)


@pytest.mark.parametrize("seed", range(50))
def test_nonfinite(model, monkeypatch, seed):
    """The first request of a bucket names the first gradient in it that is not finite."""
    draw = random.Random(seed)
    ring = Requests()
    attached(model, monkeypatch, ring)
    name, parameter = draw.choice(list(model.module.named_parameters()))
    indices = tuple(draw.randrange(length) for length in parameter.shape)
    value = draw.choice((float("nan"), float("inf"), float("-inf")))

    def plant(gradient):
        changed = gradient.clone()
        changed[indices] = value
        return changed

    handle = parameter.register_hook(plant)
    gradients(model)
    handle.remove()
    gradients(model)
    found = [request.nonfinite for request in ring.asked if request.nonfinite is not None]
    assert found == [NonFinite(parameter=name, indices=indices, value=str(value), count=1)], seed


def test_several_nonfinite(model, monkeypatch):
    """If several gradients are not finite, the first parameter in the module's order is named, and elements are
    counted."""
    ring = Requests()
    attached(model, monkeypatch, ring)
    for parameter in list(model.parameters())[1:3]:
        parameter.register_hook(lambda gradient: gradient + float("inf"))
    gradients(model)
    first = ring.asked[0].nonfinite
    assert (first.parameter, first.indices, first.count) == ("0.bias", (0,), 16 + 4 * 16)


def test_finite_gradients_with_an_infinite_sum():
    largest = torch.full((2,), torch.finfo(torch.float32).max)
    wrong = torch.tensor([[1.0, float("nan")]])
    pairs = [(largest, largest), (wrong, None), (wrong, wrong)]
    assert first_nonfinite(pairs[:2], hooks.parameter_name) is None
    assert first_nonfinite(pairs, lambda parameter: "b") == NonFinite(
        parameter="b", indices=(0, 1), value="nan", count=1)


def test_shared_parameter(group, monkeypatch):
    """If two modules share a parameter, it is named as in the module with the gradients that are being summed."""
    weight = torch.nn.Parameter(torch.ones(4))
    modules = []
    for name in ("first", "second"):
        module = torch.nn.Module()
        module.register_parameter(name, weight)
        module.forward = lambda factor: (weight * factor).sum()
        modules.append(DistributedDataParallel(module))
    ring = Requests()
    for module in modules:
        attached(module, monkeypatch, ring)
    modules[0](torch.tensor([1.0, 1.0, float("inf"), 1.0])).backward()
    assert ring.asked[-1].nonfinite == NonFinite(parameter="first", indices=(2,), value="inf", count=1)


def test_unusual_parameters(group, monkeypatch):
    """A bucket may contain only empty parameters, and complex parameters have no checksum."""
    module = torch.nn.Module()
    module.empty = torch.nn.Parameter(torch.zeros(0))
    module.complex = torch.nn.Parameter(torch.ones(2, dtype=torch.complex64).conj(), requires_grad=False)
    module.forward = lambda factor: (module.empty * factor).sum()
    wrapped = DistributedDataParallel(module)
    ring = Requests()
    attached(wrapped, monkeypatch, ring)
    wrapped(torch.tensor(1.0)).backward()
    assert ring.asked == []


def test_names(model):
    """Parameters outside of DistributedDataParallel are named by their shapes."""
    assert hooks.parameter_name(torch.nn.Linear(3, 2).weight) == "parameter of shape (2, 3)"


def test_checksums(model, monkeypatch):
    """In every 50th backward pass, beginning with the first pass, the first request has checksums of all
    parameters."""
    ring = Requests()
    attached(model, monkeypatch, ring)
    for number in range(1, 103):
        ring.asked.clear()
        gradients(model)
        *rest, = (request.weights for request in ring.asked[1:])
        assert not any(rest)
        weights = ring.asked[0].weights
        assert (weights is not None) == (number in (1, 51, 101))
        if weights is not None:
            assert weights == {name: zlib.crc32(parameter.detach().numpy().tobytes())
                               for name, parameter in model.module.named_parameters()}
        with torch.no_grad():
            model.module[0].bias += 1


@pytest.mark.parametrize(("weights", "ranks", "parameter"), [
    ((7, 7, 7), None, ""), ((7, 8, 7), [1], "b"), ((8, 7, 7), [0], "b"), ((5, 6, 7), [1, 2], "b"),
    ((7, None, 8), None, ""), ((7, 7, {}), [2], "a"), ((7, 7, {"a": 1, "b": 7, "c": 3}), [2], "c")])
def test_unequal_weights(weights, ranks, parameter):
    """Ranks with weights that differ from most ranks', or from rank 0's, are named once."""
    said = []
    jobs = Jobs(Options(nodes=3, transport=TransportName.GOLDEN), contextlib.ExitStack(), say=said.append)
    requests = [AllReduce(values=np.ones(40, np.float32), made=Made(backward=51), weights={
        "a": 1, "b": value} if isinstance(value, int) else value) for value in weights]
    for _ in range(2):
        assert jobs.answer(requests).tolist() == [3.0] * 40
    assert jobs.unequal_weights == ([] if ranks is None else [
        {"ranks": ranks, "parameter": parameter, "backward_pass": 51}] * 2)
    assert len(said) == (ranks is not None)
