"""Messages between the ranks and the launcher, which owns the ring.

The first message on a connection is :class:`Hello`, :class:`Listen` or :class:`Failed`. A new class must also be
added to :data:`MESSAGES`.
"""

import dataclasses
from typing import Annotated, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from host.sockets.format import Dimensions, Registry, Within
from host.training.optimizers import SGD, Adam, AdamW, Optimizer

__all__ = ["ADDRESS", "GRADIENTS", "KEEPS", "MESSAGES", "PACKED_STATE", "RECORD", "REPLACE", "RING", "SOFTWARE",
           "STORE", "WEIGHTS", "AllReduce", "Announce", "Answer", "Asked", "Buffers", "Failed", "Hello", "Leave",
           "Listen", "Made", "NonFinite", "Open", "Request", "Save", "Step", "Vector", "contents_text",
           "difference_text", "optimizers_text"]

Vector = npt.NDArray[np.float32]

#: Type of a count, or of the index of a rank, job or element.
_Count = Annotated[int, Within(0, 1 << 40)]

#: Name of the PyTorch backend that uses the ring.
RING = "gradring"

# Environment variables of ranks.
#: Path of the launcher's socket.
ADDRESS = "GRADRING_ADDRESS"
#: Set to 1 if nodes hold back parts of gradients and add them to later gradients.
KEEPS = "GRADRING_KEEPS"
#: Folder for recorded gradients, which scripts without a launcher have as well.
RECORD = "GRADRING_RECORD_GRADIENTS"
#: Set to 1 to replace the gloo backend by the ring where a script requests gloo by name.
REPLACE = "GRADRING_REPLACE"
#: Set to 1 if the ranks are themselves a ring in software, and only announce their operations to the launcher.
SOFTWARE = "GRADRING_SOFTWARE"
#: Codecs of gradients and of new weights on a ring in software.
GRADIENTS, WEIGHTS = "GRADRING_GRADIENTS", "GRADRING_WEIGHTS"
#: Set to 1 to store the state of optimizers as bfloat16 on a ring in software.
PACKED_STATE = "GRADRING_PACKED_STATE"
#: For rank 0 only: file descriptor of the socket on which PyTorch's store listens at MASTER_PORT.
STORE = "GRADRING_STORE"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Hello:
    """Message of a rank that joins a process group of all ranks."""

    # the rank, and the number of ranks in its group
    rank: _Count
    ranks: _Count
    # timeout in seconds of the group's collectives over gloo
    timeout: Annotated[float, Within(0, float("inf"))]
    backend: str = RING  # name of the ring's backend, or names of the other backends that the script requests


@dataclasses.dataclass(frozen=True, kw_only=True)
class Made:
    """Counts of a rank's steps and passes so far. The counts of ranks differ if a rank skips a step or pass."""

    steps: _Count = 0  # number of calls of the optimizer's ``step()``
    # number of passes in which the modules concerned sum their gradients
    forward: _Count = 0
    backward: _Count = 0

    def __str__(self) -> str:
        counts = {"step": self.steps, "forward pass": self.forward, "backward pass": self.backward}
        *texts, last = (f"{count:,} {name}{('es' if name.endswith('s') else 's') * (count != 1)}"
                        for name, count in counts.items())
        return f"{', '.join(texts)} and {last}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class NonFinite:
    """The first non-finite element of a rank's gradients."""

    parameter: str
    indices: tuple[_Count, ...]  # indices of the element in the parameter
    value: str  # value of the element: nan, inf or -inf
    count: _Count  # number of non-finite elements in the rank's gradients


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """Request for an operation, which all ranks must make together."""

    made: Made | None = None  # the rank's steps and passes so far, which must be the same on all ranks
    nonfinite: NonFinite | None = None  # first non-finite element of the rank's gradients

    @property
    def title(self) -> str:
        """Description of the operation, including all data that must be the same on all ranks."""
        raise NotImplementedError


class Asked(NamedTuple):
    """What a rank asks for: title of the request, and the rank's steps and passes unless these are unknown."""

    rank: int
    title: str
    made: str | None


def difference_text(first: Asked, other: Asked) -> str:
    """Return a sentence about two ranks that ask for different operations."""
    if other.made != first.made and None not in (other.made, first.made):
        its = "" if other.title == first.title else f"for {first.title} "
        return (f"Rank {other.rank} asks for {other.title} after {other.made}, and rank {first.rank} {its}after "
                f"{first.made}: all ranks must make the same steps and passes; look for one that is skipped on some "
                f"ranks only, as after a loss that is not finite, and for an evaluation without torch.no_grad()")
    return (f"Rank {other.rank} asks for {other.title}, and rank {first.rank} for {first.title}: all ranks must ask "
            f"for the same in the same order")


def optimizers_text(rank: int, optimizers: object, first: object) -> str:
    """Return a sentence about a rank with other optimizers than rank 0."""
    return f"Optimizer of rank {rank} must be that of rank 0, {first}, not {optimizers}"


def contents_text(rank: int) -> str:
    """Return a sentence about a rank with other weights or state than rank 0."""
    return (f"Weights and state of rank {rank} must be those of rank 0: broadcast them first, as "
            f"DistributedDataParallel does")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Open(Request):
    """Request to open a job: a vector made of groups, with or without optimizers."""

    lengths: tuple[_Count, ...]  # number of elements of each group
    optimizers: tuple[Optimizer, ...] = ()  # optimizer of each group; empty for a job that only sums

    @property
    def title(self) -> str:
        names = ", ".join(str(optimizer) for optimizer in self.optimizers) or "sums alone"
        return f"a job of {', '.join(f'{length:,}' for length in self.lengths)} elements with {names}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class AllReduce(Request):
    """Request to sum one vector per rank."""

    values: Annotated[Vector, Dimensions(1)]
    # number of the job that keeps back parts of gradients of this vector; None for any other sum
    job: _Count | None = None
    begin: _Count = 0  # index of the first value in the longer vector that contains the values
    # checksum of each parameter of the rank's module, keyed by name; None in passes without a comparison of ranks
    weights: dict[str, _Count] | None = None
    group: _Count = 0  # number of the process group, counted in order of creation

    @property
    def title(self) -> str:
        where = f" from element {self.begin:,} on" if self.begin else ""
        where += "" if self.job is None else f" of job {self.job}"
        return f"a sum of {self.values.size:,} elements{where}{f' in group {self.group}' if self.group else ''}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Buffers(Request):
    """Request before a forward pass that copies a module's buffers from rank 0 over gloo. All ranks must make this
    request before the first of them waits in gloo, since gloo would not report why a step was skipped."""

    @property
    def title(self) -> str:
        return "the buffers of a module"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Step(Request):
    """Request to update the weights of a job."""

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
    """Request to save a job's state, made by one rank on simulated nodes, and by all ranks in software."""

    job: _Count

    @property
    def title(self) -> str:
        """Description of the operation on a ring in software."""
        return f"the state of job {self.job}, for which all ranks must call state_dict()"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Announce(Request):
    """Announcement of an operation that the ranks of a ring in software do themselves after the answer."""

    operation: str  # description of the operation; the same on all ranks
    kind: str  # ``open``, ``all_reduce``, ``step`` or, for operations without cost, ``other``
    contents: str = ""  # checksums of arrays that must be the same on all ranks
    job: _Count | None = None
    lengths: tuple[_Count, ...] = ()  # number of elements of each group of a new job
    optimizers: tuple[Optimizer, ...] = ()
    count: _Count = 0  # number of elements of a sum
    begin: _Count = 0  # as in AllReduce
    weights: dict[str, _Count] | None = None  # as in AllReduce
    present: tuple[tuple[bool, ...], ...] = ()  # as in Step
    names: tuple[tuple[str, ...], ...] = ()  # as in Step
    norm: float | None = None  # Euclidean norm of the rank's gradients; None if it is not finite or unknown
    seconds: float = 0.0  # seconds that the rank has spent in operations since its previous announcement

    @property
    def title(self) -> str:
        return self.operation


@dataclasses.dataclass(frozen=True, kw_only=True)
class Failed:
    """Message of a rank that ends with an error. The answer is the reason if another rank failed earlier."""

    rank: _Count
    error: str  # text of the error: its class and message
    own: bool  # whether this rank is itself the cause; a lost gloo connection may have other causes


@dataclasses.dataclass(frozen=True)
class Listen:
    """Message of a rank that waits on this connection for the text of an error that ends all ranks."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Leave:
    """Message of a rank that has no more requests."""

    # for each gloo collective: calls, bytes, and calls that add floating-point numbers
    gloo: dict[str, tuple[_Count, _Count, _Count]]
    seconds: float = 0.0  # as in Announce


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answer:
    """The launcher's answer to a message."""

    well: bool  # whether the value is a result; if not, it is an error message
    value: Any = None


#: Registry of all messages, and of the classes of their fields.
MESSAGES = Registry(Answer, Hello, Open, AllReduce, Buffers, Step, Save, Announce, Failed, Listen, Leave, Made,
                    NonFinite, SGD, Adam, AdamW)
