"""Configuration of one node."""

import dataclasses
import hashlib

from hdl.choices import choice_error
from hdl.compression.registry import GRADIENT_CODECS, RAW, WEIGHT_CODECS, ZERO_VALUE
from hdl.compute.operands import FP32 as OPERANDS_FP32
from hdl.compute.operands import MOST_BLOCK_UNITS, operands_of
from hdl.memory_map import memory_map
from hdl.option_checks import check_interleaved, check_one_owner, check_slots
from hdl.ring.header import LONGEST_SEGMENT, MOST_SEGMENTS
from hdl.ring.topology import MOST_NODES, SMALL_RING

__all__ = ["FP32", "INT16", "ROLES", "NodeConfig", "nodes_max_for"]

#: Elements of a full node, and of a reduced one.
FP32, INT16 = "fp32", "int16"

#: What a node is for: an equal of the others, or in a relay a worker or the server.
NODE, WORKER, SERVER = ROLES = ("node", "worker", "server")

#: Parameters that a reduced node must have, with their names in messages.
_REDUCED = {
    "lanes": ("Lane count", 1), "nodes_max": ("Largest ring", 1), "state_planes": ("State plane count", 0),
    "quantization": ("quantization", False), "stand_in": ("stand_in", False), "queues": ("Queue count", 1),
    "ring_ports": ("Ring port count", 1), "tenants": ("Tenant count", 1), "jobs": ("Job count", 1),
    "weight_codec": ("Weight codec", RAW), "gradient_codec": ("Gradient codec", ZERO_VALUE), "role": ("Role", NODE),
    **{name: (name, False) for name in (
        "replay", "rounds", "throttles", "masters", "fetch_formats", "one_owner", "restorable", "slots",
        "interleaved", "messages")},
}

#: Options that are off with this value, and came when there were nodes without them; and what no value is.
_LATER, _EVERY = {"centroids": 0, "far_words": 0, "operands": OPERANDS_FP32, "role": NODE, "program_banks": 1,
                  "tenants": 1, "jobs": 1, **dict.fromkeys((
                      "row_owners", "sequences", "throttles", "fetch_formats", "one_owner", "restorable", "slots",
                      "interleaved", "messages"), False)}, object()

#: Elements in a segment: the powers of two that the length of a packet can hold.
_SEGMENTS = tuple(32 << place for place in range((LONGEST_SEGMENT // 32).bit_length()))

#: Commands of the longest program: counts of commands are compared modulo 2^16.
_MOST_COMMANDS = 1024

#: Segments of an ingress whose packets the messages of a link with replay can count.
_MOST_REPLAYED = 15

#: Elements of a memory of the reduced node: one SB_SPRAM256KA of an iCE40 UP.
_MOST_REDUCED = 1 << 14


@dataclasses.dataclass(frozen=True, kw_only=True)
class NodeConfig:
    """Parameters of one accelerator node.

    Parameters
    ----------
    lanes : int
        Elements in one memory row, and per cycle out of a memory: 1, 2, 4 or 8.
    segment : int
        Elements in one ring segment and in one optimizer burst: 32 times a power of two, at most 512.
    gradient_words, weight_words, state_words : int
        Capacity in elements of the gradient memory, of the weight memory and of each state plane; multiples of 32.
        Only the owner of a block keeps its state, so a state plane may be smaller than the weights.
    state_planes : int
        State planes of the optimizer, which decide what rules it has: with 0 SGD alone, with 1 momentum as well, with
        2 also Adam and AdamW.
    ingress_segments : int
        Whole segments that the ring ingress holds; at least 2, see docs/ring/collective/theory.md.
    update_lanes : int
        Elements per cycle that the optimizer updates, at most ``lanes``. One keeps up with a dense ring of two nodes,
        which delivers less than one finished element per cycle.
    update_interval : int
        Cycles per such step of the optimizer: 1, 2, 4 or 8. With more than one its operations share adders and
        multipliers, on so much less area.
    multiplier_dsps : int
        DSP blocks each multiplier may use: 4, 2 or 1.
    masking : bool
        Whether the node has the operation MASK.
    error_feedback : bool
        Whether the node has the operation SPARSIFY.
    quantization : bool
        Whether the node has the operation INFER.
    stand_in : bool
        Whether the node has the operation COMPUTE, which stands for a computation.
    compute : int
        Rows of multiply-accumulate units, of ``lanes`` units each, of a node that has the operation LAYERS: 1, 2 or
        4, at most the lanes, of which there are two or more then. 0 in a node without.
    activation_words : int
        Capacity in elements of the activation memory, as those above; without effect in a node without LAYERS.
    far_words : int
        Capacity in elements of the far memory of a node with LAYERS or of a server, and a port to one: docs/far.md. A
        multiple of 32, or 0 in a node without.
    scale_mask : bool
        Whether the products of LAYERS can be scaled and masked; without effect in a node without LAYERS.
    operands : str
        Format that operands of the products of LAYERS are multiplied in: a name of
        :data:`hdl.compute.operands.OPERANDS`. Sums are in binary32 in any; without effect in a node without LAYERS.
    centroids : int
        Centroids of a table, 4, 8 or 16, of a node whose LAYERS have products with weights that are indices of them:
        docs/compute/centroid_layer.md. 0 in a node without; without effect in a node without LAYERS.
    sequences : bool
        Whether LAYERS have functions of sequences: ROWS, SOFTMAX and labels of padding; without effect in a node
        without LAYERS.
    row_owners : bool
        Whether rows of the activation memory carry the number of the buffer that wrote them, so that LAYERS that read
        them as another's end with READ_DEAD: docs/compute/row_owners.md. Without effect in a node without LAYERS.
    queues : int
        Queues of commands: 1, or 2 for one that computes and one that communicates, with a program for each, or 3
        for one more that moves activations to a far memory and back. Only with 2 do commands wait for other nodes.
    versions : bool
        Whether the updates of regions of weights are counted, and a command refused that would compute with others
        than it must; without effect in a node with one queue.
    program_depth : int
        Commands of each queue's program, 1 to 1,024; without effect in a node with one queue.
    program_banks : int
        Banks of programs: 1, or 2 for a node that is given the programs of a later set while a set runs:
        docs/control/program_banks.md. Without effect in a node with one queue.
    weight_codec : str
        Codec of new weights in a fused update: a name of :data:`hdl.compression.registry.WEIGHT_CODECS`. With any but
        ``raw`` the node has one more memory, of ``state_words`` elements, for the weights of its own block as they
        were before they were encoded; all nodes, the owner too, have the decoded ones in their weight memory. With
        centroids it has another one, of :attr:`codebook_words`, which the host loads with them.
    masters : bool
        Whether nodes with ``raw`` weights have that memory too: a fused update then reads no weights, and may write
        them elsewhere than those that others compute with. Without effect with another codec.
    gradient_codec : str
        Codec of gradients and their sums: a name of :data:`hdl.compression.registry.GRADIENT_CODECS`. Gradients in
        ``zero_value`` and ``raw`` are added as they are. With any other they are decoded, added and encoded again at
        every hop, and the node has one more memory, of ``gradient_words`` elements, for what this has lost, which is
        added to the next gradients.
    nodes_max : int
        Largest ring this node can be part of, 1 to 255. More than 16 nodes take wider counters, and have neither two
        ports nor control words.
    ring_ports : int
        Ports to other nodes: 1, or 2 for a node in a grid, with a switch and the operation SWITCH:
        docs/ring/switch.md.
    replay : bool
        Whether links repeat words that were damaged or lost: docs/ring/link.md. Such a link has nine more wires. With
        two queues as well, commands can wait for those of other nodes: docs/ring/control_words.md.
    rounds : bool
        Whether updates can be rounds of gradients, which do not wait for all nodes: docs/ring/rounds.md. Such a node
        has two queues, replay and the stand-in, and gradients that are added as they are.
    role : str
        ``node``, or in a relay (docs/relay.md) ``worker`` or ``server``. Workers give their gradients to the server
        by PUSH. A server has its weights and its state in its far memory, and does not compute, mask or infer.
    fetch_formats : bool
        Whether weights of a worker or a server have a format in BROADCAST, and are counted:
        docs/ring/collective/formats.md.
    one_owner : bool
        Whether one node may own all groups of a command, so that a slow link is crossed by what it has made alone:
        docs/ring/one_owner.md. Such a node has weights as ``raw``, gradients as ``zero_value``, and no rounds.
    interleaved : bool
        Whether two segments of a collective are on their way in turn: docs/ring/interleaved.md. Such a node has an
        ingress of 3 segments or more, is no part of a relay, and has no ``one_owner``.
    throttles : bool
        Whether links, memories, arithmetic and the host port can be slowed by registers: docs/estimate.md.
    restorable : bool
        Whether register WEIGHT_VERSION can be written, so that a run that began on other nodes goes on with its count
        of updates: docs/migration.md.
    tenants : int
        1, or 2 that do not trust each other, with windows on the memories and guards at their ports: docs/tenants.md.
    slots : bool
        Whether packets are sent in slots of a common TIME, in place of on credit: docs/ring/slots.md.
    jobs, messages : int, bool
        1 or 2 on a ring with slots: docs/ring/two_jobs.md. Messages to all nodes in them: docs/ring/messages.md.
    element : str
        ``fp32``, or ``int16`` for the :attr:`reduced` node of docs/int16_node.md. That has one lane, no state
        planes, no codecs and no INFER, is alone, and has memories of at most 16,384 elements.
    """

    lanes: int = 4
    segment: int = 256
    gradient_words: int = 16384
    weight_words: int = 16384
    state_words: int = 8192
    state_planes: int = 2
    ingress_segments: int = 4
    update_lanes: int = 1
    update_interval: int = 1
    multiplier_dsps: int = 4
    masking: bool = True
    error_feedback: bool = True
    quantization: bool = False
    stand_in: bool = False
    compute: int = 0
    activation_words: int = 8192
    far_words: int = 0
    scale_mask: bool = False
    operands: str = OPERANDS_FP32
    centroids: int = 0
    sequences: bool = False
    row_owners: bool = False
    queues: int = 1
    versions: bool = False
    program_depth: int = 64
    program_banks: int = 1
    weight_codec: str = RAW
    masters: bool = False
    gradient_codec: str = ZERO_VALUE
    nodes_max: int = SMALL_RING
    ring_ports: int = 1
    replay: bool = False
    rounds: bool = False
    role: str = NODE
    fetch_formats: bool = False
    one_owner: bool = False
    interleaved: bool = False
    throttles: bool = False
    restorable: bool = False
    tenants: int = 1
    slots: bool = False
    jobs: int = 1
    messages: bool = False
    element: str = FP32

    def __post_init__(self):
        if self.lanes not in (1, 2, 4, 8):
            raise ValueError(f"Lane count must be 1, 2, 4 or 8, not {self.lanes!r}")
        if self.segment not in _SEGMENTS:
            raise ValueError(f"Segment must be 32 times a power of two, up to {_SEGMENTS[-1]}, not {self.segment!r}")
        for name in ("gradient_words", "weight_words", "state_words", "activation_words"):
            words = getattr(self, name)
            if not isinstance(words, int) or words % 32 or not 32 <= words <= 1 << 24:
                raise ValueError(f"{name} must be a multiple of 32 between 32 and 16777216, not {words!r}")
        if self.state_planes not in (0, 1, 2):
            raise ValueError(f"State plane count must be 0, 1 or 2, not {self.state_planes!r}")
        if not isinstance(self.ingress_segments, int) or self.ingress_segments < 2:
            raise ValueError(f"Ingress must hold at least 2 segments, not {self.ingress_segments!r}")
        if self.replay and self.ingress_segments > _MOST_REPLAYED:
            raise ValueError(f"Ingress must hold at most {_MOST_REPLAYED} segments with replay, not "
                             f"{self.ingress_segments!r}")
        if self.update_lanes not in (1, 2, 4, 8) or self.update_lanes > self.lanes:
            raise ValueError(f"Update lanes must be 1, 2, 4 or 8, and at most the lanes, not {self.update_lanes!r}")
        if self.update_interval not in (1, 2, 4, 8):
            raise ValueError(f"Update interval must be 1, 2, 4 or 8, not {self.update_interval!r}")
        if self.multiplier_dsps not in (1, 2, 4):
            raise ValueError(f"DSP blocks per multiplier must be 1, 2 or 4, not {self.multiplier_dsps!r}")
        for name in ("masking", "error_feedback", "quantization", "stand_in", "scale_mask", "sequences", "versions",
                     "masters", "replay", "rounds", "row_owners", "throttles", "fetch_formats", "one_owner",
                     "restorable", "slots", "interleaved", "messages"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name} must be True or False, not {getattr(self, name)!r}")
        if isinstance(self.compute, bool) or self.compute not in (0, 1, 2, 4):
            raise ValueError(f"Rows of multiply-accumulate units must be 0, 1, 2 or 4, not {self.compute!r}")
        if self.compute and (self.lanes < 2 or self.compute > self.lanes):
            raise ValueError(f"Rows of multiply-accumulate units must be at most the lanes, of which there must be 2 "
                             f"or more, not {self.compute!r} with {self.lanes} lanes")
        if operands_of(self.operands).terms > 1 and self.compute * self.lanes > MOST_BLOCK_UNITS:
            raise ValueError(f"Units that multiply in {self.operands} must be at most {MOST_BLOCK_UNITS}, not "
                             f"{self.compute} rows of {self.lanes}")
        if isinstance(self.centroids, bool) or self.centroids not in (0, 4, 8, 16):
            raise ValueError(f"Centroid count must be 0, 4, 8 or 16, not {self.centroids!r}")
        if isinstance(self.far_words, bool) or not isinstance(self.far_words, int) or self.far_words % 32 or not (
                0 <= self.far_words <= 1 << 24):
            raise ValueError(f"far_words must be 0, or a multiple of 32 up to 16777216, not {self.far_words!r}")
        if self.role not in ROLES:
            raise ValueError(f"Role must be one of {', '.join(ROLES)}, not {self.role!r}")
        if self.in_relay:
            self._check_relay()
        if self.is_server:
            self._check_server()
        if self.fetch_formats and (not self.in_relay or self.lanes < 2):
            raise ValueError(f"Node with formats of FETCH must be a worker or a server with 2 lanes or more, not a "
                             f"{self.role} with {self.lanes}")
        if self.far_words and not (self.compute or self.is_server):
            raise ValueError("Node with a far memory must have rows of multiply-accumulate units, since it moves "
                             "their activations")
        if isinstance(self.queues, bool) or self.queues not in (1, 2, 3):
            raise ValueError(f"Queue count must be 1, 2 or 3, not {self.queues!r}")
        if not isinstance(self.program_depth, int) or not 1 <= self.program_depth <= _MOST_COMMANDS:
            raise ValueError(f"Program depth must be between 1 and {_MOST_COMMANDS}, not {self.program_depth!r}")
        if isinstance(self.program_banks, bool) or self.program_banks not in (1, 2):
            raise ValueError(f"Program bank count must be 1 or 2, not {self.program_banks!r}")
        if self.weight_codec not in WEIGHT_CODECS:
            raise ValueError(choice_error("Weight codec", WEIGHT_CODECS, self.weight_codec))
        if self.gradient_codec not in GRADIENT_CODECS:
            if self.gradient_codec in WEIGHT_CODECS:
                raise ValueError("Gradient codec must take any number, since a sum of values in a codebook need not "
                                 f"be in it: one of {', '.join(GRADIENT_CODECS)}, not {self.gradient_codec!r}")
            raise ValueError(choice_error("Gradient codec", GRADIENT_CODECS, self.gradient_codec))
        if not isinstance(self.nodes_max, int) or not 1 <= self.nodes_max <= MOST_NODES:
            raise ValueError(f"Largest ring must be between 1 and {MOST_NODES} nodes, not {self.nodes_max!r}")
        if isinstance(self.ring_ports, bool) or self.ring_ports not in (1, 2):
            raise ValueError(f"Ring port count must be 1 or 2, not {self.ring_ports!r}")
        self._check_blocks()
        self._check_large_ring()
        self._check_rounds()
        check_one_owner(self)
        check_interleaved(self)
        self._check_tenants()
        check_slots(self)
        if self.element not in (FP32, INT16):
            raise ValueError(f"Element must be {FP32} or {INT16}, not {self.element!r}")
        if self.reduced:
            for name, (title, value) in _REDUCED.items():
                if getattr(self, name) != value:
                    raise ValueError(f"{title} of an {INT16} node must be {value}, not {getattr(self, name)!r}")
            for name in ("gradient_words", "weight_words"):
                if getattr(self, name) > _MOST_REDUCED:
                    raise ValueError(f"{name} of an {INT16} node must be at most {_MOST_REDUCED}, "
                                     f"not {getattr(self, name)!r}")

    def _check_blocks(self):
        """Raise ValueError if a block of a ring of two nodes has more segments than a packet's header can number."""
        most = 2 * MOST_SEGMENTS * self.segment
        for name in ("gradient_words", "weight_words"):
            if self.nodes_max > 1 and getattr(self, name) > most:
                raise ValueError(f"{name} must be at most {most} with segments of {self.segment} elements, since a "
                                 f"block has at most {MOST_SEGMENTS} of them, not {getattr(self, name)!r}")

    def _check_relay(self):
        """Raise ValueError if a worker or server has codecs that a relay has no use for."""
        if (self.weight_codec, self.gradient_codec, self.masters) != (RAW, ZERO_VALUE, False):
            raise ValueError(f"{self.role.capitalize()} must have weights as {RAW}, no masters, and gradients as "
                             f"{ZERO_VALUE}, not {self.weight_codec!r} and {self.gradient_codec!r}")

    def _check_large_ring(self):
        """Raise ValueError if a node of a ring whose ranks have more than 4 bits has what knows but 4."""
        if self.nodes_max <= SMALL_RING:
            return
        if self.has_signals:
            raise ValueError(f"Largest ring must be at most {SMALL_RING} nodes with two queues and replay, since "
                             f"ranks in control words and in rounds have 4 bits, not {self.nodes_max!r}")
        if self.ring_ports > 1:
            raise ValueError(f"Largest ring must be at most {SMALL_RING} nodes with two ports, since rows and "
                             f"columns of a grid have at most as many, not {self.nodes_max!r}")

    def _check_server(self):
        """Raise ValueError if a server cannot have its weights and its state in its far memory."""
        if self.compute:
            raise ValueError(f"Server must have no rows of multiply-accumulate units, not {self.compute!r}")
        if self.far_words < self.served_words:
            raise ValueError(f"Far memory of a server must hold its weights and its state, {self.served_words:,} "
                             f"words, not {self.far_words:,}")
        engines = [name for name in ("masking", "error_feedback", "quantization") if getattr(self, name)]
        if engines:
            raise ValueError("Server must have no engine that reads weights apart from collectives, not "
                             f"{' and '.join(engines)}")

    def _check_rounds(self):
        """Raise ValueError if a node with rounds lacks what they need."""
        if not self.rounds or self.reduced:
            return
        if not (self.has_signals and self.stand_in):
            raise ValueError("Node with rounds must have two queues, replay and the stand-in")
        if self.has_residual:
            raise ValueError(f"Gradient codec of a node with rounds must be {RAW} or {ZERO_VALUE}, since a residual "
                             f"would be added to the zeros of an absent node, not {self.gradient_codec!r}")

    def _check_tenants(self):
        """Raise ValueError unless there can be so many tenants."""
        if isinstance(self.tenants, bool) or self.tenants not in (1, 2):
            raise ValueError(f"Tenant count must be 1 or 2, not {self.tenants!r}")

    def check_ring(self, nodes):
        """Raise ValueError if ``nodes`` nodes of this configuration cannot form a ring."""
        if not isinstance(nodes, int) or not 1 <= nodes <= self.nodes_max:
            possible = f"between 1 and {self.nodes_max} nodes" if self.nodes_max > 1 else "1 node"
            raise ValueError(f"Ring must have {possible}, not {nodes!r}")

    @property
    def reduced(self):
        """Whether this is the reduced node, of 16-bit integers: docs/int16_node.md."""
        return self.element == INT16

    @property
    def has_master(self):
        """Whether the node keeps the masters of its own block: always where weights go through a codec."""
        return self.masters or self.weight_codec != RAW

    @property
    def in_relay(self):
        """Whether the node has the operation PUSH."""
        return self.role != NODE

    @property
    def has_chains(self):
        """Whether a sum may go along a chain of nodes to its end, as one block."""
        return self.in_relay or self.one_owner

    @property
    def is_server(self):
        """Whether weights and state are in the far memory, and PUSH ends here."""
        return self.role == SERVER

    @property
    def served_words(self):
        """Words of weights and state together, which a server has in its far memory in this order."""
        return self.weight_words + self.state_planes * self.state_words

    @property
    def far_bases(self):
        """First words of the memory spaces that are in the far memory, by name, in order: none but in a server."""
        bases, first = {}, 0
        if self.is_server:
            for space in self.memories:
                if space.name == "weights" or space.region == "state":
                    bases[space.name] = first
                    first += space.words
        return bases

    @property
    def has_signals(self):
        """Whether the node has control words: it tells others what it has done, and that it computes.

        With three queues both pairs of waits of a command are about queues of its own node.
        """
        return self.replay and self.queues == 2

    @property
    def has_banks(self):
        """Whether the node has a second bank of programs."""
        return self.queues > 1 and self.program_banks > 1

    @property
    def codebook_words(self):
        """Words of the memory that the weight codec's centroids are loaded from: 0 if it has none."""
        return WEIGHT_CODECS[self.weight_codec].codebook_words

    @property
    def adds_compressed(self):
        """Whether gradients are added in the form of zero-value compression."""
        return GRADIENT_CODECS[self.gradient_codec].sums_coded

    @property
    def has_residual(self):
        """Whether the gradient codec is not exact, so that the node keeps its residual."""
        return not GRADIENT_CODECS[self.gradient_codec].exact

    @property
    def memories(self):
        """Names, numbers and sizes of the node's memories: a :class:`~hdl.memory_map.MemoryMap`."""
        return memory_map(self)

    @property
    def hash(self):
        """32-bit digest of every parameter, which the driver compares with its own.

        Options of :data:`_LATER` that are off are left out, so that a node without them keeps its digest.
        """
        text = repr(sorted((name, value) for name, value in dataclasses.asdict(self).items()
                           if value != _LATER.get(name, _EVERY)))
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "little")


def nodes_max_for(nodes):
    """``nodes_max`` of nodes for a ring of this size: the default, or the most that there is where it is too few."""
    return NodeConfig.nodes_max if 1 <= nodes <= NodeConfig.nodes_max else MOST_NODES
