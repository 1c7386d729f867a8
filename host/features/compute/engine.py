"""Training on nodes that compute: the host writes inputs and labels, or characters, and reads losses.

Lists of the layers (:mod:`host.features.compute.lists`), or of a sequence of the text model
(:mod:`host.features.compute.text_lists`), are written to the activation memories once. In each step a node gets the
inputs and labels of its share, and computes the gradients that its ring sums; of text it gets characters, and
differentiates one group of sequences after the other. The test set of a perceptron is classified by the same lists.
"""

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from hdl.config import NodeConfig
from hdl.features.compute.layer_list import PADDING
from hdl.group import GROUP
from host.driver.memory import distance_of
from host.driver.protocols import TrainingRing
from host.driver.results import Cycles, total
from host.feature import feature
from host.features.compute.instructions import Array as Units
from host.features.compute.instructions import best_factors, up
from host.features.compute.list_compute import ListsOutcome
from host.features.compute.lists import Lists, Shared, compile_lists
from host.features.compute.text_lists import TextLists, compile_text
from host.features.compute.tiling.searched import SearchedFactors
from host.features.programs.schedules import Copies, Schedule
from host.models.layers import Array, Labels
from host.models.text import Characters
from host.training.executions import Differentiator
from host.training.record import DEFAULT, NODE, TrainingConfig
from host.training.workloads import CharacterModel, Classifier, Workload
from sim.verilated import toolchain

__all__ = ["Computer", "TextComputer", "check_engine", "check_sequences", "check_text", "computer_of",
           "differentiator_of", "engine_node", "text_lists", "text_node"]


class TextComputer(Differentiator):
    """Sequences that the nodes of a ring differentiate; :func:`text_node` has made the nodes."""

    def __init__(self, ring: TrainingRing, lists: TextLists):
        self.notes = [lists.plan.line]
        self.lengths = [0] * ring.nodes
        self._ring = ring
        self._lists = lists

    def prepare(self) -> None:
        self._ring.compute.write_lists(self._lists.programs, self._lists.plan)

    def give(self, shares: Sequence[Sequence[Characters]], *, odd: int = 0) -> None:
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
    """Check that nodes with a compute engine can compute a run of the text model; ``ValueError`` with the reason if
    they cannot."""
    check_sequences(node, config)
    text_lists(workload, config, node, nodes, node.compute.activations)


def check_sequences(node: NodeConfig, config: TrainingConfig) -> None:
    """Check that nodes have functions of sequences, and that a run asks for nothing that is not for text."""
    if not (node.compute.scale_mask and node.compute.sequences):
        raise ValueError("Nodes must scale and mask, and have functions of sequences, to compute text")
    if config.tiling != DEFAULT:
        raise ValueError(f"Tiling must be {DEFAULT} for workload text, not {config.tiling!r}")


#: File of the tilings that were searched.
TILINGS = toolchain.BUILD / "tiling" / "factors.json"
#: Rows of units that a node can have.
_ROWS = (1, 2, 4)


class Computer(Differentiator):
    """Layers that the nodes of a ring carry out, for gradients of so many elements; :func:`engine_node` has made the
    nodes. Notes are further lines about the lists, for the report."""

    has_scores = True

    def __init__(self, ring: TrainingRing, lists: Lists, length: int, *, notes: Sequence[str] = ()):
        self.notes = [lists.line, *notes]
        self._ring = ring
        self.lists = lists
        self.commands = lists.commands
        self._length = length
        self.lengths = [0] * ring.nodes

    def prepare(self) -> None:
        """Write the lists, and zeros as the gradients of elements that only fill up groups; ``PlanError`` if lists
        are not the program of their memory plan; nothing is written then."""
        self._ring.compute.write_lists(self.lists.programs, self.lists.plan)
        self._ring.memory.write_gradients([np.zeros(self._length, np.uint32)] * self._ring.nodes)

    def give(self, shares: Sequence[tuple[Array, Labels]], *, odd: int = 0) -> None:
        """Write the inputs and labels of each node's share, those of an odd pass to a place of their own."""
        places, further = self.lists.places, odd * self.lists.distance
        self._ring.memory.write_activations([self._rows(x) for x, _ in shares], places.outputs[0] + further)
        self._ring.memory.write_activations([np.append(labels, [0] * (not len(labels))).astype(np.uint32)
                                             for _, labels in shares], places.labels + further)
        self.lengths = [len(labels) for _, labels in shares]

    def _rows(self, x: Array) -> npt.NDArray[np.uint32]:
        """Words of inputs, whose rows are whole memory rows; of zeros for a node without a share."""
        given = x if len(x) else np.zeros((1, x.shape[1]), np.float32)
        return np.ascontiguousarray(given, np.float32).view(np.uint32).ravel()

    def run(self) -> Cycles:
        found = self._commands([one.fields["weight_base"] for one in self.lists.commands])
        self.multiplications = sum(one.multiplied for one in found) * self._ring.config.lanes
        return total(one.cycles for one in found)

    def losses(self) -> list[float]:
        return [float(loss) for loss in self._ring.memory.read_activations(self.lists.places.loss, 1)[:, 0]]

    def scores(self, x: Array, *, odd: int = 0) -> Array:
        """Scores of examples, by the lists of even passes or of odd ones: nodes take them in turn, as many as they
        have room for."""
        places, nodes = self.lists.places, self._ring.nodes
        layer = places.layers[-1]
        stride = places.stride(layer.outputs)
        further = odd * self.lists.distance
        forward = [one.fields["weight_base"] + further for one in self.lists.commands[:len(places.layers)]]
        found = []
        for first in range(0, len(x), nodes * places.examples):
            shares = np.array_split(x[first:first + nodes * places.examples], nodes)
            self.give([(share, np.zeros(len(share), np.int64)) for share in shares], odd=odd)
            self._commands(forward)
            rows = self._ring.memory.read_activations(places.outputs[-1], places.examples * stride)
            found += [mine.reshape(-1, stride)[:len(share), :layer.outputs]
                      for mine, share in zip(rows, shares, strict=True)]
        return np.concatenate(found)

    def _commands(self, lists: Sequence[int]) -> list[ListsOutcome]:
        patience = max(command.multiplications for command in self.lists.commands) * self.lists.places.examples
        return self._ring.compute.run_layers(lists, self.lengths, patience=patience)


def _lists(task: Classifier, config: TrainingConfig, units: Units, nodes: int, words: int,
           distance: int = 0, factors: Callable[..., Mapping[str, int]] = best_factors) -> Lists:
    examples = -(-config.largest(task.examples) // nodes)
    return compile_lists(task.layers, array=units, examples=examples, words=words,
                         copies=_copies(config, distance), factors=factors)


def _copies(config: TrainingConfig, distance: int) -> Copies | None:
    """Layers with two copies of their weights, in a schedule whose passes overlap."""
    if not distance or not config.overlaps:
        return None
    assert config.overlap is not None
    return Copies(layers=Schedule.parse(config.overlap).behind, distance=distance)


def differentiator_of(ring: TrainingRing, workload: Workload, config: TrainingConfig) -> Differentiator | None:
    """Computation of the nodes of a ring in a run; None if the host computes."""
    if config.compute == NODE and isinstance(workload, CharacterModel):
        node = ring.config
        if config.far is not None:
            computer: Differentiator = feature("far").differentiator(ring, workload, config)
            return computer
        return TextComputer(ring, text_lists(workload, config, node, ring.nodes, node.compute.activations))
    return computer_of(ring, workload, config)


def computer_of(ring: TrainingRing, workload: Workload, config: TrainingConfig) -> Computer | None:
    """Layers of a run on the nodes of a ring; None if the host computes."""
    if config.compute != NODE:
        return None
    assert isinstance(workload, Classifier)
    node = ring.config
    given = workload, config, _units(node), ring.nodes, node.compute.activations, distance_of(node)
    if config.tiling == DEFAULT:
        return Computer(ring, _lists(*given), workload.parameters.size)
    with SearchedFactors(node, TILINGS) as factors:
        lists = _lists(*given, factors)
        return Computer(ring, lists, workload.parameters.size, notes=[factors.line])


def _units(node: NodeConfig) -> Units:
    return Units(rows=node.compute.rows, lanes=node.lanes, operands=node.compute.operands)


def engine_node(node: NodeConfig, workload: Workload, config: TrainingConfig, *, nodes: int) -> NodeConfig:
    """The same node with two queues and row owners, and an engine of ``config.macs`` multiply-adds per cycle whose
    activation memory has room for the run, if a node can have as much; with tables of the workload's layers, if those
    have any."""
    rows, rest = divmod(config.macs, node.lanes)
    if rest or rows not in _ROWS or rows > node.lanes:
        possible = ", ".join(str(node.lanes * rows) for rows in _ROWS if rows <= node.lanes)
        raise ValueError(f"Multiply-adds per cycle of nodes that compute must be one of {possible}, not "
                         f"{config.macs!r}")
    node = node.replace(compute={"rows": rows, "buffer_tags": True}, programs={})
    if isinstance(workload, CharacterModel):
        if config.far is not None:
            found: NodeConfig = feature("far").training_node(node, workload, config, nodes=nodes)
            return found
        return text_node(node, workload, config, nodes=nodes)
    assert isinstance(workload, Classifier)
    tables = {layer.centroids for layer in workload.layers if isinstance(layer, Shared)}
    found = node.replace(compute={
        "operands": config.compute_format, "codebook": max(tables, default=node.compute.codebook)})
    lists = _lists(workload, config, _units(found), nodes, 1 << 24)
    words = max(found.compute.activations, 1 << (lists.end - 1).bit_length())
    if config.overlaps:  # inputs, labels and lists lie twice, as far apart as the copies of weights
        words = max(2 << (max(lists.end, workload.parameters.size) - 1).bit_length(), found.memories.weight)
        found = found.replace(memories={"weight": words})
    return found.replace(compute={"activations": words})


def check_engine(node: NodeConfig, workload: Workload, config: TrainingConfig, *, nodes: int) -> None:
    """Check that nodes can compute a run, before there is a ring; ``ValueError`` with the reason if they cannot."""
    if not node.compute:
        raise ValueError("Nodes must have a compute engine to compute")
    if node.compute.operands != config.compute_format:
        raise ValueError(f"Engines of nodes must multiply in {config.compute_format}, not in {node.compute.operands}")
    if isinstance(workload, CharacterModel):
        check = check_text if config.far is None else feature("far").check_run
        check(node, workload, config, nodes=nodes)
    else:
        assert isinstance(workload, Classifier)
        _check_layers(node, workload, config, nodes=nodes)
    smallest = workload.examples // -(-workload.examples // config.batch)
    if smallest < nodes:
        raise ValueError(f"Batches must have an example for each of the {nodes} nodes that compute, not {smallest}: "
                         f"take larger batches")
    if not config.check and (config.density is not None or node.codebook_words):
        raise ValueError("Run of nodes that compute must be checked with a density or a codebook, which are chosen "
                         "by the golden model's values")


def _check_layers(node: NodeConfig, task: Classifier, config: TrainingConfig, *, nodes: int) -> None:
    """Check that nodes have tables, room and parameters of the layers of a perceptron."""
    if config.far is not None:
        raise ValueError("Workload of a far memory must be text, not digits")
    for layer in task.layers:
        if isinstance(layer, Shared) and layer.centroids != node.compute.codebook:
            raise ValueError(f"Nodes must have tables of {layer.centroids} centroids to compute, not "
                             f"{node.compute.codebook}")
    lists = _lists(task, config, _units(node), nodes, node.compute.activations, distance_of(node))
    length = lists.places.layers[-1].base + lists.places.layers[-1].length
    if task.parameters.size != length:
        raise ValueError(f"Layers must each take whole groups of {GROUP} elements for nodes that compute, "
                         f"{length:,} in all, not {task.parameters.size:,}")
