"""Ring ports of a node: their names, their wires, and the connection of two ports."""

from amaranth.lib.wiring import In, Out

__all__ = ["joined", "link_signature", "port_members", "port_names", "ports_of", "wires_per_link"]


def link_signature(config):
    """Return the wires of a link between nodes of this configuration, as seen by the transmitter."""
    return config.link.wires()


def wires_per_link(signature):
    """Return the number of forward wires (for words) and the number of backward wires of a link."""
    members = signature.members.values()
    return tuple(sum(member.shape for member in members if member.flow == flow) for flow in (Out, In))


def port_names(number=0):
    """Return the member names of a node's port ``number``: its input and its output to the successor."""
    name = "ring" if number == 0 else f"ring_{number}"
    return f"{name}_i", f"{name}_o"


def port_members(config, ports=1):
    """Return the signature members for ``ports`` ports of a node."""
    members = {}
    for number in range(ports):
        before, after = port_names(number)
        members |= {before: In(link_signature(config)), after: Out(link_signature(config))}
    return members


def ports_of(node):
    """Return the ports of a node in numerical order, as (input, output) pairs."""
    ports = []
    while port_names(len(ports))[0] in node.signature.members:
        ports.append(tuple(getattr(node, name) for name in port_names(len(ports))))
    return ports


def joined(source, target):
    """Yield the assignments, all for one domain, that connect a port ``ring_o`` to a port ``ring_i``.

    In a synchronous domain, each assignment is a register, so every wire has a delay of one cycle.
    """
    for name, member in source.signature.members.items():
        here, there = getattr(source, name), getattr(target, name)
        yield there.eq(here) if member.flow == Out else here.eq(there)
