"""The description of a part of the ring's datapath: the streams, memories and steps that it has to do with.

A part is what the datapath has for one subject, such as the masters or a codec of weights. Its file describes it, and
:mod:`hdl.ring.parts.chosen` lists all parts. :class:`~hdl.ring.datapath.Datapath` joins the parts of a node, and
:class:`~hdl.ring.sequencer.Sequencer` carries out their steps, so that neither knows any part.
"""

import dataclasses
import enum
from collections.abc import Callable, Mapping
from typing import Any

from amaranth.hdl import Cat
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.group import GROUP
from hdl.memory import job_layout, read_signature, write_signature
from hdl.optimizer.rules import settings_layout
from hdl.ring.order import pitches
from hdl.ring.walks import WalkDescription, is_gather
from hdl.throttle import RATE_BITS

__all__ = ["Given", "Instead", "Part", "PartDescription", "Sink", "Socket", "Step", "check_parts", "fetch_setup",
           "has_infinite", "job", "memory_ports", "part_setup_layout", "pulses_layout", "sinks_of", "taken"]


class Socket(enum.Enum):
    """A stream between parts, or between a part and what every datapath has. One takes it; several may give it, in
    different commands."""

    ENCODED = enum.auto()
    """Words of encoded sums, to be sent."""
    OWN = enum.auto()
    """Words of the own block, to be sent: the first of a gather."""
    ONWARD = enum.auto()
    """Words received in a gather, which go on as they are."""
    PASSED = enum.auto()
    """Words to be passed on, in the order of sending."""
    LANDING = enum.auto()
    """Rows that come to rest in the gradient memory or the weight memory."""
    LOCAL = enum.auto()
    """Rows of local gradients, as they are in memory."""
    ADDEND = enum.auto()
    """Rows of local gradients that decoded ingress is added to."""
    LOST = enum.auto()
    """Rows of errors that encoding has made."""
    FINISHED = enum.auto()
    """Rows of sums that the optimizer completes with the local gradient."""
    WEIGHTS = enum.auto()
    """Rows of weights that the optimizer updates."""
    UPDATED = enum.auto()
    """Rows of weights that the optimizer has updated."""
    COPIED = enum.auto()
    """The same, for a weight memory beside masters."""
    BROADCAST = enum.auto()
    """Rows of updated weights in beats of the optimizer, for the ring."""
    STORED = enum.auto()
    """Rows of weights of the own block from memory, for the ring, where they go through a codec."""
    CODED = enum.auto()
    """The same behind a server's codec of several formats: rows, or beats of words."""
    COUNTED = enum.auto()
    """Rows of FINISHED, behind the count of a server with formats."""


def fetch_setup(config):
    """Fields of a command's setup in a node with formats of FETCH: the place of the format of a BROADCAST in
    :data:`~hdl.compression.registry.FETCH_FORMATS`, and on a server whether and where the command is counted."""
    if not config.role.broadcast_formats:
        return {}
    longest = range(max(config.memories.gradient, config.memories.weight) + 1)
    return {"format": 2, **({"counted": 1, "entry": 6, "length": longest} if config.is_server else {})}


def part_setup_layout(config):
    """The part of a command's setup that parts see: see :func:`hdl.ring.setup.setup_layout`."""
    return data.StructLayout({
        **({"chain": 1} if config.role.streams else {}), **fetch_setup(config),
        "fused": 1, "sum": 1, "coded": 1, "gather": 1, "alone": 1, "packed_state": 1,
        "pitch": pitches(config.topology.max_nodes), "settings": settings_layout(), "pace": RATE_BITS})


def pulses_layout():
    """Events of a cycle: counts for the registers of the same name, and findings for the flags of a command's event.

    Parts see to the first group, the datapath to the second.
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
            # The datapath's.
            "compressed_words": 1,
            "scatter_reduce": 1,
            "stall_encoder": 1,
            "stall_optimizer": 1,
            "stall_memory": 1,
        }
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Instead:
    """Another walk, whose records a step follows in some commands."""

    walk: WalkDescription
    #: Takes the setup; whether the command is one of these.
    chosen: Callable[[Any], Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Step:
    """A queue of routes, jobs or commands, one for each record of a walk that has elements and that ``when`` chooses.

    ``when`` and ``payload`` take the record and the setup of the command.
    """

    #: Name of the stream, at the part and at the sequencer.
    name: str
    walk: WalkDescription
    #: Shape of the stream's payload.
    shape: Any
    #: The payload, or for a struct a mapping of its fields.
    payload: Callable[[Any, Any], Any]
    when: Callable[[Any, Any], Any] = lambda at, setup: 1
    #: Whether the command lasts until the part has said ``<name>_done`` for each payload.
    awaited: bool = False
    instead: Instead | None = None

    @property
    def walks(self):
        """Walks that the step follows."""
        return (self.walk,) if self.instead is None else (self.walk, self.instead.walk)

    def ports(self, flow):
        """Members for the step: those of the sequencer with ``Out``, those of a part with ``In``."""
        done = {f"{self.name}_done": flow.flip()(1)} if self.awaited else {}
        return {self.name: flow(stream.Signature(self.shape)), **done}


def job(config, name, walk, memory, base, *, place=lambda at, setup: at.place,
        length=lambda at, setup: at.length, rows=None, **options):
    """Step of a reader's jobs, or with ``awaited`` of a writer's.

    Parameters
    ----------
    config : NodeConfig
    name : str
    walk : WalkDescription
    memory : str
        Name of the memory, which decides the width of a row's number.
    base : callable
        Takes the setup; the row that the vector or block begins at.
    place : callable
        Takes record and setup; groups from there on.
    length : callable
        Takes record and setup; words.
    rows : callable, optional
        Takes rows and setup; the rows that as many groups really take up, by default ``rows`` itself.
    options
        Further parameters of the :class:`Step`.
    """
    shift = (GROUP // config.lanes).bit_length() - 1

    def payload(at, setup):
        offset = place(at, setup) << shift
        return {"row": base(setup) + (offset if rows is None else rows(offset, setup)), "count": length(at, setup)}

    shape = job_layout(config.memory_map[memory].words // config.lanes, config.segment)
    return Step(name=name, walk=walk, shape=shape, payload=payload, **options)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sink:
    """A place that packets from the ring go to: a stream of words at the part, of the same name."""

    #: Name of the place; parts with sinks of one name share it, and take from it in different commands.
    name: str
    #: Takes a record of ingress and the setup; whether its packet goes there.
    when: Callable[[Any, Any], Any]
    #: Takes the setup; whether the part takes from the place in this command, which by default it always does.
    during: Callable[[Any], Any] | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Given:
    """A stream that a part gives."""

    #: Name of the stream at the part.
    name: str
    to: Socket
    #: Takes the setup; whether the part gives it in this command, which by default it always does. Where two do, the
    #: part that is later in the list counts.
    during: Callable[[Any], Any] | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class PartDescription:
    """One part of a datapath."""

    #: Name of the submodule.
    name: str
    #: Makes the :class:`Part`, from this description.
    make: Callable[["PartDescription"], "Part"]
    steps: tuple[Step, ...] = ()
    #: Ports at each memory, by the names of :func:`hdl.memory_map.memory_map`.
    reads: Mapping[str, int] = dataclasses.field(default_factory=dict)
    writes: Mapping[str, int] = dataclasses.field(default_factory=dict)
    #: Memories that are read ahead of a command's data, so that STALL_MEMORY does not count them.
    ahead: tuple[str, ...] = ()
    receives: tuple[Sink, ...] = ()
    #: Name of the part's stream for each socket that it takes.
    takes: Mapping[Socket, str] = dataclasses.field(default_factory=dict)
    gives: tuple[Given, ...] = ()
    #: Members of :func:`pulses_layout` that the part sees to.
    pulses: tuple[str, ...] = ()
    #: Whether the part gives to ENCODED every packet of a scatter-reduce, and not only the first of each segment.
    encodes_all: bool = False
    #: Takes a record of ingress and the setup; whether what follows from a packet of a scatter-reduce comes to rest.
    lands: Callable[[Any, Any], Any] | None = None
    #: The walk by which gathered segments come to rest, if not in the order in which they come.
    lands_by: Instead | None = None


def check_parts(parts):
    """Raise a ``ValueError`` unless parts can be in one datapath.

    Parameters
    ----------
    parts : sequence of PartDescription
    """
    for title, names in (("Parts of a datapath", [part.name for part in parts]),
                         ("Steps of a datapath", [step.name for part in parts for step in part.steps])):
        if len(set(names)) != len(names):
            raise ValueError(f"{title} must have different names, not {', '.join(names)}")
    taken_by = [socket for part in parts for socket in part.takes]
    given = {given.to for part in parts for given in part.gives} | {Socket.ONWARD}
    for socket in Socket:
        takers = taken_by.count(socket) + (socket in (Socket.ENCODED, Socket.OWN, Socket.PASSED))
        if takers != (socket in given):
            needed = "once" if socket in given else "by nobody, since nobody gives it"
            raise ValueError(f"Socket {socket.name} must be taken {needed}, not {takers} times")
    conditions = {}
    for sink in (sink for part in parts for sink in part.receives):
        if conditions.setdefault(sink.name, sink.when) is not sink.when:
            raise ValueError(f"Sink {sink.name} must have one condition in all parts, not several")
    unknown = sorted({name for part in parts for name in part.pulses} - pulses_layout().members.keys())
    if unknown:
        raise ValueError(f"Pulse of a part must be one of {', '.join(pulses_layout().members)}, not {unknown[0]!r}")


def _memory_signature(config, memory, kind):
    """Signature of a port at a memory; ``kind`` is ``read`` or ``write``."""
    signature = {"read": read_signature, "write": write_signature}[kind]
    return signature(config.memory_map[memory].words // config.lanes, config.lanes)


def memory_ports(config, parts):
    """Memory ports of all parts together, as members of a signature: ``<memory>_read`` and ``<memory>_write``, each
    an array of as many as there are, in the order of the parts."""
    members = {}
    for memory in config.memory_map.names:
        for kind in ("read", "write"):
            count = sum(getattr(part, f"{kind}s").get(memory, 0) for part in parts)
            if count:
                members[f"{memory}_{kind}"] = Out(_memory_signature(config, memory, kind)).array(count)
    return members


def sinks_of(parts):
    """Places that packets from the ring go to, by name: conditions as a :class:`Sink` has them."""
    sinks = {sink.name: sink.when for part in parts for sink in part.receives}
    # The all-gather is passed on as it comes, and a broadcast even in its last step.
    return {**sinks, "onward": lambda at, setup: is_gather(at) & (~at.last | setup.pass_on)}


def taken(port):
    """Whether a beat of a stream is taken in this cycle."""
    return port.valid & port.ready


def has_infinite(row):
    """Whether an element that a row keeps is infinite or not a number."""
    return Cat(row.elements[lane][23:31].all() & row.keep[lane] for lane in range(len(row.keep))).any()


class Part(wiring.Component):
    """A part of the datapath: a component with the ports that its description asks for, and its own streams.

    Parameters
    ----------
    config : NodeConfig
    description : PartDescription
    streams : mapping
        The members that the part's sinks, the sockets that it takes and the streams that it gives name.
    """

    def __init__(self, config, description, streams):
        self._config = config
        self._description = description
        layout = pulses_layout()
        pulses = data.StructLayout({name: layout[name].shape for name in description.pulses})
        super().__init__({
            # Begins a command; ``setup`` holds from then until the command has ended.
            "start": In(1),
            "setup": In(part_setup_layout(config)),
            # Events that the part sees to.
            **({"pulses": Out(pulses)} if description.pulses else {}),
            # Ports at memories, arrays ``<memory>_read`` and ``<memory>_write``.
            **memory_ports(config, [description]),
            # A stream for each step, and ``<name>_done`` for each that is awaited.
            **{name: port for step in description.steps for name, port in step.ports(In).items()},
            **streams,
        })

    def _connect_read(self, m, reader, memory, index=0):
        """Join a reader to a port at a memory, and if it is strided, to the pitch of the command."""
        self._connect_pitch(m, reader)
        wiring.connect(m, reader=reader.port, memory=wiring.flipped(getattr(self, f"{memory}_read")[index]))

    def _connect_write(self, m, writer, memory, index=0):
        """Join a writer to a port at a memory, and if it is strided, to the pitch of the command."""
        self._connect_pitch(m, writer)
        wiring.connect(m, writer=writer.port, memory=wiring.flipped(getattr(self, f"{memory}_write")[index]))

    def _connect_pitch(self, m, transfer):
        if transfer.strided:
            m.d.comb += transfer.pitch.eq(self.setup.pitch)
