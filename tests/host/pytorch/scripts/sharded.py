"""Random models in shards, trained over a ring in software, with the golden ring's sums, and over gloo.

    torchrun --standalone --nproc-per-node 4 tests/host/pytorch/scripts/sharded.py --cases 100

A case draws a model, its wraps (fully_shard or FullyShardedDataParallel, with or without a grid of ranks, or
ZeroRedundancyOptimizer), types, codecs, and what the training does. The weights of the ring must have the bits of the
golden ring's; with raw gradients and weights, and SGD, they must be close to gloo's.
"""

import argparse
import contextlib
import functools
import os
import random
import shutil
import tempfile
import warnings
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint import state_dict as states
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    FullyShardedDataParallel,
    MixedPrecision,
    MixedPrecisionPolicy,
    ShardingStrategy,
    fully_shard,
)
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

import gradring.torch  # noqa: F401
from hdl.compression.registry import GRADIENT_CODECS, WEIGHT_CODECS
from host.pytorch.client import client
from host.pytorch.process_group import RingGroup, RingWork, _operation
from host.pytorch.sharding import marked
from host.pytorch.software.client import GRADIENTS, WEIGHTS
from sim.golden import ring as golden
from sim.golden.codecs import CODECS, RAW
from tests.host.pytorch.scripts.shards import possible, ring_order, shards_of

#: Largest difference of weights from gloo's, as a fraction of the largest weight: gloo adds in another order.
BOUND = 2e-6
KINDS = ("fully_shard", "fully_shard", "grid", "FSDP1", "FSDP1", "FSDP1 grid", "ZeRO")
STEPS = 4


class Golden:
    """Sums and gathers of all ranks with the golden ring, in place of a ring in software.

    Residuals are kept for each parameter: of all ranks, with shape (ranks, shards, width).
    """

    def __init__(self):
        self.codecs = CODECS[os.environ[GRADIENTS]], CODECS[os.environ[WEIGHTS]]
        self.residuals, self.sums, self.kept, self.coded = {}, 0, 0, 0

    def everyone(self, group, values):
        """Vectors of all ranks of a group."""
        rows = [torch.empty_like(values) for _ in range(group.size())]
        group._plain.allgather([rows], [values]).wait()
        return np.stack([row.numpy().view(np.uint32) for row in rows])

    def sum(self, group, tensor, operation, *, shards):
        """Sum of all ranks' tensors, or the sum of this rank's shard, in float32."""
        kind = getattr(operation, "op", operation)
        values = tensor.detach().float().reshape(-1).contiguous()
        if kind == dist.ReduceOp.PREMUL_SUM:
            values = values * torch.tensor(operation.factor)
        rows, ranks = self.everyone(group, values), group.size()
        count = rows.shape[1] // shards
        owners, widths = [None], [count]
        if (mark := marked()) is not None and not mark.weights and mark.widths(count):
            owners, widths = mark.owners, mark.widths(count)
            self.kept += not self.codecs[0].exact
        keys = [(id(group), shards, owner) for owner in owners]
        kept = [self.residuals.get(key, np.zeros((ranks, shards, width), np.uint32)) if key[2] is not None else
                np.zeros((ranks, shards, width), np.uint32) for key, width in zip(keys, widths, strict=True)]
        residuals = np.concatenate(kept, axis=2)
        options = {"gradient_codec": self.codecs[0]}
        if shards == 1:
            residuals = np.ascontiguousarray(residuals[:, 0])
            total, _ = golden.all_reduce(rows, residuals=residuals, **options)
            residuals = residuals[:, None]
        else:
            ordered = ring_order(residuals)
            result, _ = golden.reduce_scatter(ring_order(rows.reshape(ranks, ranks, count)), residuals=ordered,
                                              **options)
            total = shards_of(result, count)[group.rank(), group.rank()]
            residuals = shards_of(ordered, count)
        for key, part in zip(keys, np.split(residuals, np.cumsum(widths)[:-1], axis=2), strict=True):
            self.residuals[key] = part.copy()
        self.sums += 1
        result = torch.from_numpy(np.ascontiguousarray(total).view(np.float32))
        return result / ranks if kind == dist.ReduceOp.AVG else result

    def all_reduce(self, group, tensors, operation):
        if not all(tensor.dtype in (torch.float32, torch.bfloat16) for tensor in tensors) or getattr(
                operation, "op", operation) not in (dist.ReduceOp.SUM, dist.ReduceOp.AVG, dist.ReduceOp.PREMUL_SUM):
            return None
        for tensor in tensors:
            if tensor.numel():
                tensor.detach().copy_(self.sum(group, tensor, operation, shards=1).reshape(tensor.shape))
        return RingWork(tensors, [], lambda: None)

    def reduce_scatter(self, group, pairs, options=None, timeout=None, **named):
        operation = _operation(dist.ReduceScatterOptions, options, **named)
        for output, vector in pairs:
            if output.numel():
                output.detach().copy_(self.sum(group, vector, operation, shards=group.size()).reshape(output.shape))
        return RingWork([output for output, _ in pairs], [], lambda: None)

    def gather(self, group, output, shard):
        if (mark := marked()) is None or not mark.weights:
            return None
        self.coded += 1
        rows = self.everyone(group, shard.detach().float().reshape(-1).contiguous())
        ranks, count = rows.shape
        spread = np.zeros((ranks, ranks, count), np.uint32)
        spread[np.arange(ranks), np.arange(ranks)] = rows
        total, _ = golden.all_gather(ring_order(spread), weight_codec=self.codecs[1])
        values = torch.from_numpy(shards_of(np.stack([total] * ranks), count)[0].copy().view(np.float32))
        outputs = output if isinstance(output, (list, tuple)) else output.view(ranks, -1)
        for tensor, row in zip(outputs, values, strict=True):
            tensor.detach().copy_(row.view(tensor.shape))
        return RingWork([shard], [], lambda: None)


def over_gloo(group, pairs, options=None, timeout=None, **named):
    """Multiply, and let gloo sum: it refuses PREMUL_SUM."""
    operation = _operation(dist.ReduceScatterOptions, options, **named)
    if getattr(operation, "op", operation) != dist.ReduceOp.PREMUL_SUM:
        return None
    works = [group._plain.reduce_scatter_single(output, vector * operation.factor) for output, vector in pairs]
    return works[-1]


def _of_golden(group, function, *arguments, **named):
    """Method of a ring group that calls one of the golden ring."""
    return function(group, *arguments, **named)


@contextlib.contextmanager
def sums_of(kind):
    """Replace the sums of ring groups by sums of the golden ring or of gloo; yields the golden ring."""
    names = ("_all_reduce", "_reduce_scatter", "_gather")
    before, model = [getattr(RingGroup, name) for name in names], Golden()
    if kind == "golden":
        for name in names:
            setattr(RingGroup, name, functools.partialmethod(_of_golden, getattr(model, name[1:])))
    elif kind == "gloo":
        RingGroup._all_reduce = RingGroup._gather = lambda group, *arguments: None
        RingGroup._reduce_scatter = over_gloo
    try:
        yield model
    finally:
        for name, function in zip(names, before, strict=True):
            setattr(RingGroup, name, function)


class Block(nn.Module):
    """Two layers, the second of which some passes do not use."""

    def __init__(self, width, hidden):
        super().__init__()
        self.first, self.second = nn.Linear(width, hidden), nn.Linear(hidden, width)
        self.scale = nn.Parameter(torch.ones(width))
        self.skips = False

    def forward(self, x):
        y = self.second(self.first(x).tanh())
        return x * self.scale + (0 if self.skips else y)


class Case:
    """One random model and its training; all ranks draw the same."""

    def __init__(self, seed, index):
        self.draw = draw = random.Random(f"{seed} {index}")
        self.kind = draw.choice(KINDS)
        raw = draw.random() < 0.35
        lossy = draw.random() < 0.5
        self.gradients = "raw" if raw else draw.choice(possible(GRADIENT_CODECS))
        self.weights = "raw" if raw or not lossy else draw.choice(possible(WEIGHT_CODECS))
        self.raw = raw
        self.width, self.blocks = draw.randint(3, 40), [draw.randint(1, 70) for _ in range(draw.randint(1, 3))]
        self.wraps = [draw.random() < 0.6 for _ in self.blocks]
        self.reduces = draw.choice((None, None, torch.float32, torch.bfloat16))
        self.low = self.reduces is not None and draw.random() < 0.7
        self.sgd = raw or draw.random() < 0.5
        self.accumulates, self.clips = draw.random() < 0.3, draw.random() < 0.3
        self.factor = draw.choice((None, None, 3.0))
        self.reshards = draw.random() < 0.7
        self.resumes, self.skips = draw.random() < 0.3, draw.random() < 0.3
        self.strategy = draw.choice(("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"))
        self.unsharded = self.kind == "FSDP1" and self.strategy == "NO_SHARD"
        self.name = (f"{index}: {self.kind}, {self.gradients} gradients, {self.weights} weights, width {self.width}, "
                     f"blocks {self.blocks}, wraps {self.wraps}, low {self.low}, reduces {self.reduces}, "
                     f"sgd {self.sgd}, accumulates {self.accumulates}, clips {self.clips}, factor {self.factor}, "
                     f"resumes {self.resumes}, skips {self.skips}, {self.strategy}")

    def module(self):
        torch.manual_seed(1)
        return nn.Sequential(*(Block(self.width, hidden) for hidden in self.blocks))

    def sharded(self, meshes):
        """The model, wrapped."""
        module = self.module()
        if self.kind == "ZeRO":
            return DistributedDataParallel(module, find_unused_parameters=self.skips)
        if self.kind.startswith("FSDP1"):
            low = torch.bfloat16 if self.low else None
            precision = MixedPrecision(param_dtype=low, reduce_dtype=self.reduces) if self.reduces else None
            grid = self.kind == "FSDP1 grid"
            options = {"device_mesh": meshes["grid"] if grid else meshes["line"], "use_orig_params": True,
                       "mixed_precision": precision, "device_id": torch.device("cpu"), "sharding_strategy":
                       ShardingStrategy.HYBRID_SHARD if grid else ShardingStrategy[self.strategy]}
            for index, wraps in enumerate(self.wraps):
                if wraps:
                    module[index] = FullyShardedDataParallel(module[index], **options)
            return FullyShardedDataParallel(module, **options)
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16 if self.low else None, reduce_dtype=self.reduces)
        options = {"mesh": meshes["grid" if self.kind == "grid" else "line"], "mp_policy": policy,
                   "reshard_after_forward": self.reshards}
        for block, wraps in zip(module, self.wraps, strict=True):
            if wraps:
                fully_shard(block, **options)
        fully_shard(module, **options)
        if self.factor is not None:
            for part in [module, *module]:
                if hasattr(part, "set_gradient_divide_factor"):
                    part.set_gradient_divide_factor(self.factor)
        return module

    def optimizer(self, model, *, sharded=True):
        kind, options = (torch.optim.SGD, {"lr": 0.05, "momentum": 0.9}) if self.sgd else (
            torch.optim.AdamW, {"lr": 0.01, "weight_decay": 0.1})
        if self.kind == "ZeRO" and sharded:
            return ZeroRedundancyOptimizer(model.parameters(), optimizer_class=kind, **options)
        return kind(model.parameters(), **options)

    def train(self, meshes, *, sharded=True):
        """Train the model; return all weights at the end."""
        model = self.sharded(meshes)
        optimizer = self.optimizer(model, sharded=sharded)
        examples = torch.Generator().manual_seed(dist.get_rank())
        blocks = [module for module in model.modules() if isinstance(module, Block)]
        for step in range(STEPS):
            if self.resumes and step == 2 and self.kind != "ZeRO":
                state = states.get_state_dict(model, optimizer)
                model = self.sharded(meshes)
                optimizer = self.optimizer(model)
                states.set_state_dict(model, optimizer, model_state_dict=state[0], optim_state_dict=state[1])
                blocks = [module for module in model.modules() if isinstance(module, Block)]
            blocks[-1].skips = self.skips and step == 1
            self.passes(model, examples)
            if self.clips:
                self.clip(model)
            optimizer.step()
            optimizer.zero_grad()
        full = states.get_model_state_dict(model, options=states.StateDictOptions(full_state_dict=True))
        weights = torch.cat([full[name].flatten() for name in sorted(full)]) if full else torch.zeros(0)
        return weights.numpy()

    def passes(self, model, examples):
        """Forward and backward passes of a step, the first of which may leave gradients on the ranks."""
        for number in range(1 + self.accumulates):
            last = number == self.accumulates
            inputs = torch.randn(5, self.width, generator=examples)
            with contextlib.ExitStack() as stack:
                if hasattr(model, "set_requires_gradient_sync"):
                    model.set_requires_gradient_sync(last)
                elif not last:
                    stack.enter_context(model.no_sync())
                (model(inputs).float() - inputs.sin()).square().mean().backward()

    def clip(self, model):
        if isinstance(model, FullyShardedDataParallel):
            model.clip_grad_norm_(0.5)
        else:
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)


def run(case, folder, index):
    """Train a case in new process groups; return a difference, or None."""
    os.environ[GRADIENTS], os.environ[WEIGHTS] = case.gradients, case.weights
    client.cache_clear()
    dist.init_process_group("gradring", init_method=f"file://{folder}/{index}", rank=int(os.environ["RANK"]),
                            world_size=int(os.environ["WORLD_SIZE"]))
    meshes = {"line": init_device_mesh("cpu", (4,)),
              "grid": init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))}
    result = {}
    for kind in ("ring", "golden", "gloo"):
        if case.kind == "ZeRO":
            result[kind] = case.train(meshes, sharded=kind == "ring")
        elif kind != "gloo" or (case.raw and case.reduces is None):
            with sums_of(kind) as model:
                result[kind] = case.train(meshes)
            if kind == "golden":
                assert model.sums
                assert bool(model.kept) != CODECS[case.gradients].exact
                assert model.coded or case.weights == RAW or case.unsharded
    dist.barrier()
    dist.destroy_process_group()
    own, expected = result["ring"], result["golden"]
    if own.tobytes() != expected.tobytes():
        return f"{(own.view(np.uint32) != expected.view(np.uint32)).sum()} of {own.size} bits"
    if "gloo" in result and own.size:
        error = np.abs(own - result["gloo"]).max() / np.abs(own).max()
        return f"{error} from gloo" if not error <= BOUND else None
    return None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--cases", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    folder = Path(tempfile.gettempdir(), f"sharded.{os.environ['TORCHELASTIC_RUN_ID']}")
    folder.mkdir(exist_ok=True)
    wrong, kinds = [], {}
    for index in [options.only] if options.only is not None else range(options.cases):
        case = Case(options.seed, index)
        try:
            difference = run(case, folder, index)
        except Exception as error:
            error.add_note(case.name)
            raise
        kinds[case.kind] = kinds.get(case.kind, 0) + 1
        if difference is not None:
            wrong.append(f"{case.name}: {difference}")
            if os.environ["RANK"] == "0":
                print(wrong[-1], flush=True)
    if os.environ["RANK"] == "0":
        print(f"seed {options.seed}: {len(wrong)} of {sum(kinds.values())} cases differ; "
              f"{', '.join(f'{count} {kind}' for kind, count in sorted(kinds.items()))}")
        shutil.rmtree(folder, ignore_errors=True)
    raise SystemExit(bool(wrong))


if __name__ == "__main__":
    main()
