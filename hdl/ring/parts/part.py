"""Interface for parts of the ring's datapath: what their files contain, and how they are connected.

A part is a component with one purpose, such as sums or master weights. Its file contains the component and a function
``describe(config)``, which returns its :class:`PartDescription`, or None for a node without the part;
:mod:`hdl.ring.parts.registry` lists these functions. No other file refers to a part:
:class:`~hdl.ring.datapath.Datapath` connects parts to each other, and :class:`~hdl.ring.sequencer.Sequencer` sends
them their instructions. A description has four topics:

**Sequences.** The order of a collective is static. A :class:`~hdl.ring.sequences.Sequence` gives the blocks that one
participant processes in the scatter-reduce and in the all-gather. It yields one *record* for each segment of these
blocks: phase, segment, block, position in memory, length, and whether it is the first or last step of the phase
(:func:`hdl.ring.order.record_layout`).

**Instructions.** An :class:`Instruction` is a queue of words for the part, one for each record of a sequence that has
elements and is selected by ``when(record, setup)``: jobs for a reader or writer (:func:`job`), or routes for a
multiplexer, one per packet. The part receives them at a stream with the name of the instruction. Instructions run
ahead of the data and do not identify it, so they must be in the order of their packets. A command lasts until every
``awaited`` instruction, such as a write, has been acknowledged at ``<name>_done``, once for each word.

**Channels.** Parts exchange rows and words on a :class:`Channel`. One part has the :class:`Input`. Several parts may
have an :class:`Output`, but in different commands, selected by ``during(setup)``; if two parts drive it in the same
command, the later part in the list takes precedence. The channel INGRESS delivers packets from the ring: its inputs
also select the ``packets`` that they accept, and the datapath routes each packet to all inputs that accept it.

**Memory ports.** ``reads`` and ``writes`` give the number of ports to each memory. The part has them as arrays
``<memory>_read`` and ``<memory>_write``; ``_connect_read`` and ``_connect_write`` connect readers and writers.

A part also has ``start``, high for one cycle when a command begins, and ``setup``, which is stable until the command
ends (:func:`part_setup_layout`). Conditions are named functions; shared ones are in :mod:`hdl.ring.parts.conditions`.

For example, this part adds a vector from memory to the local gradients before they are summed. Its jobs are in the
order of the sums, and read the vector at the addresses of the gradients::

    class Offsets(Sequence):
        name = "offsets"

        def scatter(self, command):
            setup = command.setup
            return Path(steps=Mux(setup.sum & setup.gather, command.size, command.sends), first=command.own)

        def gather(self, command):  # used for the last sums of a reduce-scatter
            return Path(steps=is_reduce_scatter(command.setup), first=command.following)

    class Offset(Part):
        def __init__(self, *, config, description):
            rows = stream.Signature(beat_layout(config.lanes))
            super().__init__(config, description, {"local": In(rows), "addend": Out(rows)})

        def elaborate(self, platform):
            m = Module()
            config, lanes = self._config, self._config.lanes
            m.submodules.reader = reader = RowReader(
                rows=config.memories.gradient // lanes, lanes=lanes, elements=config.segment, strided=True)
            m.submodules.adder = adder = PacketAdder(lanes=lanes)
            connect_stream(m, self.offset_job, reader.job)
            connect_stream(m, self.local, adder.a)
            connect_stream(m, reader.o, adder.b)
            connect_stream(m, adder.o, self.addend)
            self._connect_read(m, reader, "residuals")
            return m

    def describe(config):
        return PartDescription(
            name="offset",
            component=Offset,
            instructions=(job(config, "offset_job", Offsets(), "residuals"),),
            reads={"residuals": 1},
            inputs=(Input("local", Channel.LOCAL),),
            outputs=(Output("addend", Channel.ADDEND),),
        )
"""

import dataclasses
import enum
from collections.abc import Callable, Mapping
from typing import Any

from amaranth.hdl import Cat, Mux
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.group import GROUP
from hdl.memory import job_layout, read_signature, write_signature
from hdl.optimizer.rules import settings_layout
from hdl.ring.order import pitches
from hdl.ring.parts.conditions import always, has_elements, is_gather
from hdl.ring.sequences import Sequence
from hdl.row_transfer import RowReader
from hdl.streams.stream import connect_stream
from hdl.throttle import RATE_BITS

__all__ = ["Alternative", "Channel", "Input", "Instruction", "Output", "Part", "PartDescription", "RecordOrder",
           "check_parts", "extends", "fetch_setup", "has_infinite", "job", "memory_ports", "packet_inputs",
           "part_setup_layout", "pulses_layout", "sum_setup", "taken"]


class Channel(enum.Enum):
    """Kinds of streams between parts, or between a part and the ring."""

    INGRESS = enum.auto()
    """Words of packets from the ring, for each input that selects them."""
    TRANSIT = enum.auto()
    """Words from the ring in a gather, to be forwarded unchanged."""
    FORWARD = enum.auto()
    """Words to be forwarded, in the order of sending."""
    ENCODED = enum.auto()
    """Words of encoded sums, to be sent."""
    OWN = enum.auto()
    """Words of the node's own block, to be sent: the first of a gather."""
    WRITE_BACK = enum.auto()
    """Rows that are written back to the gradient memory or the weight memory."""
    LOCAL = enum.auto()
    """Rows of local gradients from memory."""
    ADDEND = enum.auto()
    """Rows of local gradients, to be added to decoded packets from the ring."""
    ERRORS = enum.auto()
    """Rows of encoding errors."""
    SUMS = enum.auto()
    """Rows of sums that the optimizer completes with the local gradient."""
    COUNTED_SUMS = enum.auto()
    """Rows of SUMS that a server with formats has counted."""
    WEIGHTS = enum.auto()
    """Rows of weights that the optimizer updates."""
    UPDATED = enum.auto()
    """Rows of weights that the optimizer has updated."""
    COPIED = enum.auto()
    """Rows of updated weights, for the weight memory of a node with master weights."""
    BROADCAST = enum.auto()
    """Rows of updated weights in beats of the optimizer, for the ring."""
    STORED = enum.auto()
    """Rows of weights of the node's own block from memory, to be encoded for the ring."""
    CODED = enum.auto()
    """Rows of STORED after a server's codec for several formats, as rows or as beats of words."""
    AGREED = enum.auto()
    """Words of exponents on which all nodes have agreed, in the order of sums."""


#: Channels from the datapath to the ring, and from the ring to the datapath.
_TO_RING = (Channel.FORWARD, Channel.ENCODED, Channel.OWN)
_FROM_RING = (Channel.INGRESS, Channel.TRANSIT)


def fetch_setup(config):
    """Layout of the setup fields of a node with broadcast formats: the index of a BROADCAST's format in
    :data:`~hdl.compression.registry.FETCH_FORMATS` and, on a server, whether and where the command is counted."""
    if not config.role.broadcast_formats:
        return {}
    longest = range(max(config.memories.gradient, config.memories.weight) + 1)
    return {"format": 2, **({"counted": 1, "entry": 6, "length": longest} if config.is_server else {})}


def sum_setup(config):
    """Layout of the setup fields for parts that add integers. ``spare`` is the number of bits by which sums are wider
    than their addends: the base-2 logarithm of the number of addends, rounded up. The other fields are ranks and, if
    a node can have several addends, their number and their distance in rows."""
    several = {"addends": 8, "distance": range(config.memories.gradient // config.lanes)}
    return {"spare": range(9), "rank": 8, "predecessor": 8,
            **(several if config.has("microbatches") else {})} if config.adds_integers else {}


def part_setup_layout(config):
    """Layout of the fields of a command's setup that parts receive; see :func:`hdl.ring.setup.setup_layout`."""
    return data.StructLayout({
        **({"chain": 1} if config.role.streams else {}), **fetch_setup(config), **sum_setup(config),
        "fused": 1, "sum": 1, "coded": 1, "gather": 1, "alone": 1, "packed_state": 1,
        "pitch": pitches(config.topology.max_nodes), "settings": settings_layout(), "pace": RATE_BITS})


def pulses_layout():
    """Layout of a cycle's events: increments of the registers with the same names, and conditions for event flags.

    Parts drive the fields up to ``wrong_sum_detail``, which gives the detail of the event after ``wrong_sum``; the
    datapath drives the remaining fields.
    """
    return data.StructLayout(
        {
            "elements_encoded": 5,
            "encodes": 2,
            "compressed_adds": 1,
            "positions_added": 1,
            "decodes": 1,
            "optimizer_bursts": 1,
            "local_nan": 1,
            "not_finite": 1,
            "malformed": 1,
            "wrong_sum": 1,
            "wrong_sum_detail": 32,
            # The datapath drives the following fields.
            "compressed_words": 1,
            "scatter_reduce": 1,
            "stall_encoder": 1,
            "stall_optimizer": 1,
            "stall_memory": 1,
        }
    )


@dataclasses.dataclass(frozen=True)
class Alternative:
    """Alternative sequence, which an instruction follows instead of its usual one during some commands."""

    sequence: Sequence
    #: Function of the setup that is true if the command uses the alternative.
    during: Callable[[Any], Any]


@dataclasses.dataclass(frozen=True)
class Instruction:
    """Description of a queue of routes, jobs or commands for a part, with an entry for each non-empty record of a
    sequence that ``when`` selects.

    ``when`` and ``payload`` are functions of the record and of the command's setup, ``present`` is a function of
    the record.
    """

    #: Name of the stream at the part and at the sequencer.
    name: str
    sequence: Sequence
    #: Shape of the stream's payload.
    shape: Any
    #: Function of a record and the setup that returns the payload, or a mapping of its fields if it is a struct.
    payload: Callable[[Any, Any], Any]
    _: dataclasses.KW_ONLY
    when: Callable[[Any, Any], Any] = always
    #: Function of a record that is true if there is anything to do for it.
    present: Callable[[Any], Any] = has_elements
    #: Whether the command lasts until the part has acknowledged each payload at ``<name>_done``.
    awaited: bool = False
    alternative: Alternative | None = None

    @property
    def sequences(self):
        """Sequences that the instruction follows."""
        return (self.sequence,) if self.alternative is None else (self.sequence, self.alternative.sequence)

    def ports(self, flow):
        """Signature members for the instruction: ``Out`` for the sequencer's side, ``In`` for a part's side."""
        done = {f"{self.name}_done": flow.flip()(1)} if self.awaited else {}
        return {self.name: flow(stream.Signature(self.shape)), **done}


def job(config, name, sequence, memory, *, packs=False, **options):
    """Instruction with the jobs of a reader or, if ``awaited``, a writer: one job per record.

    Memories in the state region contain only the node's own block; all other memories contain the whole vector.

    Parameters
    ----------
    config : NodeConfig
    name : str
    sequence : Sequence
    memory : str
        Name of the memory; determines the width of row numbers and the first row.
    packs : bool
        Whether each word holds two elements in a command with packed state.
    options
        Other parameters of the :class:`Instruction`.
    """
    shift = (GROUP // config.lanes).bit_length() - 1
    space = config.memory_map[memory]

    def payload(record, setup):
        base = setup[{"gradients": "gradient_row", "weights": "weight_row", "state": "state_row"}[space.region]]
        in_block = record.segment << (config.segment // GROUP).bit_length() - 1
        row, count = (in_block if space.region == "state" else record.place) << shift, record.length
        if packs:
            row, count = Mux(setup.packed_state, row >> 1, row), Mux(setup.packed_state, (count + 1) >> 1, count)
        return {"row": base + row, "count": count}

    shape = job_layout(space.words // config.lanes, config.segment)
    return Instruction(name, sequence, shape, payload, **options)


@dataclasses.dataclass(frozen=True)
class Input:
    """Description of a stream that a part receives from a channel."""

    #: Name of the stream at the part. Parts with the same input name at INGRESS share it in different commands.
    name: str
    channel: Channel
    _: dataclasses.KW_ONLY
    #: For INGRESS only: function of an ingress record and the setup that is true if the input accepts the packet.
    packets: Callable[[Any, Any], Any] | None = None
    #: For INGRESS only: function of the setup that is true if the part accepts packets; by default always.
    during: Callable[[Any], Any] | None = None


@dataclasses.dataclass(frozen=True)
class Output:
    """Description of a stream that a part sends to a channel."""

    #: Name of the stream at the part.
    name: str
    channel: Channel
    _: dataclasses.KW_ONLY
    #: Function of the setup that is true if the part drives the stream in the command; by default always.
    during: Callable[[Any], Any] | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecordOrder:
    """Order of records that a part needs in place of the order in :mod:`hdl.ring.order`."""

    #: Class of the units that generate the records.
    generator: Callable[..., Any]
    #: Function that connects the additional inputs of a generator; it is called with a module, the generator and the
    #: setup.
    connect: Callable[[Any, Any, Any], None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class PartDescription:
    """Description of one part of a datapath."""

    #: Name of the submodule.
    name: str
    #: Class that implements the part, with parameters ``config`` and ``description``.
    component: type["Part"]
    instructions: tuple[Instruction, ...] = ()
    #: Number of ports to each memory, keyed by the names in :func:`hdl.memory_map.memory_map`.
    reads: Mapping[str, int] = dataclasses.field(default_factory=dict)
    writes: Mapping[str, int] = dataclasses.field(default_factory=dict)
    #: Memories that the part reads ahead of a command's data; their stalls are not counted in STALL_MEMORY.
    ahead: tuple[str, ...] = ()
    inputs: tuple[Input, ...] = ()
    outputs: tuple[Output, ...] = ()
    #: Fields of :func:`pulses_layout` driven by this part.
    pulses: tuple[str, ...] = ()
    #: Whether the part sends every packet of a scatter-reduce to ENCODED, rather than only the first of each segment.
    encodes_all: bool = False
    #: Sequence for writing back gathered segments, if this does not follow the order of arrival.
    write_back_order: Alternative | None = None
    #: Order of the records, if it differs from the order in :mod:`hdl.ring.order`.
    order: RecordOrder | None = None
    #: Function of a record and the setup: number of payload words that the part adds to the elements of a packet.
    #: The part then has four streams: ``arrived`` and ``passed`` for payloads from the ring, with and without these
    #: words, and ``sent`` and ``completed`` for payloads to the ring, without and with these words.
    added_words: Callable[[Any, Any], Any] | None = None


def check_parts(parts):
    """Raise ``ValueError`` unless the parts can be combined in a datapath.

    Parameters
    ----------
    parts : sequence of PartDescription
    """
    instructions = [instruction.name for part in parts for instruction in part.instructions]
    for title, names in (("Parts", [part.name for part in parts]), ("Instructions", instructions)):
        if len(set(names)) != len(names):
            raise ValueError(f"{title} of a datapath must have different names, not {', '.join(names)}")
    inputs = [port for part in parts for port in part.inputs]
    taken_by = [*_TO_RING, *(port.channel for port in inputs)]
    provided = {port.channel for part in parts for port in part.outputs} | {*_FROM_RING}
    for channel in Channel:
        takers = taken_by.count(channel)
        if channel is not Channel.INGRESS and takers != (channel in provided):
            needed = "once" if channel in provided else "by nobody, since nobody gives it"
            raise ValueError(f"Channel {channel.name} must be taken {needed}, not {takers} times")
    conditions = {}
    for port in inputs:
        if (port.packets is not None) != (port.channel is Channel.INGRESS):
            raise ValueError(f"Input {port.name} must choose packets if it takes INGRESS, and otherwise must not")
        if port.packets and conditions.setdefault(port.name, port.packets) is not port.packets:
            raise ValueError(f"Input {port.name} must have one condition in all parts, not several")
    unknown = sorted({name for part in parts for name in part.pulses} - pulses_layout().members.keys())
    if unknown:
        raise ValueError(f"Pulse of a part must be one of {', '.join(pulses_layout().members)}, not {unknown[0]!r}")


def _memory_signature(config, memory, kind):
    """Return the signature of a memory port; ``kind`` is ``read`` or ``write``."""
    signature = {"read": read_signature, "write": write_signature}[kind]
    return signature(config.memory_map[memory].words // config.lanes, config.lanes)


def memory_ports(config, parts):
    """Return the members for the memory ports of all parts: arrays ``<memory>_read`` and ``<memory>_write``."""
    members = {}
    for memory in config.memory_map.names:
        for kind in ("read", "write"):
            count = sum(getattr(part, f"{kind}s").get(memory, 0) for part in parts)
            if count:
                members[f"{memory}_{kind}"] = Out(_memory_signature(config, memory, kind)).array(count)
    return members


def extends(parts):
    """Return whether a part adds words to payloads."""
    return any(part.added_words is not None for part in parts)


def _is_transit(record, setup):
    """Whether a packet is forwarded unchanged: in an all-gather before the last step, or in a broadcast."""
    return is_gather(record) & (~record.last | setup.pass_on)


def packet_inputs(parts):
    """Return conditions for accepting packets, keyed by the name of the INGRESS input or ``transit``."""
    inputs = (port for part in parts for port in part.inputs if port.packets)
    return {**{port.name: port.packets for port in inputs}, "transit": _is_transit}


def taken(port):
    """Return whether a beat of a stream is transferred in this cycle."""
    return port.valid & port.ready


def has_infinite(row):
    """Return whether any kept element of a row is infinite or NaN."""
    return Cat(row.elements[lane][23:31].all() & row.keep[lane] for lane in range(len(row.keep))).any()


class Part(wiring.Component):
    """Base class of the datapath's parts, which are components with the ports in their descriptions.

    Parameters
    ----------
    config : NodeConfig
    description : PartDescription
    streams : mapping
        Signature members for the inputs and outputs in the description.
    """

    def __init__(self, config, description, streams):
        self._config = config
        self._description = description
        layout = pulses_layout()
        pulses = data.StructLayout({name: layout[name].shape for name in description.pulses})
        super().__init__({
            # Starts a command; ``setup`` is stable from then until the command ends.
            "start": In(1),
            "setup": In(part_setup_layout(config)),
            # Events of the part in a cycle.
            **({"pulses": Out(pulses)} if description.pulses else {}),
            # Memory ports: arrays ``<memory>_read`` and ``<memory>_write``.
            **memory_ports(config, [description]),
            # A stream for each instruction, and ``<name>_done`` for each awaited instruction.
            **{name: port for instruction in description.instructions
               for name, port in instruction.ports(In).items()},
            **streams,
        })

    def _gradient_reader(self, **options):
        """Return a reader of the local gradients; ``options`` are other parameters of :class:`RowReader`."""
        config, lanes = self._config, self._config.lanes
        return RowReader(rows=config.memories.gradient // lanes, lanes=lanes, elements=config.segment, gradients=True,
                         strided=True, guarded=config.has("tenants"), **options)

    def _read_gradients(self, m, jobs, *, name="reader", **options):
        """Create and return a submodule that reads the local gradients selected by the jobs."""
        m.submodules[name] = reader = self._gradient_reader(**options)
        connect_stream(m, jobs, reader.job)
        self._connect_read(m, reader, "gradients")
        return reader

    def _connect_read(self, m, reader, memory, index=0):
        """Connect a reader to a memory port and, if it is strided, to the command's pitch."""
        self._connect_pitch(m, reader)
        wiring.connect(m, reader=reader.port, memory=wiring.flipped(getattr(self, f"{memory}_read")[index]))

    def _connect_write(self, m, writer, memory, index=0):
        """Connect a writer to a memory port and, if it is strided, to the command's pitch."""
        self._connect_pitch(m, writer)
        wiring.connect(m, writer=writer.port, memory=wiring.flipped(getattr(self, f"{memory}_write")[index]))

    def _connect_pitch(self, m, transfer):
        if transfer.strided:
            m.d.comb += transfer.pitch.eq(self.setup.pitch)
