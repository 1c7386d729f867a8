"""Model of the memories of a ring, and of the changes that commands make."""

import dataclasses
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from hdl.control.protocol import EventStatus, Operation
from hdl.features.compute.engine import BLOCKS
from hdl.features.compute.layer_list import Place
from host.driver.command import Command
from sim.golden import masking, optimizer, root_reduce
from sim.golden import ring as golden
from sim.golden.features.compute.compute import Engine
from sim.golden.features.compute_stub import compute_model
from sim.golden.features.quantization import quantization

Words = npt.NDArray[np.uint32]

GRADIENT, WEIGHT, STATE = range(3)
#: Index of the activation memory, which is the last memory of a node.
ACTIVATIONS = -1


@dataclasses.dataclass(frozen=True)
class Change:
    """New words in a memory of a node, from ``base`` on. A collective may leave gaps between its words."""

    space: int
    node: int
    base: int
    words: Words
    stride: int = 1

    @property
    def places(self) -> npt.NDArray[np.int64]:
        return np.asarray(self.base + golden.places(len(self.words), stride=self.stride))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Programs:
    """Lists for local commands, by their address in weight or activation memory."""

    masks: dict[int, masking.Job]
    #: Layers, each with the addresses of its inputs and outputs in gradient memory.
    layers: dict[int, tuple[quantization.Layer, int, int]]
    lists: dict[int, int]  # maximum number of examples for each list of instructions
    wrong: int  # address of a list that nodes reject


class Model:
    """Model of all nodes' memories, as arrays of shape (nodes, words), and of the effects of commands.

    Memories are the gradient memory, the weight memory, each state plane, and the activation memory; ``rows`` is a
    node's number of rows of multiply-accumulate units.
    """

    def __init__(self, memories: Sequence[Words], *, segment: int, lanes: int, rows: int) -> None:
        self.memories = [memory.copy() for memory in memories]
        self.nodes = len(memories[0])
        self._shape = {"segment": segment, "lanes": lanes}
        self._engine = Engine(rows=rows, lanes=lanes, blocks=BLOCKS, scale_mask=True)

    def changes(self, commands: Sequence[Command], programs: Programs, settings: optimizer.Settings, *,
                alternative: int, threshold: int) -> tuple[list[Change], list[int]]:
        """Return a command's changes on each node, and the details of its events if it counts elements."""
        operation = commands[0].operation
        details = [0] * self.nodes
        if operation in (Operation.MASK, Operation.SPARSIFY, Operation.INFER, Operation.COMPUTE, Operation.LAYERS):
            changes = []
            for node, command in enumerate(commands):
                if operation is Operation.MASK:
                    made, details[node] = self._mask(node, command, programs, alternative)
                elif operation is Operation.SPARSIFY:
                    made, details[node] = self._sparsify(node, command, threshold)
                elif operation is Operation.COMPUTE:
                    memory = compute_model.compute(
                        self.memories[GRADIENT][node], gradient_base=command.gradient_base,
                        state_base=command.state_base, length=command.length)
                    base, end = command.gradient_base, command.gradient_base + command.length
                    made, details[node] = [Change(GRADIENT, node, base, memory[base:end])], command.length
                elif operation is Operation.LAYERS:
                    made, details[node] = self._layers(node, command)
                else:
                    made, details[node] = self._infer(node, command, programs)
                changes += made
            return changes, details
        if operation in (Operation.QUIESCE, Operation.LATCH):
            return [], details
        order = np.argsort([command.rank for command in commands])  # node indices in the order of the nodes' ranks
        return self._collective(commands[0], order, settings), details

    def _rows(self, space: int, order: npt.NDArray[np.intp], base: int, command: Command) -> Words:
        places = base + golden.places(command.length, stride=command.stride)
        return self.memories[space][order[:, np.newaxis], places]

    def _collective(self, command: Command, order: npt.NDArray[np.intp],
                    settings: optimizer.Settings) -> list[Change]:
        base, stride, shape = command.gradient_base, command.stride, {**self._shape,
                                                                      "block_offset": command.block_offset}
        lone = command.root_reduce and self.nodes > 1 and command.operation in (
            Operation.FUSED_UPDATE, Operation.ALL_REDUCE)
        if lone:
            return self._owned(command, order, settings)
        if command.operation in (Operation.ALL_REDUCE, Operation.REDUCE_SCATTER):
            gradients = self._rows(GRADIENT, order, base, command)
            if command.operation is Operation.ALL_REDUCE:
                rows = [golden.all_reduce(gradients, **shape)[0]] * self.nodes
            else:
                rows = list(golden.reduce_scatter(gradients, **shape)[0])
            return [Change(GRADIENT, int(node), base, row, stride) for node, row in zip(order, rows, strict=True)]
        weights = self._rows(WEIGHT, order, command.weight_base, command)
        changes = []
        if command.operation is Operation.ALL_GATHER:
            result = golden.all_gather(weights, **shape)[0]
        elif command.operation is Operation.BROADCAST:
            result = golden.broadcast(weights, command.root)
        else:
            blocks = golden.block_indices(command.length, self.nodes, block_offset=command.block_offset)
            owners = [int(order[block - 1]) for block in range(self.nodes)]
            # Every owner updates its own copy of the weights; the copies may differ between nodes.
            own = np.empty_like(weights[0])
            state = [np.empty_like(own) for _ in self.memories[STATE:ACTIVATIONS]]
            for block, (owner, index) in enumerate(zip(owners, blocks, strict=True)):
                own[index] = weights[block - 1, index]
                for values, plane in zip(state, self.memories[STATE:ACTIVATIONS], strict=True):
                    values[index] = plane[owner, command.state_base:command.state_base + len(index)]
            gradients = self._rows(GRADIENT, order, base, command)
            update = golden.fused_update(gradients, own, state, settings, **shape)
            result = update.weights
            for plane in range(settings.planes):
                changes += [Change(STATE + plane, owner, command.state_base, update.state[plane][index])
                            for owner, index in zip(owners, blocks, strict=True)]
        return changes + [Change(WEIGHT, node, command.weight_base, result, stride) for node in range(self.nodes)]

    def _owned(self, command: Command, order: npt.NDArray[np.intp], settings: optimizer.Settings) -> list[Change]:
        """Changes made by a collective in which a single root owns all groups."""
        gradients = self._rows(GRADIENT, order, command.gradient_base, command)
        owner, stride = int(order[command.root]), command.stride
        if command.operation is Operation.ALL_REDUCE:
            total = root_reduce.all_reduce(gradients, command.root, **self._shape)[0]
            return [Change(GRADIENT, node, command.gradient_base, total, stride) for node in range(self.nodes)]
        weights = self._rows(WEIGHT, order, command.weight_base, command)[command.root]
        state = [plane[owner, command.state_base:command.state_base + command.length]
                 for plane in self.memories[STATE:ACTIVATIONS]]
        update = root_reduce.fused_update(gradients, weights, state, settings, command.root, **self._shape)
        return [*(Change(STATE + plane, owner, command.state_base, update.state[plane])
                  for plane in range(settings.planes)),
                *(Change(WEIGHT, node, command.weight_base, update.weights, stride) for node in range(self.nodes))]

    def _mask(self, node: int, command: Command, programs: Programs, alternative: int) -> tuple[list[Change], int]:
        job = programs.masks[command.weight_base]
        base = command.gradient_base
        external = None
        if job.mask.external:
            external = self.memories[WEIGHT][node, command.state_base:][:masking.words_fetched(job)]
        kept = masking.kept(job, external).reshape(-1)
        values = self.memories[GRADIENT][node, base:base + job.elements]
        return [Change(GRADIENT, node, base, masking.apply(values, kept, alternative).astype(np.uint32))], int(
            np.count_nonzero(~kept))

    def _sparsify(self, node: int, command: Command, threshold: int) -> tuple[list[Change], int]:
        bases = command.gradient_base, command.weight_base
        gradients, errors = (self.memories[space][node, base:base + command.length]
                             for space, base in zip((GRADIENT, WEIGHT), bases, strict=True))
        sent, kept = masking.sparsify(gradients, errors, threshold)
        dropped = np.count_nonzero((golden.floating.add(gradients, errors) & 0x7FFF_FFFF) < threshold)
        return [Change(GRADIENT, node, bases[0], sent), Change(WEIGHT, node, bases[1], kept)], int(dropped)

    def _infer(self, node: int, command: Command, programs: Programs) -> tuple[list[Change], int]:
        layer, source, target = programs.layers[command.weight_base]
        lanes = self._shape["lanes"]
        row = -(-layer.inputs // (4 * lanes)) * lanes
        words = self.memories[GRADIENT][node, source:source + command.length * row].astype("<u4")
        inputs = words.view(np.uint8).reshape(command.length, 4 * row)[:, :layer.inputs]
        sums = quantization.infer([layer], inputs).astype(np.int32).reshape(-1).view(np.uint32)
        beats = command.length * layer.outputs * (row // lanes)
        return [Change(GRADIENT, node, target, sums)], beats

    def _layers(self, node: int, command: Command) -> tuple[list[Change], int]:
        spaces = {Place.GRADIENTS: GRADIENT, Place.WEIGHTS: WEIGHT, Place.ACTIVATIONS: len(self.memories) - 1}
        after = {memory: self.memories[space][node].copy() for memory, space in spaces.items()}
        arguments = {"base": command.weight_base, "length": command.length, "offset": command.state_base}
        listed, _ = self._engine.check(after, **arguments)
        outcome = self._engine.run(after, **arguments)
        if outcome.status is not EventStatus.OK:
            raise ValueError(f"List of instructions must be right, not {outcome}")
        return [Change(spaces[target.place], node, int(row[0]), after[target.place][row])
                for instruction in listed for target in instruction.targets for row in target.index()], outcome.detail

    def apply(self, changes: Sequence[Change], nodes: Sequence[int] | None = None) -> None:
        """Apply changes on all nodes, or only on some."""
        for change in changes:
            if nodes is None or change.node in nodes:
                self.memories[change.space][change.node, change.places] = change.words

    def differences(self, actual: Sequence[Words], possible: Sequence[Change] = ()) -> list[str]:
        """List the differences between actual memories and the model.

        Words of ``possible`` changes may or may not have been written; the model adopts their actual values.
        """
        for change in possible:
            where = change.node, change.places
            now = actual[change.space][where]
            known = self.memories[change.space][where]
            self.memories[change.space][where] = np.where(now == change.words, now, known)
        wrong = []
        for space, (expected, memory) in enumerate(zip(self.memories, actual, strict=True)):
            for node, index in np.argwhere(expected != memory)[:4]:
                wrong.append(f"memory {space} of node {node}, element {index}: 0x{memory[node, index]:08x} in place "
                             f"of 0x{expected[node, index]:08x}")
        return wrong
