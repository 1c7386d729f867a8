"""Setup of the collective datapath for a command."""

from amaranth.lib import data

from hdl.optimizer.rules import settings_layout
from hdl.ring.order import path_layout, pitches, plan_layout
from hdl.ring.parts.part import fetch_setup, sum_setup
from hdl.ring.parts.registry import parts as node_parts
from hdl.ring.sequences import sequences_of
from hdl.throttle import RATE_BITS

__all__ = ["longest_vector", "paths", "setup_layout"]


def longest_vector(config):
    """Return the maximum length, in elements, of a vector in a command."""
    return max(config.memories.gradient, config.memories.weight)


def paths(config, parts=None):
    """Return functions that compute the :class:`~hdl.ring.sequences.Path` of each sequence in each phase, keyed by
    field name in :func:`setup_layout`. By default, the parts are from :func:`hdl.ring.parts.registry.parts`."""
    instructions = [instruction for part in (node_parts(config) if parts is None else parts)
                    for instruction in part.instructions]
    return {f"{sequence.name}_{phase}": make for sequence in sequences_of(instructions)
            for phase, make in sequence.paths.items()}


def setup_layout(config, parts=None):
    """Layout of a command's setup for a datapath with these parts; stable while the command runs."""
    elements = longest_vector(config)
    return data.StructLayout(
        {
            # The scatter-reduce ends in the optimizer, and the new weights are gathered.
            "fused": 1,
            # The scatter-reduce ends in the gradient memory. Without `fused` and `sum`, stored weights are gathered.
            "sum": 1,
            # New weights are gathered, using the node's codec, if any; a broadcast transfers weights uncoded.
            "coded": 1,
            # In an all-reduce, the sums are gathered after the scatter-reduce.
            "gather": 1,
            # The ring has one node.
            "alone": 1,
            # For broadcasts: even the first step of the all-gather forwards a packet.
            "relay": 1,
            # For broadcasts: even the packets of the last step of the all-gather are forwarded.
            "pass_on": 1,
            # Each word of state holds two elements.
            "packed_state": 1,
            # The sum passes along a chain of workers to a server; this node is the first in the chain, or at its end.
            **({"chain": 1} if config.role.streams else {}),
            # One node owns all groups, and the sum passes along a chain to that node.
            **({"root_reduce": 1} if config.role.root_reduce else {}),
            **({"opens": 1, "closes": 1} if config.has_chains else {}),
            # Format of a BROADCAST, and the entry in a server's count table that the command updates.
            **fetch_setup(config),
            **sum_setup(config),
            # Segments of both phases are interleaved.
            **({"both": 1} if config.role.interleaved else {}),
            # Ranks of this node, its predecessor and its successor.
            "rank": 8,
            "predecessor": 8,
            "successor": 8,
            # Fields in the header of every packet.
            "epoch": 8,
            "collective": 16,
            # First rows of the gradients and weights, and first row of the state of the node's own block.
            "gradient_row": range(config.memories.gradient // config.lanes),
            "weight_row": range(config.memories.weight // config.lanes),
            "state_row": range(config.memories.state // config.lanes),
            # The partition of the vector into blocks.
            "plan": plan_layout(elements, config.topology.max_nodes),
            # Distance in memory between successive groups of a block, in groups.
            "pitch": pitches(config.topology.max_nodes),
            # Path of each sequence in each phase.
            **dict.fromkeys(paths(config, parts), path_layout(elements, config.topology.max_nodes)),
            # Scalar settings of the optimizer.
            "settings": settings_layout(),
            # Rate of the optimizer's throttle, in nodes with throttles.
            "pace": RATE_BITS,
        }
    )
