"""Golden nodes of a grid, for testing host code without gateware."""

from hdl.registry import section
from host.features.grid.switching import GoldenGrid
from host.transports.golden.session import open_golden
from tests.host.golden import Hooks, node_of

__all__ = ["Grid"]


class Grid(GoldenGrid):
    """Grid of golden nodes.

    Members
    -------
    golden : GoldenNodes
    hooks : Hooks
    switched : list of Plan
        Topology plans that the grid has switched to, in order.
    """

    def __init__(self, rows, columns, *, fault=lambda grid: None, **options):
        opened = open_golden(node_of(topology=section("Grid")(), **options), nodes=rows * columns, latency=16)
        super().__init__(opened.nodes, opened.devices, rows=rows, columns=columns)
        self.golden, self.switched = opened.nodes, []
        self.hooks = Hooks(self.golden, fault=lambda: fault(self), broken=lambda: None)
        self.connect()

    def switch(self, plan):
        super().switch(plan)
        self.switched.append(plan)

    def lose(self, words):
        """Simulate the loss of some words sent by the first node."""
        self.golden.counters["WORDS_RECEIVED"][1] -= words
