"""Configurations of nodes for bit flip tests, with short segments and a single port."""

from hdl.config import Memories, NodeConfig, Optimizer, SingleRing, Weights

#: Number of nodes in the ring.
NODES = 4

_MEMORIES = Memories(gradient=1024, weight=1024, state=512, planes=0)

CONFIGS = {
    "sum32": NodeConfig(segment=64, topology=SingleRing(max_nodes=4), memories=_MEMORIES, gradients="sum32",
                        masking=False, sparsify=False),
    "sum16": NodeConfig(lanes=2, segment=32, topology=SingleRing(max_nodes=4), memories=_MEMORIES,
                        optimizer=Optimizer(lanes=2), weights=Weights(codec="bf16"), gradients="sum16",
                        masking=False, sparsify=False),
}
