"""Track parameters that optimizers on the nodes update, and gradients that belong to a single rank.

A parameter is owned while there is a ``gradring.torch`` optimizer for it. Its gradients stay local after a backward
pass, since the optimizer's step averages them. Applying a PyTorch optimizer or a gradient clipping function to a
local gradient is an error, because each rank would use a different value.
"""

import functools
import gc
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.weak import WeakTensorKeyDictionary

__all__ = ["install", "is_owned", "note_local", "note_mean", "own"]

#: For each parameter, the optimizers on the nodes that update it.
_owners: "WeakTensorKeyDictionary" = WeakTensorKeyDictionary()
#: Owned parameters that were later also passed to another optimizer; cleared by the next ownership check.
_claimed: "WeakTensorKeyDictionary" = WeakTensorKeyDictionary()
#: Parameters with a local gradient, which has not been averaged over ranks.
_local: "WeakTensorKeyDictionary" = WeakTensorKeyDictionary()


def own(optimizer: torch.optim.Optimizer, parameters: Iterable[torch.Tensor]) -> None:
    """Record that an optimizer on the nodes updates these parameters, for as long as it exists."""
    for parameter in parameters:
        if parameter not in _owners:
            _owners[parameter] = weakref.WeakSet()
            # A later backward pass makes the gradient non-local, unless DDP's hook records it as local again.
            parameter.register_post_accumulate_grad_hook(note_mean)
        _owners[parameter].add(optimizer)


def is_owned(parameter: torch.Tensor) -> bool:
    """Return whether an optimizer on the nodes updates this parameter."""
    if parameter in _claimed:
        gc.collect()  # on every rank, frees replaced optimizers in reference cycles
        _claimed.clear()
    return bool(len(_owners.get(parameter, ())))


def note_local(parameter: torch.Tensor) -> None:
    """Record that a parameter's gradient belongs to this rank only."""
    _local[parameter] = True


def note_mean(parameter: torch.Tensor) -> None:
    """Record that a parameter's gradient is no longer local."""
    _local.pop(parameter, None)


def _check_step(optimizer: torch.optim.Optimizer, arguments: Any, options: Any) -> None:
    """Raise an error if a PyTorch optimizer steps with local gradients, which only optimizers on the nodes sum."""
    if getattr(optimizer, "on_nodes", False):
        return
    local = sum(parameter.grad is not None and parameter in _local
                for group in optimizer.param_groups for parameter in group["params"])
    if local:
        raise ValueError(f"Gradients of {type(optimizer).__name__} must be means of all ranks, and {local} of them "
                         f"were left local for an optimizer of gradring.torch: delete that one before the backward "
                         f"pass, or let it do the step")


def _refusing(name: str, clip: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a gradient clipping function so that it rejects gradients that the nodes will average."""
    @functools.wraps(clip)
    def refuse(parameters: Any, *arguments: Any, **options: Any) -> Any:
        clipped = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        if any(is_owned(parameter) or parameter in _local for parameter in clipped):
            advice = ("give the optimizer clip=, which clips the mean" if name == "clip_grad_value_"
                      else "take an optimizer of torch.optim, or clip= for single elements")
            raise ValueError(f"{name} must have gradients that are summed, not gradients that an optimizer "
                             f"of gradring.torch sums on the nodes: {advice}")
        return clip(clipped, *arguments, **options)

    return refuse


def _noting(add_group: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``add_param_group`` so that it records parameters that an optimizer on the nodes may also update."""
    @functools.wraps(add_group)
    def add(self: torch.optim.Optimizer, param_group: dict[str, Any]) -> Any:
        result = add_group(self, param_group)
        for parameter in param_group["params"]:
            if parameter in _owners:
                _claimed[parameter] = True
        return result

    return add


def install() -> None:
    """Make PyTorch reject, from now on, operations that would mistake one rank's gradient for the mean."""
    register_optimizer_step_pre_hook(_check_step)
    torch.optim.Optimizer.add_param_group = _noting(torch.optim.Optimizer.add_param_group)
    for name in ("clip_grad_value_", "clip_grad_norm_", "clip_grad_norm", "clip_grads_with_norm_"):
        refusing = _refusing(name, getattr(torch.nn.utils, name))
        for module in (torch.nn.utils, torch.nn.utils.clip_grad):
            if hasattr(module, name):
                setattr(module, name, refusing)
