"""Nodes of a grid: docs/topology."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from host.feature import Bits, Feature

if TYPE_CHECKING:
    from host.driver.device import Device
    from host.driver.protocols import VectorRing
    from host.driver.results import Cycles
    from host.driver.words import Vector
    from host.features.grid.grid import Plan
    from host.features.grid.reconfiguration import ReconfigurationPlan, Rings
    from host.features.grid.reference import GridReference
    from host.features.grid.switching import GridNodes
    from host.run.sections import Ring as RingSection
    from host.transports.golden.nodes import GoldenNodes

__all__ = ["FEATURE", "GridFeature"]


class GridFeature(Feature):
    """Rings that are reconfigured during a run."""

    def grid_nodes(self, devices: "Sequence[Device]", *, golden: "GoldenNodes | None", rows: int, columns: int,
                   timeout: int) -> "GridNodes":
        from host.features.grid.switching import GoldenGrid, GridNodes

        if golden is not None:
            return GoldenGrid(golden, devices, rows=rows, columns=columns)
        return GridNodes(devices, rows=rows, columns=columns, timeout=timeout)

    def reference(self, ring: "VectorRing", plan: "Plan | None", weights: "Vector", planes: int,
                  centroids: Bits | None) -> "GridReference | None":
        from host.features.grid.grid import Shape
        from host.features.grid.reference import GridReference

        if plan is None or plan.shape is not Shape.GRID:
            return None
        return GridReference(ring, plan, weights, planes, centroids)

    def stages(self, grid: "GridNodes", reconfiguration: "ReconfigurationPlan",
               clock: "Callable[[], Cycles]") -> "Rings":
        from host.features.grid.reconfiguration import Rings

        return Rings(grid, reconfiguration, clock=clock)

    def size(self, topology: str) -> tuple[int, int]:
        from host.features.grid.reconfiguration import grid_size

        return grid_size(topology)

    def reconfiguration(self, ring: "RingSection", gradients: str) -> "ReconfigurationPlan":
        from host.features.grid.reconfiguration import reconfiguration_plan

        return reconfiguration_plan(ring, gradients)


FEATURE = GridFeature()
