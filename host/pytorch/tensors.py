"""Sums of PyTorch's tensors as sums of vectors of float32: conversion of tensors, factors and divisors."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist

from host.pytorch.messages import Vector

__all__ = ["Sum", "fits", "flat", "sum_of", "vector_of"]

_TYPES = (torch.float32, torch.bfloat16)


class Sum(NamedTuple):
    """A sum of all ranks' vectors, before which each vector is multiplied, and after which the sum is divided."""

    factor: float | None = None
    divisor: int = 1

    def store(self, total: Vector, tensor: torch.Tensor) -> None:
        """Replace the elements of a tensor by a sum, divided and rounded to the tensor's type."""
        values = torch.from_numpy(total)
        tensor.copy_((values / self.divisor if self.divisor > 1 else values).reshape(tensor.shape))


def sum_of(operation: Any, ranks: int) -> Sum | None:
    """Return what a reduction operation does, or None if it is not a sum.

    ``operation`` is of ``torch.distributed.ReduceOp``. The factor of PREMUL_SUM is rounded to float32.
    """
    # The type of `reduceOp` in options never compares equal to an operation; its `op` can be compared.
    kind = getattr(operation, "op", operation)
    if kind == dist.ReduceOp.SUM:
        return Sum()
    if kind == dist.ReduceOp.AVG:
        return Sum(divisor=ranks)
    return Sum(factor=float(operation.factor)) if kind == dist.ReduceOp.PREMUL_SUM else None


def fits(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether a ring can sum tensors: float32 or bfloat16, which has float32 sums, on the CPU."""
    return all(tensor.dtype in _TYPES and tensor.device.type == "cpu" and tensor.layout == torch.strided
               for tensor in tensors)


def flat(tensor: torch.Tensor) -> Vector:
    """Elements of a tensor as float32, in the tensor's memory if possible."""
    values: Vector = tensor.detach().resolve_neg().float().contiguous().view(-1).numpy()
    return values


def vector_of(tensors: Sequence[torch.Tensor], chosen: Sum, *, copy: bool) -> Vector:
    """Return the elements of tensors, multiplied by the factor of a sum; with ``copy``, never in their memory."""
    values = flat(tensors[0]) if len(tensors) == 1 else np.concatenate([flat(tensor) for tensor in tensors])
    if chosen.factor is not None:
        with np.errstate(over="ignore", invalid="ignore"):
            return np.asarray(values * np.float32(chosen.factor))
    return values.copy() if copy and len(tensors) == 1 else values
