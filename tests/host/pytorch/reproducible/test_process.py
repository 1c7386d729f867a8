"""Reproducible sums and microbatches in one process: arguments, layouts, infinities and steps without a sum."""

import itertools

import numpy as np
import pytest

from sim.golden.features.reproducible.sums import sum_of

torch = pytest.importorskip("torch")
torch.set_num_threads(1)  # the reason is given in tests/host/training/test_torch.py

from torch import nn  # noqa: E402

from gradring.torch import reproducible  # noqa: E402
from host.pytorch.reproducible import cuda  # noqa: E402
from host.pytorch.reproducible.terms import Terms  # noqa: E402


def test_layouts():
    """Tensors of all shapes, even if empty or not contiguous, are summed as separate parameters."""
    generator = torch.Generator().manual_seed(1)
    shapes = [(3, 50), (0,), (1,), (64,), (200_000,), ()]
    addends = [[torch.randn(shape, generator=generator) for shape in shapes] for _ in range(3)]
    for row in addends:
        row[0] = torch.randn(50, 3, generator=generator).t()
    into = [torch.empty(50, 3).t(), *(torch.empty(shape) for shape in shapes[1:])]
    rows = torch.stack([torch.cat([item.flatten() for item in row]) for row in addends]).numpy().view(np.uint32)
    golden = sum_of(rows, width=24, lengths=[item.numel() for item in into])
    reducer = reproducible.Reducer(width=24)
    for _ in range(2):
        reducer.reduce(addends, addends=3, into=into)
        assert (torch.cat([item.flatten() for item in into]).numpy().view(np.uint32) == golden).all()
    assert reducer.counts == reproducible.Counts(sums=2)


def test_no_elements():
    reducer = reproducible.Reducer()
    reducer.all_reduce([torch.empty(0), torch.empty(0, 4)])
    with pytest.raises(ValueError, match=r"^Contributions of all ranks together must be 2, not 0$"):
        reducer.reduce([], addends=2, into=[torch.ones(3)])


def test_infinities():
    """Infinities and NaNs affect only their own elements of a sum, and are counted."""
    addends = torch.randn(2, 100)
    plain = sum_of(addends.numpy().view(np.uint32), width=32).view(np.float32)
    addends[0, 99], addends[1, 4], addends[0, 5], addends[1, 5] = torch.nan, torch.inf, torch.inf, -torch.inf
    golden = sum_of(addends.numpy().view(np.uint32), width=32)
    reducer = reproducible.Reducer()
    total = torch.empty(100)
    reducer.reduce([[row] for row in addends], addends=2, into=[total])
    assert (total.numpy().view(np.uint32) == golden).all()
    assert (total.numpy()[32:96] == plain[32:96]).all()
    assert reducer.counts.special == 1


def test_refused():
    reducer = reproducible.Reducer()
    for tensors, text in (([], "Tensors must be given: at least one"),
                          (torch.ones(3, dtype=torch.float64), "Tensors must be dense and of torch.float32, not "
                                                               "torch.strided of torch.float64"),
                          (torch.ones(3).to_sparse(), "Tensors must be dense and of torch.float32, not "
                                                      "torch.sparse_coo of torch.float32"),
                          ([torch.ones(3), torch.ones(3, device="meta")], "Tensors must be on one device, not on cpu "
                                                                          "and meta")):
        with pytest.raises(ValueError, match=f"^{text}$"):
            reducer.all_reduce(tensors)
    with pytest.raises(ValueError, match=r"^Width of a sum must be an integer between 4 and 32, not 33$"):
        reproducible.Reducer(width=33)


def model():
    torch.manual_seed(0)
    return nn.Linear(5, 3)


def test_microbatches():
    """Gradients equal the golden model's means; random numbers depend only on seed, step and microbatch."""
    network, drawn = model(), {}
    batches = reproducible.Microbatches(network, 3, width=24, seed=1)
    rows = []
    for index in batches(7):
        inputs = drawn[index] = torch.randn(2, 5)
        network(inputs).square().sum().backward()
        rows.append(torch.cat([parameter.grad.flatten() for parameter in network.parameters()]))
    assert batches.reduce()
    golden = sum_of(torch.stack(rows).numpy().view(np.uint32), width=24, lengths=[15, 3]).view(np.float32)
    actual = torch.cat([parameter.grad.flatten() for parameter in network.parameters()]).numpy()
    assert (actual == golden / np.float32(3)).all()
    first = torch.rand(1)
    for index in reproducible.Microbatches(network, 3, seed=1)(7):
        assert (torch.randn(2, 5) == drawn[index]).all()
    assert len({float(value[0, 0]) for value in drawn.values()}) == 3
    assert first != torch.rand(1)


def steps(batches, network, scales):
    """Train one step for each scale of the loss; return for each step whether the ranks were able to sum its
    gradients."""
    done = []
    for step, scale in enumerate(scales):
        for index in batches(step):
            (scale * network(torch.full((1, 5), 1.0 + index)).sum()).backward()
        done.append(batches.reduce())
        assert (network.weight.grad is not None) == done[-1]
    return done


def test_headroom():
    """From step to step, elements may grow by the headroom. If they grow more, or are infinite or NaN, a step is
    skipped."""
    network = model()
    batches = reproducible.Microbatches(network, 2, headroom=3)
    assert steps(batches, network, [1, 8, 64, 512, 8192, 8192]) == [True, True, True, True, False, True]
    assert batches.skipped == 1
    batches = reproducible.Microbatches(network, 2, headroom=0)
    assert steps(batches, network, [1, 1, float("inf"), 1, float("nan"), 1]) == [True, True, False, True, False, True]
    # Exponents fall by at most one bit per step, so 2**-2 leaves room for 2**-1 but not for 1.
    assert steps(reproducible.Microbatches(network, 2, headroom=0), network, [1, 2 ** -9, 2 ** -9, 0.5]) == [
        True, True, True, False]


def test_first_step_special():
    network = model()
    batches = reproducible.Microbatches(network, 2, headroom=2)
    assert steps(batches, network, [float("inf"), 1]) == [False, False]


@pytest.mark.parametrize(("module", "text"), [
    (nn.BatchNorm1d(3), r"Running statistics of 1 \(BatchNorm1d\) depend on the microbatches of a rank: "),
    (nn.SyncBatchNorm(3), r"Running statistics of 1 \(SyncBatchNorm\) depend on the microbatches of a rank: ")])
def test_statistics(module, text):
    """Modules with statistics that depend on a rank's microbatches are rejected, except in evaluation."""
    network = nn.Sequential(model(), module)
    batches = reproducible.Microbatches(network, 2)
    with pytest.raises(ValueError, match=f"^{text}"):
        next(batches(0))
    module.eval()
    assert next(batches(0)) == 0


def test_misuse():
    network = model()
    with pytest.raises(ValueError, match=r"^Model must not contain DataParallel, which sums gradients itself: "):
        reproducible.Microbatches(nn.Sequential(nn.DataParallel(network)), 2)
    for headroom in (-1, 17, 1.5):
        with pytest.raises(ValueError, match=f"^Headroom, unless it is None, must be an integer .* not {headroom}$"):
            reproducible.Microbatches(network, 2, headroom=headroom)
    batches = reproducible.Microbatches(network, 3)
    with pytest.raises(ValueError, match=r"^Microbatches of a step must be taken before reduce\(\): none has been "):
        batches.reduce()
    next(batches(0))
    with pytest.raises(ValueError, match=r"^Microbatches .* taken before reduce\(\), not all but 3$"):
        batches.reduce()


def test_comparison(monkeypatch, capsys):
    """A comparison with a GPU counts the differences. Without a GPU, it ends with a one-line message."""
    monkeypatch.setattr(cuda, "ELEMENTS", 4096)
    assert cuda.compare(torch.device("cpu")) == 0
    finish = Terms.finish
    calls = itertools.count()
    monkeypatch.setattr(Terms, "finish", lambda self, parts, result: finish(
        self, [part ^ (next(calls) == 1) for part in parts], result))
    assert cuda.compare(torch.device("cpu")) > 2000  # the lower integer of each word's two
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert cuda.main() == 1
    assert capsys.readouterr().err == ("error: PyTorch must find a GPU: run this where there is one, with a "
                                       "build of PyTorch for GPUs\n")
