"""Nodes of a run by its options: with other formats, links that repeat words or send in slots of a common time, or a
place in a grid.
"""

from hdl.config import Configuration, Peer, Weights
from hdl.registry import section
from host.run.sections import SLOTS
from sim.golden.codecs import RAW, ZERO_VALUE

__all__ = ["with_formats", "with_links", "with_ring"]


def with_formats(node: Configuration, *, weights: str, gradients: str) -> Configuration:
    """The same node with codecs of new weights and of gradients; ``ValueError`` if nodes cannot have them."""
    if node.has_ring:
        return node.replace(weights=Weights(codec=weights), gradients=gradients)
    if (weights, gradients) != (RAW, ZERO_VALUE):
        raise ValueError(f"Nodes of 16-bit integers must have weights {RAW} and gradients {ZERO_VALUE}, not "
                         f"{weights} and {gradients}: leave --weights and --gradients out")
    return node


def with_ring(node: Configuration, *, replay: bool, grid: bool) -> Configuration:
    """The same node with links that repeat words, or in a grid; ``ValueError`` if nodes have no neighbours."""
    if not node.has_ring:
        raise ValueError("Nodes of 16-bit integers must be alone, without links that fail: leave --topology and "
                         "--faults out")
    return node.replace(**{"link": section("Replay")(ingress=node.link.ingress)} if replay else {},
                        **{"topology": section("Grid")(max_nodes=node.topology.max_nodes)} if grid else {})


def with_links(links: str, node: Configuration, *, messages: bool = False) -> Configuration:
    """The same node with links on credit, or in slots, which may have room for messages."""
    if links != SLOTS:
        return node
    slots = section("Slots")(ingress=15, messages=messages)
    return node.replace(link=slots, programs={}, role=Peer(interleaved=True))
