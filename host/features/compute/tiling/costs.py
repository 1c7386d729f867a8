"""Costs of a product's tiling plans: cycles counted by a node's engine or predicted by its model.

A plan is a LAYERS command with one instruction per product. Its cost is the number of cycles that the command takes.
"""

import collections
import dataclasses
import functools
import hashlib
import itertools
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from hdl.config import Memories, NodeConfig
from hdl.features.compute.feature import FP32, Compute
from hdl.features.compute.layer_list import INSTRUCTION_WORDS, Initial, Kind, Place, gemm_layout
from hdl.features.compute.memory_access import MemoryAccess
from hdl.features.compute.operands import OPERANDS
from hdl.features.programs.feature import Programs
from hdl.group import GROUP
from host.driver.memory import aligned
from host.driver.results import known
from host.driver.ring import Ring
from host.features.compute.instructions import FACTORS, Array
from host.features.compute.tiling.space import Plan
from sim.golden.features.compute.compute import pack
from sim.golden.features.compute.gemm import GemmJob, Matrix
from sim.golden.features.compute.gemm_estimate import estimate
from sim.golden.features.compute.layer_list import command_cycles
from sim.golden.features.compute.memory_pace import Memory

__all__ = ["GatewareCost", "ModelCost", "WrongProductError", "estimated", "node_of", "product", "room"]

Bits = npt.NDArray[np.uint32]

#: Maximum number of cycles of a command per multiply-add of its product.
_PATIENCE = 16
#: Initial contents of C: a NaN with a distinctive payload.
_NOTHING = 0x7FA0_DEAD


class WrongProductError(Exception):
    """Raised when a tiling changes a result, although results must not depend on the tiling."""


def product(sizes: tuple[int, int, int], array: Array, *, transpose_a: bool = False, transpose_b: bool = False,
            ones: bool = False, starts: bool = False, gated: bool = False) -> GemmJob:
    """Build a product without tiling factors, with its operands stored back to back in a node's memories.

    A and the gate are in the activation memory, B and the row that sums may start from in the weight memory, and C in
    the gradient memory. The parameters are as for :func:`host.features.compute.instructions.best_factors`.
    """
    m, k, n = sizes
    lanes = array.lanes
    ends: collections.Counter[Place] = collections.Counter()

    def matrix(memory: Place, rows: int, columns: int) -> Matrix:
        base, stride = ends[memory], -(-columns // lanes)
        ends[memory] += aligned(rows * stride * lanes) // lanes
        return Matrix(memory, base, stride)

    a = Matrix(Place.ONES) if ones else matrix(Place.ACTIVATIONS, *((k, m) if transpose_a else (m, k)))
    b = matrix(Place.WEIGHTS, *((n, k) if transpose_b else (k, n)))
    gate = matrix(Place.ACTIVATIONS, m, n) if gated else Matrix()
    return GemmJob(m=m, k=k, n=n, transpose_a=int(transpose_a), transpose_b=int(transpose_b), initial=int(starts),
                   gated=int(gated), a=a, b=b, gate=gate, c=Matrix(Place.GRADIENTS, 0, -(-n // lanes)),
                   start=Matrix(Place.WEIGHTS, ends[Place.WEIGHTS], 0))


def corners(plan: Plan, job: GemmJob) -> list[tuple[int, int]]:
    """Return the first row and column of each product of a plan."""
    return list(itertools.product(range(0, job.m, plan.job.m), range(0, job.n, plan.job.n)))


def parts(plan: Plan, job: GemmJob) -> list[GemmJob]:
    """Return the products of a plan; products at the edges may be smaller."""
    return [dataclasses.replace(plan.job, m=min(plan.job.m, job.m - row), n=min(plan.job.n, job.n - column))
            for row, column in corners(plan, job)]


def instructions(plan: Plan, job: GemmJob, lanes: int, *, operands: str = FP32) -> Iterator[Bits]:
    """Yield the instructions of a plan for a product, followed by END."""
    for (row, column), part in zip(corners(plan, job), parts(plan, job), strict=True):
        starts = {"a": row * (1 if job.transpose_a else job.a.stride * lanes),
                  "b": column * (job.b.stride * lanes if job.transpose_b else 1),
                  "c": row * job.c.stride * lanes + column, "gate": row * job.gate.stride * lanes + column,
                  "start": column}
        used = ["a", "b", "c", *(["gate"] if job.gated else []), *(["start"] if job.initial else [])]
        yield pack(gemm_layout(), {
            "kind": Kind.GEMM, "format": OPERANDS[operands].code, "m": part.m, "k": part.k, "n": part.n,
            "transpose_a": job.transpose_a, "transpose_b": job.transpose_b, "gated": job.gated,
            "initial": Initial.MATRIX if job.initial else Initial.ZERO,
            **{name: getattr(part, name) for name in FACTORS},
            **{name: {"place": memory, "base": 0 if memory == Place.ONES
                      else getattr(job, name).row * lanes + starts[name]}
               for name, memory in ((name, getattr(job, name).place) for name in used)},
            **{f"stride_{name}": getattr(job, name).stride * lanes for name in used}})
    yield np.zeros(INSTRUCTION_WORDS, np.uint32)


def _words(job: GemmJob, memory: Place, lanes: int) -> int:
    """Number of elements that a product's operands occupy in a memory."""
    lines = {"a": job.k if job.transpose_a else job.m, "b": job.n if job.transpose_b else job.k, "c": job.m,
             **({"gate": job.m} if job.gated else {})}
    sizes = [aligned(lanes * (getattr(job, name).row + count * getattr(job, name).stride))
             for name, count in lines.items() if getattr(job, name).place == memory]
    if job.initial and job.start.place == memory:
        sizes.append(lanes * job.start.row + aligned(job.n))
    return max(sizes, default=0)


def room(job: GemmJob, lanes: int, *, products: int = 1) -> dict[str, int]:
    """Number of elements required in each memory by a product and an instruction list for ``products`` products."""
    listed = aligned(INSTRUCTION_WORDS * (products + 1))
    return {name: _words(job, memory, lanes) + more
            for name, memory, more in (("gradient", Place.GRADIENTS, 0), ("weight", Place.WEIGHTS, 0),
                                       ("activations", Place.ACTIVATIONS, listed))}


def node_of(job: GemmJob, array: Array, *, products: int = 1) -> NodeConfig:
    """Configure a node with an engine and with memories for a product and ``products`` instructions."""
    words = {name: max(256, 1 << (words - 1).bit_length())
             for name, words in room(job, array.lanes, products=products).items()}
    activations = words.pop("activations")
    return NodeConfig(
        lanes=array.lanes, memories=Memories(state=256, planes=0, **words), masking=False, sparsify=False,
        programs=Programs(), compute=Compute(rows=array.rows, activations=activations, operands=array.operands))


def _node_cycles(array: Array) -> Callable[[GemmJob], int]:
    """Return a model of a product's cycles on a node, where reads pass through the engine's queues."""
    memory = Memory(latency=MemoryAccess.latency)
    return dataclasses.replace(array.model, memory=memory).cycles


class ModelCost:
    """Cycles of a command according to the engine's cycle model; they equal the cycles that the engine counts.

    The job is a product without factors. ``cycles`` returns the number of cycles of one product of a plan; by
    default, it uses :class:`~sim.golden.features.compute.gemm_cycles.GemmCycles`.
    """

    def __init__(self, job: GemmJob, array: Array, cycles: Callable[[GemmJob], int] | None = None):
        self._job = job
        self._lanes = array.lanes
        self._cycles = functools.cache(cycles or _node_cycles(array))

    def __call__(self, plan: Plan) -> int:
        walks = command_cycles(list(instructions(plan, self._job, self._lanes)), 1, lanes=self._lanes,
                               answer=MemoryAccess.latency)
        return walks + sum(self._cycles(part) for part in parts(plan, self._job))


def estimated(job: GemmJob, array: Array) -> ModelCost:
    """Return a cost function for products that are too large for the cycle model; it estimates a command's cycles."""
    return ModelCost(job, array, functools.partial(estimate, array.model))


class GatewareCost:
    """Cycles of a command, as counted by a node.

    The ring has one node, with at least the memories of :func:`node_of`. The job is a product without
    factors, executed with the same random operands for every plan.
    """

    def __init__(self, ring: Ring, job: GemmJob):
        self._ring, self._job = ring, job
        config = ring.devices[0].config
        self._lanes, self._operands = config.lanes, config.compute.operands
        self._list = _words(job, Place.ACTIVATIONS, self._lanes)
        self._known: dict[Plan, int] = {}
        #: SHA-256 of C after the first plan.
        self.digest = ""
        generator = np.random.default_rng(0)
        if self._list:
            ring.memory.write_activations([generator.standard_normal(self._list).astype(np.float32)], 0)
        ring.memory.write_weights(
            generator.standard_normal(_words(job, Place.WEIGHTS, self._lanes)).astype(np.float32))

    def __call__(self, plan: Plan) -> int:
        """Execute a plan; raises ``WrongProductError`` if C differs from that of the first plan."""
        if plan in self._known:
            return self._known[plan]
        job, ring = self._job, self._ring
        length = aligned(job.m * job.c.stride * self._lanes)
        ring.memory.write_gradients([np.full(length, _NOTHING, np.uint32)])
        words = np.concatenate(list(instructions(plan, job, self._lanes, operands=self._operands)))
        ring.memory.write_activations([np.append(words, np.zeros(-len(words) % GROUP, np.uint32))], self._list)
        outcome, = ring.compute.run_layers([self._list], [1], patience=_PATIENCE * job.m * job.k * job.n)
        digest = hashlib.sha256(ring.memory.read_gradients(length).tobytes()).hexdigest()
        if self.digest not in ("", digest):
            raise WrongProductError(f"Product {job.m} x {job.k} x {job.n} must be the same with all factors, not "
                                    f"another one with {plan}")
        self.digest = digest
        self._known[plan] = known(outcome.cycles)
        return self._known[plan]
