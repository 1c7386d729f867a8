"""Table of a node's registers.

:data:`REGISTERS` is the single source of truth: the gateware of :mod:`hdl.control.register_file`, the typed accessors
of :class:`host.driver.device.Device` and docs/registers.md are all derived from it.
"""

import dataclasses
import enum
import struct

from amaranth.hdl import unsigned
from amaranth.lib import data

from hdl.feature import features_of

__all__ = ["ALL_REGISTERS", "COUNTERS", "IDENTIFIER", "LATCHED", "PRIVILEGED", "REGISTERS", "RULE",
           "SLOT_REGISTERS", "STALLS", "TENANT_REGISTERS", "Access", "Field", "Kind", "Register", "checked_layout",
           "fields_of", "lacking", "register", "registers_of", "settings_of", "statuses_of"]

IDENTIFIER = 0x67720002
"""Value of register ID: "gr" in ASCII, the first letter in the highest byte; then the version of the register map."""


class Access(enum.Enum):
    """Source of a register's value."""

    CONSTANT = "constant"
    """A parameter of the node, read-only."""
    STATUS = "status"
    """The node; read-only for the host."""
    COUNTER = "counter"
    """Counts events in the node; read-only; zero after reset, and after CONTROL.clear_counters is written."""
    SETTING = "setting"
    """The host, which can read and write it."""
    SET = "set"
    """The host and the node: a write sets the bits that are 1 in it, and the node clears them."""
    RESTORED = "restored"
    """The node; on a node with ``settable_version``, a write makes it continue from a different value."""

    @property
    def writable(self):
        return self in (Access.SETTING, Access.SET)


class Kind(enum.Enum):
    """Interpretation of the 32 bits by the host."""

    UINT = "uint"
    FLOAT32 = "float32"
    BITFIELD = "bitfield"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Field:
    """Field of a ``BITFIELD`` register.

    Parameters
    ----------
    name : str
    bit : int
        Lowest bit.
    width : int
    pulse : bool
        Whether writing 1 triggers a single action; the field reads as 0.
    doc : str
    """

    name: str
    bit: int
    width: int = 1
    pulse: bool = False
    doc: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Register:
    """A 32-bit register.

    Parameters
    ----------
    name : str
        Name in upper case; the port of the register file has the same name in lower case.
    address : int
        Word address.
    access : Access
    kind : Kind
    width : int
        Width of the register in bits, starting at bit 0; higher bits read as zero and ignore writes. The width of a
        counter is 32; see ``increment``.
    reset : int
        Reset value, as bits.
    increment : int
        Width of a counter's per-cycle increment, in bits.
    fields : tuple of Field
        Fields of a ``BITFIELD`` register.
    feature : str, optional
        Name of the feature that adds the register to a node.
    doc : str
        One or more sentences for docs/registers.md.
    """

    name: str
    address: int
    access: Access
    kind: Kind = Kind.UINT
    width: int = 32
    reset: int = 0
    increment: int = 1
    fields: tuple[Field, ...] = ()
    feature: str | None = None
    doc: str

    @property
    def port(self):
        """Name of the register's port on :class:`~hdl.control.register_file.RegisterFile`."""
        return self.name.lower()

    def field(self, name):
        """Field with a given name."""
        return next(field for field in self.fields if field.name == name)


def _table(*registers, first=0, feature=None):
    """Registers at consecutive addresses; ``feature`` is the default for those without a feature."""
    rows = [{"feature": feature} | row for row in registers]
    docs = [f"{row['doc']} In nodes with {row['feature']}." if row["feature"] else row["doc"] for row in rows]
    return tuple(Register(address=first + n, **row | {"doc": docs[n]}) for n, row in enumerate(rows))


def _constant(name, doc):
    return {"name": name, "access": Access.CONSTANT, "doc": doc}


def _status(name, doc, **options):
    return {"name": name, "access": Access.STATUS, "doc": doc, **options}


def _setting(name, doc, **options):
    return {"name": name, "access": Access.SETTING, "doc": doc, **options}


def _scalar(name, doc, reset=0.0):
    bits, = struct.unpack("<I", struct.pack("<f", reset))
    return _setting(name, doc, kind=Kind.FLOAT32, reset=bits)


def _counter(name, doc, **options):
    return {"name": name, "access": Access.COUNTER, "doc": doc, **options}


def _throttled(subject):
    """Documentation of a throttle's rate; see docs/estimate.md."""
    return f"{subject}, in so many of 65,536 cycles; zero does not throttle."


LATCHED = ("GRADIENT_SCALE", "CLIP", "WEIGHT_FACTOR", "LEARNING_RATE", "FIRST_DECAY", "FIRST_GAIN", "SECOND_DECAY",
           "SECOND_GAIN", "EPSILON")
"""Settings that LATCH copies during a run."""

STALLS = ("no_credit", "ingress_empty", "encoder", "optimizer", "memory")
"""Causes of a stall; each has a bit of STATUS and a counter STALL_*."""

REGISTERS = _table(
    _constant("ID", f"0x{IDENTIFIER:08x}: a gradring node with this register map."),
    _constant("CONFIGURATION_HASH", "Digest of the node's parameters; the driver compares it with its own."),
    _constant("LANES", "Elements in a memory row."),
    _constant("NODES_MAX", "Nodes of the largest ring."),
    _constant("GRADIENT_WORDS", "Elements in the gradient memory."),
    _constant("WEIGHT_WORDS", "Elements in the weight memory."),
    _constant("STATE_WORDS", "Elements in each state plane."),
    _constant("STATE_PLANES", "State planes of the optimizer."),
    _constant("SEGMENT_ELEMENTS", "Elements in a ring segment, and in a burst of the optimizer."),
    _constant("QUEUES", "Queues of commands; with 2, the node has programs."),
    _constant("PROGRAM_DEPTH", "Commands of each queue's program; 0 without programs."),
    _status(
        "STATUS", "Activity of the node in this cycle.", kind=Kind.BITFIELD,
        fields=(
            Field(name="running", bit=0, doc="A command is running."),
            Field(name="waiting", bit=1, doc="The next command waits for flags."),
            *(
                Field(name=cause, bit=8 + n, doc=f"STALL_{cause.upper()} counts this cycle.")
                for n, cause in enumerate(STALLS)
            ),
            Field(name="far_silent", bit=13, doc="The far memory of a server is silent: docs/far.md."),
            Field(name="far_lost", bit=14, doc="The host got zeros for words of the far memory, or lost some, since "
                                               "counters were cleared."),
            Field(name="commands", bit=16, width=8, doc="Commands in the queue, apart from the one that is running."),
            Field(name="events", bit=24, width=8, doc="Events to be popped."),
        ),
    ),
    _setting(
        "CONTROL", "Acts on the whole node.", kind=Kind.BITFIELD, width=2,
        fields=(
            Field(name="link_reset", bit=0, doc="While it is 1, the link is reset and commands end with LINK_RESET."),
            Field(name="clear_counters", bit=1, pulse=True, doc="Writing 1 sets every counter to zero; reads as 0."),
        ),
    ),
    _setting(
        "OPTIMIZER", "How the optimizer works; a command keeps what is set when it starts.",
        kind=Kind.BITFIELD, width=6,
        fields=(
            Field(name="rule", bit=0, width=4, doc="0 SGD, 1 SGD with momentum, 2 Adam, 3 AdamW."),
            Field(name="nesterov", bit=4, doc="With momentum: the step looks ahead, as Nesterov's does."),
            Field(name="packed_state", bit=5, doc="State is stored as bfloat16, two elements to a word."),
        ),
    ),
    _scalar("GRADIENT_SCALE", "Factor of the summed gradient: one over the examples, and over the loss scale.", 1.0),
    _scalar("CLIP", "Largest magnitude of a scaled gradient; larger ones are clipped to it.", float("inf")),
    _scalar(
        "WEIGHT_FACTOR",
        "Weight decay: what is added to the gradient is this times the weight; with AdamW the weight is first "
        "multiplied by it, 1 - learning rate * decay.",
    ),
    _scalar("LEARNING_RATE", "Factor of the step; with Adam, that of this step, see docs/optimizer/rules.md."),
    _scalar("FIRST_DECAY", "Momentum, or Adam's beta1: factor of the first state plane."),
    _scalar("FIRST_GAIN", "One less dampening, or 1 - beta1: factor of the gradient in the first state plane.", 1.0),
    _scalar("SECOND_DECAY", "Adam's beta2: factor of the second state plane."),
    _scalar("SECOND_GAIN", "Adam's 1 - beta2: factor of the squared gradient in the second state plane."),
    _scalar("EPSILON", "Adam's addend to the square root in this step, see docs/optimizer/rules.md."),
    _scalar("MASK_ALTERNATIVE", "Replacement of an element that a mask does not keep.", -10000.0),
    _scalar("MASK_THRESHOLD", "Least magnitude of an element that SPARSIFY keeps."),
    _setting(
        "TIMEOUT",
        "Cycles that a command waits, for flags, other commands or the ring, before it ends with a time-out; a wait "
        "for commands or the ring begins anew when a node tells that it computes.",
        reset=1 << 20,
    ),
    _setting("WEIGHT_STRIDE", "Distance of the weights of odd passes, for commands of a program with `alternate`.",
             feature="programs"),
    _setting("GRADIENT_STRIDE", "Distance between the slots of gradients in rounds; the zeros follow as far behind.",
             feature="quorum"),
    _setting("QUORUM", "Gradients in time that close a round; for rank 0.", width=5, feature="quorum"),
    _setting(
        "DEADLINE",
        "Cycles after which rank 0 closes a round that it waits for and has a gradient of; 0 for none.",
        feature="quorum",
    ),
    *(
        _setting(
            f"STALE_WEIGHTS_{n}", f"Weights of late gradients of ages {first} to {last}, in sixteenths.",
            kind=Kind.BITFIELD, width=5 * (last - first + 1), feature="quorum",
            fields=tuple(Field(name=f"age_{age}", bit=5 * (age - first), width=5, doc=f"Age {age}: 0 to 16.")
                         for age in range(first, last + 1)),
        )
        for n, (first, last) in enumerate(((1, 5), (6, 10), (11, 15)))
    ),
    _setting(
        "RESUMED_SET", "Gradient that is in a slot since the host has written it there, in a resumed run.",
        kind=Kind.BITFIELD, width=18, feature="quorum",
        fields=(
            Field(name="tag", bit=0, width=16, doc="Number of its round."),
            Field(name="slot", bit=16, doc="Slot."),
            Field(name="ready", bit=17, doc="The node takes note when this bit rises."),
        ),
    ),
    _setting("THROTTLE_LINK", _throttled("Words to the successor"), width=16, feature="throttles"),
    _setting("THROTTLE_MEMORY", _throttled("Rows that each memory reads, and that it writes"), width=16,
             feature="throttles"),
    _setting(
        "THROTTLE_COMPUTE", "Rates of arithmetic; zero does not throttle. A command keeps that of the optimizer.",
        kind=Kind.BITFIELD, feature="throttles",
        fields=(
            Field(name="engine", bit=0, width=16, doc="Steps of COMPUTE and LAYERS, in so many of 65,536 cycles."),
            Field(name="optimizer", bit=16, width=16, doc="Beats of the optimizer, of 65,536 that it could take."),
        ),
    ),
    _setting("THROTTLE_HOST", _throttled("Words of requests, and of responses"), width=16, feature="throttles"),
    _setting("DELAY_LINK", "Cycles by which words to the successor come later; counts once none has left for 256.",
             width=8, feature="throttles"),
    {
        "name": "FLAGS", "access": Access.SET, "kind": Kind.BITFIELD, "width": 16,
        "fields": (Field(name="flags", bit=0, width=16, doc="One bit per flag."),),
        "doc": "Flags between commands: `signal` sets them, `wait` takes them. A write sets those bits that are 1.",
    },
    {"name": "WEIGHT_VERSION", "access": Access.RESTORED,
     "doc": "Updates that the weights have seen since reset, or beyond what was written."},
    _status("LAST_ERROR", "First word of the latest event that was not OK: tag, status, flags. Zero without any."),
    _status(
        "PROGRAM_STATUS", "State of the programs.", kind=Kind.BITFIELD, feature="programs",
        fields=(
            Field(name="running", bit=0, doc="A run is on, to the end of its last command."),
            Field(name="stopped", bit=1, doc="The last run was ended by a command that was not OK."),
            Field(name="loaded", bit=2, doc="The program of some queue is not empty."),
            Field(name="model", bit=8, width=8, doc="Number of the program that was loaded last."),
            Field(name="passes", bit=16, width=16, doc="Passes to go in the last queue, the current one included."),
        ),
    ),
    _status("NODE_TIME", "Cycles since reset, modulo 2^32, as in the trace.", feature="programs"),
    _status("TRACE_POINTER", "Records of the trace since reset, modulo 2^32.", feature="programs"),
    _status("LINK_DELAY", "Cycles of a word to the successor, as the link has measured them.", feature="replay"),
    *(
        _status(
            f"SLOT_{slot}", f"Gradient in slot {slot}.", kind=Kind.BITFIELD, width=19, feature="quorum",
            fields=(
                Field(name="tag", bit=0, width=16, doc="Number of its round."),
                Field(name="computing", bit=16, doc="It is being computed."),
                Field(name="pending", bit=17, doc="It waits for a round."),
                Field(name="taken", bit=18, doc="A closed round has it, which has not ended."),
            ),
        )
        for slot in range(2)
    ),
    _counter("CYCLES", "Cycles."),
    _counter("WORDS_SENT", "Words sent on the ring, headers and CRCs included."),
    _counter("WORDS_RECEIVED", "Words received from the ring, headers and CRCs included.", increment=2),
    _counter("PACKETS_SENT", "Packets sent on the ring."),
    _counter("PACKETS_RECEIVED", "Packets received from the ring, refused ones included.", increment=2),
    _counter("COMPRESSED_WORDS", "Payload words that were sent in compressed form."),
    _counter("ELEMENTS_ENCODED", "Elements into the encoders.", increment=5),
    _counter("COMPRESSED_ADDS", "Segments added in compressed form."),
    _counter("POSITIONS_ADDED", "Non-zero positions that the compressed-domain adder has taken."),
    _counter("ENCODES", "Segments encoded.", increment=2),
    _counter("DECODES", "Segments decoded."),
    _counter("OPTIMIZER_BURSTS", "Bursts of the optimizer."),
    _counter("SCATTER_REDUCE_CYCLES", "Cycles of the scatter-reduce phase of commands."),
    _counter("COMMAND_CYCLES", "Cycles in which an engine was busy with a command."),
    _counter("STALL_NO_CREDIT", "Cycles in which a packet was ready and the successor had given no credit."),
    _counter("STALL_INGRESS_EMPTY", "Cycles in which the engine waited for a word of its predecessor."),
    _counter("STALL_ENCODER", "Cycles in which the engine waited for the encoder."),
    _counter("STALL_OPTIMIZER", "Cycles in which the engine waited for the optimizer."),
    _counter("STALL_MEMORY", "Cycles in which a memory made a part of the engine wait for its port."),
    _counter("PACKETS_REFUSED", "Packets refused."),
    _counter("MASK_WORDS_FETCHED", "Words of external masks that MASK has taken; masks made by the node take none."),
    _counter("ELEMENTS_MASKED", "Elements that MASK has replaced, and that SPARSIFY has dropped.", increment=4),
    _counter("PROGRAM_LOADS", "Loads of a program's first command: LOAD_PROGRAM of slot 0 of queue 0.",
             feature="programs"),
    _counter("PROGRAM_RUNS", "Runs of programs.", feature="programs"),
    _counter("GEMM_CYCLES", "Cycles of matrix products of LAYERS.", feature="compute"),
    _counter("VECTOR_CYCLES", "Cycles of functions of rows of LAYERS.", feature="compute"),
    _counter("LINK_RESTARTS", "Restarts of the link to the successor.", feature="replay"),
    _counter("WORDS_REPEATED", "Words that were sent to the successor again.", feature="replay"),
    _counter("CHECKS_FAILED", "Faults found in words of the predecessor.", feature="replay"),
    _counter("GRADIENTS_COMPUTED", "Gradients computed for rounds, or resumed.", feature="quorum"),
    _counter("GRADIENTS_APPLIED", "Gradients that were in time.", feature="quorum"),
    _counter("GRADIENTS_APPLIED_LATE", "Late gradients that were added to a later round.", feature="quorum"),
    _counter("GRADIENTS_DROPPED", "Gradients that were too late, or lost in a reset of links.", increment=2,
             feature="quorum"),
    _status(
        "PROGRAM_BANK", "Banks of programs; zero without two.", kind=Kind.BITFIELD, feature="programs",
        fields=(
            Field(name="bank", bit=0, doc="Bank that runs."),
            Field(name="pending", bit=1, doc="An edit waits for its set."),
            Field(name="edit", bit=16, width=16, doc="Number of the edit that is in force."),
        ),
    ),
    _status(
        "PROGRAM_SET", "Sets and edits; zero without two banks.", kind=Kind.BITFIELD, feature="programs",
        fields=(
            Field(name="set", bit=0, width=16, doc="Set that the latest run began with."),
            Field(name="latest", bit=16, width=16, doc="Number of the latest edit that was accepted."),
        ),
    ),
)

COUNTERS = tuple(entry for entry in REGISTERS if entry.access is Access.COUNTER)
"""The counters, which have consecutive addresses."""

TENANT_REGISTERS = _table(
    _setting("TENANT", "Tenant whose commands the node executes: 1 or 2, or 0 for the privileged host.", width=2),
    _setting(
        "WINDOW", "Window that is set from WINDOW_BASE and WINDOW_BOUND.", kind=Kind.BITFIELD, width=7,
        fields=(
            Field(name="space", bit=0, width=4, doc="Memory space; 15 is the far memory."),
            Field(name="tenant", bit=4, width=2, doc="Tenant, 1 or 2."),
            Field(name="set", bit=6, doc="While it is 1, the window is set."),
        ),
    ),
    _setting("WINDOW_BASE", "First group of 32 elements of a window.", width=20),
    _setting("WINDOW_BOUND", "Group of 32 elements behind a window; one that is not in the memory leaves no window.",
             width=20),
    _setting("BUDGET", "Cycles that a command may take; zero for any number.", width=31),
    first=len(REGISTERS), feature="tenants")
"""Registers after :data:`REGISTERS` in nodes with tenants, only for the privileged host; none has 32 bits."""

SLOT_REGISTERS = _table(
    _setting(
        "SLOT_POSITION", "Place of the node in the slots of its ring; without one it sends nothing. It is written "
        "while links are reset.", kind=Kind.BITFIELD,
        fields=(
            Field(name="rank", bit=0, width=4, doc="Rank."),
            Field(name="size", bit=4, width=5, doc="Nodes of the ring; 0 for no place."),
        ),
    ),
    _setting(
        "TIME_TEST", "Changes of TIME, for tests.", kind=Kind.BITFIELD,
        fields=(
            Field(name="drift", bit=0, width=8, doc="Cycles in 2^20 by which TIME is faster; two's complement."),
            Field(name="shift", bit=8, width=16, doc="What TIME goes on by, in place of a cycle; two's complement."),
            Field(name="move", bit=24, doc="It does when this bit rises."),
        ),
    ),
    _status("TIME", "Cycles that all nodes of a ring count alike, modulo 2^32, if they are valid."),
    _status(
        "TIME_STATUS", "State of TIME.", kind=Kind.BITFIELD,
        fields=(
            Field(name="valid", bit=0, doc="TIME is that of rank 0."),
            Field(name="lost", bit=8, width=8, doc="Words of others that met own ones, modulo 256."),
            Field(name="error", bit=16, width=16, doc="At rank 0: what its own SYNC would have changed TIME by."),
        ),
    ),
    _status("SUPERFRAMES", "Superframes that the node had slots in, modulo 65,536.", width=16),
    first=len(REGISTERS) + len(TENANT_REGISTERS), feature="slots")
"""Registers after :data:`REGISTERS` in nodes with slots, which have no tenants: docs/ring/slots.md."""

MICROBATCH_REGISTERS = _table(
    _setting(
        "MICROBATCHES", "Gradients that a sum of integers adds; a command keeps what is set when it starts.",
        kind=Kind.BITFIELD,
        fields=(
            Field(name="count", bit=0, width=8, doc="Gradients of this node; 0 stands for 1."),
            Field(name="total", bit=16, width=9, doc="Gradients of all nodes, up to 256; 0 for the number of nodes."),
        ),
    ),
    _setting("MICROBATCH_STRIDE", "Elements from a gradient of the node to the next one, a multiple of 32.",
             width=24),
    first=len(REGISTERS) + len(TENANT_REGISTERS) + len(SLOT_REGISTERS), feature="microbatches")
"""Registers after :data:`SLOT_REGISTERS` in nodes that sum several gradients each: docs/reproducible.md."""

PRIVILEGED = ("CONTROL", "WEIGHT_VERSION", "THROTTLE_LINK", "THROTTLE_MEMORY", "THROTTLE_COMPUTE", "THROTTLE_HOST",
              "DELAY_LINK")
"""Registers outside :data:`TENANT_REGISTERS` that no tenant may write."""

ALL_REGISTERS = (*REGISTERS, *TENANT_REGISTERS, *SLOT_REGISTERS, *MICROBATCH_REGISTERS)
"""Registers of all nodes."""

_BY_NAME = {entry.name: entry for entry in ALL_REGISTERS}


def registers_of(config):
    """Registers of a node of this configuration."""
    if config.has("microbatches"):
        return ALL_REGISTERS
    if config.link.slots:
        return (*REGISTERS, *TENANT_REGISTERS, *SLOT_REGISTERS)
    return (*REGISTERS, *TENANT_REGISTERS) if config.has("tenants") else REGISTERS


def lacking(config):
    """Names of the registers that a node lacks: registers of absent features, and registers listed by
    :meth:`Feature.lacks <hdl.feature.Feature.lacks>` of the features that it has."""
    absent = (entry.name for entry in registers_of(config) if entry.feature and not config.has(entry.feature))
    return frozenset(absent).union(*(feature.lacks(config) for feature in features_of(config)))


def _ports_of(config, access):
    absent = lacking(config)
    return [entry.port for entry in registers_of(config) if entry.access is access and entry.name not in absent]


def settings_of(config):
    """Names of the register file's output ports for settings, which the host writes for a node's units."""
    set_version = ["set_version"] if config.has("settable_version") else []
    return ["link_reset" if port == "control" else port for port in _ports_of(config, Access.SETTING)] + set_version


def statuses_of(config):
    """Names of the register file's input ports for statuses, which a node's units report to the host."""
    return [port for port in _ports_of(config, Access.STATUS) if port != "status"]


def register(name):
    """Look up a register by name; the ``KeyError`` for an unknown name lists the valid names."""
    try:
        return _BY_NAME[name]
    except KeyError:
        raise KeyError(f"Register must be one of {', '.join(_BY_NAME)}, not {name!r}") from None


def fields_of(registers, name):
    """Fields of the named register as slices of a register file's output, keyed by field name."""
    return {field.name: getattr(registers, name.lower())[field.bit:field.bit + field.width]
            for field in register(name).fields}


#: Amaranth shape of the field ``rule`` of register OPTIMIZER.
RULE = unsigned(register("OPTIMIZER").field("rule").width)


def checked_layout():
    """Layout of the settings that determine a command's memory use, for both its check and its execution."""
    return data.StructLayout({"rule": RULE, "packed_state": 1})
