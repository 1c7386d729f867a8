"""Setup of a command for the datapath."""

from amaranth.lib import data

from hdl.optimizer.rules import settings_layout
from hdl.ring.order import path_layout, pitches, plan_layout
from hdl.ring.parts.part import fetch_setup
from hdl.ring.parts.registry import parts as node_parts
from hdl.ring.sequences import sequences_of
from hdl.throttle import RATE_BITS

__all__ = ["longest_vector", "paths", "setup_layout"]


def longest_vector(config):
    """Maximum number of elements in a command."""
    return max(config.memories.gradient, config.memories.weight)


def paths(config, parts=None):
    """Paths of all sequences of the parts' instructions, by their names in :func:`setup_layout`: functions that
    return a :class:`~hdl.ring.sequences.Path`. By default parts come from :func:`hdl.ring.parts.registry.parts`."""
    instructions = [instruction for part in (node_parts(config) if parts is None else parts)
                    for instruction in part.instructions]
    return {f"{sequence.name}_{phase}": make for sequence in sequences_of(instructions)
            for phase, make in sequence.paths.items()}


def setup_layout(config, parts=None):
    """Layout of a command for a datapath of these parts; it is stable while the command runs."""
    elements = longest_vector(config)
    return data.StructLayout(
        {
            # The scatter-reduce ends in the optimizer, and new weights are gathered.
            "fused": 1,
            # The scatter-reduce ends in the gradient memory. With neither, weights are gathered from their memory.
            "sum": 1,
            # New weights are gathered, through a codec if there is one; a broadcast moves weights uncoded.
            "coded": 1,
            # Sums are gathered after the scatter-reduce.
            "gather": 1,
            # The ring has one node.
            "alone": 1,
            # Even the first step of a gather forwards a packet; this bit and the next are for broadcasts.
            "relay": 1,
            # Even the packets of the last step of a gather are forwarded.
            "pass_on": 1,
            # A word of state holds two elements.
            "packed_state": 1,
            # The sum passes along a chain of workers to a server; a node is the first of a chain, or its end.
            **({"chain": 1} if config.role.streams else {}),
            # All groups belong to one node, and the sum passes along a chain to it.
            **({"root_reduce": 1} if config.role.root_reduce else {}),
            **({"opens": 1, "closes": 1} if config.has_chains else {}),
            # The format of a BROADCAST, and the entry that a server counts.
            **fetch_setup(config),
            # Segments of both phases are interleaved.
            **({"both": 1} if config.role.interleaved else {}),
            # Numbers of nodes.
            "rank": 8,
            "predecessor": 8,
            "successor": 8,
            # Fields of every packet's header.
            "epoch": 8,
            "collective": 16,
            # First rows of the vector, and of the own block's state.
            "gradient_row": range(config.memories.gradient // config.lanes),
            "weight_row": range(config.memories.weight // config.lanes),
            "state_row": range(config.memories.state // config.lanes),
            # The partition of the vector into blocks.
            "plan": plan_layout(elements, config.topology.max_nodes),
            # Groups of memory from one group of a block to the next.
            "pitch": pitches(config.topology.max_nodes),
            # The path of each sequence.
            **dict.fromkeys(paths(config, parts), path_layout(elements, config.topology.max_nodes)),
            # Scalars of the optimizer.
            "settings": settings_layout(),
            # Rate of the optimizer's throttle, in a node with throttles.
            "pace": RATE_BITS,
        }
    )
