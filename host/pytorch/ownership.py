"""Parameters that optimizers on the nodes update, and gradients that belong to one rank only.

A parameter is owned while an optimizer of ``gradring.torch`` exists that was made for it. Its gradients stay local
after a backward pass, since the optimizer's step forms their mean. An optimizer of PyTorch with such a gradient, or a
function that clips it, is refused: on each rank it would take another value.
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

#: Optimizers of each parameter.
_owners: "WeakTensorKeyDictionary" = WeakTensorKeyDictionary()
#: Parameters that were given to an optimizer following the first one on the nodes, until the next check of owners.
_claimed: "WeakTensorKeyDictionary" = WeakTensorKeyDictionary()
#: Parameters with a gradient that a backward pass has left local.
_local: "WeakTensorKeyDictionary" = WeakTensorKeyDictionary()


def own(optimizer: torch.optim.Optimizer, parameters: Iterable[torch.Tensor]) -> None:
    """Note that an optimizer on the nodes updates some parameters, until it is deleted."""
    for parameter in parameters:
        if parameter not in _owners:
            _owners[parameter] = weakref.WeakSet()
            # The next gradient is accumulated, by any backward pass: the hook of DDP notes it again.
            parameter.register_post_accumulate_grad_hook(note_mean)
        _owners[parameter].add(optimizer)


def is_owned(parameter: torch.Tensor) -> bool:
    """Whether an optimizer on the nodes updates the parameter."""
    if parameter in _claimed:
        gc.collect()  # an optimizer that refers to itself, and was replaced, has ended on all ranks
        _claimed.clear()
    return bool(len(_owners.get(parameter, ())))


def note_local(parameter: torch.Tensor) -> None:
    """Note that the gradient of a parameter belongs to only this rank."""
    _local[parameter] = True


def note_mean(parameter: torch.Tensor) -> None:
    """Note that the gradient of a parameter is no longer one that was left local."""
    _local.pop(parameter, None)


def _check_step(optimizer: torch.optim.Optimizer, arguments: Any, options: Any) -> None:
    """Refuse a step of an optimizer of PyTorch with gradients of one rank; optimizers on the nodes sum them."""
    if getattr(optimizer, "on_nodes", False):
        return
    local = sum(parameter.grad is not None and parameter in _local
                for group in optimizer.param_groups for parameter in group["params"])
    if local:
        raise ValueError(f"Gradients of {type(optimizer).__name__} must be means of all ranks, and {local} of them "
                         f"were left local for an optimizer of gradring.torch: delete that one before the backward "
                         f"pass, or let it do the step")


def _refusing(name: str, clip: Callable[..., Any]) -> Callable[..., Any]:
    """A function that clips gradients, and refuses gradients that nodes are to average."""
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
    """A function that gives an optimizer parameters, and notes which of them an optimizer on the nodes may have."""
    @functools.wraps(add_group)
    def add(self: torch.optim.Optimizer, param_group: dict[str, Any]) -> Any:
        result = add_group(self, param_group)
        for parameter in param_group["params"]:
            if parameter in _owners:
                _claimed[parameter] = True
        return result

    return add


def install() -> None:
    """Refuse, from now on, operations that would take a gradient of one rank for the mean."""
    register_optimizer_step_pre_hook(_check_step)
    torch.optim.Optimizer.add_param_group = _noting(torch.optim.Optimizer.add_param_group)
    for name in ("clip_grad_value_", "clip_grad_norm_", "clip_grad_norm", "clip_grads_with_norm_"):
        refusing = _refusing(name, getattr(torch.nn.utils, name))
        for module in (torch.nn.utils, torch.nn.utils.clip_grad):
            if hasattr(module, name):
                setattr(module, name, refusing)
