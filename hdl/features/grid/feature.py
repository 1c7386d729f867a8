"""Grids: nodes with a second pair of ports and a switch; see docs/ring/topology.md."""

import dataclasses
from typing import ClassVar

from hdl.config.ring import Topology
from hdl.feature import Feature
from hdl.ring.topology import SMALL_RING
from hdl.section import Integer, option

__all__ = ["FEATURE", "Grid", "GridFeature"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Grid(Topology):
    """Rings in rows and columns of a grid, over two ports, with a switch and the SWITCH operation; see
    docs/ring/topology.md.

    Parameters
    ----------
    max_nodes : int
        Maximum number of nodes in a ring, 1 to 16.
    """

    ports: ClassVar[int] = 2

    max_nodes: int = option(SMALL_RING, Integer(1, SMALL_RING))


class GridFeature(Feature):
    """Feature that adds a second pair of ports and the SWITCH operation to a node."""

    def collective(self, config):
        from hdl.features.grid.collective import GridExtension

        return GridExtension(config)


FEATURE = GridFeature()
