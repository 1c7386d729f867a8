"""Golden nodes with elements of 16-bit integers."""

from collections.abc import Mapping

from hdl.control.protocol import EventStatus, Operation
from host.driver.command import Command
from host.transports.golden.nodes import Ended, GoldenNodes, GoldenPart, LocalOperation
from sim.golden.features.int16 import int16_node

__all__ = ["GoldenIntegers"]


class GoldenIntegers(GoldenPart):
    """All operations of a node of 16-bit integers."""

    def __init__(self, nodes: GoldenNodes):
        self._nodes = nodes

    def operations(self) -> Mapping[Operation, LocalOperation]:
        return dict.fromkeys((Operation.FUSED_UPDATE, Operation.SPARSIFY, Operation.MASK, Operation.QUIESCE),
                             self._carry_out)

    def _carry_out(self, rank: int, command: Command) -> Ended:
        registers = {name: int(value) for name, value in self._nodes.registers[rank].items()}
        target = self._nodes.gradients[rank, command.gradient_base:command.gradient_base + command.length]
        following = self._nodes.weights[rank, command.weight_base:]
        first, second = (int16_node.from_words(words) for words in (target, following))
        match command.operation:
            case Operation.FUSED_UPDATE:
                update = int16_node.update(first, second[:command.length],
                                           gradient_scale=registers["GRADIENT_SCALE"],
                                           learning_rate=registers["LEARNING_RATE"])
                following[:command.length] = int16_node.to_words(update.weights)
                return Ended(counts={"COMPRESSED_WORDS": update.words})
            case Operation.SPARSIFY:
                kept = int16_node.sparsify(first, second[:command.length], registers["MASK_THRESHOLD"])
                target[:], following[:command.length] = map(int16_node.to_words, (kept.gradients, kept.errors))
                return Ended(detail=kept.dropped, counts={"ELEMENTS_MASKED": kept.dropped})
            case Operation.MASK:
                masked = int16_node.mask(first, second, registers["MASK_ALTERNATIVE"])
                target[:] = int16_node.to_words(masked.elements)
                counts = {"ELEMENTS_MASKED": masked.replaced}
                return (Ended(detail=masked.replaced, counts=counts) if masked.bad is None
                        else Ended(EventStatus.BAD_MASK, masked.bad, counts))
        return Ended()
