"""Reasons for which a checkpoint is refused, each with a class of its own."""

import enum
from typing import ClassVar

__all__ = ["BadMacError", "BadRegionError", "BadVersionError", "Cause", "ForeignTenantError", "MalformedError",
           "ReadBackError", "RejectionError", "StaleError", "TooSmallError", "WrongContractError", "WrongPeersError",
           "WrongWatermarkError"]


class Cause(enum.StrEnum):
    """Causes of a rejection, in the order in which a restore looks for them."""

    MALFORMED = "MALFORMED"
    BAD_VERSION = "BAD_VERSION"
    BAD_MAC = "BAD_MAC"
    FOREIGN_TENANT = "FOREIGN_TENANT"
    STALE = "STALE"
    TOO_SMALL = "TOO_SMALL"
    WRONG_CONTRACT = "WRONG_CONTRACT"
    WRONG_WATERMARK = "WRONG_WATERMARK"
    WRONG_PEERS = "WRONG_PEERS"
    BAD_REGION = "BAD_REGION"
    READ_BACK = "READ_BACK"


class RejectionError(ValueError):
    """A checkpoint is refused; the message says why in one line.

    Members
    -------
    reason : str
        The message without the cause.
    """

    cause: ClassVar[Cause]

    def __init__(self, reason: str):
        super().__init__(f"{self.cause}: {reason}")
        self.reason = reason


class MalformedError(RejectionError):
    """The bytes are no checkpoint, or not a whole one."""

    cause = Cause.MALFORMED


class BadVersionError(RejectionError):
    """The file is of another format."""

    cause = Cause.BAD_VERSION


class BadMacError(RejectionError):
    """The manifest was not made with this key, or was changed."""

    cause = Cause.BAD_MAC


class ForeignTenantError(RejectionError):
    """The checkpoint is another tenant's."""

    cause = Cause.FOREIGN_TENANT


class StaleError(RejectionError):
    """The checkpoint is too old, was seen before, or was made for another restore."""

    cause = Cause.STALE


class TooSmallError(RejectionError):
    """The target lacks something that the checkpoint needs."""

    cause = Cause.TOO_SMALL


class WrongContractError(RejectionError):
    """The target computes other bits."""

    cause = Cause.WRONG_CONTRACT


class WrongWatermarkError(RejectionError):
    """Structure or weights are not what the owner of the model has marked."""

    cause = Cause.WRONG_WATERMARK


class WrongPeersError(RejectionError):
    """The ring of the target is another one, or a node of it does not answer."""

    cause = Cause.WRONG_PEERS


class _RegionError(RejectionError):
    """A region is not what it must be.

    Members
    -------
    node : int, optional
        Rank of its node; None for a region of the process.
    """

    def __init__(self, node: int | None, region: str, reason: str):
        where = f"region {region}" if node is None else f"node {node}, region {region}"
        super().__init__(f"{where} {reason}")
        self.node, self.region = node, region


class BadRegionError(_RegionError):
    """The contents of a region are not those of the manifest."""

    cause = Cause.BAD_REGION


class ReadBackError(_RegionError):
    """The target does not hold what was written to it."""

    cause = Cause.READ_BACK
