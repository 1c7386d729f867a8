"""Commands that nodes carry out each by itself, in whatever rings they are, and the distribution of weights."""

import abc
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hdl.compression.registry import RAW
from hdl.control.protocol import Operation
from host.driver.buffers import Buffer, Where, aligned, place
from host.driver.command import Command, Event
from host.driver.masking import MaskJob, Region, plan, unpack
from host.driver.optimizer_settings import Rule, Settings
from host.driver.results import MaskOutcome, Outcome, SparsifyOutcome
from host.driver.submission import RingCommands

__all__ = ["LocalCommands"]


class LocalCommands(RingCommands, abc.ABC):
    """Nodes in rings, which mask and sparsify each its own matrices and gradients.

    Parameters
    ----------
    devices, timeout
        Parameters of :class:`~host.driver.nodes.RingNodes`.
    """

    @abc.abstractmethod
    def fused_update(self, where: Where) -> Outcome:
        """Sum gradients, update each block at its owner, and bring the new weights to all nodes."""

    def distribute(self, weights: npt.NDArray[Any], where: Where | None = None) -> None:
        """Give all nodes the same weights, in the form that a fused update leaves.

        On nodes with masters each block becomes the master of the node that owns it. With a weight codec all nodes
        then get its decoded codes: a fused update of zeros does this, with settings of its own. Gradients and
        residuals are zeros afterwards.
        """
        vector = len(weights) if where is None else where
        if self.has_residual:  # a residual would be added to those zeros
            self.clear_residual(vector)
        if self._config.has_master:
            self.write_master(weights, vector)
        if self._config.weight_codec == RAW:
            self.write_weights(weights, vector)
            return
        self.write_gradients([np.zeros(len(weights), dtype=np.uint32)] * self.nodes, vector)
        self.write_settings(Settings(rule=Rule.SGD, gradient_scale=0.0, learning_rate=0.0))
        self.fused_update(vector)

    def _number_of(self, name: str, value: float, least: int, end: int) -> int | float:
        """Value for a register: a binary32 number, or an integer of a range on nodes of integers."""
        if not self.reduced:
            return float(np.float32(value))
        if not float(value).is_integer() or not least <= value < end:
            raise ValueError(f"{name} of int16 nodes must be an integer between {least} and {end - 1}, not {value!r}")
        return int(value)

    def mask(self, jobs: Sequence[Sequence[MaskJob]], *, alternative: float, behind: int = 0,
             data: Buffer | None = None, lists: Buffer | None = None) -> MaskOutcome:
        """Mask matrices on the nodes, in a buffer of their gradient memories, whose contents are lost.

        If the buffers have no room for all jobs of a node, several commands run one after the other; commands
        of different nodes run at the same time. A node may have no job.

        Parameters
        ----------
        jobs : sequence of sequence of MaskJob
            Jobs of each node, in order of rank.
        alternative : float
            Value that replaces elements that a mask does not keep; an integer on int16 nodes.
        behind : int
            Number of elements at the start of the weight memory that stay; without ``lists``, job lists are written
            behind them.
        data : Buffer, optional
            Buffer in gradients for the matrices; by default the whole memory.
        lists : Buffer, optional
            Buffer in weights for lists of jobs and words of external masks.

        Raises
        ------
        RingError
            A command failed on at least one node.
        ValueError
            There is no room for even one matrix.
        """
        if len(jobs) != self.nodes:
            raise ValueError(f"Jobs must be one sequence per node, {self.nodes}, not {len(jobs)}")
        data = self._whole("gradients") if data is None else place(data, "gradients")
        if lists is None:
            room = self._allocator.room("weights")
            base = min(aligned(behind), room)
            lists = Buffer("weights", base, room - base)
        lists = place(lists, "weights")
        regions = [plan(mine, lanes=device.config.lanes, elements=data.length, words=lists.length,
                        element=device.config.element) for mine, device in zip(jobs, self._devices, strict=True)]
        self._write_settings({"MASK_ALTERNATIVE": self._number_of("Alternative", alternative, -(1 << 15), 1 << 15)})
        found: list[list[npt.NDArray[np.uint32]]] = [[] for _ in jobs]
        replaced, cycles = [0] * self.nodes, 0
        passes = list(itertools.zip_longest(*regions))
        for step in passes:
            events, masked = self._mask(step, data.base, lists.base)
            for rank, event in events.items():
                found[rank].append(masked[rank])
                replaced[rank] += event.detail
            cycles += max(event.cycles for event in events.values())
        results = [unpack(mine, planned, words) for mine, planned, words in zip(jobs, regions, found, strict=True)]
        return MaskOutcome(results=results, replaced=replaced, cycles=cycles, commands=len(passes))

    def _whole(self, space: str) -> Buffer:
        """Buffer that covers a whole memory."""
        return Buffer(space, 0, self._allocator.room(space))

    def _mask(self, regions: Sequence[Region | None], data: int,
              lists: int) -> tuple[dict[int, Event], dict[int, npt.NDArray[np.uint32]]]:
        """Run one command on each node that has a region, and return events and contents of the gradient memories."""
        given = {rank: region for rank, region in enumerate(regions) if region is not None}
        gradients, weights = self._numbers("gradients", given), self._numbers("weights", given)
        self._all(lambda rank, device: device.submit_write_memory(gradients[rank], data, given[rank].data), given)
        self._all(lambda rank, device: device.submit_write_memory(weights[rank], lists, given[rank].words), given)
        events = self._run_apart({
            rank: Command(operation=Operation.MASK, gradient_base=data, weight_base=lists,
                          state_base=lists + region.externals, length=len(region.data))
            for rank, region in given.items()})
        masked = self._all(
            lambda rank, device: device.submit_read_memory(gradients[rank], data, len(given[rank].data)), given)
        return events, dict(zip(given, masked, strict=True))

    def sparsify(self, where: Where, *, threshold: float) -> SparsifyOutcome:
        """Keep the large elements of each node's gradients, with its errors added; the other elements become its
        errors, and are added the next time.

        Parameters
        ----------
        where : Buffers or int
            The vector; the errors of a vector that is named by its length lie behind that many weights.
        threshold : float
            Least magnitude that is kept; an integer on int16 nodes.
        """
        gradients, errors = place(where, "gradients"), place(where, "errors")
        self._write_settings({"MASK_THRESHOLD": self._number_of("Threshold", threshold, 0, 1 << 16)})
        events = self._run_apart({
            rank: Command(operation=Operation.SPARSIFY, gradient_base=gradients.base, weight_base=errors.base,
                          length=gradients.length) for rank in range(self.nodes)})
        return SparsifyOutcome(dropped=[events[rank].detail for rank in range(self.nodes)],
                               cycles=max(event.cycles for event in events.values()))
