"""Messages between the ranks and the launcher, which owns the ring.

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
           "Hello", "Leave", "Listen", "Made", "NonFinite", "Open", "Request", "Save", "Step", "Vector"]

Vector = npt.NDArray[np.float32]

#: A number, or the index of a rank, job or element.
_Count = Annotated[int, Within(0, 1 << 40)]

#: Name of the PyTorch backend that uses the ring.
RING = "gradring"

# Environment variables of ranks.
#: Path of the launcher's socket.
ADDRESS = "GRADRING_ADDRESS"
#: 1 if nodes hold back parts of gradients and add them to later gradients.
KEEPS = "GRADRING_KEEPS"
#: 1 to replace the gloo backend by the ring where a script requests gloo by name.
REPLACE = "GRADRING_REPLACE"
#: In rank 0: file descriptor of the listening socket for PyTorch's store at MASTER_PORT.
STORE = "GRADRING_STORE"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Hello:
    """Sent by a rank to join a process group of all ranks."""

    # the rank, and the number of ranks in its group
    rank: _Count
    ranks: _Count
    # timeout in seconds of the group's collectives over gloo
    timeout: Annotated[float, Within(0, float("inf"))]
    backend: str = RING  # name of the ring, or names of the other backends that the script requests


@dataclasses.dataclass(frozen=True, kw_only=True)
class Made:
    """Steps and passes that a rank has made so far; they differ if one rank skips a step or pass."""

    steps: _Count = 0  # calls of the optimizer's ``step()``
    # number of passes that sum the gradients of the modules concerned
    forward: _Count = 0
    backward: _Count = 0

    def __str__(self) -> str:
        counts = {"step": self.steps, "forward pass": self.forward, "backward pass": self.backward}
        *texts, last = (f"{count:,} {name}{('es' if name.endswith('s') else 's') * (count != 1)}"
                        for name, count in counts.items())
        return f"{', '.join(texts)} and {last}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class NonFinite:
    """First element of a rank's gradients that is not finite."""

    parameter: str
    indices: tuple[_Count, ...]  # where it is in the parameter
    value: str  # nan, inf or -inf
    count: _Count  # number of such elements in the rank's gradients


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """An operation that all ranks must request together."""

    made: Made | None = None  # the rank's steps and passes so far, which must be the same on all ranks
    nonfinite: NonFinite | None = None  # first element of the rank's gradients that is not finite

    @property
    def title(self) -> str:
        """Description of the operation, including all data that must be the same on all ranks."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Open(Request):
    """Open a job: a vector made of groups, with or without optimizers."""

    lengths: tuple[_Count, ...]  # number of elements of each group
    optimizers: tuple[Optimizer, ...] = ()  # optimizer of each group; empty for a job that only sums

    @property
    def title(self) -> str:
        names = ", ".join(str(optimizer) for optimizer in self.optimizers) or "sums alone"
        return f"a job of {', '.join(f'{length:,}' for length in self.lengths)} elements with {names}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class AllReduce(Request):
    """Sum one vector per rank."""

    values: Annotated[Vector, Dimensions(1)]
    job: _Count | None = None  # index of the first value in the longer vector that contains the values
    # indices of the values in their job's vector
    places: Annotated[npt.NDArray[np.int64], Dimensions(1)] | None = None
    begin: _Count = 0  # index of the first value in the longer vector that contains the values
    # checksum of each parameter of the rank's module, keyed by name, in passes in which ranks are compared
    weights: dict[str, _Count] | None = None
    group: _Count = 0  # number of the process group, counting groups of all ranks in order of creation

    @property
    def title(self) -> str:
        where = "" if self.places is None or not self.places.size else (
            f" from place {int(self.places[0]):,} on of job {self.job}")
        where += f" from element {self.begin:,} on" if self.begin else ""
        return f"a sum of {self.values.size:,} elements{where}{f' in group {self.group}' if self.group else ''}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Buffers(Request):
    """Start a forward pass that copies a module's buffers from rank 0 over gloo. All ranks must get here before the
    first one waits in gloo, because gloo would not report why a step was skipped."""

    @property
    def title(self) -> str:
        return "the buffers of a module"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Step(Request):
    """Update the weights of a job."""

    job: _Count
    gradients: Annotated[Vector, Dimensions(1)]
    present: tuple[tuple[bool, ...], ...]  # for each group, whether the rank has a gradient for each parameter
    names: tuple[tuple[str, ...], ...]  # parameter names of each group, for error messages
    optimizers: tuple[Optimizer, ...]  # optimizer of each group in this step
    # initial weights, unless they are the result of the previous step
    weights: Annotated[Vector, Dimensions(1)] | None = None
    state: dict[str, Any] | None = None  # initial state of the job

    @property
    def title(self) -> str:
        return (f"a step of job {self.job}{', with other weights' if self.weights is not None else ''}"
                f"{', with another state' if self.state is not None else ''}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Save:
    """Save a job's state; requested by one rank only."""

    job: _Count


@dataclasses.dataclass(frozen=True, kw_only=True)
class Failed:
    """Sent when a rank ends with an error. The answer is the reason if another rank failed earlier."""

    rank: _Count
    error: str  # class and message of the error
    own: bool  # whether this rank is itself the cause; a lost gloo connection may have other causes


@dataclasses.dataclass(frozen=True)
class Listen:
    """Sent by a rank to wait on this connection for the text of an error that ends all ranks."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Leave:
    """The rank has no more requests."""

    # calls, bytes, and calls that add floating-point numbers, of each collective over gloo
    gloo: dict[str, tuple[_Count, _Count, _Count]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answer:
    """Answer to a message."""

    well: bool  # whether the value is a result; if not, it is an error message
    value: Any = None


#: All messages, and the classes of their fields.
MESSAGES = Registry(Answer, Hello, Open, AllReduce, Buffers, Step, Save, Failed, Listen, Leave, Made, NonFinite, SGD,
                    Adam, AdamW)
