"""Reasons to reject a checkpoint, with one exception class for each."""

import enum
from typing import ClassVar

__all__ = ["BadMacError", "BadRegionError", "BadVersionError", "Cause", "ForeignTenantError", "MalformedError",
           "ReadBackError", "RejectionError", "StaleError", "TooSmallError", "WrongContractError", "WrongPeersError",
           "WrongWatermarkError"]


class Cause(enum.StrEnum):
    """Causes of a rejection, in the order in which a restore checks them."""

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
    """A checkpoint is rejected; the message gives the reason in one line."""

    cause: ClassVar[Cause]

    def __init_subclass__(cls, cause: Cause | None = None):
        if cause is not None:
            cls.cause = cause

    def __init__(self, reason: str):
        super().__init__(f"{self.cause}: {reason}")
        self.reason = reason  # the message without the cause


class MalformedError(RejectionError, cause=Cause.MALFORMED):
    """The bytes are not a complete checkpoint."""


class BadVersionError(RejectionError, cause=Cause.BAD_VERSION):
    """The file has a different format."""


class BadMacError(RejectionError, cause=Cause.BAD_MAC):
    """The manifest was made with a different key, or was modified."""


class ForeignTenantError(RejectionError, cause=Cause.FOREIGN_TENANT):
    """The checkpoint belongs to a different tenant."""


class StaleError(RejectionError, cause=Cause.STALE):
    """The checkpoint is too old, was seen before, or was made for a different restore."""


class TooSmallError(RejectionError, cause=Cause.TOO_SMALL):
    """The target lacks memory, registers or programs that the checkpoint needs."""


class WrongContractError(RejectionError, cause=Cause.WRONG_CONTRACT):
    """The target would compute different results."""


class WrongWatermarkError(RejectionError, cause=Cause.WRONG_WATERMARK):
    """The structure or the weights differ from the model that the owner has marked."""


class WrongPeersError(RejectionError, cause=Cause.WRONG_PEERS):
    """The target's ring differs from the ring that the manifest describes, or a node does not answer."""


class _RegionError(RejectionError):
    """The contents of a region are wrong."""

    def __init__(self, node: int | None, region: str, reason: str):
        where = f"region {region}" if node is None else f"node {node}, region {region}"
        super().__init__(f"{where} {reason}")
        self.node, self.region = node, region  # rank of the region's node; None for a region of the process


class BadRegionError(_RegionError, cause=Cause.BAD_REGION):
    """The contents of a region do not match the manifest."""


class ReadBackError(_RegionError, cause=Cause.READ_BACK):
    """The target does not contain the data that was written."""
