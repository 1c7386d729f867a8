"""Validation of a job before anything is built."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from hdl.compression.registry import RAW, ZERO_VALUE
from hdl.config import FP32, Configuration
from hdl.group import GROUP
from host.arguments import Argument, Instance, Integer, Items, Number, Optional, represent, wrong
from host.driver.memory import aligned
from host.jobs.slots import largest_part
from host.training.optimizers import Optimizer
from host.training.sparsifier import STATE, check_zeros

__all__ = ["DENSITY", "LENGTHS", "MAX_LENGTH", "OPTIMIZER", "OPTIMIZERS", "SEVERAL_LENGTHS", "SEVERAL_OPTIMIZERS",
           "check_job", "check_state", "gradient_codec", "groups_of"]

#: Maximum number of elements in a group; each element takes at least 28 bytes of host memory.
MAX_LENGTH = 1 << 28

#: Argument type of a density, the fraction of the elements that nodes send.
DENSITY = Optional(Number(0, 1, above=True))

#: Argument type of an optimizer that the nodes run.
OPTIMIZER = Instance(Optimizer, "an optimizer, as in gradring.Adam(1e-3)")


@dataclasses.dataclass(frozen=True)
class _Several(Argument):
    """Argument type that accepts a sequence of values of one type, and optionally a single value."""

    kind: Argument
    single: bool  # whether a single value is also accepted
    minimum: int = 0  # minimum number of items of a sequence

    def wanted(self) -> str:
        return f"{self.kind.wanted()}, or a sequence of them" if self.single else (
            f"a sequence, in which each is {self.kind.wanted()}")

    def take(self, name: str, value: Any) -> Any:
        sequence = isinstance(value, Iterable) and not isinstance(value, str | bytes) and (
            getattr(value, "shape", None) != ())
        try:
            if self.single and not sequence:
                return self.kind.take(name, value)
            if not sequence:
                raise TypeError
            items = [self.kind.take(name, item) for item in value]
            if len(items) < self.minimum:
                raise ValueError
        except (TypeError, ValueError) as error:
            raise wrong(type(error), name, self.wanted(), value) from None
        return items


_LENGTH = Integer(1, MAX_LENGTH)

#: Argument types: the first is a vector's length or a sequence of its groups' lengths, the second only a sequence.
LENGTHS = _Several(_LENGTH, single=True, minimum=1)
SEVERAL_LENGTHS = _Several(_LENGTH, single=False, minimum=1)

#: Argument types: the first is None, an optimizer, or a sequence with one per group, the second only a sequence.
OPTIMIZERS = Optional(_Several(OPTIMIZER, single=True))
SEVERAL_OPTIMIZERS = _Several(OPTIMIZER, single=False)


def gradient_codec(name: str | None, density: float | None) -> str:
    """Choose the gradient codec: ``raw`` by default, or ``zero_value`` if a density is given."""
    if name is not None:
        return name
    return str(RAW if density is None else ZERO_VALUE)


def groups_of(lengths: Sequence[int]) -> list[slice]:
    """Return the slice of the job's vector that each group occupies; slices start at multiples of 32."""
    groups: list[slice] = []
    for length in lengths:
        first = aligned(groups[-1].stop) if groups else 0
        groups.append(slice(first, first + length))
    return groups


def check_job(config: Configuration, lengths: Sequence[int], *, nodes: int, optimizers: Sequence[Optimizer] = (),
              packed_state: bool = False, density: float | None = None, part: int | None = None) -> int:
    """Check a job's parameters, as for :class:`Job`; return the length of the longest part of its vector.

    Raises ``ValueError`` if the job cannot be run.
    """
    if optimizers and len(optimizers) != len(lengths):
        raise ValueError(f"Optimizers must be one for each of {len(lengths)} groups, not {len(optimizers)}")
    if len({optimizer.planes for optimizer in optimizers}) > 1:
        raise ValueError("Optimizers of a job must have the same number of state planes, not "
                         f"{', '.join(str(optimizer.planes) for optimizer in optimizers)}: take a job for each")
    if config.codebook_words:
        raise ValueError(f"Weight codec of a job must be one without a codebook, not {config.weights.codec}")
    if config.element != FP32:
        raise ValueError(f"Nodes of a job must have elements of fp32, not of {config.element}")
    if density is not None and not config.sparsify:
        raise ValueError("Nodes must have error feedback for a density, to keep the elements that they do not send")
    if density is not None:
        check_zeros(config.gradients)
    largest = largest_part(config, nodes=nodes, planes=optimizers[0].planes if optimizers else 0,
                           packed_state=packed_state, errors=density is not None)
    # Each part of an update starts with rank 0's block, like its group. This way, state keeps its addresses.
    unit = int(GROUP) * nodes if optimizers else int(GROUP)
    if part is not None and not (0 < part <= largest and part % unit == 0):
        raise ValueError(f"Part must be a positive multiple of {unit} of at most {largest:,} elements, not "
                         f"{represent(part)}")
    if part is None and largest < max(lengths):
        part = largest // unit * unit
        if not part:
            raise ValueError(f"Memories must have room for parts of {unit:,} elements, or for all {max(lengths):,}, "
                             f"not for {largest:,}")
    return largest if part is None else part


def check_state(state: Any, shapes: Mapping[str, tuple[int, ...]], *, groups: int, length: int) -> None:
    """Validate a job's state before any of it is restored.

    It must be a dictionary as returned by :meth:`host.jobs.job.Job.state`. Raises ``TypeError`` if it is not a job's
    state, and ``ValueError`` if it is the state of a different kind of job.
    """
    wanted = "a dictionary as state() returns it"
    if not isinstance(state, dict):
        raise wrong(TypeError, "State", wanted, state)
    if {"weights", "steps", "contents", "thresholds"} - state.keys():
        raise wrong(ValueError, "State", wanted, sorted(state.keys(), key=str))
    for name, kind in (("contents", dict), ("thresholds", dict), ("steps", list)):
        if not isinstance(state[name], kind):
            raise wrong(TypeError, f"State's {name}", f"a {kind.__name__}", state[name])
    arrays = {"weights": state["weights"], **state["contents"]}
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray) or array.dtype != np.float32:
            raise wrong(TypeError, f"State's {name}", "an array of float32", array)
    expected = {"weights": (length,), **shapes}
    actual = {name: array.shape for name, array in arrays.items()}
    if actual != expected or len(state["steps"]) != groups:
        raise ValueError(f"State must have {groups} groups and arrays {expected}, not {len(state['steps'])} and "
                         f"{actual}")
    for step in state["steps"]:
        Integer(0).take("State's steps", step)
    for key, content in state["thresholds"].items():
        Items((Integer(0), Integer(1)), "pairs of a first element and a length").take("Keys of thresholds", key)
        if not isinstance(content, dict) or content.keys() != set(STATE):
            raise wrong(ValueError, "State's thresholds", "dictionaries as state() returns them", content)
