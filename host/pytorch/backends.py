"""Backends that a script asks for by name, which PyTorch would otherwise choose itself."""

import functools
import math
import os
import sys
from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d

from host.pytorch.client import RingClient
from host.pytorch.messages import RING
from host.pytorch.process_group import GlooGroup

__all__ = ["install"]

_GLOO = "gloo"

#: Functions of PyTorch that ask whether a group is of gloo, to use only what gloo has: a group of the ring has the
#: same. A function has its module, and its name where other functions of the module ask for another reason.
_ASKING = {("torch.distributed.distributed_c10d", "monitored_barrier"), ("torch.distributed.nn.functional", None),
           ("torch.distributed._shard.sharded_tensor.api", None)}


def install(connection: Callable[[], RingClient], *, replace: bool) -> None:
    """Make the launcher hear of the backends that are named, and count what goes over gloo.

    Parameters
    ----------
    connection : callable
        Returns the connection to the launcher.
    replace : bool
        Whether a backend gloo by name means the ring.
    """
    make = distributed_c10d._new_process_group_helper

    @functools.wraps(make)
    def helper(size: int, rank: int, ranks: list[int], backend: Any, *arguments: Any, **options: Any) -> Any:
        names = dist.BackendConfig(backend).get_device_backend_map()
        named = backend != dist.Backend.UNDEFINED and RING not in names.values()
        whole = not ranks or len(ranks) == dist.get_world_size()
        if named and replace and names.get("cpu") == _GLOO:
            return make(size, rank, ranks, dist.Backend(RING), *arguments, **options)
        if named and whole:
            connection().join(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), math.inf,
                              backend=", ".join(sorted(set(names.values()))))
        try:
            group, store = make(size, rank, ranks, backend, *arguments, **options)
        except (AssertionError, RuntimeError, ValueError) as error:
            if not named or set(names.values()) <= {_GLOO}:
                raise
            raise ValueError(f"Backend must be {RING} for the ring, not {backend}, which is not available: leave the "
                             f"name out of init_process_group(), or say {RING}") from error
        if type(group) is dist.ProcessGroup and names.get("cpu") == _GLOO:
            group = _exchange(group, GlooGroup(group, connection()))
        return group, store

    distributed_c10d._new_process_group_helper = helper
    _answer_for_gloo()


def _exchange(group: dist.ProcessGroup, counting: GlooGroup) -> GlooGroup:
    """Register a group that counts in the place of PyTorch's own."""
    world, name = distributed_c10d._world, group.group_name
    for table in (world.pg_map, world.pg_names, world.pg_backend_config, world.pg_to_tag):
        table[counting] = table.pop(group)
    for tagged in world.tags_to_pg.values():
        tagged[:] = [counting if member is group else member for member in tagged]
    counting._set_group_name(name)
    counting._set_group_desc(group.group_desc)
    distributed_c10d._unregister_process_group(name)
    distributed_c10d._register_process_group(name, counting)
    return counting


def _answer_for_gloo() -> None:
    """Answer PyTorch's functions that ask for gloo."""
    get_backend = distributed_c10d.get_backend

    @functools.wraps(get_backend)
    def answer(group: Any = None) -> Any:
        name = get_backend(group)
        caller = sys._getframe(1)
        module = caller.f_globals.get("__name__")
        asking = {(module, None), (module, caller.f_code.co_name)} & _ASKING
        return dist.Backend.GLOO if asking and isinstance(group or dist.group.WORLD, GlooGroup) else name

    distributed_c10d.get_backend = dist.get_backend = answer
