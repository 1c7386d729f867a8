"""The compute engine, see docs/compute.md."""

import dataclasses
from collections.abc import Collection, Iterator

from hdl.config.coupling import Coupling
from hdl.feature import Feature
from hdl.registry import codes, feature_of_format, format_names
from hdl.section import Flag, Name, OneOf, Section, Words, option

__all__ = ["FEATURE", "Compute", "ComputeFeature"]

#: Operand format without rounding.
FP32 = "fp32"


class _OperandNames(Collection[str]):
    """Format names in code order; the registry may add more."""

    def __contains__(self, name: object) -> bool:
        return any(name == other for other in self)

    def __iter__(self) -> Iterator[str]:
        yield FP32
        yield from format_names("operands")

    def __len__(self) -> int:
        return 1 + len(format_names("operands"))


#: Names of the formats that product operands can be rounded to.
OPERAND_NAMES = _OperandNames()

#: Maximum number of units that multiply blocks, as one adder serves them all.
MAX_BLOCK_UNITS = 16


def _units(compute, lanes):
    blocks = compute.operands != FP32 and codes(compute.operands).blocks
    return blocks and compute.rows * lanes > MAX_BLOCK_UNITS


@dataclasses.dataclass(frozen=True, kw_only=True)
class Compute(Section):
    """Compute engine with the operation LAYERS and an activation memory, see docs/compute.md.

    Parameters
    ----------
    rows : int
        Rows of multiply-accumulate units, of ``lanes`` units each: 1, 2 or 4, at most the node's ``lanes``.
    activations : int
        Capacity in elements of the activation memory, a multiple of 32.
    operands : str
        Multiplication format of product operands: a name of :data:`OPERAND_NAMES`. Sums are always in
        binary32.
    codebook : int
        Number of centroids in a table, 4, 8 or 16, for products with centroid indices as weights:
        docs/compute/centroids.md. 0 for an engine without these products.
    scale_mask : bool
        Whether products can be scaled and masked.
    sequences : bool
        Whether the engine has functions for sequences: ROWS, SOFTMAX and padding labels.
    buffer_tags : bool
        Whether rows of the activation memory carry the number of the buffer that wrote them, so that reading a row of
        another buffer ends with READ_DEAD: docs/compute/engine.md.
    far : int
        Capacity of the node's far memory in elements, a multiple of 32: docs/far.md. 0 for a node without
        far memory.
    """

    rows: int = option(4, OneOf(1, 2, 4))
    activations: int = option(8192, Words())
    operands: str = option(FP32, Name(OPERAND_NAMES))
    codebook: int = option(0, OneOf(0, 4, 8, 16))
    scale_mask: bool = option(False, Flag())
    sequences: bool = option(False, Flag())
    buffer_tags: bool = option(False, Flag())
    far: int = option(0, Words(optional=True))

    def needs(self) -> Iterator[str]:
        yield from super().needs()
        if self.operands != FP32:
            yield feature_of_format(self.operands)
            if codes(self.operands).blocks:
                yield "block_operands"
        if self.codebook:
            yield "codebook_layers"
        if self.far:
            yield "far"


class ComputeFeature(Feature):
    """Feature that adds the operation LAYERS and an activation memory to a node."""

    couplings = (
        Coupling(sections=("compute", "optimizer"),
                 clash=lambda compute, optimizer: compute is not None and _units(compute, optimizer.lanes),
                 rule=f"compute.rows times optimizer.lanes must be at most {MAX_BLOCK_UNITS} with operands in "
                      "blocks",
                 reason="lanes must be at least optimizer.lanes, and one adder serves all units that multiply "
                        "blocks",
                 advice="lower compute.rows or optimizer.lanes, or take operands fp32 or bf16"),
        Coupling(sections=("compute", "lanes"), clash=lambda compute, lanes: compute is not None and lanes < 2,
                 rule="compute needs lanes of 2, 4 or 8", reason="panels of operands need rows of several elements",
                 advice="raise lanes or leave compute out"),
        Coupling(sections=("compute", "lanes"),
                 clash=lambda compute, lanes: compute is not None and compute.rows > lanes,
                 rule="compute.rows must be at most lanes", reason="a panel is as wide as a memory row",
                 advice="lower compute.rows or raise lanes"),
        Coupling(sections=("compute", "lanes"),
                 clash=lambda compute, lanes: compute is not None and _units(compute, lanes),
                 rule=f"compute.rows times lanes must be at most {MAX_BLOCK_UNITS} with operands in blocks",
                 reason="one adder serves all units that multiply blocks",
                 advice="lower compute.rows or lanes, or take operands fp32 or bf16"),
    )

    def engines(self, config):
        from hdl.features.compute import description
        return (description.describe(config),)


FEATURE = ComputeFeature()
