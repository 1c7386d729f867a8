"""Communication hook of ``DistributedDataParallel`` for reproducible averages of gradients."""

import torch
import torch.distributed as dist
from torch.futures import Future

from host.pytorch.reproducible.reducer import Reducer

__all__ = ["average"]


def average(reducer: Reducer, bucket: dist.GradBucket) -> Future[torch.Tensor]:
    """Average the gradients of a bucket: ``model.register_comm_hook(Reducer(), average)``.

    Each parameter begins a group, so the bits do not depend on ``bucket_cap_mb`` or on the order of buckets. The hook
    waits for its collectives, so that all ranks start those of different buckets in one order.
    """
    reducer.all_reduce(bucket.gradients(), average=True)
    buffer = bucket.buffer()
    future: Future[torch.Tensor] = Future(devices=[buffer.device] if buffer.is_cuda else None)
    future.set_result(buffer)
    return future
