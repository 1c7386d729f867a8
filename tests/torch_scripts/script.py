"""Run random scripts in the same ranks on the ring and over gloo, and compare the results.

``gradring launch -n 4 script.py SEED COUNT FILE`` writes the outcome of each script.
"""

import contextlib
import gc
import io
import json
import os
import sys

import torch
import torch.distributed as dist
from plan import SHAPES, draw
from torch.nn.parallel import DistributedDataParallel

import gradring.torch
from host.pytorch.messages import KEEPS

#: Errors that are allowed because nodes do not support the operation.
REFUSALS = ("Parameters on the nodes must be float32", "Parameters of a group must all have a gradient",
            "Group must have a parameter", "Parameters of an optimizer of gradring.torch must be in a module",
            "Gradients of SGD must be means of all ranks", "clip_grad_value_ must have gradients that are summed",
            "State must be one that an optimizer of gradring.torch", "Parameters that were frozen when an optimizer",
            "loaded state dict contains a parameter group that doesn't match the size")


#: Whether the codec of gradients is lossy.
LOSSY = os.environ[KEEPS] == "1"


class Body(torch.nn.Module):
    """Module with several parameters, and a loss with the given factors as gradients."""

    def __init__(self, dtype):
        super().__init__()
        self.weights = torch.nn.ParameterList(
            torch.nn.Parameter(torch.arange(1.0, 1 + torch.Size(shape).numel()).reshape(shape).to(dtype))
            for shape in SHAPES)

    def forward(self, factors):
        terms = [(weight * factor).sum() for weight, factor in zip(self.weights, factors, strict=True)
                 if factor is not None]
        return sum(terms[1:], terms[0])


class World:
    """State of a script on the ring or over gloo; ``weights`` has the weights and sums after each action."""

    def __init__(self, script, groups, halves, *, nodes):
        self.script, self.nodes, self.groups = script, nodes, groups
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.half = halves[self.rank // (self.ranks // 2)]
        self.body = Body(getattr(torch, script.dtype))
        self.optimizers, self.given, self.weights = {}, {}, []
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
        self.remake(None)

    def play(self):
        """Perform all actions of a script; return the text of the error that ends the script, or None."""
        for name, arguments in self.script.actions:
            try:
                result = getattr(self, name)(arguments)
            except Exception as error:  # the error is compared with those of other ranks and of gloo
                return f"{name}: {str(error).splitlines()[0]}"
            self.weights.append(([weight.detach().clone() for weight in self.body.weights], result))
        return None

    def remake(self, _):
        self.module = DistributedDataParallel(
            self.body, process_group=self.half if self.script.half else self.groups[self.nodes],
            find_unused_parameters=True, gradient_as_bucket_view=self.script.view)

    def optimizer(self, choice):
        kind = gradring.torch.SGD if self.nodes and choice["nodes"] else torch.optim.SGD
        if any(number in numbers for numbers in self.given.values() for number in choice["parameters"]):
            return  # a parameter has only one optimizer
        if any(self.body.weights[number].requires_grad for number in choice["parameters"]):
            self.given[choice["slot"]] = choice["parameters"]
            self.optimizers[choice["slot"]] = kind(self.split(choice["slot"], choice["groups"]), lr=0.5,
                                                   momentum=choice["momentum"])

    def split(self, slot, groups):
        """Parameters for an optimizer, either all in one group or each in a group of its own."""
        parameters = [self.body.weights[number] for number in self.given[slot]]
        return [{"params": [parameter]} for parameter in parameters] if groups else parameters

    def delete(self, slot):
        self.optimizers.pop(slot, None)
        self.given.pop(slot, None)

    def save(self, slot):
        """Save the state of an optimizer to a file, and load it into another optimizer of the same kind."""
        if slot in self.optimizers and self.optimizers[slot].state_dict()["state"]:
            before = self.optimizers.pop(slot)
            file = io.BytesIO()
            torch.save(before.state_dict(), file)
            file.seek(0)
            parameters = self.split(slot, len(before.param_groups) > 1)
            after = self.optimizers[slot] = type(before)(parameters, lr=1.0, momentum=before.defaults["momentum"])
            after.load_state_dict(torch.load(file))

    def freeze(self, choice):
        number, trained = choice
        self.body.weights[number].requires_grad_(trained)

    def write(self, seed):
        with torch.no_grad():
            self.body.weights[seed % len(SHAPES)].fill_(float(seed % 7))

    def evaluate(self, _):
        self.module.eval()
        with torch.no_grad():
            self.module([torch.ones(shape, dtype=self.body.weights[0].dtype) for shape in SHAPES])
        self.module.train()

    def sum(self, choice):
        dtype, half, seed = choice
        values = torch.arange(seed % 9, seed % 9 + 5).to(getattr(torch, dtype)) * (1 + self.rank)
        dist.all_reduce(values, group=self.half if half else self.groups[self.nodes])
        return values

    def factors(self, choice, extra=0, infinite=False):
        generator = torch.Generator().manual_seed(choice["seed"] + 17 * self.rank + 1000 * extra)
        factors = [torch.randint(-2, 3, shape, generator=generator).to(self.body.weights[0].dtype)
                   for shape in SHAPES]
        # In a lossy codec, an infinity also corrupts other elements of its block, such as the start of another
        # parameter.
        for factor in factors[:len(SHAPES) if LOSSY else 1] if infinite else ():
            factor.view(-1)[0] = float("inf")
        used = choice["used"][self.rank]
        return [factor if use and weight.requires_grad else None
                for factor, use, weight in zip(factors, used, self.body.weights, strict=True)]

    def differentiate(self, choice, extra=0, infinite=False):
        factors = self.factors(choice, extra, infinite)
        if all(factor is None for factor in factors):
            factors[0] = torch.zeros(SHAPES[0], dtype=self.body.weights[0].dtype)
        loss = self.module(factors)
        (self.scaler.scale(loss) if choice["scaled"] else loss).backward()

    def __getattr__(self, name):
        if name == "pass":
            return self.train
        raise AttributeError(name)

    def train(self, choice):
        if not any(weight.requires_grad and any(used[number] for used in choice["used"])
                   for number, weight in enumerate(self.body.weights)) or not self.body.weights[0].requires_grad:
            return
        self.module.zero_grad(set_to_none=choice["zero"] == "none")
        for extra in range(choice["local"][self.rank]):
            with self.module.no_sync():
                self.differentiate(choice, 1 + extra)
        self.differentiate(choice, infinite=choice["scaled"] and choice["infinite"] == self.rank)
        if choice["clip"]:
            torch.nn.utils.clip_grad_value_(list(self.body.weights), 1.0)
        if not choice["step"]:
            return
        for optimizer in self.optimizers.values():
            if choice["scaled"]:
                self.scaler.step(optimizer)
            else:
                optimizer.step((lambda: None) if choice["closure"] else None)
        if choice["scaled"]:
            self.scaler.update()


def equal(left, right):
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(equal, left, right))
    if isinstance(left, torch.Tensor):
        return left.dtype == right.dtype and torch.equal(torch.nan_to_num(left), torch.nan_to_num(right))
    return left == right


def verdict(seed, groups, halves):
    """Compare a script on the ring and over gloo on this rank; the outcome is equal, refused, or different."""
    script = draw(seed, dist.get_world_size())
    plain = World(script, groups, halves, nodes=False)
    failed = plain.play()
    ring = World(script, groups, halves, nodes=True)
    refused = ring.play()
    for number, (own, other) in enumerate(zip(ring.weights, plain.weights, strict=False)):
        if not equal(own, other):
            return f"wrong following action {number}, {script.actions[number]}: {own} and not {other}"
    if refused is not None and refused.partition(": ")[2].startswith(REFUSALS):
        return f"refused: {refused}"
    return "equal" if refused == failed else f"wrong: {refused} and not {failed}"


def main():
    """Run the scripts; rank 0 writes the outcome of each script."""
    first, count = int(sys.argv[1]), int(sys.argv[2])
    dist.init_process_group()
    ranks = dist.get_world_size()
    groups = {True: None, False: dist.new_group(backend="gloo")}
    halves = [dist.new_group(list(range(start, start + ranks // 2)), backend="gloo") for start in (0, ranks // 2)]
    ends = {}
    for seed in range(first, first + count):
        every = [None] * ranks
        with contextlib.redirect_stderr(io.StringIO()):
            own = verdict(seed, groups, halves)
        gc.collect()
        dist.all_gather_object(every, own)
        ends[seed] = every[0] if len(set(every)) == 1 else f"wrong: ranks differ, {every}"
    if not dist.get_rank():
        with open(sys.argv[3], "w") as file:
            json.dump(ends, file)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
