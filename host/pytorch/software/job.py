"""One rank's share of a job on a ring in software: residuals, and weights and state of its own blocks."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hdl.compression.registry import RAW
from host.jobs import checks
from host.pytorch.messages import Vector
from host.pytorch.software.ring import RankRing
from host.training.optimizers import Optimizer
from host.training.reference import golden_settings
from sim.arithmetic import optimizer
from sim.arithmetic.ring import CompiledArithmetic
from sim.golden.moments import pack, unpack
from sim.golden.ring import Part

__all__ = ["SoftwareJob"]

Bits = npt.NDArray[np.uint32]

_ARITHMETIC = CompiledArithmetic()


class _Group:
    """Elements of a group that the rank owns: master weights and planes of state, one after another."""

    def __init__(self, elements: slice, parts: Sequence[Part], planes: int, *, packed: bool) -> None:
        self.elements, self.parts, self.packed = elements, parts, packed
        self.count = sum(part.count for part in parts)
        self.master = np.zeros(self.count, np.uint32)
        self.state = [np.zeros(-(-self.count // 2) if packed else self.count, np.uint32) for _ in range(planes)]

    def take(self, vector: Bits) -> Bits:
        """The rank's own elements of a vector that has the elements of the group."""
        return np.concatenate([np.zeros(0, np.uint32), *(_ARITHMETIC.read(vector, part) for part in self.parts)])

    def put(self, own: Bits, vector: Bits) -> None:
        """Replace the rank's own elements of a vector."""
        first = 0
        for part in self.parts:
            _ARITHMETIC.write(vector, part, own[first:first + part.count])
            first += part.count

    def planes(self) -> list[Bits]:
        """State as binary32."""
        return [unpack(plane, self.count) if self.packed else plane for plane in self.state]

    def set_plane(self, index: int, plane: Bits) -> None:
        """Replace a plane of the state by binary32 numbers."""
        self.state[index][...] = pack(plane) if self.packed else plane


class SoftwareJob:
    """A job of one rank; its operations are those of :class:`host.jobs.job.Job`, which all ranks must call together.

    Parameters
    ----------
    ring : RankRing
    lengths : sequence of int
        Number of elements of each group.
    optimizers : sequence of Optimizer
        Optimizer of each group; empty if the job only sums.
    packed_state : bool
        Whether state is stored as bfloat16.
    """

    def __init__(self, ring: RankRing, lengths: Sequence[int], *, optimizers: Sequence[Optimizer] = (),
                 packed_state: bool = False) -> None:
        self._ring = ring
        slices = checks.groups_of(lengths)
        self.length = slices[-1].stop
        self._planes = planes = optimizers[0].planes if optimizers else 0
        self._groups = [_Group(elements, ring.parts(elements.stop - elements.start, ring.rank), planes,
                               packed=packed_state) for elements in slices] if optimizers else []
        #: Coding errors of the rank, or None if the codec of gradients is exact.
        self.residuals = np.zeros(self.length, np.uint32) if ring.lossy else None
        #: Weights that all ranks have.
        self.weights: Vector = np.zeros(self.length if optimizers else 0, np.float32)
        #: Number of updates of each group so far.
        self.steps = [0] * len(self._groups)

    def attach(self, ring: RankRing) -> None:
        """Use the ring of a new process group, which must have the same ranks."""
        if (ring.rank, ring.size) != (self._ring.rank, self._ring.size):
            raise ValueError(f"Job of rank {self._ring.rank} of {self._ring.size} must stay on it, not move to rank "
                             f"{ring.rank} of {ring.size}: make the optimizer again, and load its state")
        self._ring = ring

    def load(self, weights: Vector, *, fresh: bool) -> None:
        """Replace the weights by those that all ranks have; with ``fresh``, also start again at step 0."""
        self.weights[...] = weights
        for group in self._groups:
            vector = self.weights[group.elements].view(np.uint32)
            group.master[...] = group.take(vector)
            self._ring.all_gather(vector)
            if fresh:
                for plane in group.state:
                    plane.fill(0)
        if fresh:
            self.steps = [0] * len(self._groups)
        if self.residuals is not None:
            self.residuals.fill(0)

    def step(self, gradients: Vector, used: Sequence[Optimizer | None]) -> Vector:
        """Update the weights of the groups that have an optimizer, and return all weights.

        Gradients of this rank are overwritten.
        """
        for index, (group, chosen) in enumerate(zip(self._groups, used, strict=True)):
            if chosen is None:
                continue
            self.steps[index] += 1
            settings = golden_settings(chosen.settings(self.steps[index], gradient_scale=1 / self._ring.size))
            vector = gradients[group.elements].view(np.uint32)
            residuals = None if self.residuals is None else self.residuals[group.elements]
            self._ring.reduce_scatter(vector, residuals=residuals)
            optimizer.update(group.take(vector), group.master, group.state, settings,
                             packed=group.packed and bool(settings.planes))
            updated = self.weights[group.elements].view(np.uint32)
            group.put(group.master, updated)
            self._ring.all_gather(updated)
        return self.weights.copy()

    def state(self) -> dict[str, Any]:
        """Everything on which later steps depend, on all ranks; see :meth:`host.jobs.job.Job.state`."""
        contents = {f"state_{index}": self._gathered([group.planes()[index] for group in self._groups])
                    for index in range(self._planes)}
        if self._ring.weights_codec != RAW:
            contents["master"] = self._gathered([group.master for group in self._groups])
        if self.residuals is not None:
            contents["residual"] = self._ring.links.all_rows(self.residuals).view(np.float32)
        return {"weights": self.weights.copy(), "steps": list(self.steps), "contents": contents, "thresholds": {}}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a state of a job of the same kind; raises ``ValueError`` for any other."""
        shapes: dict[str, tuple[int, ...]] = {f"state_{index}": (self.length,) for index in range(self._planes)}
        if self._ring.weights_codec != RAW:
            shapes["master"] = (self.length,)
        if self.residuals is not None:
            shapes["residual"] = (self._ring.size, self.length)
        checks.check_state(state, shapes, groups=len(self._groups), length=self.length)
        contents = state["contents"]
        self.weights[...] = state["weights"]
        self.steps = list(state["steps"])
        for group in self._groups:
            bits = {name: np.ascontiguousarray(array[..., group.elements]).view(np.uint32)
                    for name, array in [*contents.items(), ("weights", self.weights)] if name != "residual"}
            group.master[...] = group.take(bits.get("master", bits["weights"]))
            for index in range(len(group.state)):
                group.set_plane(index, group.take(bits[f"state_{index}"]))
        if self.residuals is not None:
            self.residuals[...] = contents["residual"][self._ring.rank].view(np.uint32)

    def _gathered(self, own: Sequence[Bits]) -> Vector:
        """Vector of the job, from each rank's own elements of each group."""
        vector = np.zeros(self.length, np.float32)
        for group, values in zip(self._groups, own, strict=True):
            part = vector[group.elements].view(np.uint32)
            group.put(values, part)
            self._ring.all_gather(part, raw=True)
        return vector
