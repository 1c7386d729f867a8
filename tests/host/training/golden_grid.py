"""A grid of golden models in place of nodes with two ports."""

import dataclasses

import numpy as np

from host.driver.results import Outcome
from host.topology.grid import Shape, Topology
from sim.golden import grid as golden_grid
from sim.golden import ring as golden
from tests.host.training.golden_ring import GoldenRing


def patterns(values):
    """Bit patterns of a vector, in a copy; it may have them already."""
    return values.copy() if values.dtype == np.uint32 else golden.bits(values).copy()


class GoldenRings(GoldenRing):
    """Rings of a plan whose nodes are golden models; nothing that has not been written is a number."""

    def __init__(self, plan, **options):
        super().__init__(len(plan.order), **options)
        self.plan = plan
        self.clear()

    def require(self, allocation):
        if not hasattr(self, "packed_state"):
            super().require(allocation)
            for vectors in (self.residuals, self.errors, self.weights, self.master):
                vectors[:] = 0x7fc0_0000

    def write_weights(self, weights, to=None):
        """Masters are as they were."""
        self.weights[:] = patterns(weights)
        if self.weight_codec == "raw":
            self.master = patterns(weights)

    def write_master(self, weights, to=None):
        self.master = patterns(weights)

    def write_state(self, state, plane, to=None, *, packed_state):
        super().write_state(state, plane, packed_state=packed_state)

    def write_errors(self, errors, to=None):
        super().write_errors([patterns(row) for row in errors])

    def write_residual(self, residuals, to=None):
        super().write_residual([patterns(row) for row in residuals])

    def fused_update(self, length):
        if self.plan.shape is Shape.FLAT:
            return super().fused_update(length)
        numbers = dataclasses.asdict(self.optimizer)
        packed_state = numbers.pop("packed_state")
        row, column = self.plan.settings[self.plan.order[0]].seats
        shape = (column.size, row.size, -1)
        update = golden_grid.fused_update(
            self.gradients.reshape(shape), self.master, self.state, golden.settings(**numbers),
            packed_state=packed_state, weight_codec=self.codec, gradient_codec=self.sums,
            residuals=self.residuals.reshape(shape))
        self.master, self.state = update.master, update.state
        self.weights[:] = update.weights
        self.words += update.words.reshape(-1)
        self.steps += 1
        self.fault(self)
        return Outcome(cycles=100, local_nan=(), not_finite=())


class GoldenGrid:
    """All nodes of a grid.

    Members
    -------
    switched : list of Plan
        Plans that switches were set to.
    lost : int
        Words that were sent and not received.
    """
    counters = property(lambda self: self)

    def __init__(self, rows, columns, **options):
        self.grid = Topology(rows, columns)
        self.options = options
        self.switched = []
        self.lost = 0

    def switch(self, plan):
        self.switched.append(plan)

    def ring(self, plan):
        assert plan is self.switched[-1]
        return GoldenRings(plan, **self.options)

    rings = ring

    def read(self):
        return [{"WORDS_SENT": 1000 + node, "WORDS_RECEIVED": 1000 + node - (self.lost if node else 0)}
                for node in range(self.grid.nodes)]

    def clear(self):
        self.lost = 0


def trained(ring):
    """Bits of all that the nodes of a ring keep."""
    return b"".join(np.ascontiguousarray(one).tobytes() for one in (ring.weights, ring.master, *ring.state))
