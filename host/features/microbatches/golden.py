"""Golden model of nodes with several gradients each."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from host.driver.words import field_values
from host.transports.golden.nodes import GoldenPart

if TYPE_CHECKING:
    from host.transports.golden.nodes import GoldenNodes

__all__ = ["GoldenMicrobatches"]


class GoldenMicrobatches(GoldenPart):
    """Numbers of gradients, from the registers of golden nodes.

    The golden model derives the total from the nodes' own numbers, so registers that disagree are refused, while
    gateware would sum with another number of bits.
    """

    def __init__(self, nodes: "GoldenNodes"):
        self._nodes = nodes

    def before_collective(self, ranks: Sequence[int]) -> None:
        registers = [self._nodes.registers[rank] for rank in ranks]
        fields = [field_values("MICROBATCHES", int(values.get("MICROBATCHES", 0))) for values in registers]
        counts = [max(field["count"], 1) for field in fields]
        totals = {field["total"] or len(ranks) for field in fields}
        strides = {int(values.get("MICROBATCH_STRIDE", 0)) for values in registers}
        if totals != {sum(counts)} or len(strides) > 1:
            raise ValueError(f"Registers MICROBATCHES must have the sum of the counts {counts} as total, and strides "
                             f"must be equal, not totals {sorted(totals)} and strides {sorted(strides)}")
        for rank, count in zip(ranks, counts, strict=True):
            self._nodes.addends[rank] = count
        self._nodes.addend_stride = strides.pop()
