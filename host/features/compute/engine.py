"""Training on nodes that compute: the host writes inputs and labels (or characters) and reads losses.

The lists for the layers (:mod:`host.features.compute.lists`), or for a sequence of the text model
(:mod:`host.features.compute.text_lists`), are written to the activation memories once. In each step, a node receives
the inputs and labels of its share and computes gradients, which the ring sums. For text, a node receives characters
and processes groups of sequences in order. The same lists classify the test set of a perceptron.
"""

import contextlib
import functools
from collections.abc import Sequence

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
from host.features.compute.instructions import Factors, best_factors, up
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

__all__ = ["Computer", "TextComputer", "check_engine", "check_sequences", "differentiator_of", "engine_node",
           "text_lists"]


class TextComputer(Differentiator):
    """Text-model gradients computed by the nodes of a ring."""

    def __init__(self, ring: TrainingRing, lists: TextLists):
        self.notes = [lists.plan.line]
        self.lengths = [0] * ring.nodes
        self._ring = ring
        self._text = lists

    def prepare(self) -> None:
        self._ring.compute.write_lists(self._text.programs, self._text.plan)

    def give(self, shares: Sequence[Sequence[Characters]], *, odd: int = 0) -> None:
        self._ring.memory.write_activations([self._words(share) for share in shares], self._text.data)
        self.lengths = [len(share) for share in shares]

    def _words(self, share: Sequence[Characters]) -> npt.NDArray[np.uint32]:
        """Return the words for a node's sequences and labels; padding sequences complete the last group."""
        context = self._text.context
        words = np.zeros((up(max(1, len(share)), self._text.together), self._text.stride), np.uint32)
        words[:, context:2 * context] = PADDING
        for row, sequence in zip(words, share, strict=False):
            row[:len(sequence) - 1] = sequence[:-1]
            row[context:context + len(sequence) - 1] = sequence[1:]
        return words.ravel()

    def run(self) -> Cycles:
        lists = self._text
        cycles: Cycles = 0
        for number in range(0, max(self.lengths), lists.together):
            lengths = [lists.context if number < count else 0 for count in self.lengths]
            backward = lists.further if number else lists.first
            cycles = total([cycles, *(outcome.cycles for outcome in self._ring.compute.run_layers(
                (*lists.forward, *backward), lengths, offset=number * lists.stride,
                patience=lists.together * lists.multiplications))])
        return cycles

    def losses(self) -> list[float]:
        lists = self._text
        rows = self._ring.memory.read_activations(lists.data, max(1, *self.lengths) * lists.stride)
        losses = rows.reshape(len(rows), -1, lists.stride)[:, :, 2 * lists.context]
        # Added in order, since each addition rounds.
        return [float(sum(own[:count], np.float32(0))) for own, count in zip(losses, self.lengths, strict=True)]


def text_lists(workload: CharacterModel, config: TrainingConfig, node: NodeConfig, nodes: int,
               words: int) -> TextLists:
    """Compile the instruction lists for a run. Sequences are grouped in pairs if each node's share is even and memory
    suffices."""
    sequences = -(-config.largest(workload.examples) // nodes)
    compiled = functools.partial(compile_text, workload.model.config, sequences=sequences, words=words,
                                 array=Units(rows=node.compute.rows, lanes=node.lanes))
    if sequences % 2 == 0:
        with contextlib.suppress(ValueError):
            return compiled(together=2)
    return compiled()


def _text_node(node: NodeConfig, workload: CharacterModel, config: TrainingConfig, nodes: int) -> NodeConfig:
    """Return a run's configuration, with sequence functions, masked products and activation memory."""
    node = node.replace(compute={"scale_mask": True, "sequences": True}, masking=False)
    end = text_lists(workload, config, node, nodes, 1 << 24).end
    return node.replace(compute={"activations": max(node.compute.activations, 1 << (end - 1).bit_length())})


def check_sequences(node: NodeConfig, config: TrainingConfig) -> None:
    """Raise ``ValueError`` unless nodes have sequence functions and the run's options allow a text model."""
    if not (node.compute.scale_mask and node.compute.sequences):
        raise ValueError("Nodes must scale and mask, and have functions of sequences, to compute text")
    if config.tiling != DEFAULT:
        raise ValueError(f"Tiling must be {DEFAULT} for workload text, not {config.tiling!r}")


TILINGS = toolchain.BUILD / "tiling" / "factors.json"  # file of tilings from earlier searches
_ROWS = (1, 2, 4)  # allowed numbers of rows of units


class Computer(Differentiator):
    """Perceptron gradients computed by the nodes of a ring; reports show ``notes`` after the memory plan."""

    has_scores = True

    def __init__(self, ring: TrainingRing, lists: Lists, length: int, *, notes: Sequence[str] = ()):
        self.notes = [lists.plan.line, *notes]
        self._ring = ring
        self.lists = lists
        self.commands = lists.commands
        self._length = length
        self.lengths = [0] * ring.nodes

    def prepare(self) -> None:
        """Write the instruction lists to the nodes, and set all gradients, including padding, to zero."""
        self._ring.compute.write_lists(self.lists.programs, self.lists.plan)
        self._ring.memory.write_gradients([np.zeros(self._length, np.uint32)] * self._ring.nodes)

    def give(self, shares: Sequence[tuple[Array, Labels]], *, odd: int = 0) -> None:
        """Write the inputs and labels of each node; odd passes use separate addresses."""
        places, further = self.lists.places, odd * self.lists.distance
        self._ring.memory.write_activations([self._rows(x) for x, _ in shares], places.outputs[0] + further)
        self._ring.memory.write_activations([np.append(labels, [0] * (not len(labels))).astype(np.uint32)
                                             for _, labels in shares], places.labels + further)
        self.lengths = [len(labels) for _, labels in shares]

    def _rows(self, x: Array) -> npt.NDArray[np.uint32]:
        """Return input words, with rows padded to whole memory rows; a node without a share gets zeros."""
        rows = x if len(x) else np.zeros((1, x.shape[1]), np.float32)
        return np.ascontiguousarray(rows, np.float32).view(np.uint32).ravel()

    def run(self) -> Cycles:
        outcomes = self._commands([item.fields["weight_base"] for item in self.lists.commands])
        self.multiplications = sum(item.multiplied for item in outcomes) * self._ring.config.lanes
        return total(item.cycles for item in outcomes)

    def losses(self) -> list[float]:
        return [float(loss) for loss in self._ring.memory.read_activations(self.lists.places.loss, 1)[:, 0]]

    def scores(self, x: Array, *, odd: int = 0) -> Array:
        """Compute the scores of examples, using the instruction lists of even or odd passes."""
        places, nodes = self.lists.places, self._ring.nodes
        layer = places.layers[-1]
        stride = places.stride(layer.outputs)
        further = odd * self.lists.distance
        forward = [command.fields["weight_base"] + further for command in self.lists.commands[:len(places.layers)]]
        scores = []
        for first in range(0, len(x), nodes * places.examples):
            shares = np.array_split(x[first:first + nodes * places.examples], nodes)
            self.give([(share, np.zeros(len(share), np.int64)) for share in shares], odd=odd)
            self._commands(forward)
            rows = self._ring.memory.read_activations(places.outputs[-1], places.examples * stride)
            scores += [own.reshape(-1, stride)[:len(share), :layer.outputs]
                       for own, share in zip(rows, shares, strict=True)]
        return np.concatenate(scores)

    def _commands(self, lists: Sequence[int]) -> list[ListsOutcome]:
        patience = max(command.multiplications for command in self.lists.commands) * self.lists.places.examples
        return self._ring.compute.run_layers(lists, self.lengths, patience=patience)


def _lists(task: Classifier, config: TrainingConfig, node: NodeConfig, nodes: int, words: int,
           distance: int = 0, factors: Factors = best_factors) -> Lists:
    units = Units(rows=node.compute.rows, lanes=node.lanes, operands=node.compute.operands)
    copies = None
    if distance and config.overlap is not None and config.overlaps:
        copies = Copies(layers=Schedule.parse(config.overlap).behind, distance=distance)
    return compile_lists(task.layers, array=units, examples=-(-config.largest(task.examples) // nodes), words=words,
                         copies=copies, factors=factors)


def differentiator_of(ring: TrainingRing, workload: Workload, config: TrainingConfig) -> Differentiator | None:
    """Return the object that makes a ring's nodes compute gradients, or None if the host computes them."""
    if config.compute != NODE:
        return None
    node = ring.config
    if isinstance(workload, CharacterModel):
        if config.far is not None:
            computer: Differentiator = feature("far").differentiator(ring, workload, config)
            return computer
        return TextComputer(ring, text_lists(workload, config, node, ring.nodes, node.compute.activations))
    assert isinstance(workload, Classifier)
    lists_of = functools.partial(_lists, workload, config, node, ring.nodes, node.compute.activations,
                                 distance_of(node))
    if config.tiling == DEFAULT:
        return Computer(ring, lists_of(), workload.parameters.size)
    with SearchedFactors(node, TILINGS) as factors:
        return Computer(ring, lists_of(factors), workload.parameters.size, notes=[factors.line])


def engine_node(node: NodeConfig, workload: Workload, config: TrainingConfig, *, nodes: int) -> NodeConfig:
    """Return the configuration with two queues, buffer tags and ``config.macs`` multiply-adds per cycle.

    It includes the tables for the workload's layers, and enough activation memory for the run, up to a node's limit.
    """
    rows, rest = divmod(config.macs, node.lanes)
    if rest or rows not in _ROWS or rows > node.lanes:
        possible = ", ".join(str(node.lanes * rows) for rows in _ROWS if rows <= node.lanes)
        raise ValueError(f"Multiply-adds per cycle of nodes that compute must be one of {possible}, not "
                         f"{config.macs!r}")
    node = node.replace(compute={"rows": rows, "buffer_tags": True}, programs={})
    if isinstance(workload, CharacterModel):
        if config.far is not None:
            result: NodeConfig = feature("far").training_node(node, workload, config, nodes=nodes)
            return result
        return _text_node(node, workload, config, nodes)
    assert isinstance(workload, Classifier)
    tables = {layer.centroids for layer in workload.layers if isinstance(layer, Shared)}
    result = node.replace(compute={
        "operands": config.compute_format, "codebook": max(tables, default=node.compute.codebook)})
    lists = _lists(workload, config, result, nodes, 1 << 24)
    words = max(result.compute.activations, 1 << (lists.end - 1).bit_length())
    if config.overlaps:  # inputs, labels and lists have two copies, as far apart as the copies of the weights
        words = max(2 << (max(lists.end, workload.parameters.size) - 1).bit_length(), result.memories.weight)
        result = result.replace(memories={"weight": words})
    return result.replace(compute={"activations": words})


def check_engine(node: NodeConfig, workload: Workload, config: TrainingConfig, *, nodes: int) -> None:
    """Raise ``ValueError`` with the reason if nodes cannot compute a run; called before a ring is opened."""
    if not node.compute:
        raise ValueError("Nodes must have a compute engine to compute")
    if node.compute.operands != config.compute_format:
        raise ValueError(f"Engines of nodes must multiply in {config.compute_format}, not in {node.compute.operands}")
    if isinstance(workload, CharacterModel) and config.far is not None:
        feature("far").check_run(node, workload, config, nodes=nodes)
    elif isinstance(workload, CharacterModel):
        check_sequences(node, config)
        text_lists(workload, config, node, nodes, node.compute.activations)
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
    """Raise ``ValueError`` unless nodes have the tables, memory and parameters that the layers need."""
    if config.far is not None:
        raise ValueError("Workload of a far memory must be text, not digits")
    for layer in task.layers:
        if isinstance(layer, Shared) and layer.centroids != node.compute.codebook:
            raise ValueError(f"Nodes must have tables of {layer.centroids} centroids to compute, not "
                             f"{node.compute.codebook}")
    lists = _lists(task, config, node, nodes, node.compute.activations, distance_of(node))
    length = lists.places.layers[-1].base + lists.places.layers[-1].length
    if task.parameters.size != length:
        raise ValueError(f"Layers must each take whole groups of {GROUP} elements for nodes that compute, "
                         f"{length:,} in all, not {task.parameters.size:,}")
