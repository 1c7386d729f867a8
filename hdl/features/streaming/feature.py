"""Feature of layer streaming, from a server to workers; see docs/streaming.md."""

import dataclasses
from collections.abc import Iterator
from typing import ClassVar

from hdl.config.coupling import Coupling
from hdl.config.node import SEGMENTS, Coupled
from hdl.config.ring import Credits, Link, Role, SingleRing, Topology
from hdl.config.sections import Memories, Optimizer
from hdl.feature import Feature
from hdl.section import Flag, OneOf, Part, Parts, Section, Words, option

__all__ = ["FEATURE", "Server", "ServerConfig", "ServerMemories", "StreamingFeature", "Worker"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Worker(Role):
    """Role of a worker, which receives layers from a server and returns gradients by PUSH; see docs/streaming.md.

    Parameters
    ----------
    broadcast_formats : bool
        Whether BROADCAST supports formats for weights: docs/ring/collective/formats.md.
    """

    streams: ClassVar[bool] = True

    broadcast_formats: bool = option(False, Flag())

    def needs(self) -> Iterator[str]:
        yield from super().needs()
        if self.broadcast_formats:
            yield "mx"



@dataclasses.dataclass(frozen=True, kw_only=True)
class Server(Role):
    """Role of the server, which keeps weights and state for the workers in far memory; see docs/streaming.md.

    Parameters
    ----------
    broadcast_formats : bool
        Whether BROADCAST supports formats for weights, and counts weights that saturate or become zero:
        docs/ring/collective/formats.md.
    """

    streams: ClassVar[bool] = True

    broadcast_formats: bool = option(False, Flag())

    def needs(self) -> Iterator[str]:
        yield from super().needs()
        yield "far"
        if self.broadcast_formats:
            yield "mx"



@dataclasses.dataclass(frozen=True, kw_only=True)
class ServerMemories(Memories):
    """Memories of a server, which keeps weights and state in far memory.

    Parameters
    ----------
    gradient, weight, state, planes : int
        As in :class:`Memories`.
    far : int
        Capacity of the far memory in elements, enough for weights and state: docs/far.md.
    """

    far: int = option(32768, Words())

    @property
    def served(self):
        """Total number of words of weights and state."""
        return self.weight + self.planes * self.state

    def check(self):
        if self.far < self.served:
            raise ValueError(f"ServerMemories.far must hold weights and state, {self.served:,} words, not "
                             f"{self.far:,}")



@dataclasses.dataclass(frozen=True, kw_only=True)
class ServerConfig(Coupled):
    """Parameters of a layer server, which keeps weights and state in a far memory, and does not compute, mask or
    infer; see docs/streaming.md.

    Parameters
    ----------
    lanes, segment : int
        As in :class:`NodeConfig`.
    topology : SingleRing or Grid
    memories : ServerMemories
    optimizer : Optimizer
    link : Credits or Replay
    role : Server
    programs : Programs, optional
    stub : ComputeStub, optional
    features : tuple
        Any of :class:`SettableVersion`, :class:`Tenants` and :class:`Throttles`.
    """

    is_server: ClassVar[bool] = True

    lanes: int = option(4, OneOf(1, 2, 4, 8))
    segment: int = option(256, OneOf(*SEGMENTS))
    topology: Topology = option(SingleRing(), Part(SingleRing, field="topology"))
    memories: ServerMemories = option(ServerMemories(), Part(ServerMemories))
    optimizer: Optimizer = option(Optimizer(), Part(Optimizer))
    link: Link = option(Credits(), Part(Credits, field="link", among=("Replay",)))
    role: Server = option(Server(), Part(Server))
    programs: Section | None = option(None, Part(field="programs", optional=True), off=None)
    stub: Section | None = option(None, Part(field="stub", optional=True), off=None)
    features: tuple[Section, ...] = option(
        (), Parts(field="features", among=("SettableVersion", "Tenants", "Throttles")), off=())

    @property
    def far_words(self) -> int:
        """Capacity in elements of the far memory."""
        return self.memories.far


class StreamingFeature(Feature):
    """Feature that adds the PUSH operation, and servers with weights and state in far memory."""

    couplings = (
        Coupling(sections=("role", "lanes"), clash=lambda role, lanes: role.broadcast_formats and lanes < 2,
                 rule="role.broadcast_formats needs lanes of 2, 4 or 8",
                 reason="encoders for several formats need rows of several elements",
                 advice="raise lanes or leave broadcast_formats out"),
        Coupling(sections=("role", "weights"),
                 clash=lambda role, weights: role.streams and weights.has_master,
                 rule="role Worker needs weights.codec raw and no weights.master",
                 reason="the server keeps the master weights and selects the format of broadcast weights",
                 advice="leave weights or the role out"),
    )

    def parts(self, config):
        from hdl.features.streaming import fetch

        part = fetch.describe(config)
        return () if part is None else (part,)

    def collective(self, config):
        from hdl.features.streaming.collective import StreamingExtension

        return StreamingExtension(config)


FEATURE = StreamingFeature()
