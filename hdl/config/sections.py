"""Sections of a node's configuration for memories, arithmetic and formats on the ring."""

import dataclasses
from collections.abc import Iterable
from typing import Any

from hdl.compression.registry import GRADIENT_CODECS, RAW, WEIGHT_CODECS, ZERO_VALUE
from hdl.registry import feature_of_format
from hdl.section import Flag, Name, OneOf, Section, Words, option

__all__ = ["CodecName", "GradientCodec", "Memories", "Optimizer", "Weights"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Memories(Section):
    """Memories of a node.

    Parameters
    ----------
    gradient, weight, state : int
        Capacities of the gradient memory, the weight memory and each state plane, in elements; multiples of 32. Only
        the owner of a block stores its state, so a state plane may be smaller than the weight memory.
    planes : int
        Number of state planes of the optimizer, which limits its rules: only SGD with 0, also momentum with 1, and
        also Adam and AdamW with 2.
    """

    gradient: int = option(16384, Words())
    weight: int = option(16384, Words())
    state: int = option(8192, Words())
    planes: int = option(2, OneOf(0, 1, 2))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Optimizer(Section):
    """The node's streaming optimizer.

    Parameters
    ----------
    lanes : int
        Number of elements updated per step, at most the node's ``lanes``. One lane is enough for a dense ring of two
        nodes, which delivers less than one finished element per cycle.
    interval : int
        Number of cycles per step: 1, 2, 4 or 8. With more than one, operations share adders and multipliers.
    dsps : int
        Number of DSP blocks that each multiplier of the node may use: 4, 2 or 1.
    """

    lanes: int = option(1, OneOf(1, 2, 4, 8))
    interval: int = option(1, OneOf(1, 2, 4, 8))
    dsps: int = option(4, OneOf(1, 2, 4))


class CodecName(Name):
    """Set of valid codec names."""

    def needs(self, value: Any) -> Iterable[str]:
        return () if value in (RAW, ZERO_VALUE) else (feature_of_format(value),)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Weights(Section):
    """Format of the new weights in a fused update.

    Parameters
    ----------
    codec : str
        Name in :data:`hdl.compression.registry.WEIGHT_CODECS`. With any codec except ``raw``, the node has another
        memory of ``memories.state`` elements for the master weights, the weights of its own block before encoding.
        The weight memories of all nodes, including the owner's, hold the decoded weights. If the codec has a
        codebook, the node has an additional memory for it, which the host loads.
    master : bool
        Whether a node with ``raw`` weights also keeps master weights: a fused update then reads no weights, and may
        write them to an address that no other operation reads.
    """

    codec: str = option(RAW, CodecName(WEIGHT_CODECS))
    master: bool = option(False, Flag())

    def check(self):
        if self.master and self.codec != RAW:
            raise ValueError(f"Weights.master must be left out with codec {self.codec}, which always has master "
                             "weights")

    @property
    def has_master(self):
        """Whether the node keeps the master weights of its own block."""
        return self.master or self.codec != RAW


class GradientCodec(CodecName):
    """Set of valid names for the codec of gradients and their sums."""

    def __init__(self):
        super().__init__(GRADIENT_CODECS)

    def checked(self, label, value):
        if value in Name(WEIGHT_CODECS) and value not in self:
            raise ValueError(f"{label} must take any number, since a sum of values in a codebook need not be in it: "
                             f"{self.text}, not {value!r}")
        return super().checked(label, value)
