"""Reduction of ``DistributedDataParallel`` gradients, with the method chosen in each backward pass.

Every module gets one communication hook when it is created. For each bucket, the hook looks at the module's own
process group, the type of the gradients, and the optimizers that exist at that time: gradients of parameters on the
nodes stay local, other float32 gradients of a module are averaged over the ring of its group, with the parameters at
fixed positions, and everything else is averaged by an all-reduce in the group. A hook that the script registers
replaces this hook.

With a lossy codec or a density, part of each gradient is kept back and added to a later gradient of the same
parameter. DDP sums a bucket without regard to its parameters, and changes the buckets after the first step, but the
hook can access the parameters.
"""

import atexit
import dataclasses
import functools
import itertools
import weakref
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook, fp16_compress_hook
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel
from torch.utils.weak import WeakTensorKeyDictionary

from host.driver.memory import aligned
from host.pytorch import ownership, recording
from host.pytorch.connection import Connection
from host.pytorch.messages import AllReduce, Buffers, Made, Open
from host.pytorch.nonfinite import first_nonfinite

__all__ = ["OTHERS", "Passes", "Reduction", "attach", "counted", "in_module", "install", "local_gradients",
           "parameter_name", "passes_of", "record_sum"]


@dataclasses.dataclass
class Passes:
    """Counts of forward and backward passes so far, which distinguish requests from different steps.

    A module in ``DistributedDataParallel`` has its own counts, which include passes that sum its gradients but not
    passes under ``no_sync()``, where ranks may differ. All other modules share two counts: calls of outermost modules
    with parameters that require gradients, and calls of ``torch.autograd.backward``.
    """

    forward: int = 0
    backward: int = 0


#: Passes outside of ``DistributedDataParallel``.
OTHERS = Passes()
#: Modules with calls in progress, outermost first.
_calls: list[torch.nn.Module] = []


def _enter(module: torch.nn.Module, arguments: Any) -> None:
    if not _calls and module.training and torch.is_grad_enabled() and any(
            parameter.requires_grad for parameter in module.parameters()):
        OTHERS.forward += 1
    _calls.append(module)


def _leave(module: torch.nn.Module, arguments: Any, output: Any) -> None:
    # Also remove calls that ended with an error in a hook, since their end was not recorded.
    while _calls and _calls.pop() is not module:
        pass


def _count_passes() -> None:
    """Start to count passes outside of ``DistributedDataParallel``."""
    backward = torch.autograd.backward

    @functools.wraps(backward)
    def count(*arguments: Any, **options: Any) -> None:
        OTHERS.backward += 1
        backward(*arguments, **options)

    torch.autograd.backward = count
    torch.nn.modules.module.register_module_forward_pre_hook(_enter)
    torch.nn.modules.module.register_module_forward_hook(_leave, always_call=True)


def _agree_on_infinities() -> None:
    """Make ``GradScaler`` agree on all ranks on whether the gradients that nodes will sum are finite.

    Each rank has its own gradients, so one rank may find an infinity that other ranks do not have. All ranks
    must then skip the step and lower the scale, as with an infinite mean.
    """
    unscale = torch.amp.GradScaler._unscale_grads_

    @functools.wraps(unscale)
    def agree(self: Any, optimizer: Any, *arguments: Any, **options: Any) -> Any:
        infinities = unscale(self, optimizer, *arguments, **options)
        if getattr(optimizer, "on_nodes", False):
            values = [value.cpu().reshape(()) for value in infinities.values()]
            largest = torch.stack(values or [torch.zeros(())]).max()
            dist.all_reduce(largest, op=dist.ReduceOp.MAX)
            for value in infinities.values():
                value.fill_(largest)
        return infinities

    torch.amp.GradScaler._unscale_grads_ = agree


_BUILTIN = {dist.BuiltinCommHookType.ALLREDUCE: allreduce_hook,
            dist.BuiltinCommHookType.FP16_COMPRESS: fp16_compress_hook}

#: Number of backward passes between comparisons of the ranks' weights. The first pass makes a comparison.
INTERVAL = 50

#: One parameter's share of a sum: number of the job, first index in the job's vector, and gradient.
_Piece = tuple[int, int, torch.Tensor]

#: The :class:`Reduction` of each module.
_reductions: "weakref.WeakKeyDictionary[Any, Reduction]" = weakref.WeakKeyDictionary()
#: Weak reference to the :class:`Reduction` of each parameter's module.
_of_parameter: "WeakTensorKeyDictionary" = WeakTensorKeyDictionary()
#: For each ring and parameter: the job that keeps back parts of its gradients, and its first index in that job's
#: vector.
_kept: "weakref.WeakKeyDictionary[Connection, WeakTensorKeyDictionary]" = weakref.WeakKeyDictionary()


def _done(values: torch.Tensor) -> Future[torch.Tensor]:
    future: Future[torch.Tensor] = Future()
    future.set_result(values)
    return future


def local_gradients(state: object, bucket: dist.GradBucket) -> Future[torch.Tensor]:
    """Hook for ``register_comm_hook`` that leaves gradients local, for an optimizer on the nodes to sum."""
    for parameter in bucket.parameters():
        ownership.note_local(parameter)
    return _done(bucket.buffer())


def _ring_of(group: Any) -> Connection | None:
    """Return the connection to the ring of a process group, or None if it has none."""
    ring: Connection | None = getattr(group, "ring", None)
    return ring


class Reduction:
    """Reduction of one module's gradients; with ``keeps``, nodes keep back parts of gradients."""

    def __init__(self, module: Any, *, keeps: bool) -> None:
        self._module, self._keeps = weakref.ref(module), keeps
        self._group = module.process_group
        # Connection to the ring of the module's ranks, or None if these have none.
        self._ring = _ring_of(self._group)
        self.passes = Passes()  # counts of the module's passes that sum gradients
        self._order = WeakTensorKeyDictionary()  # start of each parameter if nothing is kept back
        self._compares = False  # whether the next request must contain checksums
        self._recorded = recording.source("module")
        # State and hook that the script has registered, if any.
        self.script: tuple[Any, Callable[[Any, Any], Any]] | None = None

    def reduce(self, bucket: dist.GradBucket) -> Future[torch.Tensor]:
        """Average a bucket's gradients, except gradients that optimizers on the nodes sum."""
        if not bucket.index():
            self.passes.backward += 1
            self._compares = self.passes.backward % INTERVAL == 1
        if self._recorded is not None and recording.is_sampled(self.passes.backward):
            self._record(self._recorded, bucket)
        parameters, buffer = bucket.parameters(), bucket.buffer()
        owned = [ownership.is_owned(parameter) for parameter in parameters]
        if any(owned) and (self._ring is None or self._group.size() < dist.get_world_size()):
            raise ValueError(f"Parameters of an optimizer of gradring.torch must be in a module of all ranks, not in "
                             f"one of a process group of {self._group.size()}: take an optimizer of torch.optim")
        if self.script is not None:
            state, hook = self.script
            average: Future[torch.Tensor] = hook(state, bucket)
            return average
        if self._ring is None or buffer.dtype != torch.float32 or buffer.device.type != "cpu":
            # DDP without a communication hook does the same.
            buffer.mul_(1 / self._group.size())
            return (dist.all_reduce(buffer, group=self._group, async_op=True).get_future()
                    .then(lambda future: future.value()[0]))
        for parameter, local in zip(parameters, owned, strict=True):
            (ownership.note_local if local else ownership.note_mean)(parameter)
        pairs = zip(parameters, bucket.gradients(), owned, strict=True)
        rest = [(parameter, gradient) for parameter, gradient, local in pairs if not local]
        if rest:
            self._average(*zip(*rest, strict=True))
        return _done(buffer)

    def _record(self, source: recording.Source, bucket: dist.GradBucket) -> None:
        """Record elements of a bucket's gradients."""
        module = self._module()
        named = [] if module is None else list(module.module.named_parameters())
        names = {id(parameter): name for name, parameter in named}
        source.add(self.passes.backward, (
            (names.get(id(parameter)) or self.name_of(parameter), gradient)
            for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True)),
            parameters=len(named))
        if bucket.is_last():
            source.write()

    def _average(self, parameters: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor]) -> None:
        """Replace the gradients of some parameters by their averages over the ring.

        All parameters form one vector, in which each parameter starts a new group of 32 elements; gradients are
        summed as parts of it. The bits of the sums therefore do not depend on the assignment of parameters to
        buckets.
        """
        starts = self._starts(parameters)
        pieces = sorted((*starts[index], index) for index, gradient in enumerate(gradients) if gradient.numel())
        weights = self._checksums() if self._compares else None
        nonfinite = first_nonfinite(((parameters[index], gradients[index]) for *_, index in pieces), self.name_of)
        factor = 1 / self._group.size()
        for run in _runs([(job, first, gradients[index]) for job, first, index in pieces]):
            job, begin, _ = run[0]
            values = np.zeros(run[-1][1] + run[-1][2].numel() - begin, np.float32)
            for _, first, gradient in run:
                values[first - begin:][:gradient.numel()] = (gradient.detach() * factor).reshape(-1).numpy()
            means = self._connection.ask(AllReduce(values=values, job=job if self._keeps else None, begin=begin,
                                                   made=self._made(), nonfinite=nonfinite,
                                                   weights=weights))
            nonfinite = weights = None  # sent only with the first request
            self._compares = False
            for _, first, gradient in run:
                gradient.copy_(torch.from_numpy(means[first - begin:][:gradient.numel()]).view_as(gradient))

    @property
    def _connection(self) -> Connection:
        assert self._ring is not None
        return self._ring

    def _starts(self, parameters: Sequence[torch.Tensor]) -> list[tuple[int, int]]:
        """Return the job that keeps back each parameter's gradients (0: none), and its first index in the vector."""
        if self._keeps:
            self._make_room(parameters)
            kept = _kept[self._connection]
            return [kept[parameter] for parameter in parameters]
        if any(parameter not in self._order for parameter in parameters):
            module = self._module()
            every = list(parameters if module is None else module.module.parameters())
            for parameter, first in zip(every, _aligned_starts(every), strict=False):
                self._order[parameter] = 0, first
        return [self._order[parameter] for parameter in parameters]

    def _make_room(self, parameters: Sequence[torch.Tensor]) -> None:
        """Open a job that keeps back gradients for parameters that have not been reduced before."""
        kept = _kept.setdefault(self._connection, WeakTensorKeyDictionary())
        if all(parameter in kept for parameter in parameters):
            return
        summed = {id(parameter) for parameter in parameters}
        module = self._module()
        new = [parameter for parameter in (module.module.parameters() if module is not None else parameters)
               if parameter not in kept and parameter.dtype == torch.float32
               and (id(parameter) in summed or (parameter.requires_grad and not ownership.is_owned(parameter)))]
        *firsts, length = _aligned_starts(new)
        job = int(self._connection.ask(Open(lengths=(length,), made=self._made())))
        for parameter, first in zip(new, firsts, strict=True):
            kept[parameter] = job, first

    def _checksums(self) -> dict[str, int] | None:
        """Return a checksum of each parameter of the module, which must be the same on all ranks. The result is None
        under ``join()``, where ranks without inputs do not update their weights."""
        module = self._module()
        return None if module is None or module._join_config.enable else {
            name: zlib.crc32(parameter.detach().contiguous().view(-1).view(torch.uint8).numpy())
            for name, parameter in module.module.named_parameters()
            if type(parameter) is torch.nn.Parameter and parameter.is_floating_point()
            and parameter.device.type == "cpu" and parameter.layout == torch.strided
            and name not in module.parameters_to_ignore}

    def name_of(self, parameter: torch.Tensor) -> str:
        """Return the name of a parameter in the module."""
        return next(itertools.chain(self._names_of(parameter), [f"parameter of shape {tuple(parameter.shape)}"]))

    def _names_of(self, parameter: torch.Tensor) -> Iterator[str]:
        module = self._module()
        named = () if module is None else module.module.named_parameters()
        return (name for name, other in named if other is parameter)

    def meet(self) -> None:
        """Wait for all ranks before a forward pass that synchronizes buffers over gloo."""
        module = self._module()
        if (module is not None and self._ring is not None and module.will_sync_module_buffers()
                and not module._join_config.enable):
            self._ring.ask(Buffers(made=self._made()))

    def _made(self) -> Made | None:
        """Return the pass counts, or None under ``join()``, where ranks without inputs also take part in sums."""
        module = self._module()
        if module is not None and module._join_config.enable:
            return None
        return Made(forward=self.passes.forward, backward=self.passes.backward)


def _aligned_starts(parameters: Sequence[torch.Tensor]) -> list[int]:
    """Return the start of each parameter in a vector where each starts a new group, and the vector's length."""
    return list(itertools.accumulate((aligned(parameter.numel()) for parameter in parameters), initial=0))


def _runs(pieces: Sequence[_Piece]) -> Iterator[list[_Piece]]:
    """Divide gradients into runs, which are each contiguous in a job's vector."""
    run: list[_Piece] = []
    for piece in pieces:
        if run and (piece[0] != run[-1][0] or piece[1] != run[-1][1] + aligned(run[-1][2].numel())):
            yield run
            run = []
        run.append(piece)
    if run:
        yield run


def passes_of(parameter: torch.Tensor) -> Passes:
    """Return the pass counts of the DistributedDataParallel module with this parameter, or else of other modules."""
    reduction = _of_parameter.get(parameter, lambda: None)()
    return OTHERS if reduction is None else reduction.passes


def parameter_name(parameter: torch.Tensor) -> str:
    """Return a parameter's name in its DistributedDataParallel module, or its shape if it is in no such module."""
    reduction = _of_parameter.get(parameter, lambda: None)()
    return f"parameter of shape {tuple(parameter.shape)}" if reduction is None else reduction.name_of(parameter)


def in_module(parameter: torch.Tensor) -> bool:
    """Return whether a parameter is in a DistributedDataParallel module."""
    return _of_parameter.get(parameter, lambda: None)() is not None


@functools.cache
def _sums() -> recording.Source | None:
    """Source of the vectors that the script sums itself. Those of the last step are written when the script ends."""
    source = recording.source("sums")
    if source is not None:
        atexit.register(source.write, wait=True)
    return source


def record_sum(tensor: torch.Tensor) -> None:
    """Record elements of a vector that the script sums itself, after its first backward pass, if gradients must be
    recorded and there has been no DistributedDataParallel module."""
    source = _sums()
    if source is not None and OTHERS.backward and not recording.has_sources("module"):
        source.add_sum(OTHERS.backward, tensor)


def _check_join(module: Any) -> None:
    """Raise ``ValueError`` if means cannot be computed over ranks with different numbers of inputs."""
    if any(ownership.is_owned(parameter) for parameter in module.module.parameters()):
        raise ValueError("join() must have optimizers of torch.optim, not of gradring.torch: a rank without inputs "
                         "does no step")
    if not module._divide_by_initial_world_size:
        raise ValueError("join() must have divide_by_initial_world_size=True, not False: means are of all ranks")


def counted(begin: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the start of forward passes: count passes that sum gradients, and wait if buffers are synced."""
    @functools.wraps(begin)
    def count(self: Any, *inputs: Any, **options: Any) -> Any:
        reduction = _reductions.get(self)
        if reduction is not None:
            if self._join_config.enable:
                _check_join(self)
            if torch.is_grad_enabled() and self.require_backward_grad_sync:
                reduction.passes.forward += 1
                reduction.meet()
        return begin(self, *inputs, **options)

    return count


def attach(module: Any, *, keeps: bool, copied: bool = False) -> None:
    """Register the hook for a module, unless it registered its own hook during construction. A copied or unpickled
    module has a record of the script's hook, but not the hook itself, as in PyTorch without the ring."""
    if module._comm_hooks and not copied:
        return
    reduction = _reductions[module] = Reduction(module, keeps=keeps)
    for parameter in module.module.parameters():
        _of_parameter[parameter] = weakref.ref(reduction)
    dist._register_comm_hook(module.reducer, reduction, Reduction.reduce)


def install(*, keeps: bool) -> None:
    """Register the hook for all new DistributedDataParallel modules; for ``keeps`` see :class:`Reduction`."""
    for name in ("__init__", "__setstate__"):
        _attach_after(name, keeps=keeps)
    register = DistributedDataParallel.register_comm_hook
    builtin = DistributedDataParallel._register_builtin_comm_hook

    def take(module: Any, state: Any, hook: Any) -> None:
        if _reductions[module].script is not None:
            raise RuntimeError("register_comm_hook or register_builtin_comm_hook can only be called once.")
        _reductions[module].script = state, hook

    @functools.wraps(register)
    def register_hook(self: Any, state: Any, hook: Any) -> None:
        if self not in _reductions:
            register(self, state, hook)
            return
        self._check_comm_hook(hook)
        take(self, state, hook)
        self._comm_hooks.append((hook, state))

    @functools.wraps(builtin)
    def register_builtin(self: Any, comm_hook_type: Any) -> None:
        if self not in _reductions:
            builtin(self, comm_hook_type)
            return
        take(self, self.process_group, _BUILTIN[comm_hook_type])

    recording.recorder()  # raises an error if gradients must be recorded and cannot be
    DistributedDataParallel._pre_forward = counted(DistributedDataParallel._pre_forward)
    DistributedDataParallel.register_comm_hook = register_hook
    DistributedDataParallel._register_builtin_comm_hook = register_builtin
    _count_passes()
    ownership.install()
    _agree_on_infinities()


def _attach_after(name: str, *, keeps: bool) -> None:
    method = getattr(DistributedDataParallel, name)

    @functools.wraps(method)
    def attached(self: Any, *arguments: Any, **options: Any) -> None:
        method(self, *arguments, **options)
        attach(self, keeps=keeps, copied=name == "__setstate__")

    setattr(DistributedDataParallel, name, attached)
