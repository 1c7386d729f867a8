"""Allocation of a run's vectors in the memories of a ring's nodes, and the check that they fit."""

import dataclasses

from hdl.config import NodeConfig
from hdl.group import GROUP
from host.driver.buffers import Allocator, Buffer, Buffers, errors_base
from sim.golden.ring import largest_block

__all__ = ["Allocation"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Allocation:
    """Vectors in the memories of a ring's nodes: gradients, weights, state and errors.

    Parameters
    ----------
    length : int
        Elements of the vectors.
    planes : int
        State planes of the optimizer; a node keeps its own block of each.
    packed_state : bool
        Whether state is stored as bfloat16.
    errors : bool
        Whether errors are kept behind the weights; see :meth:`host.driver.ring.Ring.sparsify`.
    """

    length: int
    planes: int = 0
    packed_state: bool = False
    errors: bool = False

    def check(self, config: NodeConfig, *, nodes: int) -> None:
        """Check that a ring of ``nodes`` nodes of this configuration has room for the vectors.

        Raises
        ------
        ValueError
            The vectors do not fit, or there can be no such ring.
        """
        config.check_ring(nodes)
        room = min(config.gradient_words, config.weight_words)
        if self.length > room:
            raise ValueError(f"Vector must have at most the {room:,} elements of a node's memories, not "
                             f"{self.length:,}: take a smaller model, or nodes with larger memories")
        if self.planes > config.state_planes:
            raise ValueError(f"Optimizer must need at most the {config.state_planes} state planes of a node, not "
                             f"{self.planes}")
        block = largest_block(self.length, nodes)
        if config.has_master and block > config.state_words:
            raise ValueError(f"Block must have at most the {config.state_words:,} elements of a node's master "
                             f"weights, not {block:,}: take more nodes, or raw weights")
        room = config.state_words * (2 if self.packed_state else 1)
        if self.planes and block > room:
            advice = "take more nodes, " + ("" if self.packed_state else "state as bfloat16, ")
            raise ValueError(f"Block must have at most the {room:,} elements of a node's state plane, not {block:,}: "
                             f"{advice}or an optimizer without state")
        end = errors_base(self.length) + self.length
        if self.errors and end > config.weight_words:
            most = config.weight_words // (2 * GROUP) * GROUP
            raise ValueError(
                f"Weights and the errors of what was not sent must take at most the {config.weight_words:,} elements "
                f"of a node's weight memory, not {end:,}: take a model of at most {most:,} "
                f"parameters, nodes with more weight memory, or no density, which sends everything")

    def place(self, allocator: Allocator, config: NodeConfig, *, nodes: int) -> Buffers:
        """Reserve buffers for the vectors beside the buffers that the allocator has given before.

        Raises
        ------
        ValueError
            There is no room between those buffers, or such a ring could never have it; nothing is reserved then.
        """
        self.check(config, nodes=nodes)
        block = largest_block(self.length, nodes)
        state = 0
        if self.planes:
            state = -(-block // 2) if self.packed_state else block
        if config.has_master:  # masters are never packed
            state = block
        wanted = {"gradients": ("gradients", self.length), "weights": ("weights", self.length)}
        if state:
            wanted["state"] = ("state", state)
        if self.errors:
            wanted["errors"] = ("weights", self.length)
        found: dict[str, Buffer] = {}
        try:
            for name, (space, words) in wanted.items():
                found[name] = allocator.allocate(space, words)
        except ValueError:
            for buffer in found.values():
                allocator.free(buffer)
            raise
        return Buffers(**found)
