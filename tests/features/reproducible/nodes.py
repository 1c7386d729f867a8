"""Configurations of nodes that sum integers, for simulated rings."""

from hdl.config import Memories, NodeConfig, Optimizer, Weights

#: Rows of four elements; packets of up to two words of exponents.
WIDE = NodeConfig(segment=256, memories=Memories(gradient=4096, weight=4096, state=4096, planes=1),
                  gradients="sum32", masking=False, sparsify=False)
#: Rows of two elements, which are the elements of a word, short segments, and a weight codec.
NARROW = NodeConfig(lanes=2, segment=32, memories=Memories(gradient=2048, weight=2048, state=2048, planes=0),
                    optimizer=Optimizer(lanes=2), weights=Weights(codec="bf16"), gradients="sum16", masking=False,
                    sparsify=False)

CONFIGS = {"sum32": WIDE, "sum16": NARROW}
