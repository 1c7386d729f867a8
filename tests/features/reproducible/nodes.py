"""Configurations of nodes that sum integers, for simulated rings."""

from hdl.config import Memories, NodeConfig, Optimizer, Weights
from tests.host import rings

#: Rows of two elements, which are the elements of a word, short segments, and a weight codec.
NARROW = NodeConfig(lanes=2, segment=32, memories=Memories(gradient=2048, weight=2048, state=2048, planes=0),
                    optimizer=Optimizer(lanes=2), weights=Weights(codec="bf16"), gradients="sum16", masking=False,
                    sparsify=False)

CONFIGS = {"sum32": rings.CONFIGS["sums"], "sum16": NARROW}
