"""Protocols of the parts of a ring, from commands upwards: what host code may ask for, whatever carries it out.

The nodes of a simulated ring, of a grid and of a tenant have these parts. Nothing in them is of packets or devices. A
part that nodes lack raises ``ValueError`` when it is asked for.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from hdl.control.protocol import Operation
from host.driver.buffers import Buffer, Where
from host.driver.command import Event
from host.driver.inference import IntegerLayer
from host.driver.masking import MaskJob
from host.driver.optimizer_settings import FixedSettings, Settings
from host.driver.pending_command import PendingCommand
from host.driver.results import InferOutcome, ListsOutcome, MaskOutcome, Outcome, Passes, SparsifyOutcome
from host.driver.staged_programs import NodeProgram
from host.driver.vector_protocols import VectorRing
from host.memory.plan import ListProgram, Plan

__all__ = ["Collectives", "Commands", "Compute", "Counters", "FlatRing", "Operations", "Programs", "Quorum",
           "SettingRegisters", "TrainingRing", "Updates"]

class SettingRegisters(Protocol):
    """Settings that commands of all nodes take."""

    @property
    def known(self) -> dict[str, int | float]:
        """Settings that this driver has written since the ring was last put in order, by register."""

    def restore(self, settings: dict[str, int | float]) -> None:
        """Write the :attr:`known` settings of another ring."""

    def write(self, settings: Settings | FixedSettings) -> None:
        """Set the optimizer for later commands. Values that the nodes already hold are not written again."""

    def set_flags(self, flags: int) -> None:
        """Set flags, of 16 bits, that commands of all nodes wait for."""

    def set_weight_stride(self, elements: int) -> None:
        """Set the distance of the weights of odd passes, for commands of a program with ``alternate``."""


class Counters(Protocol):
    """Counters of all nodes."""

    def read(self) -> list[dict[str, int]]:
        """All counters of each node; golden nodes have none of cycles."""

    def clear(self) -> None:
        """Set all counters of all nodes to zero."""


class Commands(Protocol):
    """Queue of the commands of all nodes."""

    def wait(self, *pending: PendingCommand[Any]) -> list[Any]:
        """Wait for commands, and for all that were queued before them.

        Parameters
        ----------
        *pending : PendingCommand
            Commands to wait for; by default, all that are pending.

        Returns
        -------
        list
            Result of each, in order.

        Raises
        ------
        RingError
            A command failed. The error is that of the first failure, raised after all have been waited for.
        """


class Updates(Protocol):
    """Updates of weights by the gradients of all nodes."""

    def fused_update(self, where: Where) -> Outcome:
        """Sum gradients, update each block at its owner, and bring the new weights to all nodes."""

    def distribute(self, weights: npt.NDArray[Any], where: Where | None = None) -> None:
        """Give all nodes the same weights, in the form that a fused update leaves.

        On nodes with master weights each block becomes the master of the node that owns it. With a weight codec all
        nodes then get its decoded codes: a fused update of zeros does this, with settings of its own. Gradients and
        residuals are zeros afterwards.
        """


class Collectives(Updates, Protocol):
    """Collectives of all nodes of one ring."""

    def submit(self, operation: Operation, where: Where = 0, *, root: int = 0, owner: int | None = None,
               first: int = 0, length: int | None = None) -> PendingCommand[Outcome]:
        """Queue a collective on all nodes after earlier commands, without waiting for it.

        The optimizer takes the settings that registers hold when the command starts.

        A command may be for a part of the vector. Its results are those of a command for the whole vector, bit for
        bit: the block of a group of 32 elements depends only on its position in the vector.

        Parameters
        ----------
        operation : Operation
            One that nodes carry out together, or QUIESCE.
        where : Buffers, Buffer or int
            The vector.
        root : int
            Rank that a BROADCAST starts from.
        owner : int, optional
            Rank that owns all groups in this FUSED_UPDATE or ALL_REDUCE, and has all state; by default
            :attr:`host.driver.vector_protocols.Partition.root`.
        first : int
            First element of the part, a multiple of 32.
        length : int, optional
            Elements of the part: a multiple of 32, or all up to the end of the vector, as it is by default.

        Raises
        ------
        ValueError
            The operation is another one, the vector lacks a buffer that the operation needs, or there is no such
            part.
        """

    def fused_update(self, where: Where, *, owner: int | None = None) -> Outcome:
        """Sum gradients, update each block at its owner, and bring the new weights to all nodes; see :meth:`submit`
        for an ``owner`` of all of them."""

    def all_reduce(self, where: Where, *, owner: int | None = None) -> Outcome:
        """Replace the gradients of all nodes by their sum, which one ``owner`` may form: see :meth:`submit`."""

    def reduce_scatter(self, where: Where) -> Outcome:
        """Replace, on each node, the gradients of its own block by their sum."""

    def all_gather(self, where: Where) -> Outcome:
        """Bring each block of weights from its owner to all nodes, the owner too: decoded ones in nodes with a weight
        codec."""

    def broadcast(self, where: Where, *, root: int) -> Outcome:
        """Bring the weights of one node to all nodes, as they are."""


class Operations(Protocol):
    """Operations that nodes carry out each by itself."""

    def mask(self, jobs: Sequence[Sequence[MaskJob]], *, alternative: float, behind: int = 0,
             data: Buffer | None = None, lists: Buffer | None = None) -> MaskOutcome:
        """Mask matrices on the nodes, in a buffer of their gradient memories. Its contents are lost.

        If the buffers have no room for all jobs of a node, several commands run one after the other; commands
        of different nodes run at the same time. A node may have no job.

        Parameters
        ----------
        jobs : sequence of sequence of MaskJob
            Jobs of each node, in order of rank.
        alternative : float
            Value that replaces elements that a mask does not keep; an integer on int16 nodes.
        behind : int
            Number of elements at the start of the weight memory that stay; without ``lists``, job lists are written
            after them.
        data : Buffer, optional
            Buffer in gradients for the matrices; by default the whole memory.
        lists : Buffer, optional
            Buffer in weights for lists of jobs and words of external masks.

        Raises
        ------
        RingError
            A command failed on at least one node.
        ValueError
            There is no room for even one matrix.
        """

    def sparsify(self, where: Where, *, threshold: float) -> SparsifyOutcome:
        """Keep the large elements of each node's gradients, with its errors added; the other elements become its
        errors, and are added the next time.

        Parameters
        ----------
        where : Buffers or int
            The vector; the errors of a vector that is named by its length are after its weights.
        threshold : float
            Smallest magnitude that is kept; an integer on int16 nodes.
        """

    def infer(self, layers: Sequence[IntegerLayer], x: npt.ArrayLike, *, data: Buffer | None = None,
              lists: Buffer | None = None) -> InferOutcome:
        """Run integer layers on samples, in a run of equal length on each node.

        Layers go to a buffer of each node's weight memory, and all else to a buffer of its gradient memory; the
        contents of both are lost. If there is no room for all samples of a node, several commands run.

        Parameters
        ----------
        layers : sequence of IntegerLayer
            Layers like :class:`sim.golden.quantization.Layer`; the last one, and no other, is ``last``.
        x : array of int
            A row of inputs for each sample: uint8, or int8 where the first layer is ``signed``.
        data, lists : Buffer, optional
            Buffers in gradients and in weights; by default the whole memories.

        Raises
        ------
        RingError
            A command failed on at least one node.
        ValueError
            There is no room for the layers and one sample, or they do not follow each other.
        """


class Programs(Protocol):
    """Programs of all nodes."""

    def load(self, programs: Sequence[NodeProgram], *, model: int = 0, changes: bool = False) -> None:
        """Give each node its program, which stays loaded; in order of rank.

        Parameters
        ----------
        programs : sequence of sequence of sequence of Command
            Commands of each queue of each node, with the same tags on all nodes. Tags are in the order in which a
            single queue would carry the commands out: so nodes with one queue are sent them.
        model : int
            Number of the program, which :meth:`run` names.
        changes : bool
            Whether to send only the queues that differ from the programs that this ring has loaded.

        Raises
        ------
        ProgramTooLongError
            A queue has no room for all of its commands.
        ProgramRunningError
            A program runs.
        ValueError
            Commands wait for other nodes without control words, or with programs of other lengths; or a program has
            more queues than nodes with several of them.
        PlanError
            A program runs a list that is not of the memory plan; nothing is loaded then.
        """

    def run(self, *, collectives: int, passes: int = 1, parity: int = 0, first: int = 0, traced: bool = True,
            on_event: Callable[[int, Event], None] = ..., over: Callable[[], bool] = ...) -> Passes:
        """Run the programs of all nodes, wait for them, and read the traces.

        Parameters
        ----------
        collectives : int
            Numbers of collectives that a pass takes.
        passes, parity, first : int
            Parameters of :class:`~host.driver.command.ProgramRun`. Nodes with one queue have no other copy of
            weights.
        traced : bool
            Whether to read the traces, which hold 256 records.
        on_event, over : callable
            See :meth:`host.driver.ring_programs.RingPrograms.play`. A run that is over before its end has no error;
            nodes still run their programs, until :meth:`TrainingRing.recover`.

        Raises
        ------
        RingError
            A command failed on at least one node. The ring must be put in order by :meth:`TrainingRing.recover`;
            then the programs are still loaded.
        TraceError
            There were more commands than a node's trace holds.
        """


class Quorum(Protocol):
    """Updates that wait for a quorum of the nodes' gradients."""

    def write_rules(self, registers: dict[str, int | float], scales: npt.NDArray[np.uint32]) -> None:
        """Write the rules of updates, by register, and the table of scales."""

    def set_flags_of(self, rank: int, flags: int) -> None:
        """Set flags of one node."""

    def write_gradient_of(self, rank: int, gradient: npt.NDArray[Any], buffer: Buffer) -> None:
        """Write the gradient of one node to a buffer of its gradient memory."""

    def resume_set(self, rank: int, slot: int, tag: int, gradient: npt.NDArray[Any], buffer: Buffer) -> None:
        """Give a node a gradient again that it had computed for a round, in the slot with this buffer."""

    def slots(self) -> list[list[dict[str, int]]]:
        """Slots of each node: number of the round, and whether it is computing, pending or taken."""


class Compute(Protocol):
    """Lists of layers, which nodes with a compute engine carry out."""

    def write_lists(self, programs: Sequence[ListProgram], plan: Plan) -> None:
        """Write the lists of a pass, or of even and odd passes, to all nodes.

        Raises
        ------
        PlanError
            The lists are not the program of the plan, or nodes have no room for it; nothing is written then.
        """

    def run_layers(self, lists: Sequence[int], lengths: Sequence[int], *, offset: int = 0,
                   patience: int = 0) -> list[ListsOutcome]:
        """Run lists of layers, one after the other, and wait for them; see docs/compute/layers.md.

        Parameters
        ----------
        lists : sequence of int
            Address of each list in the activation memory, a multiple of 32.
        lengths : sequence of int
            Examples of each node; a node without any does nothing.
        offset : int
            Elements that are added to the addresses of relative operands, a multiple of 32.
        patience : int
            Cycles that a list may take.

        Returns
        -------
        list of ListsOutcome
            Of each list.

        Raises
        ------
        RingError
            A node has refused a list.
        PlanError
            A list is not of the memory plan; nothing runs then.
        """


class TrainingRing(VectorRing, Protocol):
    """Nodes that train: one ring, or the rings of a grid."""

    @property
    def settings(self) -> SettingRegisters: ...

    @property
    def counters(self) -> Counters: ...

    @property
    def commands(self) -> Commands: ...

    @property
    def collectives(self) -> Updates: ...

    @property
    def local(self) -> Operations: ...

    @property
    def programs(self) -> Programs: ...

    @property
    def quorum(self) -> Quorum: ...

    @property
    def compute(self) -> Compute: ...

    def recover(self) -> None:
        """Put the ring in order after a failure."""


class FlatRing(TrainingRing, Protocol):
    """Nodes in one ring."""

    @property
    def collectives(self) -> Collectives: ...
