"""Training of the text model on nodes with far memories; activation maps are kept, moved or recomputed.

Each sequence runs as a program of three queues (:mod:`host.features.far.lists`) that is first loaded on all nodes. A
node with no sequences left runs the program on padding, which adds zeros to the gradients.
"""

import functools
from collections.abc import Sequence

import numpy as np

from hdl.config import NodeConfig
from host.driver.protocols import TrainingRing
from host.driver.results import Cycles, total
from host.features.compute.engine import TextComputer, check_sequences
from host.features.compute.instructions import Array as Units
from host.features.compute.text_lists import TextOperations, compile_text
from host.features.far.lists import FarText, fit_text
from host.models.text import Characters
from host.models.transformer import TransformerConfig
from host.training.record import TrainingConfig
from host.training.workloads import CharacterModel

__all__ = ["FarTextComputer", "check_far_text", "far_text_lists", "far_text_node",
           "operations_of"]


class FarTextComputer(TextComputer):
    """Computes the gradients of sequences on a ring of nodes with programs."""

    programmed = True

    def __init__(self, ring: TrainingRing, lists: FarText):
        super().__init__(ring, lists.whole)
        self.notes = [lists.line]
        self.lists = lists
        self._programs = [lists.program(further=further) for further in (False, True)]

    def prepare(self) -> None:
        self._ring.memory.write_activations([self.lists.words] * self._ring.nodes, self.lists.base)

    def give(self, shares: Sequence[Sequence[Characters]], *, odd: int = 0) -> None:
        most = max(map(len, shares))
        empty = np.zeros(1, np.int64)  # a sequence without characters, which consists of padding only
        super().give([[*share, *[empty] * (most - len(share))] for share in shares])
        self.lengths = [len(share) for share in shares]

    def run(self) -> Cycles:
        cycles: Cycles = 0
        nodes, planned = self._ring.nodes, 0
        for number in range(max(self.lengths)):
            program = self._programs[number > 0]
            self._ring.programs.load([self.lists.node_program(program, number, rank, nodes) for rank in range(nodes)])
            cycles = total([cycles, self._ring.programs.run(collectives=0).outcome.cycles])
            planned += self.lists.cycles[number > 0]
        taken = "" if cycles is None else f", in {cycles:,} cycles, {cycles / planned:.4f} of their timelines"
        self.notes = [self.lists.line, f"sequences: {max(self.lengths)}, one behind the other{taken}"]
        return cycles


@functools.cache
def operations_of(config: TransformerConfig, units: Units) -> TextOperations:
    """Create a model's operations for one sequence."""
    return TextOperations(compile_text(config, array=units, sequences=1, words=1 << 24, scaled_again=True), units)


def far_text_lists(workload: CharacterModel, config: TrainingConfig, node: NodeConfig, nodes: int,
                   words: int) -> FarText:
    """Compile a run's instruction lists before the first pass; raises ``PlanError`` if memory is too small."""
    assert config.far is not None
    return fit_text(operations_of(workload.model.config, Units(rows=node.compute.rows, lanes=node.lanes)),
                    activations=config.far.activations, kind=config.far.kind, rate=config.far.rate,
                    sequences=-(-config.largest(workload.examples) // nodes), words=words, far_words=node.far_words)


def far_text_node(node: NodeConfig, workload: CharacterModel, config: TrainingConfig, *, nodes: int) -> NodeConfig:
    """Add sequence functions, three queues, activation memory for the run and far memory for all maps to a node
    configuration."""
    operations = operations_of(workload.model.config, Units(rows=node.compute.rows, lanes=node.lanes))
    maps = sum(map(operations.words, operations.saved.maps))
    node = node.replace(masking=False, programs={"move_queue": True}, compute={
        "scale_mask": True, "sequences": True, "far": 1 << (maps - 1).bit_length()})
    end = far_text_lists(workload, config, node, nodes, 1 << 24).end
    return node.replace(compute={"activations": max(node.compute.activations, 1 << (end - 1).bit_length())})


def check_far_text(node: NodeConfig, workload: CharacterModel, config: TrainingConfig, *, nodes: int) -> None:
    """Raise ``ValueError`` with the reason if nodes cannot execute the plan of a text model's run."""
    check_sequences(node, config)
    if node.queues != 3 or not node.far_words:
        raise ValueError("Nodes must have three queues and a far memory for saved maps to be moved")
    far_text_lists(workload, config, node, nodes, node.compute.activations)
