"""Configuration of a node, in sections: :class:`NodeConfig`, :class:`ServerConfig` and :class:`Int16Config`."""

from hdl.config.node import (
    FP32,
    INT16,
    Configuration,
    Int16Config,
    NodeConfig,
    ServerConfig,
    max_nodes_for,
)
from hdl.config.ring import Credits, Grid, JobSlots, Peer, Replay, RootReduce, Server, SingleRing, Slots, Worker
from hdl.config.sections import (
    Compute,
    ComputeStub,
    Int16Memories,
    Memories,
    Optimizer,
    Programs,
    ServerMemories,
    Weights,
)
from hdl.node_features import Quantization, SettableVersion, Tenants, Throttles

__all__ = ["FP32", "INT16", "Compute", "ComputeStub", "Configuration", "Credits", "Grid", "Int16Config",
           "Int16Memories", "JobSlots", "Memories", "NodeConfig", "Optimizer", "Peer", "Programs",
           "Quantization", "Replay", "RootReduce", "Server", "ServerConfig", "ServerMemories",
           "SettableVersion", "SingleRing", "Slots", "Tenants", "Throttles", "Weights", "Worker",
           "max_nodes_for"]
