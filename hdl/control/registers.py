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
    """Access to a register, and the source of its value."""

    CONSTANT = "constant"
    """A parameter of the node, read-only."""
    STATUS = "status"
    """State of the node; read-only for the host."""
    COUNTER = "counter"
    """Count of events in the node; read-only; zero after reset, and after CONTROL.clear_counters is written."""
    SETTING = "setting"
    """Value that the host can read and write."""
    SET = "set"
    """Bits that the host sets and the node clears; a write sets the bits that are 1 in it."""
    RESTORED = "restored"
    """State of the node; with ``settable_version``, a write makes the node continue from a different value."""

    @property
    def writable(self):
        return self in (Access.SETTING, Access.SET)


class Kind(enum.Enum):
    """How the host interprets the 32 bits of a register."""

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
    """Return registers at consecutive addresses. ``feature`` is the default for entries that name no feature."""
    rows = [{"feature": feature} | row for row in registers]
    docs = [f"{row['doc']} Only in nodes with feature `{row['feature']}`." if row["feature"] else row["doc"]
            for row in rows]
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
    """Return the description of a register that sets the rate of a throttle; see docs/estimate.md."""
    return f"Number of cycles, out of every 65,536, in which {subject}; 0 for no limit."


LATCHED = ("GRADIENT_SCALE", "CLIP", "WEIGHT_FACTOR", "LEARNING_RATE", "FIRST_DECAY", "FIRST_GAIN", "SECOND_DECAY",
           "SECOND_GAIN", "EPSILON")
"""Settings that LATCH copies during a run."""

STALLS = ("no_credit", "ingress_empty", "encoder", "optimizer", "memory")
"""Causes of a stall; each has a bit of STATUS and a counter STALL_*."""

REGISTERS = _table(
    _constant("ID", f"0x{IDENTIFIER:08x}: a gradring node with this register map."),
    _constant("CONFIGURATION_HASH", "Digest of the node's parameters, which the driver checks."),
    _constant("LANES", "Number of elements in a memory row."),
    _constant("NODES_MAX", "Maximum number of nodes in a ring."),
    _constant("GRADIENT_WORDS", "Number of elements in the gradient memory."),
    _constant("WEIGHT_WORDS", "Number of elements in the weight memory."),
    _constant("STATE_WORDS", "Number of elements in each state plane."),
    _constant("STATE_PLANES", "Number of state planes of the optimizer."),
    _constant("SEGMENT_ELEMENTS", "Number of elements in a ring segment and in a burst of the optimizer."),
    _constant("QUEUES", "Number of command queues; with 2 or more, the node has programs."),
    _constant("PROGRAM_DEPTH", "Maximum number of commands in each queue's program; 0 without programs."),
    _status(
        "STATUS", "Activity of the node in this cycle.", kind=Kind.BITFIELD,
        fields=(
            Field(name="running", bit=0, doc="A command is running."),
            Field(name="waiting", bit=1, doc="The next command waits for flags."),
            *(
                Field(name=cause, bit=8 + n, doc=f"STALL_{cause.upper()} counts this cycle.")
                for n, cause in enumerate(STALLS)
            ),
            Field(name="far_silent", bit=13, doc="The server's far memory does not respond: docs/far.md."),
            Field(name="far_lost", bit=14, doc="Since counters were cleared, a host access to the far memory has "
                                               "read zeros or lost words."),
            Field(name="commands", bit=16, width=8, doc="Commands in the queue, excluding the running one."),
            Field(name="events", bit=24, width=8, doc="Events waiting to be popped."),
        ),
    ),
    _setting(
        "CONTROL", "Reset of the link, and clearing of counters.", kind=Kind.BITFIELD, width=2,
        fields=(
            Field(name="link_reset", bit=0, doc="While 1, the link is reset, and commands end with LINK_RESET."),
            Field(name="clear_counters", bit=1, pulse=True, doc="Writing 1 sets every counter to zero; reads as 0."),
        ),
    ),
    _setting(
        "OPTIMIZER", "Update rule and its options; a command uses the value at its start.",
        kind=Kind.BITFIELD, width=6,
        fields=(
            Field(name="rule", bit=0, width=4, doc="0 SGD, 1 SGD with momentum, 2 Adam, 3 AdamW."),
            Field(name="nesterov", bit=4, doc="With momentum: use Nesterov momentum."),
            Field(name="packed_state", bit=5, doc="State is stored as bfloat16, two elements per word."),
        ),
    ),
    _scalar("GRADIENT_SCALE", "Factor of the summed gradient: 1 / (number of examples * loss scale).", 1.0),
    _scalar("CLIP", "Largest magnitude of a scaled gradient; larger gradients are clipped to it.", float("inf")),
    _scalar(
        "WEIGHT_FACTOR",
        "Weight decay: this value times the weight is added to the gradient. With AdamW, the weight is multiplied by "
        "this value, 1 - learning rate * decay, before the step.",
    ),
    _scalar("LEARNING_RATE", "Learning rate; for Adam, with the step's bias correction: docs/optimizer/rules.md."),
    _scalar("FIRST_DECAY", "Momentum, or Adam's beta1: factor of the first state plane in an update."),
    _scalar("FIRST_GAIN", "1 - dampening, or 1 - beta1: factor of the gradient for the first state plane.", 1.0),
    _scalar("SECOND_DECAY", "Adam's beta2: factor of the second state plane in an update."),
    _scalar("SECOND_GAIN", "Adam's 1 - beta2: factor of the squared gradient for the second state plane."),
    _scalar("EPSILON", "Adam's epsilon, with the step's bias correction: docs/optimizer/rules.md."),
    _scalar("MASK_ALTERNATIVE", "Value that replaces masked elements.", -10000.0),
    _scalar("MASK_THRESHOLD", "Smallest magnitude of the elements that SPARSIFY keeps."),
    _setting(
        "TIMEOUT",
        "Cycles that a command waits for flags, other commands or the ring before it ends with a time-out. While it "
        "waits for commands or the ring, the count restarts whenever a node reports that it is computing.",
        reset=1 << 20,
    ),
    _setting("WEIGHT_STRIDE", "Offset added to the weight base in odd passes, for program commands with `alternate`.",
             feature="programs"),
    _setting("GRADIENT_STRIDE", "Distance from gradient slot 0 to slot 1, and from slot 1 to the zeros.",
             feature="quorum"),
    _setting("QUORUM", "Number of on-time gradients that close a round; used by rank 0.", width=5, feature="quorum"),
    _setting(
        "DEADLINE",
        "Cycles after which rank 0 closes a round that it waits for and that has a gradient; 0 for no deadline.",
        feature="quorum",
    ),
    *(
        _setting(
            f"STALE_WEIGHTS_{n}", f"Weights of gradients that are {first} to {last} rounds late, in sixteenths.",
            kind=Kind.BITFIELD, width=5 * (last - first + 1), feature="quorum",
            fields=tuple(Field(name=f"age_{age}", bit=5 * (age - first), width=5,
                               doc=f"Weight at age {age}: 0 to 16.")
                         for age in range(first, last + 1)),
        )
        for n, (first, last) in enumerate(((1, 5), (6, 10), (11, 15)))
    ),
    _setting(
        "RESUMED_SET", "Gradient that the host has written into a slot to resume a run.",
        kind=Kind.BITFIELD, width=18, feature="quorum",
        fields=(
            Field(name="tag", bit=0, width=16, doc="Number of the gradient's round."),
            Field(name="slot", bit=16, doc="Number of the slot."),
            Field(name="ready", bit=17, doc="A rising edge marks the gradient as pending."),
        ),
    ),
    _setting("THROTTLE_LINK", _throttled("a word may be sent to the successor"), width=16, feature="throttles"),
    _setting("THROTTLE_MEMORY", _throttled("memories may read and write rows"), width=16, feature="throttles"),
    _setting(
        "THROTTLE_COMPUTE", "Rates of arithmetic; 0 for no limit. A command uses the optimizer's rate at its start.",
        kind=Kind.BITFIELD, feature="throttles",
        fields=(
            Field(name="engine", bit=0, width=16, doc="Cycles in which COMPUTE and LAYERS work, out of 65,536."),
            Field(name="optimizer", bit=16, width=16, doc="Beats that the optimizer takes, out of 65,536."),
        ),
    ),
    _setting("THROTTLE_HOST", _throttled("a word may enter or leave the host port"), width=16, feature="throttles"),
    _setting("DELAY_LINK", "Cycles by which words to the successor are delayed; takes effect after 256 cycles "
                           "without a word.", width=8, feature="throttles"),
    {
        "name": "FLAGS", "access": Access.SET, "kind": Kind.BITFIELD, "width": 16,
        "fields": (Field(name="flags", bit=0, width=16, doc="One bit per flag."),),
        "doc": "Flags between commands: `signal` sets them, `wait` clears them. A write sets the bits that are 1.",
    },
    {"name": "WEIGHT_VERSION", "access": Access.RESTORED,
     "doc": "Number of updates of the weights since reset; the count continues from a written value."},
    _status("LAST_ERROR", "First word of the latest event with a status other than OK: tag, status, flags. 0 if "
                          "there was none."),
    _status(
        "PROGRAM_STATUS", "State of the programs.", kind=Kind.BITFIELD, feature="programs",
        fields=(
            Field(name="running", bit=0, doc="A run is in progress; its last command has not ended."),
            Field(name="stopped", bit=1, doc="The last run was stopped by a command that did not end with OK."),
            Field(name="loaded", bit=2, doc="At least one queue has a program."),
            Field(name="model", bit=8, width=8, doc="Number of the latest loaded program."),
            Field(name="passes", bit=16, width=16, doc="Remaining passes of the last queue, including this one."),
        ),
    ),
    _status("NODE_TIME", "Cycles since reset, modulo 2^32; the time in trace records.", feature="programs"),
    _status("TRACE_POINTER", "Number of trace records since reset, modulo 2^32.", feature="programs"),
    _status("LINK_DELAY", "Latency from this node to its successor, in cycles, as measured by the link.",
            feature="replay"),
    *(
        _status(
            f"SLOT_{slot}", f"State of the gradient in slot {slot}.", kind=Kind.BITFIELD, width=19, feature="quorum",
            fields=(
                Field(name="tag", bit=0, width=16, doc="Number of the gradient's round."),
                Field(name="computing", bit=16, doc="The gradient is being computed."),
                Field(name="pending", bit=17, doc="The gradient waits for a round."),
                Field(name="taken", bit=18, doc="The gradient is used by a closed round that has not ended."),
            ),
        )
        for slot in range(2)
    ),
    _counter("CYCLES", "Cycles since the counters were cleared."),
    _counter("WORDS_SENT", "Words sent on the ring, including headers and CRCs."),
    _counter("WORDS_RECEIVED", "Words received from the ring, including headers and CRCs.", increment=2),
    _counter("PACKETS_SENT", "Packets sent on the ring."),
    _counter("PACKETS_RECEIVED", "Packets received from the ring, including rejected ones.", increment=2),
    _counter("COMPRESSED_WORDS", "Payload words sent in compressed form."),
    _counter("ELEMENTS_ENCODED", "Elements passed to the encoders.", increment=5),
    _counter("COMPRESSED_ADDS", "Segments added in compressed form."),
    _counter("POSITIONS_ADDED", "Non-zero positions processed by the compressed-domain adder."),
    _counter("ENCODES", "Segments encoded.", increment=2),
    _counter("DECODES", "Segments decoded."),
    _counter("OPTIMIZER_BURSTS", "Bursts processed by the optimizer."),
    _counter("SCATTER_REDUCE_CYCLES", "Cycles that commands have spent in scatter-reduces."),
    _counter("COMMAND_CYCLES", "Cycles in which an engine was executing a command."),
    _counter("STALL_NO_CREDIT", "Cycles in which a packet was ready, but the successor had given no credit."),
    _counter("STALL_INGRESS_EMPTY", "Cycles in which the engine waited for a word from the predecessor."),
    _counter("STALL_ENCODER", "Cycles in which the engine waited for the encoder."),
    _counter("STALL_OPTIMIZER", "Cycles in which the engine waited for the optimizer."),
    _counter("STALL_MEMORY", "Cycles in which a part of the engine waited for a memory port."),
    _counter("PACKETS_REFUSED", "Packets rejected by the node."),
    _counter("MASK_WORDS_FETCHED", "Mask words that MASK has read from memory; masks made by the node need none."),
    _counter("ELEMENTS_MASKED", "Elements replaced by MASK or dropped by SPARSIFY.", increment=4),
    _counter("PROGRAM_LOADS", "Loaded programs, counted by LOAD_PROGRAM requests for slot 0 of queue 0.",
             feature="programs"),
    _counter("PROGRAM_RUNS", "Runs of programs.", feature="programs"),
    _counter("GEMM_CYCLES", "Cycles of matrix products in LAYERS.", feature="compute"),
    _counter("VECTOR_CYCLES", "Cycles of row functions in LAYERS.", feature="compute"),
    _counter("LINK_RESTARTS", "Restarts of the link to the successor.", feature="replay"),
    _counter("WORDS_REPEATED", "Words retransmitted to the successor.", feature="replay"),
    _counter("CHECKS_FAILED", "Errors detected in words from the predecessor.", feature="replay"),
    _counter("GRADIENTS_COMPUTED", "Gradients computed for rounds, including gradients restored by RESUMED_SET.",
             feature="quorum"),
    _counter("GRADIENTS_APPLIED", "Gradients that were on time for their round.", feature="quorum"),
    _counter("GRADIENTS_APPLIED_LATE", "Late gradients that were applied in a later round.", feature="quorum"),
    _counter("GRADIENTS_DROPPED", "Gradients dropped because they were too late, or because the links were reset.",
             increment=2, feature="quorum"),
    _status(
        "PROGRAM_BANK", "State of the program banks; 0 in a node with a single bank.", kind=Kind.BITFIELD,
        feature="programs",
        fields=(
            Field(name="bank", bit=0, doc="Running bank."),
            Field(name="pending", bit=1, doc="An edit waits for its set."),
            Field(name="edit", bit=16, width=16, doc="Number of the active edit."),
        ),
    ),
    _status(
        "PROGRAM_SET", "Numbers of sets and edits; 0 in a node with a single bank.", kind=Kind.BITFIELD,
        feature="programs",
        fields=(
            Field(name="set", bit=0, width=16, doc="First set of the latest run."),
            Field(name="latest", bit=16, width=16, doc="Number of the latest accepted edit."),
        ),
    ),
)

COUNTERS = tuple(entry for entry in REGISTERS if entry.access is Access.COUNTER)
"""The counters, which have consecutive addresses."""

TENANT_REGISTERS = _table(
    _setting("TENANT", "Tenant whose commands the node executes: 1 or 2, or 0 for the privileged host.", width=2),
    _setting(
        "WINDOW", "Selection of the window to be set.", kind=Kind.BITFIELD, width=7,
        fields=(
            Field(name="space", bit=0, width=4, doc="Memory space; 15 is the far memory."),
            Field(name="tenant", bit=4, width=2, doc="Tenant, 1 or 2."),
            Field(name="set", bit=6, doc="While 1, the window is set from WINDOW_BASE and WINDOW_BOUND."),
        ),
    ),
    _setting("WINDOW_BASE", "First group of a window; a group has 32 elements.", width=20),
    _setting("WINDOW_BOUND", "First group after the window; the window is empty if it is beyond the memory or below "
                             "WINDOW_BASE.", width=20),
    _setting("BUDGET", "Maximum number of cycles that a command may take; 0 for no limit.", width=31),
    first=len(REGISTERS), feature="tenants")
"""Registers after :data:`REGISTERS` in nodes with tenants, only for the privileged host; none has 32 bits."""

SLOT_REGISTERS = _table(
    _setting(
        "SLOT_POSITION", "Position of the node in its ring; a node without a position sends nothing. Write this "
        "register while the links are reset.", kind=Kind.BITFIELD,
        fields=(
            Field(name="rank", bit=0, width=4, doc="Rank of the node."),
            Field(name="size", bit=4, width=5, doc="Number of nodes in the ring; 0 for no position."),
        ),
    ),
    _setting(
        "TIME_TEST", "Changes to TIME for tests, at ranks other than 0.", kind=Kind.BITFIELD,
        fields=(
            Field(name="drift", bit=0, width=8, doc="Extra cycles of TIME per 2^20 cycles; two's complement."),
            Field(name="shift", bit=8, width=16, doc="Cycles to add to TIME; two's complement."),
            Field(name="move", bit=24, doc="A rising edge adds `shift` to TIME."),
        ),
    ),
    _status("TIME", "Cycle count that is the same on all nodes of a ring, modulo 2^32; see TIME_STATUS."),
    _status(
        "TIME_STATUS", "Validity and errors of TIME.", kind=Kind.BITFIELD,
        fields=(
            Field(name="valid", bit=0, doc="TIME has been set to the TIME of rank 0."),
            Field(name="lost", bit=8, width=8, doc="Passing words lost in collisions with the node's own words, "
                                                   "modulo 256."),
            Field(name="error", bit=16, width=16, doc="At rank 0: change that its own SYNC would make to TIME."),
        ),
    ),
    _status("SUPERFRAMES", "Superframes in which the node had slots, modulo 65,536.", width=16),
    first=len(REGISTERS) + len(TENANT_REGISTERS), feature="slots")
"""Registers after :data:`REGISTERS` in nodes with slots, which have no tenants: docs/ring/slots.md."""

MICROBATCH_REGISTERS = _table(
    _setting(
        "MICROBATCHES", "Number of gradients in a sum of integers; a command uses the value at its start.",
        kind=Kind.BITFIELD,
        fields=(
            Field(name="count", bit=0, width=8, doc="Gradients of this node; 0 means 1."),
            Field(name="total", bit=16, width=9, doc="Gradients of all nodes, up to 256; 0 means one per node."),
        ),
    ),
    _setting("MICROBATCH_STRIDE", "Distance between a node's gradients in memory, in elements; a multiple of 32.",
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
    """Return the fields of the register ``name``, keyed by field name, as slices of a register file's output."""
    return {field.name: getattr(registers, name.lower())[field.bit:field.bit + field.width]
            for field in register(name).fields}


#: Amaranth shape of the field ``rule`` of register OPTIMIZER.
RULE = unsigned(register("OPTIMIZER").field("rule").width)


def checked_layout():
    """Settings on which a command's use of memory depends, which are fixed from its check to its end."""
    return data.StructLayout({"rule": RULE, "packed_state": 1})
