"""Operations that nodes carry out each by itself: masks, sparse gradients, and inference."""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hdl.config import Quantization
from hdl.control.protocol import Operation
from host.driver.buffers import Buffer, Where, aligned, place
from host.driver.command import Command, Event
from host.driver.command_queueing import CommandQueueing
from host.driver.devices import Devices
from host.driver.inference import IntegerLayer, Integers, Program, pack_inputs, program, unpack_outputs
from host.driver.masking import MaskJob, Region, plan, unpack
from host.driver.protocols import Operations
from host.driver.results import Cycles, InferOutcome, MaskOutcome, SparsifyOutcome, slowest, total
from host.driver.ring_memory import RingMemory
from host.driver.ring_settings import RingSettings

__all__ = ["NodeOperations"]


class NodeOperations(Operations):
    """Operations of single nodes, in whatever rings they are."""

    def __init__(self, devices: Devices, memory: RingMemory, settings: RingSettings, commands: CommandQueueing):
        self._devices = devices
        self._memory = memory
        self._settings = settings
        self._commands = commands

    def _number_of(self, name: str, value: float, least: int, end: int) -> int | float:
        """Value for a register: a binary32 number, or an integer of a range on nodes of integers."""
        if not self._devices.formats.int16:
            return float(np.float32(value))
        if not float(value).is_integer() or not least <= value < end:
            raise ValueError(f"{name} of int16 nodes must be an integer between {least} and {end - 1}, not {value!r}")
        return int(value)

    def mask(self, jobs: Sequence[Sequence[MaskJob]], *, alternative: float, behind: int = 0,
             data: Buffer | None = None, lists: Buffer | None = None) -> MaskOutcome:
        if len(jobs) != len(self._devices):
            raise ValueError(f"Jobs must be one sequence per node, {len(self._devices)}, not {len(jobs)}")
        data = self._memory.whole("gradients") if data is None else place(data, "gradients")
        if lists is None:
            room = self._memory.allocator.room("weights")
            base = min(aligned(behind), room)
            lists = Buffer("weights", base, room - base)
        lists = place(lists, "weights")
        regions = [plan(own, lanes=device.config.lanes, elements=data.length, words=lists.length,
                        element=device.config.element) for own, device in zip(jobs, self._devices, strict=True)]
        self._settings.write_registers(
            {"MASK_ALTERNATIVE": self._number_of("Alternative", alternative, -(1 << 15), 1 << 15)})
        contents: list[list[npt.NDArray[np.uint32]]] = [[] for _ in jobs]
        replaced, cycles = [0] * len(self._devices), []
        passes = list(itertools.zip_longest(*regions))
        for step in passes:
            events, masked = self._mask(step, data.base, lists.base)
            for rank, event in events.items():
                contents[rank].append(masked[rank])
                replaced[rank] += event.detail
            cycles.append(slowest(event.cycles for event in events.values()))
        results = [unpack(own, planned, words) for own, planned, words in zip(jobs, regions, contents, strict=True)]
        return MaskOutcome(results=results, replaced=replaced, cycles=total(cycles), commands=len(passes))

    def _mask(self, regions: Sequence[Region | None], data: int,
              lists: int) -> tuple[dict[int, Event], dict[int, npt.NDArray[np.uint32]]]:
        """Run one command on each node that has a region, and return events and contents of the gradient memories."""
        present = {rank: region for rank, region in enumerate(regions) if region is not None}
        self._devices.write_space("gradients", data, {rank: region.data for rank, region in present.items()})
        self._devices.write_space("weights", lists, {rank: region.words for rank, region in present.items()})
        events = self._commands.run_apart({
            rank: Command(operation=Operation.MASK, gradient_base=data, weight_base=lists,
                          state_base=lists + region.externals, length=len(region.data))
            for rank, region in present.items()})
        return events, self._devices.read_space("gradients", data, {
            rank: len(region.data) for rank, region in present.items()})

    def sparsify(self, where: Where, *, threshold: float) -> SparsifyOutcome:
        gradients, errors = place(where, "gradients"), place(where, "errors")
        self._settings.write_registers({"MASK_THRESHOLD": self._number_of("Threshold", threshold, 0, 1 << 16)})
        events = self._commands.run_apart({
            rank: Command(operation=Operation.SPARSIFY, gradient_base=gradients.base, weight_base=errors.base,
                          length=gradients.length) for rank in range(len(self._devices))})
        return SparsifyOutcome(dropped=[events[rank].detail for rank in range(len(self._devices))],
                               cycles=slowest(event.cycles for event in events.values()))

    def infer(self, layers: Sequence[IntegerLayer], x: npt.ArrayLike, *, data: Buffer | None = None,
              lists: Buffer | None = None) -> InferOutcome:
        if not all(config.has(Quantization) for config in self._devices.configs):
            raise ValueError("Nodes must have quantization in their configuration, to infer")
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
