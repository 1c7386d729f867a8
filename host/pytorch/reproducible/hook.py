"""Communication hook for ``DistributedDataParallel`` that averages gradients reproducibly."""

import torch
import torch.distributed as dist
from torch.futures import Future

from host.pytorch.reproducible.reducer import Reducer

__all__ = ["average"]


def average(reducer: Reducer, bucket: dist.GradBucket) -> Future[torch.Tensor]:
    """Average the gradients of a bucket: ``model.register_comm_hook(Reducer(), average)``.

    Each parameter starts a new group of elements, so the bits do not depend on ``bucket_cap_mb`` or on the order of
    buckets. The hook waits for its collectives, so that all ranks start the collectives of different buckets in the
    same order. A model with its own process group needs a ``Reducer(group=...)`` for that group.
    """
    if not isinstance(reducer, Reducer):
        raise TypeError(f"State of the hook must be a Reducer, as in register_comm_hook(Reducer(), average), not "
                        f"{reducer!r}")
    gradients = [_as_parameter(gradient, parameter) for gradient, parameter in zip(
        bucket.gradients(), bucket.parameters(), strict=True)]
    if not gradients:
        raise ValueError("Gradients must be dense: give nn.Embedding sparse=False")
    reducer.all_reduce(gradients, average=True)
    buffer = bucket.buffer()
    future: Future[torch.Tensor] = Future(devices=[buffer.device] if buffer.is_cuda else None)
    future.set_result(buffer)
    return future


def _as_parameter(gradient: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """Return a view of a gradient with its parameter's strides; it is stored in the parameter's memory order."""
    ordered = sorted(range(parameter.dim()), key=parameter.stride, reverse=True)
    if parameter.is_contiguous() or not parameter.permute(ordered).is_contiguous():
        return gradient
    return gradient.as_strided(parameter.shape, parameter.stride(), gradient.storage_offset())
