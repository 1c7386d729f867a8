"""Configuration of nodes in sections, for `node` of gradring.simulate and for gradring.open_session."""

from hdl.config import (
    Compute,
    ComputeStub,
    Credits,
    Grid,
    Int16Config,
    Int16Memories,
    JobSlots,
    Memories,
    NodeConfig,
    Optimizer,
    Peer,
    Programs,
    Quantization,
    Replay,
    RootReduce,
    Server,
    ServerConfig,
    ServerMemories,
    SettableVersion,
    SingleRing,
    Slots,
    Tenants,
    Throttles,
    Weights,
    Worker,
)

__all__ = ["Compute", "ComputeStub", "Credits", "Grid", "Int16Config", "Int16Memories", "JobSlots", "Memories",
           "NodeConfig", "Optimizer", "Peer", "Programs", "Quantization", "Replay", "RootReduce", "Server",
           "ServerConfig", "ServerMemories", "SettableVersion", "SingleRing", "Slots", "Tenants", "Throttles",
           "Weights", "Worker"]
