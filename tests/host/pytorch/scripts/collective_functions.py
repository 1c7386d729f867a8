"""Collective functions used by autograd, the compiler and FSDP2."""

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.nn.functional as differentiable
from collective_support import attempt, case, empties, one
from torch.distributed.fsdp import fully_shard

FUNCTIONAL = {
    "all_reduce": lambda group, make: functional.all_reduce(one(group, make), "sum", group),
    "all_reduce_coalesced": lambda group, make: functional.all_reduce_coalesced([one(group, make)], "sum", group),
    "all_reduce_inplace": lambda group, make: functional.all_reduce_inplace(one(group, make), "sum", group),
    "broadcast": lambda group, make: functional.broadcast(one(group, make), 0, group),
    "all_gather_single": lambda group, make: functional.all_gather_single(one(group, make), group),
    "all_gather_single_autograd": lambda group, make: functional.all_gather_single_autograd(one(group, make), group),
    "all_gather_tensor": lambda group, make: functional.all_gather_tensor(one(group, make), 0, group),
    "all_gather_tensor_autograd": lambda group, make: functional.all_gather_tensor_autograd(
        one(group, make), 0, group),
    "all_gather_tensor_inplace": lambda group, make: functional.all_gather_tensor_inplace(
        make(6 * group.size(), 0), one(group, make), group),
    "all_gather_inplace": lambda group, make: functional.all_gather_inplace(
        empties(group, make, 6), one(group, make), group),
    "all_gather_into_tensor_coalesced": lambda group, make: functional.all_gather_into_tensor_coalesced(
        [one(group, make)], group),
    "all_gather_single_coalesced": lambda group, make: functional.all_gather_single_coalesced(
        [one(group, make)], group),
    **{name: (lambda group, make, name=name: getattr(functional, name)(make(3 * group.size(), 1), "sum", group))
       for name in ("reduce_scatter_single", "reduce_scatter_single_autograd")},
    **{name: (lambda group, make, name=name: getattr(functional, name)(make(3 * group.size(), 1), "sum", 0, group))
       for name in ("reduce_scatter_tensor", "reduce_scatter_tensor_autograd")},
    "reduce_scatter_tensor_inplace": lambda group, make: functional.reduce_scatter_tensor_inplace(
        make(3, 0), make(3 * group.size(), 1), "sum", group),
    "reduce_scatter_tensor_coalesced": lambda group, make: functional.reduce_scatter_tensor_coalesced(
        [make(3 * group.size(), 1)], "sum", [0], group),
    "reduce_scatter_single_coalesced": lambda group, make: functional.reduce_scatter_single_coalesced(
        [make(3 * group.size(), 1)], "sum", group),
    **{name: (lambda group, make, name=name: getattr(functional, name)(
        make(2 * group.size(), group.rank()), None, None, group))
       for name in ("all_to_all_single", "all_to_all_single_autograd")},
    "all_to_all_inplace": lambda group, make: functional.all_to_all_inplace(
        make(2 * group.size(), 0), make(2 * group.size(), group.rank()), group=group),
    "permute_tensor": lambda group, make: functional.permute_tensor(
        make(2, group.rank()), [(rank + 1) % group.size() for rank in range(group.size())], group),
}

DIFFERENTIABLE = {
    "broadcast": lambda group, tensor: differentiable.broadcast(tensor, 0, group),
    "gather": lambda group, tensor: differentiable.gather(tensor, 0, group),
    "scatter": lambda group, tensor: differentiable.scatter([tensor] * group.size(), 0, group),
    "reduce": lambda group, tensor: differentiable.reduce(tensor, 0, group=group),
    "reduce_scatter": lambda group, tensor: differentiable.reduce_scatter(
        torch.empty_like(tensor), [tensor] * group.size(), group=group),
    "all_gather": lambda group, tensor: differentiable.all_gather(tensor, group),
    "_all_gather_base": lambda group, tensor: differentiable._all_gather_base(
        torch.empty(group.size() * tensor.numel()), tensor, group),
    "all_to_all": lambda group, tensor: differentiable.all_to_all(
        [torch.empty_like(tensor) for _ in range(group.size())], [tensor] * group.size(), group),
    "all_to_all_single": lambda group, tensor: differentiable.all_to_all_single(
        torch.empty_like(tensor), tensor, group=group),
    "all_reduce": lambda group, tensor: differentiable.all_reduce(tensor, group=group),
}


@case(*(f"functional.{name}" for name in FUNCTIONAL), types=[torch.float32, torch.int64])
def functions(name, group, make):
    output = FUNCTIONAL[name.partition(".")[2]](group, make)
    return [functional.wait_tensor(tensor) for tensor in (output if isinstance(output, (list, tuple)) else [output])]


@case(*(f"nn.{name}" for name in DIFFERENTIABLE), types=[torch.float32])
def gradients(name, group, make):
    """Outputs of a function and the gradient of their sum. Inputs are contiguous because gloo requires it."""
    tensor = one(group, make).requires_grad_()
    outputs = DIFFERENTIABLE[name.partition(".")[2]](group, tensor)
    outputs = list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]
    kept = [] if name == "nn.gather" and group.rank() else [value.detach().clone() for value in outputs]
    with attempt(kept):
        torch.autograd.backward(outputs, [torch.ones_like(value) for value in outputs])
        kept.append(tensor.grad)
    return kept


@case(types=[torch.float32])
def fully_sharded(group, make):
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Linear(6, 2))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_((4 * parameter).round())
    mesh = dist.DeviceMesh.from_group(group, "cpu", mesh=list(range(group.size())))
    fully_shard(model[0], mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.25)
    results = []
    for _ in range(2):
        loss = model(make(8, group.rank()).reshape(2, 4)).sum()
        loss.backward()
        results += [loss.detach(), *(parameter.grad.to_local().clone() for parameter in model.parameters())]
        optimizer.step()
        optimizer.zero_grad()
    return results, [parameter.to_local() for parameter in model.parameters()]
