"""Backend ``gradring`` of ``torch.distributed`` for scripts that torchrun or any other program has started."""

import datetime
import functools
from typing import Any

import torch.distributed as dist

__all__ = ["register"]

#: As in host/pytorch/messages.py, which is imported when the backend is used.
_RING = "gradring"


def register() -> None:
    """Register the backend, unless a launcher has registered its own."""
    if dist.is_available() and _RING not in dist.Backend.backend_list:
        dist.Backend.register_backend(_RING, _create, devices=["cpu"])


def _create(store: Any, rank: int, size: int, timeout: datetime.timedelta) -> Any:
    """Create a process group when PyTorch requests one."""
    from host.pytorch import process_group, sharding
    from host.pytorch.client import client

    _prepare()
    if client().keeps or client().codes_weights:
        sharding.install()
    return process_group.create(store, rank, size, timeout)


@functools.cache
def _prepare() -> None:
    """Register hooks for DDP and optimizers, once."""
    from host.pytorch import hooks, process_group
    from host.pytorch.client import client

    hooks.install(keeps=client().keeps)
    process_group.answer_for_gloo()
