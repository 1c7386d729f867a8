"""Sections of a node's configuration: memories, arithmetic, formats on the ring, programs and engines."""

import dataclasses
from typing import ClassVar

from hdl.compression.registry import GRADIENT_CODECS, RAW, WEIGHT_CODECS
from hdl.compute.operands import FP32, OPERANDS
from hdl.section import Flag, Integer, Name, OneOf, Section, Words, option

__all__ = ["Compute", "ComputeStub", "GradientCodec", "Int16Memories", "Memories", "Optimizer", "Programs",
           "ServerMemories", "Weights"]

#: Commands of the longest program: counts of commands are compared modulo 2^16.
_MAX_COMMANDS = 1024

#: Elements of a memory of the int16 node: one SB_SPRAM256KA of an iCE40 UP.
_MAX_INT16 = 1 << 14


@dataclasses.dataclass(frozen=True, kw_only=True)
class Memories(Section):
    """Memories of a node.

    Parameters
    ----------
    gradient, weight, state : int
        Capacity in elements of the gradient memory, of the weight memory and of each state plane; multiples of 32.
        Only the owner of a block keeps its state, so a state plane may be smaller than the weights.
    planes : int
        State planes of the optimizer, which decide its rules: with 0 only SGD, with 1 momentum as well, with 2 also
        Adam and AdamW.
    """

    gradient: int = option(16384, Words())
    weight: int = option(16384, Words())
    state: int = option(8192, Words())
    planes: int = option(2, OneOf(0, 1, 2))


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServerMemories(Memories):
    """Memories of a server, which keeps weights and state in its far memory.

    Parameters
    ----------
    gradient, weight, state, planes : int
        As of :class:`Memories`.
    far : int
        Capacity in elements of the far memory, with room for weights and state: docs/far.md.
    """

    far: int = option(32768, Words())

    @property
    def served(self):
        """Words of weights and state together."""
        return self.weight + self.planes * self.state

    def check(self):
        if self.far < self.served:
            raise ValueError(f"ServerMemories.far must hold weights and state, {self.served:,} words, not "
                             f"{self.far:,}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Int16Memories(Section):
    """Memories of an int16 node.

    Parameters
    ----------
    gradient, weight : int
        Capacity in elements of the gradient and the weight memory: multiples of 32, at most 16,384.
    """

    #: Values of registers that an int16 node has in common with any other.
    state: ClassVar[int] = 32
    planes: ClassVar[int] = 0

    gradient: int = option(16384, Words(high=_MAX_INT16))
    weight: int = option(16384, Words(high=_MAX_INT16))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Optimizer(Section):
    """The streamed optimizer.

    Parameters
    ----------
    lanes : int
        Elements that it updates in a step, at most the node's ``lanes``. One keeps up with a dense ring of two nodes,
        which delivers less than one finished element per cycle.
    interval : int
        Cycles per step: 1, 2, 4 or 8. With more than one its operations share adders and multipliers.
    dsps : int
        DSP blocks that each multiplier of the node may use: 4, 2 or 1.
    """

    lanes: int = option(1, OneOf(1, 2, 4, 8))
    interval: int = option(1, OneOf(1, 2, 4, 8))
    dsps: int = option(4, OneOf(1, 2, 4))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Weights(Section):
    """Form of new weights in a fused update.

    Parameters
    ----------
    codec : str
        Name in :data:`hdl.compression.registry.WEIGHT_CODECS`. With any but ``raw`` the node has one more memory, of
        ``memories.state`` elements, for the master weights: those of its own block before they were encoded. All
        nodes, the owner too, have the decoded ones in their weight memory. A codec with centroids has another memory
        for them, which the host loads.
    master : bool
        Whether a node with ``raw`` weights has master weights too: a fused update then reads no weights, and may
        write them elsewhere than where other operations read them.
    """

    codec: str = option(RAW, Name(WEIGHT_CODECS))
    master: bool = option(False, Flag())

    def check(self):
        if self.master and self.codec != RAW:
            raise ValueError(f"Weights.master must be left out with codec {self.codec}, which always has master "
                             "weights")

    @property
    def has_master(self):
        """Whether the node keeps the master weights of its own block."""
        return self.master or self.codec != RAW


class GradientCodec(Name):
    """Domain of the names of codecs that gradients and their sums can go through."""

    def __init__(self):
        super().__init__(GRADIENT_CODECS)

    def checked(self, label, value):
        if value in Name(WEIGHT_CODECS) and value not in self:
            raise ValueError(f"{label} must take any number, since a sum of values in a codebook need not be in it: "
                             f"{self.text}, not {value!r}")
        return super().checked(label, value)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Programs(Section):
    """Two queues of commands, one that computes and one that communicates, with a program for each.

    With a link that repeats words, and without ``move_queue``, commands can also wait for those of other nodes.

    Parameters
    ----------
    depth : int
        Commands of each program, 1 to 1,024.
    banks : int
        Banks of programs: 1, or 2 for a node that gets the programs of a later set while a set runs:
        docs/control/program_banks.md.
    versions : bool
        Whether the updates of regions of weights are counted, and a command refused that would compute with weights
        of another version than it must.
    move_queue : bool
        Whether there is a third queue, which moves activations to a far memory and back.
    """

    depth: int = option(64, Integer(1, _MAX_COMMANDS))
    banks: int = option(1, OneOf(1, 2))
    versions: bool = option(False, Flag())
    move_queue: bool = option(False, Flag())


@dataclasses.dataclass(frozen=True, kw_only=True)
class Compute(Section):
    """Compute engine, which has the operation LAYERS and an activation memory: docs/compute.md.

    Parameters
    ----------
    rows : int
        Rows of multiply-accumulate units, of ``lanes`` units each: 1, 2 or 4, at most the node's ``lanes``.
    activations : int
        Capacity in elements of the activation memory, a multiple of 32.
    operands : str
        Format in which operands of products are multiplied: a name of :data:`hdl.compute.operands.OPERANDS`. Sums
        are in binary32 in any.
    codebook : int
        Centroids of a table, 4, 8 or 16, for products with weights that are indices of them:
        docs/compute/centroid_layer.md. 0 in an engine without.
    scale_mask : bool
        Whether products can be scaled and masked.
    sequences : bool
        Whether there are functions of sequences: ROWS, SOFTMAX and labels of padding.
    buffer_tags : bool
        Whether rows of the activation memory carry the number of the buffer that wrote them, so that reading another
        buffer's ends with READ_DEAD: docs/compute/row_owners.md.
    far : int
        Capacity in elements of the far memory, which the node has a port to: docs/far.md. A multiple of 32, or 0 in
        a node without.
    """

    rows: int = option(4, OneOf(1, 2, 4))
    activations: int = option(8192, Words())
    operands: str = option(FP32, Name(OPERANDS))
    codebook: int = option(0, OneOf(0, 4, 8, 16))
    scale_mask: bool = option(False, Flag())
    sequences: bool = option(False, Flag())
    buffer_tags: bool = option(False, Flag())
    far: int = option(0, Words(optional=True))


@dataclasses.dataclass(frozen=True, kw_only=True)
class ComputeStub(Section):
    """The operation COMPUTE, which only takes the time of a computation: docs/compute/stand_in.md.

    Parameters
    ----------
    quorum : bool
        Whether updates can be those of a quorum, which do not wait for all nodes: docs/ring/rounds.md.
    """

    quorum: bool = option(False, Flag())
