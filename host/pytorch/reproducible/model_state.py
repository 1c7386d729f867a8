"""Checks of a model before its gradients are summed reproducibly: modules, parameters, weights and buffers."""

import hashlib
from collections.abc import Sequence

import torch
from torch.nn.parallel import DataParallel, DistributedDataParallel

__all__ = ["Versions", "check_modules", "check_same", "check_statistics", "digest", "trainable"]


def trainable(model: torch.nn.Module) -> list[torch.nn.Parameter]:
    """Return the model's parameters that require gradients."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def check_modules(model: torch.nn.Module) -> None:
    """Raise ValueError if no parameter is trainable, or a module sums gradients itself."""
    for module in model.modules():
        if isinstance(module, (DistributedDataParallel, DataParallel)):
            raise ValueError(f"Model must not contain {type(module).__name__}, which sums gradients itself: give its "
                             f"module")
    if not trainable(model):
        raise ValueError("Model must have parameters that require gradients")


def check_statistics(model: torch.nn.Module) -> None:
    """Raise ValueError if a module computes running statistics, which depend on a rank's microbatches."""
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.modules.batchnorm._NormBase) and module.training and (
                module.track_running_stats or isinstance(module, torch.nn.SyncBatchNorm)):
            raise ValueError(f"Running statistics of {name or 'the model'} ({type(module).__name__}) depend on the "
                             f"microbatches of a rank: use track_running_stats=False, another normalization, or "
                             f"eval()")


def check_same(before: Sequence[torch.nn.Parameter], now: Sequence[torch.nn.Parameter]) -> None:
    """Raise ValueError unless the parameters are the same objects as before, and all are binary32."""
    if len(before) != len(now) or any(one is not other for one, other in zip(before, now, strict=True)) or any(
            parameter.dtype != torch.float32 for parameter in now):
        raise ValueError("Parameters that require gradients must stay as they were: make new Microbatches after the "
                         "model has changed")


def digest(model: torch.nn.Module) -> str:
    """Return a digest of all weights and buffers of a model."""
    state = hashlib.blake2b(digest_size=16)
    for name, tensor in sorted([*model.named_parameters(), *model.named_buffers()], key=lambda item: item[0]):
        state.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} ".encode())
        state.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return state.hexdigest()


class Versions:
    """Version counters of a model's weights and buffers at the beginning of a step."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._weights = [(parameter, parameter._version) for parameter in model.parameters()]
        self._buffers = [(name, buffer, buffer._version) for name, buffer in model.named_buffers()]

    def check(self) -> None:
        """Raise ValueError if weights or buffers have changed since the beginning of the step."""
        if any(parameter._version != version for parameter, version in self._weights):
            raise ValueError("Weights must not change within a step: call the optimizer's step() after reduce()")
        for name, buffer, version in self._buffers:
            if buffer._version != version:
                raise ValueError(f"Buffer {name} must not change within a step: on several ranks, it would depend on "
                                 f"the microbatches of each")
