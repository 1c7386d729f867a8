"""Nodes of a run by its options: with other formats, links that repeat words, or a place in a grid."""

from hdl.config import Configuration, Grid, Replay, Weights
from sim.golden.codecs import RAW, ZERO_VALUE

__all__ = ["with_formats", "with_ring"]


def with_formats(node: Configuration, *, weights: str, gradients: str) -> Configuration:
    """The same node with codecs of new weights and of gradients.

    Raises
    ------
    ValueError
        Nodes cannot have them.
    """
    if not node.is_int16:
        return node.replace(weights=Weights(codec=weights), gradients=gradients)
    if (weights, gradients) != (RAW, ZERO_VALUE):
        raise ValueError(f"Nodes of 16-bit integers must have weights {RAW} and gradients {ZERO_VALUE}, not "
                         f"{weights} and {gradients}: leave --weights and --gradients out")
    return node


def with_ring(node: Configuration, *, replay: bool, grid: bool) -> Configuration:
    """The same node with links that repeat words, or in a grid.

    Raises
    ------
    ValueError
        Nodes have no neighbours.
    """
    if node.is_int16:
        raise ValueError("Nodes of 16-bit integers must be alone, without links that fail: leave --topology and "
                         "--faults out")
    return node.replace(**{"link": Replay(ingress=node.link.ingress)} if replay else {},
                        **{"topology": Grid(max_nodes=node.topology.max_nodes)} if grid else {})
