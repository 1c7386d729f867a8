"""Inference of integer layers on nodes."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hdl.control.protocol import Operation
from host.driver.command import Command, Event
from host.driver.command_queueing import CommandQueueing
from host.driver.devices import Devices
from host.driver.memory import Buffer, place
from host.driver.results import Cycles, slowest, total
from host.driver.ring_memory import RingMemory
from host.features.quantization.inference import IntegerLayer, Integers, Program, pack_inputs, program, unpack_outputs

__all__ = ["InferOutcome", "NodeInference"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class InferOutcome:
    """Result of inference."""

    outputs: Integers  # sums of the last layer, a row for each sample
    cycles: Cycles  # sum over commands, each counted on its slowest node
    multiplied: int  # cycles in which all lanes of a node have multiplied, summed over all nodes
    commands: int  # number of commands, which ran one after the other


class NodeInference:
    """Integer layers on the nodes of a ring, each of which infers samples of its own; a ``ValueError`` if nodes have
    no quantization."""

    def __init__(self, devices: Devices, memory: RingMemory, commands: CommandQueueing):
        if not all(config.has("quantization") for config in devices.configs):
            raise ValueError("Nodes must have quantization in their configuration, to infer")
        self._devices = devices
        self._memory = memory
        self._commands = commands

    def infer(self, layers: Sequence[IntegerLayer], x: npt.ArrayLike, *, data: Buffer | None = None,
              lists: Buffer | None = None) -> InferOutcome:
        """Run integer layers on samples, in a run of equal length on each node.

        Layers go to a buffer of each node's weight memory, and all else to a buffer of its gradient memory; the
        contents of both are lost. If there is no room for all samples of a node, several commands run.

        Raises ``RingError``: a command failed on at least one node; ``ValueError``: there is no room for the layers
        and one sample, or they do not follow each other.

        Parameters
        ----------
        layers : sequence of IntegerLayer
            Layers like :class:`sim.golden.features.quantization.quantization.Layer`; the last one, and no other, is
            ``last``.
        x : array of int
            A row of inputs for each sample: uint8, or int8 where the first layer is ``signed``.
        data, lists : Buffer, optional
            Buffers in gradients and in weights; by default the whole memories.
        """
        data = self._memory.whole("gradients") if data is None else place(data, "gradients")
        lists = self._memory.whole("weights") if lists is None else place(lists, "weights")
        layout = program(layers, lanes=self._devices.formats.lanes, gradient_words=data.length,
                         weight_words=lists.length, gradient_base=data.base, weight_base=lists.base)
        values = np.asarray(x)
        pack_inputs(layout, values)  # which checks them, before anything is written
        outputs = np.empty((len(values), layout.outputs), np.int64)
        share = -(-len(values) // len(self._devices))
        ranks = [rank for rank in range(len(self._devices)) if rank * share < len(values)]
        self._devices.write_space("weights", lists.base, dict.fromkeys(ranks, layout.weights))
        self._devices.write_space("gradients", data.base, dict.fromkeys(ranks, layout.parameters))
        cycles: list[Cycles] = []
        multiplied = 0
        for first in range(0, share, layout.samples):
            runs = {}
            for rank in ranks:
                begin, end = rank * share + first, min((rank + 1) * share, len(values))
                if begin < end:
                    runs[rank] = slice(begin, min(begin + layout.samples, end))
            events, results = self._infer(layout, lists.base, {rank: values[run] for rank, run in runs.items()})
            for rank, run in runs.items():
                outputs[run] = results[rank]
            cycles.append(slowest(event.cycles for event in events.values()))
            multiplied += sum(event.detail for event in events.values())
        return InferOutcome(outputs=outputs, cycles=total(cycles), multiplied=multiplied, commands=len(cycles))

    def _infer(self, layout: Program, base: int,
               x: dict[int, npt.NDArray[Any]]) -> tuple[dict[int, Event], dict[int, Integers]]:
        """Run one command on each node that has samples, and return events and sums."""
        self._devices.write_space("gradients", layout.source, {
            rank: pack_inputs(layout, samples) for rank, samples in x.items()})
        events = self._commands.run_apart({
            rank: Command(operation=Operation.INFER, weight_base=base, length=len(samples))
            for rank, samples in x.items()}, patience=2 * layout.samples * layout.beats)
        words = -(-layout.outputs // layout.lanes) * layout.lanes
        sums = self._devices.read_space("gradients", layout.target, {
            rank: len(samples) * words for rank, samples in x.items()})
        return events, {rank: unpack_outputs(layout, own) for rank, own in sums.items()}
