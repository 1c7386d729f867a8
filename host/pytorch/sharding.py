"""Parameters that PyTorch keeps in shards: marks of their collectives, and residuals of their gradients.

``fully_shard`` and ``FullyShardedDataParallel`` call collectives with new flat tensors each time. :func:`install`
marks these calls with the parameters concerned. With a lossy codec of gradients, a rank adds the coding errors of its
earlier collective for the same parameters, whatever other parameters and calls there are. A lossy codec of weights is
used only in marked calls, so that states, and weights in full precision, remain exact.
"""

import contextlib
import functools
import importlib
import itertools
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from host.pytorch.messages import Vector

__all__ = ["Mark", "Residuals", "install", "marked"]

_FSDP2 = "torch.distributed.fsdp._fully_shard._fsdp_param_group"
_FSDP1 = ("torch.distributed.fsdp._runtime_utils", "torch.distributed.fsdp._flat_param")

_local = threading.local()


class Mark:
    """Collectives of one call of PyTorch's functions.

    Parameters
    ----------
    owners : sequence of object
        PyTorch's objects for the parameters, in the order of their elements in each shard.
    widths : sequence of int, optional
        Number of elements of each of them in a shard; without it, there is one owner, of all elements.
    weights : bool
        Whether weights for a forward or backward pass are gathered, not gradients summed.
    """

    def __init__(self, owners: Sequence[Any], widths: Sequence[int] | None = None, *, weights: bool = False) -> None:
        self.owners, self.weights, self._widths = tuple(owners), weights, widths
        self._counts: Counter[str] = Counter()

    def widths(self, count: int) -> tuple[int, ...] | None:
        """Number of elements of each owner in a shard of ``count`` elements, or None for any other vector."""
        widths = (count,) if self._widths is None else tuple(self._widths)
        return widths if sum(widths) == count else None

    def key(self, kind: str) -> tuple[str, int]:
        """Kind of a collective, and number of earlier ones of this kind in the same call."""
        self._counts[kind] += 1
        return kind, self._counts[kind]


class Residuals:
    """Residuals of one kind of collective in one process group, for each parameter.

    The parameters of one collective share an array. If the next collective has other parameters, their residuals move
    to a new array.
    """

    def __init__(self) -> None:
        self._of: weakref.WeakKeyDictionary[Any, tuple[Vector, slice]] = weakref.WeakKeyDictionary()

    def array(self, owners: Sequence[Any], widths: Sequence[int], rows: int) -> Vector:
        """Return the residuals of parameters, to be replaced in place; they are zeros at first.

        ``widths`` are the lengths of the parameters in each of ``rows`` shards. The array has shape
        (rows * sum(widths),).
        """
        ends = list(itertools.accumulate(widths, initial=0))
        kept = [self._of.get(owner) for owner in owners]
        columns = [slice(*pair) for pair in itertools.pairwise(ends)]
        first = kept[0][0] if kept and kept[0] is not None else None
        if first is None or first.shape != (rows, ends[-1]) or any(
                entry is None or entry[0] is not first or entry[1] != where
                for entry, where in zip(kept, columns, strict=True)):
            first = np.zeros((rows, ends[-1]), np.float32)
            for owner, entry, where in zip(owners, kept, columns, strict=True):
                if entry is not None and entry[0][:, entry[1]].shape == first[:, where].shape:
                    first[:, where] = entry[0][:, entry[1]]
                self._of[owner] = first, where
        return first.reshape(-1)


def marked() -> Mark | None:
    """Return the mark of the call in progress in this thread, if there is one."""
    return getattr(_local, "mark", None)


@contextlib.contextmanager
def _marking(mark: Mark | None) -> Iterator[None]:
    before, _local.mark = marked(), mark
    try:
        yield
    finally:
        _local.mark = before


def _wrap(place: Any, name: str, mark_of: Callable[..., Mark | None]) -> None:
    """Make calls of a function or method have a mark, which ``mark_of`` makes from the arguments."""
    function = getattr(place, name)

    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        with _marking(mark_of(*arguments, **options)):
            return function(*arguments, **options)

    setattr(place, name, call)


def _of_gradients(fsdp_params: Sequence[Any], *rest: Any, **options: Any) -> Mark:
    return Mark(fsdp_params, [parameter.padded_sharded_param_size.numel() for parameter in fsdp_params])


def _of_weights(fsdp_params: Sequence[Any], *rest: Any, **options: Any) -> Mark:
    return Mark(fsdp_params, weights=True)


def _of_handle(state: Any, handle: Any) -> Mark:
    return Mark([handle])


@functools.cache
def install() -> None:
    """Mark the collectives of ``fully_shard`` and ``FullyShardedDataParallel``, once; modules may exist already."""
    groups, (runtime, flat) = importlib.import_module(_FSDP2), map(importlib.import_module, _FSDP1)
    _wrap(groups, "foreach_reduce", _of_gradients)
    _wrap(groups, "foreach_all_gather", _of_weights)
    _wrap(runtime, "_reduce_grad", _of_handle)
    _wrap(runtime, "_reduce_grad_no_shard", _of_handle)
    summoned = flat.HandleTrainingState.SUMMON_FULL_PARAMS
    _wrap(flat.FlatParamHandle, "_all_gather_flat_param", lambda handle, *rest: None
          if handle._training_state == summoned else Mark([handle], weights=True))
