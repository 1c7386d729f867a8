"""Counts of forward and backward passes, which distinguish requests of different steps.

A module in ``DistributedDataParallel`` has counts of its own, of passes with a sum of its gradients: passes under
``no_sync()`` are left out, since ranks may differ in them. All other modules have one count together, of the
outermost modules with parameters that are called to be differentiated, and of the calls of
``torch.autograd.backward``.
"""

import dataclasses
import functools
from typing import Any

import torch

__all__ = ["OTHERS", "Passes", "install"]


@dataclasses.dataclass
class Passes:
    """Passes so far."""

    forward: int = 0
    backward: int = 0


OTHERS = Passes()
"""Passes outside of ``DistributedDataParallel``."""

#: Modules that are being called, each within the one before it.
_calls: list[torch.nn.Module] = []


def _enter(module: torch.nn.Module, arguments: Any) -> None:
    if not _calls and module.training and torch.is_grad_enabled() and any(
            parameter.requires_grad for parameter in module.parameters()):
        OTHERS.forward += 1
    _calls.append(module)


def _leave(module: torch.nn.Module, arguments: Any, output: Any) -> None:
    # A call that has ended by an error in a hook has not been noted as left.
    while _calls and _calls.pop() is not module:
        pass


def install() -> None:
    """Count passes from now on."""
    backward = torch.autograd.backward

    @functools.wraps(backward)
    def count(*arguments: Any, **options: Any) -> None:
        OTHERS.backward += 1
        backward(*arguments, **options)

    torch.autograd.backward = count
    torch.nn.modules.module.register_module_forward_pre_hook(_enter)
    torch.nn.modules.module.register_module_forward_hook(_leave, always_call=True)
