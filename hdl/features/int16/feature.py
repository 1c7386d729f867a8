"""The int16 node, with 16-bit integers, one lane and no neighbours; see docs/int16_node.md."""

import dataclasses
from typing import ClassVar

from hdl.config.node import INT16, Configuration
from hdl.config.ring import SingleRing
from hdl.feature import Feature
from hdl.section import Flag, Part, Section, Words, option

__all__ = ["FEATURE", "Int16Config", "Int16Feature", "Int16Memories"]

#: Maximum number of elements in a memory, which is one SB_SPRAM256KA of an iCE40 UP.
_MAX_WORDS = 1 << 14


@dataclasses.dataclass(frozen=True, kw_only=True)
class Int16Memories(Section):
    """Memories of the int16 node.

    Parameters
    ----------
    gradient, weight : int
        Capacities of the gradient and weight memories in elements: multiples of 32, at most 16,384.
    """

    #: Fixed values of two properties that every node reports in registers.
    state: ClassVar[int] = 32
    planes: ClassVar[int] = 0

    gradient: int = option(16384, Words(high=_MAX_WORDS))
    weight: int = option(16384, Words(high=_MAX_WORDS))



@dataclasses.dataclass(frozen=True, kw_only=True)
class Int16Config(Configuration):
    """Parameters of the int16 node: 16-bit integers, one lane, no neighbours; see docs/int16_node.md.

    Parameters
    ----------
    memories : Int16Memories
    masking : bool
        Whether the node has the MASK operation.
    sparsify : bool
        Whether the node has the SPARSIFY operation.
    """

    element: ClassVar[str] = INT16
    has_ring: ClassVar[bool] = False
    pipelined_port: ClassVar[bool] = False
    lanes: ClassVar[int] = 1
    segment: ClassVar[int] = 32
    topology: ClassVar[SingleRing] = SingleRing(max_nodes=1)

    memories: Int16Memories = option(Int16Memories(), Part(Int16Memories))
    masking: bool = option(True, Flag())
    sparsify: bool = option(True, Flag())


#: Counters and settings of an int16 node.
_REGISTERS = frozenset({
    "CONTROL", "OPTIMIZER", "GRADIENT_SCALE", "LEARNING_RATE", "MASK_ALTERNATIVE", "MASK_THRESHOLD", "TIMEOUT",
    "CYCLES", "COMPRESSED_WORDS", "ELEMENTS_ENCODED", "COMMAND_CYCLES", "ELEMENTS_MASKED"})


class Int16Feature(Feature):
    """Feature that provides the int16 node, which is a separate kind of node."""

    resets = {"GRADIENT_SCALE": 1 << 16, "MASK_ALTERNATIVE": 1 << 15}

    def lacks(self, config):
        from hdl.control.registers import REGISTERS, Access

        return [entry.name for entry in REGISTERS
                if entry.access in (Access.COUNTER, Access.SETTING) and entry.name not in _REGISTERS]

    def node(self):
        from hdl.features.int16.node import Int16Node

        return Int16Node

    def engines(self, config):
        from hdl.features.int16 import description
        return description.describe(config)


FEATURE = Int16Feature()
