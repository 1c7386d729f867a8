"""Recording of gradients in a group of one process."""

import errno
import os

import numpy as np
import pytest

torch = pytest.importorskip("torch")
torch.set_num_threads(1)  # the reason is given in tests/host/training/test_torch.py

import torch.distributed as dist  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

from host.gradients import files  # noqa: E402
from host.pytorch import hooks, recording  # noqa: E402
from host.pytorch.messages import RECORD  # noqa: E402


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Folder for gradients, in a group with this process as its only rank."""
    monkeypatch.setenv(RECORD, str(tmp_path / "gradients"))
    monkeypatch.setattr(recording, "_sources", type(recording._sources)())
    recording.recorder.cache_clear()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield tmp_path / "gradients"
    dist.destroy_process_group()
    recording.recorder.cache_clear()


def finish():
    """Wait until all files are written."""
    recording.recorder()._writer.shutdown()


def model():
    torch.manual_seed(6)
    return torch.nn.Sequential(torch.nn.Conv2d(3, 40, 5), torch.nn.Flatten(), torch.nn.Linear(40 * 16, 4))


def test_module(folder, capfd):
    """Samples are elements of each parameter's gradient, for each sampled step, however buckets are made. They are
    in the order of memory, as the ring gets them, which differs from the order of indices with channels_last."""
    inputs = torch.linspace(-1, 1, 2 * 3 * 64).reshape(2, 3, 8, 8)
    own = model()
    module = DistributedDataParallel(model().to(memory_format=torch.channels_last), bucket_cap_mb=0.001)
    hooks.attach(module, keeps=False)
    expected = {}
    for step in range(1, 6):
        for net in (own, module):
            net.zero_grad()
            (net(inputs) - step).square().sum().backward()
        expected[step] = {name: parameter.grad.numpy().copy() for name, parameter in own.named_parameters()}
        expected[step]["0.weight"] = expected[step]["0.weight"].transpose(0, 2, 3, 1)
    finish()
    assert sorted(path.name for path in folder.iterdir()) == [
        files.file_name("module0", step, 0) for step in (1, 2, 4)]
    samples = files.load(folder)
    assert [sample.key for sample in samples] == sorted(
        ("module0", name, step, 0) for step in (1, 2, 4) for name in expected[1])
    for sample in samples:
        flat = expected[sample.step][sample.parameter].reshape(-1)
        assert sample.shape == dict(own.named_parameters())[sample.parameter].shape
        assert len(sample.values) == min(len(flat), 1024)
        np.testing.assert_allclose(
            sample.values, np.concatenate([flat[start:start + count] for start, count in sample.runs]), rtol=1e-4,
            atol=1e-5)
    assert capfd.readouterr() == ("", "")


def test_limits(folder, capfd):
    """Parameters share the elements of a step; a recording that reaches its limit ends with one line."""
    source = recording.Source(recording.Recorder(folder, limit=32 * 4 * 32 * 20), "module0")
    tensors = {f"{index}": torch.full((128,), float(index)) for index in range(30)}
    tensors["0"] = torch.zeros(5, dtype=torch.int64)
    for step in (1, 2, 3, 4):
        source.add(step, tensors.items(), parameters=30)
    source.write(wait=True)
    source._recorder._writer.shutdown()
    samples = files.load(folder)
    assert sorted(int(sample.parameter) for sample in samples if sample.step == 1) == list(range(1, 21))
    assert {len(sample.values) for sample in samples} == {32}
    assert capfd.readouterr().err == ""
    large = recording.Source(recording.Recorder(folder, limit=10_000), "module1")
    for power in range(32):
        large.add(1 << power, [("a", torch.zeros(80))], parameters=1)
    assert capfd.readouterr().err == ("rank 0 records no more gradients from step 1,048,576 on: 0.01 MB are the "
                                      "limit of all ranks\n")


def test_full_disk(folder, monkeypatch, capfd):
    """If a file cannot be written, training continues after one line."""
    source = recording.source("module")

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        for step in (1, 2, 4):
            source.add(step, [("a", torch.ones(3))], parameters=1)
        finish()
    path = folder / files.file_name("module0", 1, 0)
    assert capfd.readouterr().err == (
        f"rank 0 records no more gradients from step 1 on: {path} cannot be written: no space left on device; make "
        f"room, or choose another folder with {RECORD}\n")
    assert list(folder.iterdir()) == []


def test_sums(folder, monkeypatch):
    """Vectors that a script without a DDP module sums are recorded in order, after the first backward pass."""
    monkeypatch.setattr(hooks, "OTHERS", hooks.Passes())
    hooks._sums.cache_clear()
    try:
        hooks.record_sum(torch.ones(40))
        for step in (1, 2, 3):
            hooks.OTHERS.backward = step
            for count in (32, 31, 64):
                hooks.record_sum(torch.full((count, 1), float(step)))
        finish()
    finally:
        hooks._sums.cache_clear()
    assert [(sample.parameter, sample.step, len(sample.values)) for sample in files.load(folder)] == [
        (f"sum {number} of shape ({count}, 1)", step, count) for number, count in ((0, 32), (1, 64))
        for step in (1, 2)]


def test_folder_of_another_run(folder, monkeypatch):
    """Only a script that torchrun has started again may record in a folder that has gradients."""
    source = recording.source("module")
    source.add(1, [("a", torch.ones(3))], parameters=1)
    source.write(wait=True)
    recording.recorder.cache_clear()
    with pytest.raises(ValueError, match=f"^{RECORD} must be a folder without recorded gradients, not {folder}: "):
        recording.recorder()
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert recording.recorder() is not None
    monkeypatch.delenv(RECORD)
    recording.recorder.cache_clear()
    assert recording.source("module") is None
