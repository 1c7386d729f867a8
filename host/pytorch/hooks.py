"""Hooks of DistributedDataParallel: gradients that stay local, and gradients that errors are added to.

A codec that loses something, or a density, keeps back a part of each gradient and adds it to a later one of the same
parameter. A bucket of DDP is summed without the names of its parameters, and buckets change after the first step; a
hook knows the parameters.
"""

import functools
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel
from torch.utils.weak import WeakTensorKeyDictionary

from host.pytorch.client import client
from host.pytorch.messages import AllReduce, Open

__all__ = ["Feedback", "install", "local_gradients", "mixed", "own", "owned", "with_errors"]

#: Parameters that optimizers on the nodes update.
_owned = WeakTensorKeyDictionary()


def own(parameters: Iterable[torch.Tensor]) -> None:
    """Note that the nodes' optimizer updates these parameters."""
    _owned.update((parameter, None) for parameter in parameters)


def owned(parameters: Iterable[torch.Tensor]) -> bool:
    """Whether the nodes' optimizer updates any of these parameters."""
    return any(parameter in _owned for parameter in parameters)


def local_gradients(state: object, bucket: dist.GradBucket) -> Future[torch.Tensor]:
    """Leave each rank its own gradients, which an optimizer on the nodes sums: a hook for ``register_comm_hook``."""
    future: Future[torch.Tensor] = Future()
    future.set_result(bucket.buffer())
    return future


class Feedback:
    """State of :func:`with_errors`.

    Parameters
    ----------
    parameters : iterable of Parameter
        All parameters of the model, in order.
    """

    def __init__(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        self._first: dict[int, int] = {}
        self._length = 0
        for parameter in parameters:
            if parameter.requires_grad:
                self._first[id(parameter)] = self._length
                self._length += parameter.numel()
        self._job: int | None = None

    def sum(self, values: torch.Tensor, parameters: Iterable[torch.Tensor]) -> torch.Tensor:
        """Sum gradients of some parameters, one behind the other."""
        if self._job is None:
            self._job = int(client().ask(Open(lengths=(self._length,))))
        places = np.concatenate([self._first[id(one)] + np.arange(one.numel()) for one in parameters])
        return torch.from_numpy(client().ask(AllReduce(
            values=np.ascontiguousarray(values.detach().numpy()), job=self._job, places=places)))


def with_errors(state: Feedback, bucket: dist.GradBucket) -> Future[torch.Tensor]:
    """Average gradients over the ring, with the errors of earlier ones added: a hook for ``register_comm_hook``."""
    future: Future[torch.Tensor] = Future()
    future.set_result(state.sum(bucket.buffer() / dist.get_world_size(), bucket.parameters()))
    return future


def mixed(state: Feedback | None, bucket: dist.GradBucket) -> Future[torch.Tensor]:
    """Leave gradients local whose parameters the nodes update, and average the others over the ring, with the errors
    of earlier ones added if there is a state: a hook for ``register_comm_hook``."""
    pairs = zip(bucket.parameters(), bucket.gradients(), strict=True)
    others = [(parameter, gradient) for parameter, gradient in pairs if not owned([parameter])]
    if others:
        values = torch.cat([gradient.reshape(-1) for _, gradient in others]) / dist.get_world_size()
        if state is None:
            means = torch.from_numpy(client().ask(AllReduce(values=values.numpy())))
        else:
            means = state.sum(values, [parameter for parameter, _ in others])
        for (_, gradient), mean in zip(others, means.split([one.numel() for _, one in others]), strict=True):
            gradient.copy_(mean.view_as(gradient))
    return local_gradients(None, bucket)


def install(*, keeps: bool) -> None:
    """Have every DistributedDataParallel take the hook that fits before its first forward pass, unless the script has
    registered one; and refuse to clip gradients that are not the mean yet.

    Parameters
    ----------
    keeps : bool
        Whether nodes keep back parts of gradients.
    """
    begin = DistributedDataParallel.__init__

    @functools.wraps(begin)
    def initialize(self: Any, *arguments: Any, **options: Any) -> None:
        begin(self, *arguments, **options)

        def choose(module: Any, given: Any) -> None:
            handle.remove()
            if module.process_group.name() != "gradring" or getattr(module, "_comm_hooks", []):
                return
            trained = [parameter for parameter in module.module.parameters() if parameter.requires_grad]
            others = [parameter for parameter in trained if not owned([parameter])]
            feedback = Feedback(others) if keeps and others else None
            if not others:
                module.register_comm_hook(None, local_gradients)
            elif len(others) < len(trained):
                module.register_comm_hook(feedback, mixed)
            elif keeps:
                module.register_comm_hook(feedback, with_errors)

        handle = self.register_forward_pre_hook(choose)

    DistributedDataParallel.__init__ = initialize
    for name in ("clip_grad_value_", "clip_grad_norm_", "clip_grad_norm", "clip_grads_with_norm_"):
        refusing = _refusing(name, getattr(torch.nn.utils, name))
        for module in (torch.nn.utils, torch.nn.utils.clip_grad):
            if hasattr(module, name):
                setattr(module, name, refusing)


def _refusing(name: str, clip: Callable[..., Any]) -> Callable[..., Any]:
    """A function that clips gradients, but not those of which the nodes form the mean."""
    @functools.wraps(clip)
    def refuse(parameters: Any, *arguments: Any, **options: Any) -> Any:
        given = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        if owned(given):
            advice = ("give the optimizer clip=, which clips the mean" if name == "clip_grad_value_"
                      else "take an optimizer of torch.optim, or clip= for single elements")
            raise ValueError(f"{name} must have gradients that are summed, not those that an optimizer of "
                             f"gradring.torch sums on the nodes: {advice}")
        return clip(given, *arguments, **options)

    return refuse
