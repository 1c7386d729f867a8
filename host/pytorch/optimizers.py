"""PyTorch optimizers that run their step on the nodes: :class:`SGD`, :class:`Adam` and :class:`AdamW`.

They take the same arguments as ``torch.optim``. Gradients stay on their rank until ``step()``. The ring then sums
them, each owner updates its block of weights, and the new weights are copied to all ranks.
"""

import inspect
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from host.jobs.checks import groups_of
from host.pytorch import ownership, recording
from host.pytorch.client import client
from host.pytorch.hooks import in_module, parameter_name, passes_of
from host.pytorch.messages import Made, Open, Save, Step, Vector
from host.pytorch.nonfinite import first_nonfinite
from host.training import optimizers

__all__ = ["SGD", "Adam", "AdamW"]

#: Arguments of torch.optim that choose an implementation but do not affect results.
_IMPLEMENTATIONS = ("foreach", "fused")


def _with_clip(theirs: type[torch.optim.Optimizer]) -> inspect.Signature:
    """Return the signature of an optimizer in torch.optim, with ``clip`` added as the last argument."""
    signature = inspect.signature(theirs)
    clip = inspect.Parameter("clip", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=float | None)
    return signature.replace(parameters=[*signature.parameters.values(), clip], return_annotation=signature.empty)


def _converted(state: Any, kind: type, convert: Callable[[Any], Any]) -> Any:
    """Convert all arrays in a state to tensors, or all tensors to arrays."""
    if isinstance(state, kind):
        return convert(state)
    if isinstance(state, dict):
        return {key: _converted(value, kind, convert) for key, value in state.items()}
    return state


def _check_parameter(parameter: torch.Tensor) -> None:
    """Raise ``ValueError`` unless nodes can update a parameter."""
    # PyTorch's own marks of parameters of `fully_shard` and of FullyShardedDataParallel.
    if hasattr(parameter, "device_mesh") or getattr(parameter, "_fsdp_flattened", False):
        raise ValueError("Parameters on the nodes must be whole on each rank, not in shards of fully_shard or "
                         "FullyShardedDataParallel: take an optimizer of torch.optim")
    if parameter.dtype != torch.float32 or parameter.device.type != "cpu":
        raise ValueError(f"Parameters on the nodes must be float32 on the CPU, not {parameter.dtype} on "
                         f"{parameter.device}")


class _NodeOptimizer(torch.optim.Optimizer):
    """Base class of optimizers that run on the nodes.

    ``params`` contains parameters or parameter groups, as in ``torch.optim``. Frozen parameters (without
    ``requires_grad``) are skipped and must stay frozen. The remaining arguments, listed in ``__signature__``, are
    default values of group options. Options that the nodes do not support must not be set.
    """

    __signature__: inspect.Signature

    #: Optimizer arguments that nodes support.
    _taken: tuple[str, ...] = ()
    #: Whether step() of this optimizer sums the gradients over all ranks.
    on_nodes = True
    #: torch.optim's name for the optimizer state stored in each plane.
    _planes: tuple[str, ...] = ()

    def __init__(self, params: Any, *arguments: Any, **options: Any) -> None:
        try:
            bound = self.__signature__.bind(params, *arguments, **options)
        except TypeError as error:
            raise TypeError(f"{type(self).__name__}: {error}") from None
        for name, value in bound.arguments.items():
            if name not in ("params", *self._taken, *_IMPLEMENTATIONS) and value:
                raise ValueError(f"{name} must be left out with an optimizer on the nodes, not {value!r}")
        bound.apply_defaults()
        super().__init__(params, {name: bound.arguments[name] for name in self._taken if name in bound.arguments})
        self._frozen: list[torch.Tensor] = []
        for group in self.param_groups:
            self._frozen += [parameter for parameter in group["params"] if not parameter.requires_grad]
            trained = [parameter.requires_grad for parameter in group["params"]]
            for key in group.keys() & {"params", "param_names"}:
                group[key] = list(itertools.compress(group[key], trained))
            for parameter in group["params"]:
                _check_parameter(parameter)
            if not group["params"]:
                raise ValueError("Group must have a parameter that requires a gradient")
            self._of(group)  # raises an error if nodes do not support the group's options
        self._parameters = [list(group["params"]) for group in self.param_groups]
        self._steps = 0
        self._lengths = tuple(sum(tensor.numel() for tensor in group) for group in self._parameters)
        self._places = groups_of(self._lengths)
        ownership.own(self, itertools.chain.from_iterable(self._parameters))
        self._job: int | None = None
        self._known: Vector | None = None  # weights that are stored on the nodes
        self._recorded = recording.source("optimizer")
        self._given: dict[str, Any] | None = None  # state that has not been sent to the nodes yet

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a parameter group. This is only possible before the first step."""
        if getattr(self, "_job", None) is not None or hasattr(self, "_lengths"):
            raise ValueError("Groups of an optimizer on the nodes must be given when it is made")
        super().add_param_group(param_group)

    def __getstate__(self) -> dict[str, Any]:
        """Disallow copying, since two optimizers cannot share one job on the nodes."""
        raise TypeError(f"{type(self).__name__} on the nodes must be made again, not be copied or pickled: save "
                        f"state_dict(), and give it to load_state_dict()")

    def _check_parameters(self) -> None:
        """Raise ``ValueError`` if parameters were unfrozen or added, since the length of a job is fixed."""
        if any(parameter.requires_grad for parameter in self._frozen):
            raise ValueError("Parameters that were frozen when an optimizer on the nodes was made must stay so: "
                             "freeze them later, or make the optimizer again")
        kept = [[id(parameter) for parameter in group] for group in self._parameters]
        if [[id(parameter) for parameter in group["params"]] for group in self.param_groups] != kept:
            raise ValueError("Groups of an optimizer on the nodes must keep the parameters that they were made with: "
                             "make the optimizer again")

    def _made(self) -> Made:
        """Return the counts of steps, including this one, and of passes of all modules with these parameters."""
        parameters = itertools.chain.from_iterable(self._parameters)
        passes = {id(count): count for count in map(passes_of, parameters)}.values()
        return Made(steps=self._steps, forward=sum(count.forward for count in passes),
                    backward=sum(count.backward for count in passes))

    def _of(self, group: dict[str, Any]) -> optimizers.Optimizer:
        """Return the optimizer that the nodes run for a parameter group."""
        raise NotImplementedError

    def _slices(self) -> Iterator[tuple[torch.Tensor, slice]]:
        """Yield each parameter and its slice of the job's vector."""
        for group, elements in zip(self._parameters, self._places, strict=True):
            ends = itertools.accumulate((parameter.numel() for parameter in group), initial=elements.start)
            for parameter, (first, end) in zip(group, itertools.pairwise(ends), strict=True):
                yield parameter, slice(first, end)

    def _flat(self, tensor: Callable[[torch.Tensor], torch.Tensor | None]) -> Vector:
        """Concatenate one tensor per parameter into the job's vector, with zeros for missing tensors."""
        vector = np.zeros(self._places[-1].stop, np.float32)
        for parameter, elements in self._slices():
            values = tensor(parameter)
            if values is None:
                continue
            if values.is_sparse:
                raise ValueError("Gradients must be dense, not sparse: make the embedding with sparse=False")
            if values.dtype != torch.float32:
                raise ValueError(f"Parameters on the nodes must stay float32, not become {values.dtype}: make the "
                                 f"optimizer for a copy in float32")
            vector[elements] = values.detach().numpy().reshape(-1)
        return vector

    def _spread(self, vector: Vector, take: Callable[[torch.Tensor, torch.Tensor], None]) -> None:
        """Copy the slices of the job's vector to the parameters."""
        for parameter, elements in self._slices():
            take(parameter, torch.from_numpy(vector[elements].copy()).reshape(parameter.shape))

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update the weights on the nodes using the gradients averaged over all ranks.

        All ranks must call this after the same number of steps and passes. A parameter that has no gradient on this
        rank contributes zeros.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._check_parameters()
        self._steps += 1
        if self._recorded is not None and recording.is_sampled(self._steps):
            self._record(self._recorded)
        made = self._made()
        used = tuple(self._of(group) for group in self.param_groups)
        if self._job is None:
            self._job = int(client().ask(Open(lengths=self._lengths, optimizers=used, made=made)))
        weights = self._flat(lambda parameter: parameter)
        # Compare bits, since a weight may be NaN.
        changed = self._known is None or not np.array_equal(weights.view(np.uint32), self._known.view(np.uint32))
        self._known = client().ask(Step(
            job=self._job, made=made, gradients=self._flat(lambda parameter: parameter.grad), optimizers=used,
            present=tuple(tuple(value.grad is not None for value in group) for group in self._parameters),
            names=tuple(tuple(f"parameter {index} of group {number}, of shape {tuple(value.shape)}"
                              for index, value in enumerate(group)) for number, group in enumerate(self._parameters)),
            weights=weights if changed else None, state=self._given,
            nonfinite=first_nonfinite(
                ((value, value.grad) for value in itertools.chain.from_iterable(self._parameters)), parameter_name)))
        self._given = None
        assert self._known is not None
        self._spread(self._known, lambda parameter, values: parameter.copy_(values))
        return loss

    def _record(self, source: recording.Source) -> None:
        """Record elements of gradients, unless a DDP module records them."""
        gradients = [(f"group {number}, parameter {index}", parameter.grad)
                     for number, group in enumerate(self._parameters)
                     for index, parameter in enumerate(group) if not in_module(parameter)]
        source.add(self._steps, gradients, parameters=len(gradients))
        source.write()

    def state_dict(self) -> dict[str, Any]:
        """Return the state in the format of ``torch.optim``, with the extra state of the nodes under ``gradring``.
        On simulated nodes, it can be called on a single rank; in software, it must be called on all ranks.
        ``torch.load`` can read it with ``weights_only=True``."""
        kept = self._given
        if kept is None and self._job is not None:
            kept = client().ask(Save(job=self._job))
        if kept is not None:
            self._fill(kept)
        return {**super().state_dict(), "gradring": _converted(kept, np.ndarray, torch.from_numpy)}

    def _fill(self, kept: dict[str, Any]) -> None:
        """Set the per-parameter state in the same way as ``torch.optim``."""
        steps = {id(parameter): count for count, group in zip(kept["steps"], self._parameters, strict=False)
                 for parameter in group}
        for plane, name in enumerate(self._planes):
            def take(parameter: torch.Tensor, values: torch.Tensor, name: str = name) -> None:
                if count := steps[id(parameter)]:
                    self.state[parameter][name] = values
                    if len(self._planes) > 1:
                        self.state[parameter]["step"] = torch.tensor(float(count))

            self._spread(kept["contents"][f"state_{plane}"], take)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a state of the same optimizer class. Must be called on all ranks.

        A ``torch.optim`` state without ``gradring`` is rejected, since it lacks the state of the nodes. A state saved
        before the first step starts a new job.
        """
        if "gradring" not in state_dict:
            raise ValueError("State must be one that an optimizer of gradring.torch has saved, with what its nodes "
                             "keep")
        super().load_state_dict({name: value for name, value in state_dict.items() if name != "gradring"})
        if state_dict["gradring"] is None:
            self._job = None
        self._given = _converted(state_dict["gradring"], torch.Tensor, lambda tensor: tensor.numpy().copy())
        self._known = None


class SGD(_NodeOptimizer):
    """``torch.optim.SGD`` on the nodes.

    Takes ``params``, ``lr``, ``momentum``, ``dampening``, ``weight_decay`` and ``nesterov`` with the defaults of
    ``torch.optim.SGD``. ``clip`` limits the magnitude of each element of the mean gradient, as
    ``torch.nn.utils.clip_grad_value_`` does; None means no limit.
    """

    __signature__ = _with_clip(torch.optim.SGD)

    _taken = ("lr", "momentum", "dampening", "clip", "weight_decay", "nesterov")

    @property
    def _planes(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("momentum_buffer",) if self.defaults["momentum"] else ()

    def _of(self, group: dict[str, Any]) -> optimizers.Optimizer:
        return optimizers.SGD(float(group["lr"]), momentum=group["momentum"], dampening=group["dampening"],
                              weight_decay=float(group["weight_decay"]), nesterov=group["nesterov"],
                              clip=group["clip"])


class Adam(_NodeOptimizer):
    """``torch.optim.Adam`` on the nodes.

    Takes ``params``, ``lr``, ``betas``, ``eps``, ``weight_decay`` and ``decoupled_weight_decay`` with the defaults of
    ``torch.optim.Adam``, and ``clip`` as in :class:`SGD`.
    """

    __signature__ = _with_clip(torch.optim.Adam)

    _taken = ("lr", "betas", "eps", "weight_decay", "clip", "decoupled_weight_decay")
    _planes = ("exp_avg", "exp_avg_sq")

    def _of(self, group: dict[str, Any]) -> optimizers.Optimizer:
        first, second = map(float, group["betas"])
        kind = optimizers.AdamW if self.defaults.get("decoupled_weight_decay", True) else optimizers.Adam
        return kind(float(group["lr"]), betas=(first, second), eps=group["eps"], weight_decay=group["weight_decay"],
                    clip=group["clip"])


class AdamW(Adam):
    """``torch.optim.AdamW`` on the nodes; see :class:`Adam`. Decoupled weight decay defaults to 0.01."""

    __signature__ = _with_clip(torch.optim.AdamW)
