"""Allocation of a run's vectors in the memories of a ring's nodes, the check that they fit, and nodes that
have room for them."""

import dataclasses
from collections.abc import Sequence

from hdl.config import Configuration, NodeConfig
from hdl.group import GROUP
from host.driver.buffers import Allocator, Buffer, Buffers, errors_base
from sim.golden.ring import largest_block

__all__ = ["WORDS", "Allocation", "distance_of", "fitted"]

#: Words of the largest memory that a node can have.
WORDS = 1 << 24


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
        Whether errors are kept behind the weights; see :meth:`host.driver.protocols.Operations.sparsify`.
    one_owner : bool
        Whether one node owns all groups, so that its block is the whole vector.
    """

    length: int
    planes: int = 0
    packed_state: bool = False
    errors: bool = False
    one_owner: bool = False

    def block(self, nodes: int) -> int:
        """Elements of the largest block."""
        return largest_block(self.length, 1 if self.one_owner else nodes)

    def check(self, config: Configuration, *, nodes: int) -> None:
        """Check that a ring of ``nodes`` nodes of this configuration has room for the vectors.

        Raises
        ------
        ValueError
            The vectors do not fit, or there can be no such ring.
        """
        config.check_ring(nodes)
        room = min(config.memories.gradient, config.memories.weight)
        if self.length > room:
            raise ValueError(f"Vector must have at most the {room:,} elements of a node's memories, not "
                             f"{self.length:,}: take a smaller model, or nodes with larger memories")
        if self.planes > config.memories.planes:
            raise ValueError(f"Optimizer must need at most the {config.memories.planes} state planes of a node, not "
                             f"{self.planes}")
        block = self.block(nodes)
        if config.weights.has_master and block > config.memories.state:
            raise ValueError(f"Block must have at most the {config.memories.state:,} elements of a node's master "
                             f"weights, not {block:,}: take more nodes, or raw weights")
        room = config.memories.state * (2 if self.packed_state else 1)
        if self.planes and block > room:
            advice = "take more nodes, " + ("" if self.packed_state else "state as bfloat16, ")
            raise ValueError(f"Block must have at most the {room:,} elements of a node's state plane, not {block:,}: "
                             f"{advice}or an optimizer without state")
        end = errors_base(self.length) + self.length
        if self.errors and end > config.memories.weight:
            most = config.memories.weight // (2 * GROUP) * GROUP
            raise ValueError(
                f"Weights and the errors of what was not sent must take at most the {config.memories.weight:,} "
                f"elements of a node's weight memory, not {end:,}: take a model of at most {most:,} "
                f"parameters, nodes with more weight memory, or no density, which sends everything")

    def place(self, allocator: Allocator, config: Configuration, *, nodes: int) -> Buffers:
        """Reserve buffers for the vectors beside the buffers that the allocator has given before.

        Raises
        ------
        ValueError
            There is no room between those buffers, or such a ring could never have it; nothing is reserved then.
        """
        self.check(config, nodes=nodes)
        block = self.block(nodes)
        state = 0
        if self.planes:
            state = -(-block // 2) if self.packed_state else block
        if config.weights.has_master:  # masters are never packed
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


def distance_of(node: NodeConfig) -> int:
    """Elements from the first copy of weights to the second, where layers have two; of inputs, labels and lists as
    well."""
    return int(node.memories.weight) // 2


def fitted(node: NodeConfig, allocations: Sequence[Allocation], *, nodes: int,
           planes: int | None = None) -> NodeConfig:
    """A simulated node whose memories have room for a run: those that it has, or the next powers of two.

    It has as many state planes as the optimizers need, since a node without its second one is simulated half as fast
    again; or ``planes``.

    Raises
    ------
    ValueError
        No node can have as much.
    """
    memories = node.memories
    wanted = {"gradient": memories.gradient, "weight": memories.weight, "state": memories.state}
    for allocation in allocations:
        length = allocation.length
        end = errors_base(length) + length if allocation.errors else length
        block = allocation.block(nodes)
        state = [block] if node.weights.has_master else []
        if allocation.planes:
            state.append(-(-block // 2) if allocation.packed_state else block)
        if max(length, end) > WORDS:
            most, what = (WORDS // 2, " and their errors") if allocation.errors else (WORDS, "")
            raise ValueError(f"Vector must have at most {most:,} elements, which{what} the largest memory of a node "
                             f"holds, not {length:,}: take a smaller model")
        needed = {"gradient": length, "weight": end, "state": max(state, default=0)}
        wanted = {name: max(words, needed[name]) for name, words in wanted.items()}
    if planes is None:
        planes = max(allocation.planes for allocation in allocations)
    rounded = {name: words if words == getattr(memories, name) else 1 << (words - 1).bit_length()
               for name, words in wanted.items()}
    return node.replace(memories={"planes": planes, **rounded})
