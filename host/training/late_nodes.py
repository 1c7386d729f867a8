"""Nodes of a training run with late gradients, and the cycles for which they wait."""

from hdl.config import ComputeStub, Grid, NodeConfig, Replay, SingleRing
from host.driver.memory import Allocation, fitted
from host.models.digits import Dataset
from host.program.feeding import RoundProgram
from host.training.late_learning import LateConfig, Model

__all__ = ["node_for", "patience_of"]

#: Most cycles of a computation, for which other nodes wait.
MAX_COMPUTATION = 1 << 28


def node_for(length: int, *, nodes: int, node: NodeConfig | None = None, ports: int = 1) -> NodeConfig:
    """A node with rounds for vectors of a length, with the codecs and rows of ``node``.

    With two ``ports`` its memories are large enough for the blocks of a ring of two, the smallest that switching out
    may leave of ``nodes``.
    """
    base = NodeConfig() if node is None else node
    base = base.replace(
        programs={}, link=Replay(), stub=ComputeStub(quorum=True), masking=False, sparsify=False,
        topology=(SingleRing if ports == 1 else Grid)(max_nodes=base.topology.max_nodes))
    words = RoundProgram(nodes=nodes, length=length, durations=[0] * nodes).words
    base = base.replace(memories={"gradient": max(base.memories.gradient, 1 << (words - 1).bit_length())})
    return fitted(base, [Allocation(length=length, planes=1)], nodes=nodes if ports == 1 else 2)


def patience_of(data: Dataset, config: LateConfig) -> int:
    """Cycles for which a node waits for a round, at the most.

    Raises
    ------
    ValueError
        A computation takes longer than a node can wait.
    """
    longest = max(Model(data, config).durations()[0])
    if longest > MAX_COMPUTATION:
        raise ValueError(f"Computations must take at most {MAX_COMPUTATION:,} cycles, not {longest:,}: take fewer "
                         f"examples, a smaller model, or a smaller factor")
    return 4000 + 2 * longest
