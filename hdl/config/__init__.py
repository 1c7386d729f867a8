"""Node configuration: :class:`NodeConfig` and the core's sections; features define their own."""

from hdl.config.node import FP32, INT16, Configuration, NodeConfig, max_nodes_for
from hdl.config.ring import Credits, Peer, RootReduce, SingleRing
from hdl.config.sections import Memories, Optimizer, Weights

__all__ = ["FP32", "INT16", "Configuration", "Credits", "Memories", "NodeConfig", "Optimizer", "Peer", "RootReduce",
           "SingleRing", "Weights", "max_nodes_for"]
