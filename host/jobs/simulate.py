"""A job on simulated nodes, with a suitable configuration chosen automatically.

Example
-------
::

    with simulate(nodes=4, length=10_000, optimizer=Adam(1e-3)) as job:
        sums, figures = job.all_reduce(gradients)       # (4, n) float32 -> (n,)
        weights, figures = job.step(gradients)          # the optimizer on the nodes
"""

import contextlib
import dataclasses
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from hdl.compression.registry import GRADIENT_CODECS, WEIGHT_CODECS
from hdl.config import Configuration, NodeConfig, SingleRing, Weights, max_nodes_for
from hdl.ring.topology import MAX_NODES
from host.arguments import Argument, Call, Choice, Flag, Instance, Integer, Member, Optional, checked
from host.driver.memory import Allocation, fitted
from host.jobs import checks
from host.jobs.checks import DENSITY, MAX_LENGTH
from host.jobs.job import Job
from host.options import Section, option, with_sections
from host.training.optimizers import Optimizer, moments_note
from host.transports.session import LATENCY, MAX_LATENCY, Session, TransportName, open_session
from sim.verilated.native import Arithmetic

__all__ = ["LARGEST", "FormatOptions", "MomentsWarning", "RingOptions", "node_for", "simulate"]

LARGEST = 1 << 17
"""Maximum length of a vector for which node memories are enlarged; a longer vector is split into parts."""


class MomentsWarning(UserWarning):
    """Warning that second moments do not decay, because the nodes store them as bfloat16."""


_NODE: dict[str, Argument] = {
    "nodes": Integer(1, MAX_NODES), "packed_state": Flag(), "density": DENSITY,
    "gradients": Optional(Choice(GRADIENT_CODECS)), "weights": Choice(WEIGHT_CODECS)}


@checked(**_NODE, length=Integer(1, MAX_LENGTH), optimizer=Optional(checks.OPTIMIZER))
def node_for(length: int, *, nodes: int, optimizer: Optimizer | None = None, packed_state: bool = False,
             density: float | None = None, gradients: str | None = None,
             weights: str = Weights.codec) -> NodeConfig:
    """Choose a node configuration for a job.

    Memories have the default size, or the next power of two that fits the vector, up to :data:`LARGEST` elements, and
    nodes have the state planes that the optimizer needs. Raises ``TypeError`` if an argument has the wrong type, and
    ``ValueError`` if there is no suitable configuration.

    Parameters
    ----------
    length : int
        Number of elements of the vector.
    nodes : int
        Number of nodes in the ring.
    optimizer : Optimizer, optional
        Optimizer on the nodes; without one, nodes support all rules.
    packed_state, density, gradients, weights
        See :class:`FormatOptions`.
    """
    node = NodeConfig(gradients=checks.gradient_codec(gradients, density), weights=Weights(codec=weights),
                      topology=SingleRing(max_nodes=max_nodes_for(nodes)))
    planes = 0 if optimizer is None else optimizer.planes
    allocation = Allocation(length=min(length, LARGEST), planes=planes, packed_state=packed_state,
                            errors=density is not None)
    return fitted(node, [allocation], nodes=nodes, planes=node.memories.planes if optimizer is None else planes)


@dataclasses.dataclass(frozen=True)
class FormatOptions(Section):
    """Options of a job: formats of its vectors."""

    #: Codec for gradients, such as ``mx9``; by default raw, or zero_value if there is a density.
    gradients: str | None = option(None, kind=_NODE["gradients"])
    #: Codec of new weights.
    weights: str = option(Weights.codec, kind=_NODE["weights"])
    #: Fraction of the gradient elements that nodes send; by default all nonzero elements.
    density: float | None = option(None, kind=DENSITY)
    #: Whether nodes store the optimizer's state as bfloat16. Second moments then do not decay with a b2 above 0.996,
    #: such as the default; a :class:`MomentsWarning` is issued.
    packed_state: bool = option(False, kind=Flag())


@dataclasses.dataclass(frozen=True)
class RingOptions(Section):
    """Options of the simulated ring that runs a job."""

    #: Number of threads of the simulation.
    threads: int = option(1, kind=Integer(1))
    #: Whether floating-point units are gateware or native code; affects only the speed.
    arithmetic: Arithmetic = option(Arithmetic.GATEWARE, kind=Member(Arithmetic))
    #: Whether vectors are transferred over simulated host ports; otherwise, the time of the ports is modelled.
    host_port: bool = option(False, kind=Flag())
    #: Latency of each link in cycles.
    link_latency: int = option(LATENCY, kind=Integer(1, MAX_LATENCY))
    #: Verilated nodes or golden models (docs/simulation.md). Results of golden models are not verified.
    transport: TransportName = option(TransportName.VERILATED, kind=Member(TransportName))
    #: Function that is called with the name of each build stage when the stage starts.
    announce: Callable[[str], None] = option(lambda stage: None, kind=Call())

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.transport not in (TransportName.VERILATED, TransportName.GOLDEN):
            raise ValueError(f"Transport of a job's nodes must be verilated or golden, not {self.transport.value}: "
                             f"open a session for a Job on others")


@checked(nodes=_NODE["nodes"], length=checks.LENGTHS, optimizer=checks.OPTIMIZERS, check=Flag(),
         part=Optional(Integer(1)), node=Optional(Instance(Configuration, "a NodeConfig")))
@with_sections
def simulate(*, nodes: int = 4, length: int | Sequence[int], optimizer: Optimizer | Sequence[Optimizer] | None = None,
             formats: FormatOptions, node: Configuration | None = None, part: int | None = None, check: bool = True,
             ring: RingOptions) -> Job:
    """Start a simulated ring for a job, with all weights zero; build it first unless it is cached.

    The ring is stopped at the end of a ``with`` block, by :meth:`~host.jobs.job.Job.close`, or when the job is no
    longer used. Fields of the sections are passed directly as keyword arguments: ``simulate(length=1000, density=0.1,
    threads=2)``. Raises ``TypeError`` if an argument has the wrong type, and ``ValueError`` if the job is impossible,
    before anything is built.

    Parameters
    ----------
    nodes : int
        Number of nodes in the ring, 1 to 255.
    length : int or sequence of int
        Number of elements of the job's vector, or of each of its groups.
    optimizer : Optimizer or sequence of Optimizer, optional
        Optimizer on the nodes, common to all groups or one per group; without one, the job only sums.
    node : Configuration, optional
        Configuration of the nodes; by default the one that :func:`node_for` chooses.
    part : int, optional
        Maximum number of vector elements on the nodes at the same time; by default, the capacity of their memories.
    check : bool
        Whether every result is compared with the golden model, bit for bit.
    """
    lengths = [length] if isinstance(length, int) else list(length)
    optimizers = [] if optimizer is None else (
        [optimizer] * len(lengths) if isinstance(optimizer, Optimizer) else list(optimizer))
    if node is None:
        node = node_for(checks.groups_of(lengths)[-1].stop, nodes=nodes,
                        optimizer=optimizers[0] if optimizers else None, **vars(formats))
    elif formats.gradients is not None or formats.weights != Weights.codec:
        raise ValueError("Codecs must be left out with a node, which has its own")
    shared: dict[str, Any] = {"packed_state": formats.packed_state, "density": formats.density, "part": part}
    checks.check_job(node, lengths, nodes=nodes, optimizers=optimizers, **shared)
    if (note := moments_note(optimizers, packed_state=formats.packed_state)) is not None:
        warnings.warn(note, MomentsWarning, stacklevel=4)  # reports the caller's line, not one in the argument checks
    return _begun(node, nodes, ring, lambda session: Job(
        session, lengths, optimizers=optimizers, check=check, **shared))


def _begun(node: Configuration, nodes: int, ring: RingOptions, job_of: Callable[[Session], Job]) -> Job:
    """Open a session and create a job that closes the session when it is closed."""
    with contextlib.ExitStack() as stack:
        job = job_of(stack.enter_context(open_session(
            node, nodes=nodes, transport=ring.transport, threads=ring.threads, arithmetic=ring.arithmetic,
            host_port=ring.host_port or ring.transport is TransportName.GOLDEN, latency=ring.link_latency,
            announce=ring.announce)))
        job.own(stack.pop_all())
        return job
