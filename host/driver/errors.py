"""Exceptions of the driver."""

import enum

from hdl.control.protocol import Status
from host.errors import ExpectedError

__all__ = [
    "REFUSALS", "BadAddressError", "BadLengthError", "ConfigurationError", "DeviceError", "DeviceTimeoutError",
    "ForeignTenantError", "NoAnswerError", "OldEditError", "OutOfWindowError", "ProgramNotLoadedError",
    "ProgramRunningError", "ProgramTooLongError", "ProtocolError", "QueueFullError", "ReadOnlyError",
    "TransportStatus", "UnknownOpcodeError", "WrongProgramError", "WrongSetError",
]


class TransportStatus(enum.IntEnum):
    """Response status created by a transport, in addition to the statuses of nodes."""

    NO_ANSWER = 1 << 16


class DeviceError(ExpectedError):
    """Raised when a node has not carried out a request."""


class UnknownOpcodeError(DeviceError):
    """The node does not support the request."""


class BadLengthError(DeviceError):
    """The length of the packet contradicts its header, or the count in the header is not allowed."""


class BadAddressError(DeviceError):
    """The register or memory does not exist, or the memory is too small."""


class ReadOnlyError(DeviceError):
    """The register or memory cannot be written."""


class QueueFullError(DeviceError):
    """The node's command queue is full."""


class ProgramTooLongError(DeviceError):
    """The commands do not fit in the node's program memory."""


class ProgramRunningError(DeviceError):
    """The request is not possible while a program is running."""


class ProgramNotLoadedError(DeviceError):
    """The node has no program, or a different one."""


class WrongSetError(DeviceError):
    """The edit is for a set of passes other than the next one."""


class OldEditError(DeviceError):
    """The edit is not newer than the last one accepted by the node."""


class WrongProgramError(DeviceError):
    """The node's idle bank is empty or contains a different program than the edit specifies."""


class OutOfWindowError(DeviceError):
    """The range is not inside the tenant's window."""


class ForeignTenantError(DeviceError):
    """The request is not available to this tenant."""


class NoAnswerError(DeviceError):
    """A node reached through another node has not answered in time, and the request was abandoned."""


class ProtocolError(DeviceError):
    """The response does not answer the request."""


class ConfigurationError(DeviceError):
    """The node differs from the one that the driver was configured for."""


class DeviceTimeoutError(DeviceError, TimeoutError):
    """No response arrived in time."""


REFUSALS: dict[Status | TransportStatus, tuple[type[DeviceError], str]] = {
    Status.UNKNOWN_OPCODE: (UnknownOpcodeError, "check that driver and node are of the same version"),
    Status.BAD_LENGTH: (BadLengthError, "check that the transport keeps packets whole"),
    Status.BAD_ADDRESS: (BadAddressError, "check the range against the node's configuration"),
    Status.READ_ONLY: (ReadOnlyError, "write settings only; docs/registers.md lists them"),
    Status.QUEUE_FULL: (QueueFullError, "pop events until a command has ended, then push again"),
    Status.TOO_LONG: (ProgramTooLongError, "load a shorter program, or nodes with larger programs.depth"),
    Status.BUSY: (ProgramRunningError, "wait until PROGRAM_STATUS.running is 0, and of tenants' registers until no "
                                       "command is queued, or reset the link"),
    Status.NOT_LOADED: (ProgramNotLoadedError, "load the program first, with the number that the run names"),
    Status.WRONG_SET: (WrongSetError, "send it for the set behind the latest run, while that goes on"),
    Status.OLD_EDIT: (OldEditError, "number it behind PROGRAM_SET.latest"),
    Status.WRONG_PROGRAM: (WrongProgramError, "load the idle bank again, from slot 0 of queue 0 on"),
    Status.OUT_OF_WINDOW: (OutOfWindowError, "name addresses from the window's base on, up to its length"),
    Status.FOREIGN_TENANT: (ForeignTenantError, "ask when the node executes this tenant's commands, and for what is "
                                                "its own; docs/tenants.md lists it"),
    TransportStatus.NO_ANSWER: (NoAnswerError, "check that the ring has a node of this rank, and that its slots go "
                                               "on, then ask again"),
}
"""Exception and advice for each status of a response."""
