"""Tenants of a node, as seen by the host port and the queues: command owners and memory windows."""

from amaranth.lib import data

from hdl.control.engine import FAR
from hdl.control.registers import register
from hdl.guard import window_layout
from hdl.memory_map import MAX_SPACES, MemorySpace

__all__ = ["FAR_SPACE", "MAX_TENANTS", "PRIVILEGED", "TENANT_BITS", "asked_layout", "found_layout", "tenancy_layout",
           "windowed"]

#: Number of the privileged host, which needs no window; tenants are numbered from the next number on.
PRIVILEGED = 0

#: Number of distinct tenant numbers in gateware; one of them is never assigned.
MAX_TENANTS = 3

#: Number of the far memory in register WINDOW. The host port cannot access it, so requests do not have this space.
FAR_SPACE = MAX_SPACES - 1

TENANT_BITS = MAX_TENANTS.bit_length()


def windowed(config):
    """Memory spaces that have windows: all spaces except the trace, which only the privileged host reads. They
    include the far memory of a node that moves activations there. A server's far memory has its own spaces."""
    spaces = tuple(space for space in config.memory_map if space.name != "trace")
    if not config.far_words or config.is_server:
        return spaces
    return (*spaces, MemorySpace(name=FAR, number=FAR_SPACE, words=config.far_words, title="far memory", region=FAR))


def tenancy_layout(config):
    """The tenant that a node is running, and its window in each memory space."""
    return data.StructLayout({"tenant": TENANT_BITS, "windows": data.StructLayout(
        {space.name: window_layout(space.words) for space in windowed(config)})})


def asked_layout():
    """Request for a tenant's window in a memory space."""
    return data.StructLayout({"tenant": TENANT_BITS, "space": 4, "valid": 1})


def found_layout():
    """Layout of a memory window: base and size, in groups of elements."""
    width = register("WINDOW_BOUND").width
    return data.StructLayout({"base": width, "size": width})
