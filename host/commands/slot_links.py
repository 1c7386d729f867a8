"""Option `--links` of `gradring train`: links on credit, or in slots of a TIME that all nodes have alike."""

from typing import Annotated

import typer

from hdl.choices import suggestion
from hdl.config import NodeConfig, Peer, Slots
from host.transports.session import TransportName

__all__ = ["CREDITS", "SLOTS", "LinksOption", "with_links"]

CREDITS, SLOTS = "credits", "slots"

LinksOption = Annotated[str, typer.Option(
    help=f"When nodes send: on {CREDITS} of their successors, or in {SLOTS} of a common TIME.",
    metavar=f"{CREDITS}|{SLOTS}")]


def with_links(links: str, node: NodeConfig, *, transport: TransportName, **others: object) -> NodeConfig:
    """Nodes with such links; raises ``ValueError`` if the option is not for such a run.

    Parameters
    ----------
    links : str
    node : NodeConfig
    transport : TransportName
    others
        Other options that a run with slots must not have, by name; None where they were not given.
    """
    if links not in (CREDITS, SLOTS):
        raise ValueError(f"Links must be {CREDITS} or {SLOTS}, not {links!r}{suggestion((CREDITS, SLOTS), links)}")
    if links == CREDITS:
        if transport is TransportName.MESSAGES:
            raise ValueError(f"Transport messages must be with --links {SLOTS}, not {links!r}")
        return node
    used = [name for name, value in others.items() if value is not None]
    if used:
        raise ValueError(f"Option --links {SLOTS} is for a run without --{used[0].replace('_', '-')}: leave it out")
    if transport not in (TransportName.VERILATED, TransportName.MESSAGES, TransportName.PYSIM):
        raise ValueError(f"Option --links {SLOTS} is for transports verilated, messages and pysim, not "
                         f"{transport.value}: leave it out")
    return node.replace(link=Slots(ingress=15, messages=transport is TransportName.MESSAGES), programs={},
                        role=Peer(interleaved=True))
