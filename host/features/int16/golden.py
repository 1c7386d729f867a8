"""Golden nodes with 16-bit integer elements, and the golden state of a run on int16 nodes."""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from hdl.control.protocol import EventStatus, Operation
from host.driver.command import Command
from host.driver.optimizer_settings import FixedSettings, Settings
from host.driver.words import Vector
from host.training.reference import Part, Places, Reference, words_of
from host.transports.golden.nodes import Ended, GoldenNodes, GoldenPart, LocalOperation
from sim.golden import masking
from sim.golden.features.int16 import int16_node
from sim.golden.ring import Traffic

__all__ = ["GoldenIntegers", "IntegerReference"]


class GoldenIntegers(GoldenPart):
    """Golden model of all operations of nodes with 16-bit integer elements."""

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


class IntegerReference(Reference):
    """Golden model of a training run on int16 nodes."""

    counter = "COMPRESSED_WORDS"
    #: Size of a ring with the same density: a node in a ring of two also sends only its own elements.
    equivalent_nodes = 2.0

    def __init__(self, weights: Vector):
        self._masking = masking
        self.has_master = False
        self.master = self.weights = words_of(weights)
        self.state = []
        self.errors = np.zeros((1, weights.size), dtype=np.uint32)
        self.residuals = None

    def sparsify(self, gradients: Sequence[Vector], threshold: float, places: Places = slice(None)) -> (
            tuple[list[Vector], list[int]]):
        gradient, = gradients
        kept = int16_node.sparsify(gradient, int16_node.from_words(self.errors[0]), int(threshold))
        self.errors = int16_node.to_words(kept.errors)[np.newaxis]
        return [kept.gradients.astype(np.int16)], [kept.dropped]

    def step(self, gradients: Sequence[Vector], settings: Settings | FixedSettings,
             parts: Sequence[Part] | None = None, places: Places = slice(None)) -> Traffic:
        gradient, = gradients
        update = int16_node.update(gradient, int16_node.from_words(self.weights),
                                   gradient_scale=int(settings.gradient_scale),
                                   learning_rate=int(settings.learning_rate))
        self.master = self.weights = int16_node.to_words(update.weights)
        return Traffic(
            scatter_words=np.array([[update.words]]), gather_words=np.zeros((0, 1), np.int64),
            dense_words=-(-gradient.size // 2), density=np.array([np.count_nonzero(gradient) / gradient.size]),
            scatter_bound=0, bound=0, gather_elements=0, gather_payload=0)

    def _pattern(self, number: float) -> npt.NDArray[np.uint32]:
        return int16_node.to_words([int(number)])
