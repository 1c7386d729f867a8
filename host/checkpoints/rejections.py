"""Reasons for rejecting a checkpoint, with one exception class per reason."""

import enum
from typing import ClassVar

__all__ = ["BadMacError", "BadRegionError", "BadVersionError", "Cause", "ForeignTenantError", "MalformedError",
           "ReadBackError", "RejectionError", "StaleError", "TooSmallError", "WrongContractError", "WrongPeersError",
           "WrongWatermarkError"]


class Cause(enum.StrEnum):
    """Causes of rejection, in the order of the checks."""

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
    """Base class for rejected checkpoints; the message gives the reason in one line."""

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
    """The manifest was signed with a different key, or was modified."""


class ForeignTenantError(RejectionError, cause=Cause.FOREIGN_TENANT):
    """The checkpoint belongs to a different tenant."""


class StaleError(RejectionError, cause=Cause.STALE):
    """The checkpoint is too old, was seen before, or was made for a different restore."""


class TooSmallError(RejectionError, cause=Cause.TOO_SMALL):
    """The target has too little memory, or lacks registers or programs that the checkpoint needs."""


class WrongContractError(RejectionError, cause=Cause.WRONG_CONTRACT):
    """The target would compute different results."""


class WrongWatermarkError(RejectionError, cause=Cause.WRONG_WATERMARK):
    """The structure or weights differ from the owner's watermarked model."""


class WrongPeersError(RejectionError, cause=Cause.WRONG_PEERS):
    """The target's ring differs from the one in the manifest, or a node does not respond."""


class _RegionError(RejectionError):
    """The contents of a region are wrong."""

    def __init__(self, node: int | None, region: str, reason: str):
        where = f"region {region}" if node is None else f"node {node}, region {region}"
        super().__init__(f"{where} {reason}")
        self.node, self.region = node, region  # rank of the region's node, or None for a region of the host process


class BadRegionError(_RegionError, cause=Cause.BAD_REGION):
    """The contents of a region do not match the manifest."""


class ReadBackError(_RegionError, cause=Cause.READ_BACK):
    """Reading back the target returned different data than was written."""
