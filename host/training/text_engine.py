"""The text model on nodes that compute: the host writes characters, and reads losses.

Lists of a sequence (:mod:`host.compute.text_lists`) are written to the activation memories once. In each step a node
gets the characters of its share, and differentiates one group of sequences after the other.
"""

import contextlib
import functools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from hdl.compute.layer_list import PADDING
from hdl.config import NodeConfig
from host.compute.instructions import Array as Units
from host.compute.instructions import up
from host.compute.text_lists import TextLists, compile_text
from host.driver.protocols import TrainingRing
from host.driver.results import Cycles, total
from host.models.text import Characters
from host.training.differentiator import Differentiator
from host.training.record import DEFAULT, TrainingConfig
from host.training.workloads import CharacterModel

__all__ = ["TextComputer", "check_sequences", "check_text", "text_lists", "text_node"]


class TextComputer(Differentiator):
    """Sequences that the nodes of a ring differentiate.

    Parameters
    ----------
    ring : Ring
        Nodes that :func:`text_node` has made.
    """

    def __init__(self, ring: TrainingRing, lists: TextLists):
        self.notes = [lists.plan.line]
        self.lengths = [0] * ring.nodes
        self._ring = ring
        self._lists = lists

    def prepare(self) -> None:
        self._ring.compute.write_lists(self._lists.programs, self._lists.plan)

    def give(self, shares: Sequence[Sequence[Characters]]) -> None:
        self._ring.memory.write_activations([self._words(share) for share in shares], self._lists.data)
        self.lengths = [len(share) for share in shares]

    def _words(self, share: Sequence[Characters]) -> npt.NDArray[np.uint32]:
        """Characters and labels of a node's sequences, and of as many that are all padding as fill up a group, which
        a node without a share has as well."""
        context = self._lists.context
        words = np.zeros((up(max(1, len(share)), self._lists.together), self._lists.stride), np.uint32)
        words[:, context:2 * context] = PADDING
        for mine, sequence in zip(words, share, strict=False):
            mine[:len(sequence) - 1] = sequence[:-1]
            mine[context:context + len(sequence) - 1] = sequence[1:]
        return words.ravel()

    def run(self) -> Cycles:
        lists = self._lists
        cycles: Cycles = 0
        for number in range(0, max(self.lengths), lists.together):
            lengths = [lists.context if number < count else 0 for count in self.lengths]
            backward = lists.further if number else lists.first
            cycles = total([cycles, *(one.cycles for one in self._ring.compute.run_layers(
                (*lists.forward, *backward), lengths, offset=number * lists.stride,
                patience=lists.together * lists.multiplications))])
        return cycles

    def losses(self) -> list[float]:
        lists = self._lists
        rows = self._ring.memory.read_activations(lists.data, max(1, *self.lengths) * lists.stride)
        found = rows.reshape(len(rows), -1, lists.stride)[:, :, 2 * lists.context]
        # One after the other, as each is rounded.
        return [float(sum(mine[:count], np.float32(0))) for mine, count in zip(found, self.lengths, strict=True)]


def text_lists(workload: CharacterModel, config: TrainingConfig, node: NodeConfig, nodes: int,
               words: int) -> TextLists:
    """Lists of a run: of two sequences together, where that fills up no share and the memory has room for them."""
    sequences = -(-config.largest(workload.examples) // nodes)
    compiled = functools.partial(compile_text, workload.model.config, sequences=sequences, words=words,
                                 array=Units(rows=node.compute.rows, lanes=node.lanes))
    if sequences % 2 == 0:
        with contextlib.suppress(ValueError):
            return compiled(together=2)
    return compiled()


def text_node(node: NodeConfig, workload: CharacterModel, config: TrainingConfig, *, nodes: int) -> NodeConfig:
    """The same node with functions of sequences, and room for a run in its activation memory. Its products mask, so
    that it needs no engine that does."""
    found = node.replace(compute={"scale_mask": True, "sequences": True}, masking=False)
    end = text_lists(workload, config, found, nodes, 1 << 24).end
    return found.replace(compute={"activations": max(node.compute.activations, 1 << (end - 1).bit_length())})


def check_text(node: NodeConfig, workload: CharacterModel, config: TrainingConfig, *, nodes: int) -> None:
    """Check that nodes with a compute engine can compute a run of the text model.

    Raises
    ------
    ValueError
        They cannot; the message says why.
    """
    check_sequences(node, config)
    text_lists(workload, config, node, nodes, node.compute.activations)


def check_sequences(node: NodeConfig, config: TrainingConfig) -> None:
    """Check that nodes have functions of sequences, and that a run asks for nothing that is not for text."""
    if not (node.compute.scale_mask and node.compute.sequences):
        raise ValueError("Nodes must scale and mask, and have functions of sequences, to compute text")
    if config.tiling != DEFAULT:
        raise ValueError(f"Tiling must be {DEFAULT} for workload text, not {config.tiling!r}")
