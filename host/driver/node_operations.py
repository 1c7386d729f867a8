"""Operations that nodes carry out each by itself: masks, sparse gradients, inference, and lists of layers."""

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hdl.control.protocol import Operation
from hdl.features.compute.layer_list import MULTIPLIED_BIT
from host.driver.command import Command, Event
from host.driver.command_queueing import CommandQueueing
from host.driver.devices import Devices
from host.driver.masking import MaskJob, Region, plan, unpack
from host.driver.memory import Buffer, Where, aligned, place
from host.driver.results import Cycles, InferOutcome, ListsOutcome, MaskOutcome, SparsifyOutcome, slowest, total
from host.driver.ring_memory import RingMemory
from host.driver.ring_registers import RingSettings
from host.features.compute.memory.plan import ListProgram, Plan, PlanError
from host.features.quantization.inference import IntegerLayer, Integers, Program, pack_inputs, program, unpack_outputs
from sim.golden.features.compute.compute import Engine

__all__ = ["ListCompute", "NodeOperations", "PlannedLists"]


class PlannedLists:
    """Lists of a memory plan: once there is one, nodes run only these."""

    def __init__(self) -> None:
        self._starts: frozenset[int] | None = None

    def set(self, starts: Iterable[int]) -> None:
        """Allow only the lists that start at these elements."""
        self._starts = frozenset(starts)

    def check(self, lists: Iterable[int]) -> None:
        """Raise a PlanError if a list is not of the plan."""
        for base in lists:
            if self._starts is not None and base not in self._starts:
                raise PlanError(f"List must be one of the program of the memory plan, not the one at {base:,}: write "
                                f"it with a plan of its own")


class NodeOperations:
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
        """Mask matrices on the nodes, in a buffer of their gradient memories. Its contents are lost.

        If the buffers have no room for all jobs of a node, several commands run one after the other; commands
        of different nodes run at the same time. A node may have no job.

        Raises ``RingError``: a command failed on at least one node; ``ValueError``: there is no room for even one
        matrix.

        Parameters
        ----------
        jobs : sequence of sequence of MaskJob
            Jobs of each node, in order of rank.
        alternative : float
            Value that replaces elements that a mask does not keep; an integer on int16 nodes.
        behind : int
            Number of elements at the start of the weight memory that stay; without ``lists``, job lists are written
            after them.
        data : Buffer, optional
            Buffer in gradients for the matrices; by default the whole memory.
        lists : Buffer, optional
            Buffer in weights for lists of jobs and words of external masks.
        """
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
        """Keep the large elements of each node's gradients, with its errors added; the other elements become its
        errors, and are added the next time.

        Parameters
        ----------
        where : Buffers or int
            The vector; the errors of a vector that is named by its length are after its weights.
        threshold : float
            Smallest magnitude that is kept; an integer on int16 nodes.
        """
        gradients, errors = place(where, "gradients"), place(where, "errors")
        self._settings.write_registers({"MASK_THRESHOLD": self._number_of("Threshold", threshold, 0, 1 << 16)})
        events = self._commands.run_apart({
            rank: Command(operation=Operation.SPARSIFY, gradient_base=gradients.base, weight_base=errors.base,
                          length=gradients.length) for rank in range(len(self._devices))})
        return SparsifyOutcome(dropped=[events[rank].detail for rank in range(len(self._devices))],
                               cycles=slowest(event.cycles for event in events.values()))

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
        if not all(config.has("quantization") for config in self._devices.configs):
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


class ListCompute:
    """Lists of layers on nodes that compute.

    Lists that are written with a plan of the activation memory (:meth:`write_lists`) must be its program. From then
    on nodes run only these lists. Raises ``ValueError`` if the nodes have no compute engine.
    """

    def __init__(self, devices: Devices, memory: RingMemory, commands: CommandQueueing, planned: PlannedLists):
        if not any(config.compute for config in devices.configs):
            raise ValueError("Nodes must have compute in their configuration, to run lists of layers")
        self._devices = devices
        self._memory = memory
        self._commands = commands
        self._planned = planned

    def write_lists(self, programs: Sequence[ListProgram], plan: Plan) -> None:
        """Write the lists of a pass, or of even and odd passes, to all nodes.

        Raises ``PlanError`` if the lists are not the program of the plan, or nodes have no room for it; nothing is
        written then.
        """
        room = self._memory.allocator.room("activations")
        for config, listed in itertools.product(self._devices.configs, programs):
            compute = config.compute
            listed.check(plan, Engine(rows=compute.rows, lanes=config.lanes, scale_mask=compute.scale_mask,
                                       operands=compute.operands, centroids=compute.codebook,
                                       sequences=compute.sequences))
            if listed.end > room:
                raise PlanError(f"Memory plan and lists must end within the {room:,} words of a node's activation "
                                f"memory, not at {listed.end:,}")
        for listed in programs:
            self._memory.write_activations([listed.words] * len(self._devices), listed.base)
        self._planned.set(start for listed in programs for start in listed.starts)

    def run_layers(self, lists: Sequence[int], lengths: Sequence[int], *, offset: int = 0,
                   patience: int = 0) -> list[ListsOutcome]:
        """Run lists of layers, one after the other, and wait for them; see docs/compute/layers.md.

        Raises ``RingError``: a node has refused a list; ``PlanError``: a list is not of the memory plan; nothing runs
        then.

        Parameters
        ----------
        lists : sequence of int
            Address of each list in the activation memory, a multiple of 32.
        lengths : sequence of int
            Examples of each node; a node without any does nothing.
        offset : int
            Elements that are added to the addresses of relative operands, a multiple of 32.
        patience : int
            Cycles that a list may take.
        """
        self._planned.check(lists)
        if len(lengths) != len(self._devices):
            raise ValueError(f"Lengths must be one per node, {len(self._devices)}, not {len(lengths)}")
        pending = [self._commands.submit_apart(
            {rank: Command(operation=Operation.LAYERS, weight_base=base, state_base=offset, length=length)
             for rank, length in enumerate(lengths) if length}, patience=patience) for base in lists if any(lengths)]
        if not pending:
            return []
        return [ListsOutcome(cycles=slowest(event.cycles for event in events.values()),
                             multiplied=sum(event.detail >> MULTIPLIED_BIT for event in events.values()))
                for events in self._commands.wait(*pending)]
