"""Ports of a node to its rings: their names and wires, and the connection between two ports."""

from amaranth.lib.wiring import In, Out

__all__ = ["joined", "link_signature", "port_members", "port_names", "ports_of", "wires_per_link"]


def link_signature(config):
    """Wires of a link between nodes of this configuration, from the transmitter's point of view."""
    return config.link.wires()


def wires_per_link(signature):
    """Number of wires of a link with this signature: forward, for words, and backward."""
    members = signature.members.values()
    return tuple(sum(member.shape for member in members if member.flow == flow) for flow in (Out, In))


def port_names(number=0):
    """Names of the members of a node's port ``number``: its input, and its output to the successor."""
    name = "ring" if number == 0 else f"ring_{number}"
    return f"{name}_i", f"{name}_o"


def port_members(config, ports=1):
    """Members of a node's signature for ``ports`` ports."""
    members = {}
    for number in range(ports):
        before, after = port_names(number)
        members |= {before: In(link_signature(config)), after: Out(link_signature(config))}
    return members


def ports_of(node):
    """Ports of a node in numerical order, each as a pair: from the predecessor, and to the successor."""
    ports = []
    while port_names(len(ports))[0] in node.signature.members:
        ports.append(tuple(getattr(node, name) for name in port_names(len(ports))))
    return ports


def joined(source, target):
    """Assignments that connect a port ``ring_o`` to a port ``ring_i``, for use in one domain.

    In a synchronous domain each assignment is a register, so that every wire has a delay of one cycle.
    """
    for name, member in source.signature.members.items():
        here, there = getattr(source, name), getattr(target, name)
        yield there.eq(here) if member.flow == Out else here.eq(there)
