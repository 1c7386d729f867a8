"""Configurations of nodes: the base class, and the configuration for every role except a server."""

import dataclasses
import functools
import hashlib
from typing import Any, ClassVar

from hdl.compression.registry import GRADIENT_CODECS, WEIGHT_CODECS, ZERO_VALUE
from hdl.config.couplings import check_couplings
from hdl.config.ring import Credits, Link, Peer, Role, RootReduce, SingleRing, Topology
from hdl.config.sections import GradientCodec, Memories, Optimizer, Weights
from hdl.memory_map import memory_map
from hdl.registry import FEATURES, feature
from hdl.ring.header import LONGEST_SEGMENT
from hdl.ring.topology import MAX_NODES
from hdl.section import Flag, OneOf, Part, Parts, Section, option

__all__ = ["FP32", "INT16", "SEGMENTS", "Configuration", "Coupled", "NodeConfig", "max_nodes_for"]

#: Formats of the elements in memory.
FP32, INT16 = "fp32", "int16"

#: Allowed segment lengths in elements: powers of two that fit in a packet's length field.
SEGMENTS = tuple(32 << power for power in range((LONGEST_SEGMENT // 32).bit_length()))


class Configuration(Section):
    """Base class of all node configurations, with the properties that they share and default values for these.

    Members
    -------
    element : str
        Format of the elements in memory: :data:`FP32` or :data:`INT16`.
    has_ring, is_server : bool
        Whether the node has links and the core's engines; whether it keeps weights and state in a far memory.
    pipelined_port : bool
        Whether the host port transfers one word per cycle, with registers at both ends.
    """

    element: ClassVar[str] = FP32
    has_ring: ClassVar[bool] = True
    pipelined_port: ClassVar[bool] = True
    is_server: ClassVar[bool] = False
    lanes: Any
    segment: Any
    memories: Any
    topology: Any = SingleRing()
    link: Any = Credits()
    role: Any = Peer()
    weights: Any = Weights()
    gradients: Any = ZERO_VALUE
    masking: Any = False
    sparsify: Any = False
    programs: Any = None
    compute: Any = None
    stub: Any = None
    features: Any = ()

    @functools.cached_property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the node's features and of all features they require, in registry order."""
        names = dict.fromkeys(self.needs())
        waiting = list(names)
        while waiting:
            required = [name for name in feature(waiting.pop()).requires if name not in names]
            names.update(dict.fromkeys(required))
            waiting += required
        return tuple(name for name in FEATURES if name in names)

    def has(self, name: str) -> bool:
        """Whether the node has the feature with this name in :data:`hdl.registry.FEATURES`."""
        return name in self.feature_names

    def check_ring(self, nodes: int) -> None:
        """Raise ValueError if ``nodes`` nodes of this configuration cannot form a ring."""
        most = self.topology.max_nodes
        if isinstance(nodes, bool) or not isinstance(nodes, int) or not 1 <= nodes <= most:
            possible = f"between 1 and {most} nodes" if most > 1 else "1 node"
            raise ValueError(f"Ring must have {possible}, not {nodes!r}")

    @property
    def queues(self) -> int:
        """Number of command queues: 1, 2 (compute and communication) or 3 (compute, communication and moves)."""
        return 1 if self.programs is None else 2 + self.programs.move_queue

    @property
    def far_words(self) -> int:
        """Capacity of the far memory in elements, or 0 if the node has none."""
        return 0 if self.compute is None else self.compute.far

    @property
    def has_chains(self) -> bool:
        """Whether nodes can form a chain, along which a whole vector is summed as a single block."""
        return self.role.streams or self.role.root_reduce

    @property
    def has_quorum(self) -> bool:
        """Whether the node can perform quorum updates."""
        return self.stub is not None and self.stub.quorum

    @property
    def serves_formats(self) -> bool:
        """Whether the node is a server that can broadcast weights in several formats; it then has a table of counts
        of saturated weights and of weights rounded to zero."""
        return self.is_server and self.role.broadcast_formats

    @property
    def far_bases(self) -> dict[str, int]:
        """Start addresses of the memory spaces in the far memory, keyed by name; only a server has any."""
        bases, first = {}, 0
        if self.is_server:
            for space in self.memory_map:
                if space.name == "weights" or space.region == "state":
                    bases[space.name] = first
                    first += space.words
        return bases

    @property
    def has_signals(self) -> bool:
        """Whether the node exchanges control words with other nodes, to share progress and activity.

        A node with three queues has none: a command has two wait conditions, and both are needed for the other two
        queues of the same node.
        """
        return self.link.replay and self.queues == 2

    @property
    def has_banks(self) -> bool:
        """Whether the node has a second bank of programs."""
        return self.programs is not None and self.programs.banks > 1

    @property
    def codebook_words(self) -> int:
        """Number of words in the weight codec's codebook memory; 0 if the codec has no codebook."""
        return WEIGHT_CODECS[self.weights.codec].codebook_words

    @property
    def adds_compressed(self) -> bool:
        """Whether gradients are added in compressed (zero-value) form."""
        return GRADIENT_CODECS[self.gradients].sums_coded

    @property
    def adds_integers(self) -> bool:
        """Whether gradients are added as integers, scaled by exponents on which all nodes agree."""
        return GRADIENT_CODECS[self.gradients].agreed

    @property
    def has_residual(self) -> bool:
        """Whether the node keeps residuals. It does if its gradient codec loses information, unless gradients are
        added as integers."""
        codec = GRADIENT_CODECS[self.gradients]
        return not codec.exact and not codec.agreed

    @property
    def memory_map(self):
        """Names, numbers and sizes of the node's memories: a :class:`~hdl.memory_map.MemoryMap`."""
        return memory_map(self)

    @property
    def hash(self) -> int:
        """32-bit digest of the text of all sections, which the driver compares with its own."""
        return int.from_bytes(hashlib.sha256(repr(self).encode()).digest()[:4], "little")


class Coupled(Configuration):
    """Base class of configurations whose sections constrain each other."""

    def check(self) -> None:
        fields = {item.name: getattr(self, item.name) for item in dataclasses.fields(self)}  # type: ignore[arg-type]
        possible = next(item.metadata["domain"].types.names
                        for item in dataclasses.fields(self)  # type: ignore[arg-type]
                        if item.name == "features")
        features = {name: next((part for part in self.features if type(part).__name__ == name), None)
                    for name in possible}
        check_couplings(fields | features, self.feature_names)


@dataclasses.dataclass(frozen=True, kw_only=True)
class NodeConfig(Coupled):
    """Parameters of one accelerator node.

    :func:`hdl.config.couplings.all_couplings` lists the values of different sections that are incompatible.

    Parameters
    ----------
    lanes : int
        Number of elements in a memory row, which is accessed in one cycle: 1, 2, 4 or 8.
    segment : int
        Number of elements in a ring segment and in an optimizer burst: 32 times a power of two, at most 512.
    topology : SingleRing or Grid
    memories : Memories
    optimizer : Optimizer
    weights : Weights
    gradients : str
        Codec for gradients and their sums: a key of :data:`hdl.compression.registry.GRADIENT_CODECS`. Gradients in
        ``zero_value`` and ``raw`` are added in coded form, and in ``sum32`` and ``sum16`` as integers. With any other
        codec they are decoded, added and encoded again at every hop, and the node has one more memory, of
        ``memories.gradient`` elements, for the resulting error, which is added to the next gradients.
    masking : bool
        Whether the node has the operation MASK: docs/masking/masking.md.
    sparsify : bool
        Whether the node has the operation SPARSIFY: docs/masking/masking.md.
    link : Credits, Replay, Slots or JobSlots
    role : Peer, RootReduce or Worker
    programs : Programs, optional
        Programs and two or more command queues; if omitted, the node has one queue and no programs.
    compute : Compute, optional
    stub : ComputeStub, optional
    features : tuple
        Any of :class:`Quantization`, :class:`SettableVersion`, :class:`Tenants` and :class:`Throttles`.
    """

    lanes: int = option(4, OneOf(1, 2, 4, 8))
    segment: int = option(256, OneOf(*SEGMENTS))
    topology: Topology = option(SingleRing(), Part(SingleRing, field="topology"))
    memories: Memories = option(Memories(), Part(Memories))
    optimizer: Optimizer = option(Optimizer(), Part(Optimizer))
    weights: Weights = option(Weights(), Part(Weights))
    gradients: str = option(ZERO_VALUE, GradientCodec())
    masking: bool = option(True, Flag())
    sparsify: bool = option(True, Flag())
    link: Link = option(Credits(), Part(Credits, field="link"))
    role: Role = option(Peer(), Part(Peer, RootReduce, field="role", among=("Worker",)))
    programs: Section | None = option(None, Part(field="programs", optional=True), off=None)
    compute: Section | None = option(None, Part(field="compute", optional=True), off=None)
    stub: Section | None = option(None, Part(field="stub", optional=True), off=None)
    features: tuple[Section, ...] = option((), Parts(field="features"), off=())


def max_nodes_for(nodes: int) -> int:
    """Return ``max_nodes`` for a ring of ``nodes`` nodes: the default if that is large enough, else the maximum."""
    return SingleRing.max_nodes if 1 <= nodes <= SingleRing.max_nodes else MAX_NODES
