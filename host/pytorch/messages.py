"""Messages from ranks to the launcher, which owns the ring, and its answers.

The first message on a connection is :class:`Hello`, :class:`Listen` or :class:`Failed`. A new class must also be
added to :data:`MESSAGES`.
"""

import dataclasses
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from host.sockets.format import Dimensions, Registry, Within
from host.training.optimizers import SGD, Adam, AdamW, Optimizer

__all__ = ["ADDRESS", "KEEPS", "MESSAGES", "REPLACE", "RING", "STORE", "AllReduce", "Answer", "Buffers", "Failed",
           "Hello", "Leave", "Listen", "Made", "Open", "Request", "Save", "Step", "Vector"]

Vector = npt.NDArray[np.float32]

#: A number or an index of ranks, jobs or elements.
_Count = Annotated[int, Within(0, 1 << 40)]

#: Name of the backend that uses the ring.
RING = "gradring"

# Environment variables of ranks.
#: Path of the launcher's socket.
ADDRESS = "GRADRING_ADDRESS"
#: 1 if nodes keep back parts of gradients and add them to later gradients.
KEEPS = "GRADRING_KEEPS"
#: 1 if backend gloo, requested by name, is replaced by the ring.
REPLACE = "GRADRING_REPLACE"
#: File descriptor, in rank 0, of the listening socket for PyTorch's store at MASTER_PORT.
STORE = "GRADRING_STORE"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Hello:
    """A rank joins a process group of all ranks."""

    # number of the rank, and number of ranks in its group
    rank: _Count
    ranks: _Count
    # time-out, in seconds, of the group's collectives over gloo
    timeout: Annotated[float, Within(0, float("inf"))]
    backend: str = RING  # the ring's name, or the names of backends that the script requests instead


@dataclasses.dataclass(frozen=True, kw_only=True)
class Made:
    """Numbers of steps and passes of a rank up to a request; they differ if one rank skips a step or pass."""

    steps: _Count = 0  # calls of the optimizer's ``step()``
    # passes in which the modules concerned sum gradients
    forward: _Count = 0
    backward: _Count = 0

    def __str__(self) -> str:
        counts = {"step": self.steps, "forward pass": self.forward, "backward pass": self.backward}
        *texts, last = (f"{count:,} {name}{('es' if name.endswith('s') else 's') * (count != 1)}"
                        for name, count in counts.items())
        return f"{', '.join(texts)} and {last}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """An operation that all ranks must request together."""

    made: Made | None = None  # steps and passes of the rank so far, on which ranks must agree

    @property
    def title(self) -> str:
        """Description of the operation, with all data that ranks must agree on."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Open(Request):
    """Open a job: a vector of groups, with or without optimizers."""

    lengths: tuple[_Count, ...]  # number of elements of each group
    optimizers: tuple[Optimizer, ...] = ()  # optimizer of each group; empty in a job that only sums

    @property
    def title(self) -> str:
        names = ", ".join(str(optimizer) for optimizer in self.optimizers) or "sums alone"
        return f"a job of {', '.join(f'{length:,}' for length in self.lengths)} elements with {names}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class AllReduce(Request):
    """Sum one vector per rank."""

    values: Annotated[Vector, Dimensions(1)]
    job: _Count | None = None  # index of the first value in the longer vector that the values are a part of
    # indices of the values in the vector of their job
    places: Annotated[npt.NDArray[np.int64], Dimensions(1)] | None = None
    begin: _Count = 0  # index of the first value in a longer vector, of which these are a part
    group: _Count = 0  # number of the process group, in order of creation, among the groups that contain all ranks

    @property
    def title(self) -> str:
        where = "" if self.places is None or not self.places.size else (
            f" from place {int(self.places[0]):,} on of job {self.job}")
        where += f" from element {self.begin:,} on" if self.begin else ""
        return f"a sum of {self.values.size:,} elements{where}{f' in group {self.group}' if self.group else ''}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Buffers(Request):
    """Start of a forward pass that copies a module's buffers from rank 0 over gloo. All ranks must reach it before
    the first rank waits in gloo, since gloo would not report the reason for a skipped step."""

    @property
    def title(self) -> str:
        return "the buffers of a module"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Step(Request):
    """Update the weights of a job."""

    job: _Count
    gradients: Annotated[Vector, Dimensions(1)]
    present: tuple[tuple[bool, ...], ...]  # whether the rank has a gradient of each parameter of each group
    names: tuple[tuple[str, ...], ...]  # names of the parameters of each group, for error messages
    optimizers: tuple[Optimizer, ...]  # optimizer of each group in this step
    # initial weights, if they differ from the result of the previous step
    weights: Annotated[Vector, Dimensions(1)] | None = None
    state: dict[str, Any] | None = None  # initial state of the job

    @property
    def title(self) -> str:
        return (f"a step of job {self.job}{', with other weights' if self.weights is not None else ''}"
                f"{', with another state' if self.state is not None else ''}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Save:
    """Save the state of a job, requested by a single rank."""

    job: _Count


@dataclasses.dataclass(frozen=True, kw_only=True)
class Failed:
    """The rank ends with an error. The answer is the reason if a different rank has failed earlier."""

    rank: _Count
    error: str  # class and message of the error
    own: bool  # whether the rank itself is the cause; a lost gloo connection may have another cause


@dataclasses.dataclass(frozen=True)
class Listen:
    """The rank waits on this connection for the text of an error that ends all ranks."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Leave:
    """The rank has no more requests."""

    gloo: dict[str, tuple[_Count, _Count]]  # calls and bytes of each collective that used gloo


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answer:
    """Answer to a message."""

    well: bool  # whether the value is a result; otherwise it is the text of an error
    value: Any = None


#: All messages, and the classes used in their fields.
MESSAGES = Registry(Answer, Hello, Open, AllReduce, Buffers, Step, Save, Failed, Listen, Leave, Made, SGD, Adam,
                    AdamW)
