"""Nodes that send in slots of a common time."""

from hdl.config import Configuration, Peer, Slots
from host.run.sections import SLOTS

__all__ = ["with_links"]


def with_links(links: str, node: Configuration, *, messages: bool = False) -> Configuration:
    """The same node with links on credit, or in slots, which may have room for messages."""
    if links != SLOTS:
        return node
    return node.replace(link=Slots(ingress=15, messages=messages), programs={}, role=Peer(interleaved=True))
