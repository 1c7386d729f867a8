"""Commands to a node, and the events that report their completion."""

import dataclasses
from typing import Any

import numpy as np

from hdl.control.protocol import EventFlag, EventStatus, Operation, command_layout, event_layout
from hdl.control.sequencer import run_layout
from host.driver.errors import DeviceError
from host.driver.words import Words, fields, int_of, pack, places

__all__ = ["REFUSED", "CollectiveError", "Command", "Event", "ProgramRun"]

_COMMAND = places(command_layout())
_EVENT = places(event_layout())
_RUN = places(run_layout())


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command:
    """Command to a node; fields that the operation does not use are ignored."""

    operation: Operation
    # position of the node in the ring, and number of nodes
    rank: int = 0
    size: int = 1
    port: int = 0  # ring number; always 0 on a node with one port
    # addresses in elements, multiples of 32. In the weight memory, ``weight_base`` addresses the jobs of MASK, the
    # errors of SPARSIFY and the layers of INFER, and ``state_base`` the external masks of MASK.
    gradient_base: int = 0
    weight_base: int = 0
    state_base: int = 0
    length: int = 0  # number of elements, or of samples for INFER
    # packets contain ``epoch`` and ``collective``, so that nodes reject other commands' packets; same on all nodes
    epoch: int = 0
    root: int = 0  # source rank of a BROADCAST, or rank that owns all groups
    collective: int = 0
    # flags to wait for and clear before the start; flags to set after a successful end; 16 bits each
    wait: int = 0
    signal: int = 0
    tag: int = 0  # number reported in the event; 16 bits
    tenant: int = 0  # tenant that the command belongs to; 0 on nodes without tenants
    # command that must end before this command starts: its number in the program of the first other queue (after_0)
    # and of the second other queue (after_1); 16 bits each, 0 for none
    after_0: int = 0
    after_1: int = 0
    # number of passes, 0 to 3, by which ``after_0`` and ``after_1`` precede this command
    lag_0: int = 0
    lag_1: int = 0
    # if ``remote`` is set, ``after_1`` and ``lag_1`` refer to queue ``unit_queue`` on the node with rank ``unit``
    unit_queue: int = 0
    remote: int = 0
    round: int = 0  # whether the command is part of a round of gradients
    alternate: int = 0  # whether ``weight_base`` alternates between two copies of the weights in successive passes
    region: int = 0  # region of weights, 1 to 63, that a program's command computes with or updates; 0 for none
    apart: int = 0  # whether ``region`` has two copies
    model: int = 0  # number of the model that the program belongs to
    unit: int = 0
    # partition of the groups of 32 elements: group j belongs to block (j + ``block_offset``) modulo ``size``, and is
    # ``stride`` groups after the previous group
    block_offset: int = 0
    stride: int = 1
    # round number of a pushed command with ``round``; in a program the node derives it from the pass
    number: int = 0
    duration: int = 0  # cycles that a COMPUTE takes on the compute stub
    format: int = 0  # weight format of a BROADCAST: index into :data:`hdl.compression.registry.FETCH_FORMATS`
    entry: int = 0  # entry in a server's table of counts, 0 to 63, for a BROADCAST or PUSH; 64 to 255 for none
    root_reduce: int = 0  # whether ``root`` owns all groups of FUSED_UPDATE or ALL_REDUCE: docs/ring/root_reduce.md

    def words(self) -> Words:
        """Return the descriptor's 16 words; raises ``ValueError`` if a field does not fit into its bits."""
        return pack(_COMMAND, vars(self), "Command's")

    @classmethod
    def from_words(cls, words: Words) -> "Command":
        """Decode a descriptor; raises ``ValueError`` if the operation is unknown or a reserved bit is set."""
        values = fields(_COMMAND, int_of(words))
        names = {field.name for field in dataclasses.fields(cls)}
        command = cls(**{**{name: value for name, value in values.items() if name in names},
                         "operation": Operation(values["operation"])})
        if not np.array_equal(command.words(), words):
            raise ValueError("Descriptor must have zeros where it is reserved")
        return command


@dataclasses.dataclass(frozen=True)
class ProgramRun:
    """A run of a node's programs in all queues."""

    passes: int
    model: int = 0  # number of the program that is loaded
    parity: int = 0  # copy of the weights (0 or 1) that commands with ``alternate`` use in the first pass
    # offset added to collective numbers in the first pass, and its increase per pass
    collective: int = 0
    collectives: int = 0
    # number of the run, 1 to 63: the same on all nodes of a ring, and different from the last 62 numbers. With 0,
    # nodes do not report their progress to each other, so no command can wait for another node.
    number: int = 0
    # node's position on the ring that carries its control words, and the size of that ring
    rank: int = 0
    size: int = 0
    # passes since weights were written, modulo 2^16, for weight versions; if 0, the node counts its own updates
    first: int = 0

    def __post_init__(self) -> None:
        self.words()  # packing raises an error if a value does not fit

    def words(self) -> Words:
        """Return the payload of a RUN request."""
        return pack(_RUN, vars(self), "Run's")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Event:
    """Event that reports the end of a command."""

    tag: int  # tag of the command
    status: EventStatus
    flags: EventFlag
    detail: int  # details of the status; see docs/protocol.md
    cycles: int | None  # cycles that the command took; None where cycles are not modelled (docs/simulation.md)
    weight_version: int  # number of updates that the node's weights have received
    queue: int = 0  # queue that held the command on the node

    @classmethod
    def from_words(cls, words: Words) -> "Event":
        """Decode an event from four words; raises ``ValueError`` if its status is unknown."""
        values: dict[str, Any] = fields(_EVENT, int_of(words))
        return cls(**{**values, "status": EventStatus(values["status"]), "flags": EventFlag(values["flags"])})

    def check(self, name: str = "node") -> "Event":
        """Return this event if the command succeeded, else raise ``CollectiveError``."""
        if self.status is not EventStatus.OK:
            raise CollectiveError(self, name)
        return self


class CollectiveError(DeviceError):
    """Raised when a command ends with a status other than OK."""

    def __init__(self, event: "Event", name: str = "node") -> None:
        self.event, self.name = event, name
        detail = fields(_DETAIL, event.detail)
        meaning = _MEANINGS[event.status].format(
            event=event, node=f"rank {detail['rank']}" if detail["elsewhere"] else "this node", **detail)
        super().__init__(f"{name}: command with tag {event.tag} ended with {event.status.name}: {meaning}")


#: Lowest bit and width of the fields in an event's detail: received (``high``) and expected value for a rejected
#: packet, packets received and sent before a time-out, the command that timed out, or a read of overwritten data.
_DETAIL = {"high": (16, 16), "low": (0, 16), "lag": (16, 2), "elsewhere": (18, 1), "rank": (20, 4), "queue": (24, 2),
           "instruction": (0, 8), "row": (8, 24)}

_MEANINGS: dict[EventStatus, str] = {
    EventStatus.OK: "it did what it was asked to do",
    EventStatus.UNKNOWN_OPERATION: "there is no operation {event.detail}, or not on a node of this configuration",
    EventStatus.BAD_BASE: "base {event.detail} is not a multiple of 32, or beyond the end of its memory",
    EventStatus.BAD_LENGTH: "the length exceeds the {event.detail} elements there is room for behind a base",
    EventStatus.BAD_RANK: "rank, size, port or root do not name a place in a ring of this node "
                          "(0x{event.detail:08x}: rank in the lowest byte, then size, port, root)",
    EventStatus.WRONG_COLLECTIVE: "a packet of collective {high} came in, not of {low}; check that all nodes were "
                                  "given the same commands in the same order",
    EventStatus.WRONG_BLOCK: "a packet of block or segment 0x{high:04x} came in, not of 0x{low:04x} (bit 15 is set "
                             "for a segment); check that all nodes have the same size and length, and consecutive "
                             "ranks",
    EventStatus.WRONG_LENGTH: "a packet of length {high} came in, not of {low} (65535: the packet is cut short, or "
                              "too long); check that all nodes have the same length",
    EventStatus.BAD_CRC: "a packet was damaged on the link from the predecessor (detail 0x{event.detail:08x})",
    EventStatus.WRONG_SEQUENCE: "a packet is missing, or came twice: epoch or sequence {high}, not {low}",
    EventStatus.WRONG_SOURCE: "a packet came from rank {high}, not from the predecessor, rank {low}",
    EventStatus.WRONG_CODEC: "a packet of type and codec 0x{high:02x} came in, not of 0x{low:02x}; check that all "
                             "nodes were given the same operation",
    EventStatus.PEER_ABORT: "rank {high} gave up and said so; look at its event",
    EventStatus.INGRESS_TIMEOUT: "nothing came in on the link from the predecessor ({low} packets were sent, {high} "
                                 "received); check that link, and that every node was given the command",
    EventStatus.EGRESS_TIMEOUT: "the successor gave no credit on the link to it ({low} packets were sent, {high} "
                                "received); check that link, and that every node was given the command",
    EventStatus.WAIT_TIMEOUT: "flags 0x{event.detail:04x} were not set within {event.cycles} cycles; check the wait "
                              "masks, or raise TIMEOUT",
    EventStatus.OVERRUN: "the predecessor sent more than it had credit for (detail 0x{event.detail:08x})",
    EventStatus.LINK_RESET: "CONTROL.link_reset was set before it had ended",
    EventStatus.BAD_RULE: "rule {event.detail} of register OPTIMIZER needs more state planes than the node has; take "
                          "another rule, or a node with more of them",
    EventStatus.BAD_MASK: "job {event.detail} is wrong: zero or too large a number of rows, columns or matrices, "
                          "elements that its shape does not take or that exceed what is left of the length, or a "
                          "list of jobs or words that runs beyond the end of the weight memory",
    EventStatus.AFTER_TIMEOUT: "command {low} of the program of queue {queue}, {lag} passes before, did not end on "
                               "{node}, and nobody was at work for it for {event.cycles} cycles; check the order of "
                               "the programs, or raise TIMEOUT",
    EventStatus.BAD_LAYER: "layer {event.detail} is wrong: no inputs or outputs or too many inputs, an address "
                           "inside a memory row, parts that end beyond a memory for so many samples, or a list "
                           "without an end",
    EventStatus.BAD_INSTRUCTION: "instruction {event.detail} of the list is wrong: an unknown kind, function, place "
                                 "or order, reserved bits that are set, sizes or factors that do not fit, a base or "
                                 "stride inside a memory row, an operand beyond its memory, a target over an "
                                 "operand or the list, a label beyond the columns, or a list without an end",
    EventStatus.READ_DEAD: "instruction {instruction} of the list read row {row} of the activations as a buffer's "
                           "that another buffer has written over; plan its memory again, and check that the lists "
                           "are those of the plan",
    EventStatus.REPEATED: "its number of a collective is that of the collective before it; give each another number "
                          "than the last",
    EventStatus.BUSY: "packets are still under way at its ports, so that they cannot be switched; wait for all "
                      "commands of all nodes, or recover the ring",
    EventStatus.BAD_UNIT: "it waits for a node that is none of the others of the ring, for a queue that there is "
                          "not, or on a node without control words (0x{event.detail:06x}: rank in the lowest "
                          "byte, then the queue, and the nodes of the ring)",
    EventStatus.BAD_STRIDE: "the block offset is not below the size, or the stride is zero (0x{event.detail:04x}: "
                            "offset in the low byte, then the stride)",
    EventStatus.STALE: "its region of weights has had {low} updates, and its pass must find {high}; check its waits, "
                       "or the number of the run's first pass",
    EventStatus.CLOSE_TIMEOUT: "rank 0 did not close round {low}, and nobody was at work for {event.cycles} cycles; "
                               "check QUORUM and DEADLINE, that all nodes have the program, or raise TIMEOUT",
    EventStatus.BAD_FORMAT: "there is no format {event.detail} of weights, or its root is not the server, which "
                            "alone encodes",
    EventStatus.FAR_TIMEOUT: "the far memory said nothing for TIMEOUT cycles, after {event.detail} elements were "
                             "moved; check that it is there, or raise TIMEOUT",
    EventStatus.OUT_OF_WINDOW: "a range is not in the tenant's window, or a list has led out of it ({event.detail}); "
                               "name addresses from the window's base on, up to its length",
    EventStatus.FOREIGN_TENANT: "the command names another tenant than the one that nodes execute, or is for the "
                                "privileged host ({event.detail})",
    EventStatus.OVER_BUDGET: "it took more cycles than BUDGET; ask the privileged host for more, or for less at once",
    EventStatus.WRONG_SUM: "a sum of segment {low} does not match its checksum (0x{event.detail:08x}: in the highest "
                           "byte the rank of the node at fault, or its predecessor, then the block); this node has "
                           "not applied the segment; repeat the step, or go on from a checkpoint",
}

#: Statuses of invalid commands, which a node would reject again.
REFUSED = (EventStatus.UNKNOWN_OPERATION, EventStatus.BAD_BASE, EventStatus.BAD_LENGTH, EventStatus.BAD_RANK,
           EventStatus.BAD_RULE, EventStatus.BAD_MASK, EventStatus.BAD_LAYER, EventStatus.BAD_STRIDE,
           EventStatus.BAD_INSTRUCTION, EventStatus.BAD_UNIT, EventStatus.STALE, EventStatus.READ_DEAD,
           EventStatus.BAD_FORMAT)
