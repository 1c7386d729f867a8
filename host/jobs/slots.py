"""Parts of a job's vector in the memories of the ring's nodes.

A vector that is too long for the nodes' memories is split into parts, which share one slot of the memories. State,
master weights, errors and residuals of a part exist only on the nodes: they are read before another part takes the
slot, and restored when the part returns.
"""

import bisect
import dataclasses
import functools

import numpy as np
import numpy.typing as npt

from hdl.compression.registry import RAW
from hdl.config import NodeConfig
from hdl.group import GROUP
from host.driver.memory import Allocation, Buffer, Buffers, aligned
from host.driver.protocols import VectorRing

__all__ = ["Places", "Slot", "Slots", "largest_part", "parts_of"]

Places = npt.NDArray[np.int64]


def largest_part(config: NodeConfig, *, nodes: int, planes: int, packed_state: bool, errors: bool) -> int:
    """Number of elements in the longest vector that fits on the nodes, a multiple of 32.

    Raises ``ValueError`` if not even 32 elements fit.
    """
    def check(groups: int) -> None:
        Allocation(length=groups * GROUP, planes=planes, packed_state=packed_state, errors=errors).check(
            config, nodes=nodes)

    def exceeds(groups: int) -> bool:
        try:
            check(groups)
        except ValueError:
            return True
        return False

    check(1)
    most = min(config.memories.gradient, config.memories.weight) // GROUP
    # If N groups fit, any smaller number of groups fits too, so a bisection finds the maximum.
    return bisect.bisect_left(range(2, most + 1), True, key=exceeds) * int(GROUP) + int(GROUP)


def parts_of(groups: list[slice], largest: int) -> list[tuple[int, Places]]:
    """Split groups into parts of at most ``largest`` elements, each paired with its group number."""
    return [(number, np.arange(first, min(first + largest, group.stop)))
            for number, group in enumerate(groups) for first in range(group.start, group.stop, largest)]


@dataclasses.dataclass
class Slot:
    """Memory slot: buffers on the nodes that contain one part of a job's vector at a time."""

    buffers: Buffers
    holds: Places | None = None  # indices of the vector elements that the slot contains

    def holds_these(self, places: Places) -> bool:
        return self.holds is not None and np.array_equal(self.holds, places)

    def of(self, length: int) -> Buffers:
        """Return the slot's buffers, shortened to a part of ``length`` elements at the start of the slot."""
        whole = self.buffers
        errors = None if whole.errors is None else Buffer("weights", whole.errors.base, length)
        return Buffers(gradients=Buffer("gradients", whole.gradients.base, length),
                       weights=Buffer("weights", whole.weights.base, length), state=whole.state, errors=errors)


class Slots:
    """All memory slots of a job, and the saved contents of the parts of its vector that are not in a slot.

    ``lengths`` gives the lengths of the parts. If all parts fit on the nodes, each has its own slot, rounded up to
    whole groups; otherwise there is one slot. ``planes``, ``packed_state`` and ``errors`` have the same meaning as
    for :class:`~host.driver.memory.Allocation`. With ``updates``, the nodes store and update weights; otherwise they
    only sum.
    """

    def __init__(self, ring: VectorRing, lengths: list[int], *, length: int, planes: int, packed_state: bool,
                 errors: bool, updates: bool) -> None:
        self._ring, self._planes, self._packed, self._errors = ring, planes, packed_state, errors
        self._updates = updates
        self._slots: list[Slot] = []
        allocation = functools.partial(Allocation, planes=planes, packed_state=packed_state, errors=errors)
        lengths = [aligned(size) for size in lengths]  # so that parts end at a group boundary
        try:
            for size in lengths:
                self._slots.append(Slot(ring.memory.allocate(allocation(length=size))))
        except ValueError:
            for slot in self._slots:
                for buffer in vars(slot.buffers).values():
                    if buffer is not None:
                        ring.memory.allocator.free(buffer)
            self._slots = [Slot(ring.memory.allocate(allocation(length=max(lengths))))]
        self.weights = np.zeros(length, np.float32)  # weights of the whole vector, identical on all nodes
        rows = (ring.nodes, length)
        self.contents: dict[str, npt.NDArray[np.float32]] = {
            f"state_{plane}": np.zeros(length, np.float32) for plane in range(planes)}
        if updates and ring.formats.weight_codec != RAW:
            self.contents["master"] = np.zeros(length, np.float32)
        if errors:
            self.contents["errors"] = np.zeros(rows, np.float32)
        if ring.formats.has_residual:
            self.contents["residual"] = np.zeros(rows, np.float32)

    @property
    def longest(self) -> int:
        """Number of elements in the largest slot."""
        return max(slot.buffers.length for slot in self._slots)

    def bring(self, places: Places) -> Buffers:
        """Load a part into a slot, preferably an empty one, unless it is already loaded."""
        room = [slot for slot in self._slots if slot.buffers.length >= len(places)]
        slot = next((slot for slot in room if slot.holds_these(places)),
                    next((slot for slot in room if slot.holds is None), room[0]))
        buffers = slot.of(len(places))
        if not slot.holds_these(places):
            self.empty(slot)
            self._write(places, buffers)
            slot.holds = places
        return buffers

    def borrow(self, length: int) -> Buffers:
        """Return buffers for a separate vector, outside the job's vector, that needs no weights or state."""
        slot = next(slot for slot in self._slots if slot.buffers.length >= length)
        if self._ring.formats.has_residual:
            self.empty(slot)
        return slot.of(length)

    def empty(self, slot: Slot) -> None:
        """Read the contents of a slot from the nodes, so that another part can use the slot."""
        self._read(slot)
        slot.holds = None

    def collect(self) -> None:
        """Read the contents of all slots from the nodes, and leave them loaded."""
        for slot in self._slots:
            self._read(slot)

    def clear(self) -> None:
        """Set the contents of all slots to zero."""
        self.forget()
        self.weights[...] = 0
        for contents in self.contents.values():
            contents[...] = 0

    def forget(self) -> None:
        """Mark all slots as empty, so that their contents will be written again."""
        for slot in self._slots:
            slot.holds = None

    def _read(self, slot: Slot) -> None:
        ring, contents, places = self._ring, self.contents, slot.holds
        if places is None:
            return
        buffers = slot.of(len(places))
        for plane in range(self._planes):
            contents[f"state_{plane}"][places] = ring.memory.read_state(buffers, plane, packed_state=self._packed)
        if "master" in contents:
            contents["master"][places] = ring.memory.read_master(buffers)
        if self._errors:
            contents["errors"][:, places] = ring.memory.read_errors(buffers)
        if ring.formats.has_residual:
            contents["residual"][:, places] = ring.memory.read_residual(buffers)

    def _write(self, places: Places, buffers: Buffers) -> None:
        ring, contents = self._ring, self.contents
        if self._updates:
            ring.memory.write_weights(self.weights[places], buffers)
        for plane in range(self._planes):
            ring.memory.write_state(contents[f"state_{plane}"][places], plane, buffers, packed_state=self._packed)
        if "master" in contents:
            ring.memory.write_master(contents["master"][places], buffers)
        if self._errors:
            ring.memory.write_errors(list(contents["errors"][:, places]), buffers)
        if ring.formats.has_residual:
            ring.memory.write_residual(list(contents["residual"][:, places]), buffers)
