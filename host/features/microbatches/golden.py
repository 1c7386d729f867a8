"""Golden model of nodes that each have several gradients."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from host.driver.words import field_values
from host.transports.golden.nodes import GoldenPart

if TYPE_CHECKING:
    from host.transports.golden.nodes import GoldenNodes

__all__ = ["GoldenMicrobatches"]


class GoldenMicrobatches(GoldenPart):
    """Reads the number of gradients on each golden node from its registers.

    The golden model adds up the nodes' counts and rejects registers with a different total. Gateware does not check
    the total, and would compute sums with a different number of bits.
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
