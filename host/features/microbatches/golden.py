"""Golden model of nodes with several gradients each."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from host.driver.words import field_values
from host.transports.golden.nodes import GoldenPart

if TYPE_CHECKING:
    from host.transports.golden.nodes import GoldenNodes

__all__ = ["GoldenMicrobatches"]


class GoldenMicrobatches(GoldenPart):
    """Numbers of gradients, from the registers of golden nodes."""

    def __init__(self, nodes: "GoldenNodes"):
        self._nodes = nodes

    def begun(self, ranks: Sequence[int]) -> None:
        for rank in ranks:
            values = self._nodes.registers[rank]
            counts = field_values("MICROBATCHES", int(values.get("MICROBATCHES", 0)))
            self._nodes.addends[rank] = max(counts["count"], 1)
            self._nodes.addend_stride = int(values.get("MICROBATCH_STRIDE", 0))
