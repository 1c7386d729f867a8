"""Golden nodes of a grid."""

from collections.abc import Sequence

from host.driver.device import Device
from host.features.grid.grid import Plan
from host.features.grid.switching import GridNodes
from host.transports.golden.nodes import GoldenNodes

__all__ = ["GoldenGrid"]


class GoldenGrid(GridNodes):
    """Golden nodes of a grid."""

    def __init__(self, golden: GoldenNodes, devices: Sequence[Device], *, rows: int, columns: int):
        super().__init__(devices, rows=rows, columns=columns)
        self._golden = golden

    def switch(self, plan: Plan) -> None:
        super().switch(plan)
        rings: dict[int, list[Sequence[int]]] = {}
        for nodes in plan.rings:
            done = {node for row in rings.get(0, []) for node in row}
            port = 0 if plan.settings[nodes[0]].seats[0] is not None and not done.issuperset(nodes) else 1
            rings.setdefault(port, []).append(nodes)
        self._golden.rings = rings
