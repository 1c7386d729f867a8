"""Operations of individual nodes: masking, and gradient sparsification."""

import itertools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from hdl.control.protocol import Operation
from host.driver.command import Command, Event
from host.driver.command_queueing import CommandQueueing
from host.driver.devices import Devices
from host.driver.masking import MaskJob, Region, plan, unpack
from host.driver.memory import Buffer, Where, aligned, place
from host.driver.results import MaskOutcome, SparsifyOutcome, slowest, total
from host.driver.ring_memory import RingMemory
from host.driver.ring_registers import RingSettings

__all__ = ["NodeOperations"]


class NodeOperations:
    """Operations that each node performs on its own, in any ring."""

    def __init__(self, devices: Devices, memory: RingMemory, settings: RingSettings, commands: CommandQueueing):
        self._devices = devices
        self._memory = memory
        self._settings = settings
        self._commands = commands

    def mask(self, jobs: Sequence[Sequence[MaskJob]], *, alternative: float, behind: int = 0,
             data: Buffer | None = None, lists: Buffer | None = None) -> MaskOutcome:
        """Mask matrices on the nodes, in a gradient memory buffer, which is overwritten.

        If the buffers are too small for all jobs of a node, several commands run one after the other; different nodes
        run their commands in parallel.

        Raises ``RingError`` if a command failed on at least one node, and ``ValueError`` if even a single matrix does
        not fit.

        Parameters
        ----------
        jobs : sequence of sequence of MaskJob
            Jobs of each node, in order of rank; a node may have none.
        alternative : float
            Value of elements that a mask does not keep; an integer on int16 nodes.
        behind : int
            Number of elements at the start of the weight memory that are preserved; ignored if ``lists`` is given.
        data : Buffer, optional
            Buffer in the gradient memory for the matrices; by default the whole memory.
        lists : Buffer, optional
            Buffer in the weight memory for lists of jobs and words of external masks.
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
        elements = self._devices.formats.elements
        self._settings.write_registers(
            {"MASK_ALTERNATIVE": elements.number("Alternative", alternative, -(1 << 15), 1 << 15)})
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
        """Mask one region on each node that has one; return the events and the masked matrices in memory."""
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
        """Add each node's errors to its gradients and keep elements with a magnitude of at least ``threshold`` (an
        integer on int16 nodes); the other elements become the new errors.

        If a vector is given by its length, its errors are stored after its weights.
        """
        gradients, errors = place(where, "gradients"), place(where, "errors")
        elements = self._devices.formats.elements
        self._settings.write_registers({"MASK_THRESHOLD": elements.number("Threshold", threshold, 0, 1 << 16)})
        events = self._commands.run_apart({
            rank: Command(operation=Operation.SPARSIFY, gradient_base=gradients.base, weight_base=errors.base,
                          length=gradients.length) for rank in range(len(self._devices))})
        return SparsifyOutcome(dropped=[events[rank].detail for rank in range(len(self._devices))],
                               cycles=slowest(event.cycles for event in events.values()))
