"""Blocks of compiled code have the same words, checksums and sums as blocks of tensor operations."""

import itertools

import numpy as np
import pytest

torch = pytest.importorskip("torch")
torch.set_num_threads(1)  # the reason is given in tests/host/training/test_torch.py

from host.pytorch.reproducible import arithmetic, compiled_blocks  # noqa: E402
from host.pytorch.reproducible.arithmetic import BLOCK, GROUP  # noqa: E402
from host.pytorch.reproducible.blocks import blocks_of  # noqa: E402
from host.pytorch.reproducible.compiled_blocks import CompiledBlocks  # noqa: E402
from host.pytorch.reproducible.layout import Layout  # noqa: E402
from host.pytorch.reproducible.reducer import Reducer  # noqa: E402
from host.pytorch.reproducible.tensor_blocks import TensorBlocks  # noqa: E402
from host.pytorch.reproducible.terms import Terms  # noqa: E402
from sim.verilated.toolchain import ToolError  # noqa: E402

KINDS = CompiledBlocks, TensorBlocks
CPU = torch.device("cpu")


def memory(size):
    """Allocate memory that initially contains values other than zero."""
    return torch.full((size,), 0x7FC1_2345, dtype=torch.int32)


def vectors(seed, count, length):
    """Random finite elements. All numbers of a group are similar, arbitrary, very small or very large."""
    generator = np.random.default_rng(seed)
    values = generator.integers(0, 2 ** 32, (count, length), np.uint32)
    similar = generator.standard_normal((count, length)).astype(np.float32).view(np.uint32)
    kind = np.repeat(generator.integers(0, 4, length // GROUP), GROUP)
    values = np.select([kind == 0, kind == 1, kind == 2], [similar, values, values & 0x80FF_FFFF],
                       values | 0x7F00_0000)
    values = np.where(values & 0x7F80_0000 == 0x7F80_0000, values & 0xFF7F_FFFF, values)
    return [torch.from_numpy(row.view(np.float32).copy()) for row in values]


def results(kind, addends, width, count):
    """Magnitudes, words, checksums and sums of addends, as arrays. ``count`` is the total number of addends in a
    sum."""
    bits, length = arithmetic.addend_bits(width, count), len(addends[0])
    largest = memory(length // GROUP)
    kind.magnitudes([addend for addend in addends if addend.dtype == torch.float32], largest, memory)
    fields = arithmetic.fields_of(largest.clone())
    blocks = kind(fields, bits, width, memory)
    words = memory(length if width > 16 else length // 2)
    parts = words.split(BLOCK if width > 16 else BLOCK // 2)
    split = [addend.split(BLOCK) for addend in addends]
    encoded = blocks.encode(range(len(parts)), list(zip(*split, strict=True)), parts)
    sums = torch.full((length,), torch.nan)
    blocks.finish(parts, sums.split(BLOCK))
    assert torch.equal(encoded, blocks.checksums(parts))
    return largest.numpy(), words.numpy(), encoded.numpy(), sums.numpy().view(np.uint32)


def same(addends, width, count):
    for compiled, plain in zip(*(results(kind, addends, width, count) for kind in KINDS), strict=True):
        assert np.array_equal(compiled, plain)


@pytest.mark.parametrize("width", range(4, 33))
def test_same_bits(width):
    """Compiled blocks and tensor operations give the same bits for all widths, for one and several addends, and for
    blocks with halves that end within a group."""
    for count, groups in ((1, 1), (2, 40), (4, 41)):
        same(vectors(width, count, groups * GROUP), width, count)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("width", [32, 16])
def test_several_blocks(width, threads):
    """Blocks are computed by the number of threads that PyTorch uses."""
    torch.set_num_threads(threads)
    try:
        same(vectors(1, 2, 2 * BLOCK + 3 * GROUP), width, 2)
    finally:
        torch.set_num_threads(1)


@pytest.mark.parametrize("width", [32, 16])
def test_integers(width):
    """Addends may be integers, alone or together with floating-point elements."""
    integers = torch.from_numpy(np.random.default_rng(1).integers(-100, 100, 5 * GROUP, np.int32))
    elements, = vectors(2, 1, 5 * GROUP)
    for addends in ([integers, elements], [elements, integers, integers], [integers, integers, elements]):
        same(addends, width, 4)


def test_no_addends():
    for kind in KINDS:
        largest, words = memory(2), memory(2 * GROUP)
        kind.magnitudes([], largest, memory)
        assert not largest.any()
        checksums = kind(torch.ones(2, dtype=torch.uint8), 31, 32, memory).encode([0], [[]], [words])
        assert not words.any()
        assert not checksums.any()


def test_no_compiler(monkeypatch):
    """Without a compiler, sums on a CPU use tensor operations."""
    assert blocks_of(CPU) is CompiledBlocks
    assert blocks_of(torch.device("meta")) is TensorBlocks

    def missing():
        raise ToolError("A C++ compiler is needed")

    monkeypatch.setattr(compiled_blocks, "_library", missing)
    compiled_blocks.is_available.cache_clear()
    try:
        assert blocks_of(CPU) is TensorBlocks
    finally:
        compiled_blocks.is_available.cache_clear()


@pytest.mark.parametrize("length", [64, 50])
def test_tensors_are_noted_as_changed(length):
    """Autograd raises an error if a sum replaces a tensor that autograd has saved."""
    x, factor = torch.ones(length), torch.ones(length, requires_grad=True)
    product = (factor * x).sum()
    Reducer().reduce([[x.clone()], [x.clone()]], addends=2, into=[x])
    assert (x == 2).all()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()


def test_blocks_that_are_summed_again(monkeypatch):
    """Blocks with wrong sums are summed again, even in inference mode, without addends, and with several threads."""
    verdicts, calls = Terms.verdicts, itertools.count()
    monkeypatch.setattr(Terms, "verdicts", lambda self, *arguments: verdicts(self, *arguments) | (next(calls) == 0))
    torch.set_num_threads(2)
    try:
        with torch.inference_mode():
            total = torch.ones(2 * BLOCK)
            reducer = Reducer()
            fields = torch.ones(2 * BLOCK // GROUP, dtype=torch.uint8)
            reducer.sum(Terms(fields, 31, 32, [], count=2, memory=memory), 2, total, Layout([total]))
    finally:
        torch.set_num_threads(1)
    assert reducer.counts.retried == 2
    assert not total.any()


@pytest.mark.parametrize(("right", "wrong"), [
    ("std::rint(scaled[i])", "std::floor(scaled[i])"),
    ("* factor.first * factor.second;", "* (factor.first * factor.second);")])
def test_other_arithmetic_is_not_used(monkeypatch, right, wrong):
    """If compiled code computes different bits, a warning says so, and sums on a CPU use tensor operations."""
    assert right in compiled_blocks.KERNELS
    monkeypatch.setattr(compiled_blocks, "KERNELS", compiled_blocks.KERNELS.replace(right, wrong))
    caches = compiled_blocks._library, compiled_blocks.is_available
    for cache in caches:
        cache.cache_clear()
    try:
        with pytest.warns(UserWarning, match=r"^Compiled sums must have the bits of PyTorch's operations, "):
            assert blocks_of(CPU) is TensorBlocks
    finally:
        for cache in caches:
            cache.cache_clear()


def test_fast_arithmetic_is_refused(monkeypatch):
    monkeypatch.setattr(compiled_blocks, "FLAGS", (*compiled_blocks.FLAGS, "-ffast-math"))
    with pytest.raises(ToolError, match="compile without -ffast-math"):
        compiled_blocks.build()
