"""Checks of single options of a :class:`~hdl.config.NodeConfig`, which calls them."""

from hdl.compression.registry import RAW, ZERO_VALUE

__all__ = ["check_interleaved", "check_one_owner", "check_slots"]


def check_one_owner(config):
    """Raise ValueError if one node cannot own all groups."""
    if not config.one_owner or config.reduced:
        return
    if config.rounds:
        raise ValueError("Node with one_owner must have no rounds")
    if config.weight_codec != RAW or not config.adds_compressed or config.in_relay:
        raise ValueError(f"Node with one_owner must have weights as {RAW}, gradients as {ZERO_VALUE}, and role node, "
                         f"not {config.weight_codec!r}, {config.gradient_codec!r} and {config.role!r}")


def check_slots(config):
    """Raise ValueError if a node with slots lacks what they need, or has links that are not for them; or if one
    without slots has messages or two jobs."""
    if isinstance(config.jobs, bool) or config.jobs not in (1, 2):
        raise ValueError(f"Job count must be 1 or 2, not {config.jobs!r}")
    if config.reduced:
        return
    if config.jobs > 1 and (not config.slots or config.rounds or config.messages):
        raise ValueError("Node with two jobs must have slots, and no rounds and messages")
    if config.messages and (not config.slots or config.rounds):
        raise ValueError("Node with messages must have slots, and no rounds")
    if not config.slots:
        return
    if not config.has_signals:
        raise ValueError("Node with slots must have two queues and replay, which have control words")
    refused = {
        "a second port": config.ring_ports > 1, "tenants": config.tenants > 1,
        f"the role of a {config.role}": config.in_relay, "one_owner": config.one_owner,
        "throttles": config.throttles,
    }
    for name, there in refused.items():
        if there:
            raise ValueError(f"Node with slots must not have {name}")


def check_interleaved(config):
    """Raise ValueError if two segments of a collective cannot be on their way in turn."""
    if not config.interleaved or config.reduced:
        return
    if config.one_owner or config.in_relay:
        raise ValueError(f"Node with interleaved must have no one_owner, and role node, not {config.one_owner!r} and "
                         f"{config.role!r}")
    if config.ingress_segments < 3:
        raise ValueError("Ingress of a node with interleaved must hold at least 3 segments, not "
                         f"{config.ingress_segments!r}")
