"""Messages of ranks to the process that has the ring, and its answers.

The first message of a connection is :class:`Hello`, :class:`Listen` or :class:`Failed`. A class that is added here
must be in :data:`MESSAGES` as well.
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

#: Numbers of ranks, of jobs, and of elements.
_Count = Annotated[int, Within(0, 1 << 40)]

#: Name of the backend with the ring.
RING = "gradring"

# Environment variables of ranks.
#: Path of the socket.
ADDRESS = "GRADRING_ADDRESS"
#: 1 if nodes keep back parts of gradients, to be added to later ones.
KEEPS = "GRADRING_KEEPS"
#: 1 if a backend gloo by name means the ring.
REPLACE = "GRADRING_REPLACE"
#: Number of an open file of rank 0: the socket, listening already, of PyTorch's store at MASTER_PORT.
STORE = "GRADRING_STORE"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Hello:
    """A rank joins a process group of all ranks."""

    # number of the rank, and of ranks in its group
    rank: _Count
    ranks: _Count
    # seconds until the group's other collectives, over gloo, time out
    timeout: Annotated[float, Within(0, float("inf"))]
    backend: str = RING  # the ring's name, or the names of the backends that the script asks for instead


@dataclasses.dataclass(frozen=True, kw_only=True)
class Made:
    """Steps and passes of a rank up to a request; ranks that have skipped one differ."""

    steps: _Count = 0  # calls of the optimizer's ``step()``
    # passes of the modules with sums of gradients
    forward: _Count = 0
    backward: _Count = 0

    def __str__(self) -> str:
        counts = {"step": self.steps, "forward pass": self.forward, "backward pass": self.backward}
        *texts, last = (f"{count:,} {name}{('es' if name.endswith('s') else 's') * (count != 1)}"
                        for name, count in counts.items())
        return f"{', '.join(texts)} and {last}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """An operation that all ranks request together."""

    made: Made | None = None  # steps and passes of the rank up to here, on which ranks must agree

    @property
    def title(self) -> str:
        """The operation, and all data that ranks must agree on."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Open(Request):
    """Begin a job: a vector of groups, with optimizers or without."""

    lengths: tuple[_Count, ...]  # elements of each group
    optimizers: tuple[Optimizer, ...] = ()  # optimizer of each group; empty in a job that only sums

    @property
    def title(self) -> str:
        names = ", ".join(str(optimizer) for optimizer in self.optimizers) or "sums alone"
        return f"a job of {', '.join(f'{length:,}' for length in self.lengths)} elements with {names}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class AllReduce(Request):
    """Sum of a vector of each rank."""

    values: Annotated[Vector, Dimensions(1)]
    job: _Count | None = None  # job that keeps the rest that a codec or a density does not send
    # indices of the values in that job's vector
    places: Annotated[npt.NDArray[np.int64], Dimensions(1)] | None = None
    group: _Count = 0  # number of the process group of all ranks, in the order of their creation by the rank

    @property
    def title(self) -> str:
        where = "" if self.places is None or not self.places.size else (
            f" from place {int(self.places[0]):,} on of job {self.job}")
        return f"a sum of {self.values.size:,} elements{where}{f' in group {self.group}' if self.group else ''}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Buffers(Request):
    """Begin of a forward pass with buffers of a module from rank 0 over gloo: all ranks must reach it
    before the first one waits in gloo, where the cause of a skipped step is not known."""

    @property
    def title(self) -> str:
        return "the buffers of a module"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Step(Request):
    """Update of a job's weights."""

    job: _Count
    gradients: Annotated[Vector, Dimensions(1)]
    present: tuple[tuple[bool, ...], ...]  # whether the rank has a gradient of each parameter of each group
    names: tuple[tuple[str, ...], ...]  # names of these parameters, for errors
    optimizers: tuple[Optimizer, ...]  # optimizer of each group in this step
    # weights to begin with, if they differ from the step before
    weights: Annotated[Vector, Dimensions(1)] | None = None
    state: dict[str, Any] | None = None  # state of the job to begin with

    @property
    def title(self) -> str:
        return (f"a step of job {self.job}{', with other weights' if self.weights is not None else ''}"
                f"{', with another state' if self.state is not None else ''}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Save:
    """State of a job, at the request of a single rank."""

    job: _Count


@dataclasses.dataclass(frozen=True, kw_only=True)
class Failed:
    """The rank ends by an error. The answer is the reason, if another rank has failed before."""

    rank: _Count
    error: str  # kind and message of the error
    own: bool  # whether the rank itself is the cause; else another one may be, as when gloo has lost a connection


@dataclasses.dataclass(frozen=True)
class Listen:
    """A rank waits on this connection for the text of an error that ends all ranks."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Leave:
    """The rank has no more requests."""

    gloo: dict[str, tuple[_Count, _Count]]  # calls and bytes of each collective that went over gloo


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answer:
    """Answer to a message."""

    well: bool  # whether the value is a result, not the text of an error
    value: Any = None


#: All messages, and the classes of their fields.
MESSAGES = Registry(Answer, Hello, Open, AllReduce, Buffers, Step, Save, Failed, Listen, Leave, Made, SGD, Adam,
                    AdamW)
