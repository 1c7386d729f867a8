"""Reasons to refuse a checkpoint, each with its own class."""

import enum
from typing import ClassVar

__all__ = ["BadMacError", "BadRegionError", "BadVersionError", "Cause", "ForeignTenantError", "MalformedError",
           "ReadBackError", "RejectionError", "StaleError", "TooSmallError", "WrongContractError", "WrongPeersError",
           "WrongWatermarkError"]


class Cause(enum.StrEnum):
    """Causes of a rejection, in the order of the checks of a restore."""

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
    """A checkpoint is refused; the message says why in one line."""

    cause: ClassVar[Cause]

    def __init_subclass__(cls, cause: Cause | None = None):
        if cause is not None:
            cls.cause = cause

    def __init__(self, reason: str):
        super().__init__(f"{self.cause}: {reason}")
        self.reason = reason  # the message without the cause


class MalformedError(RejectionError, cause=Cause.MALFORMED):
    """The bytes are no checkpoint, or not a whole one."""


class BadVersionError(RejectionError, cause=Cause.BAD_VERSION):
    """The file is of another format."""


class BadMacError(RejectionError, cause=Cause.BAD_MAC):
    """The manifest was not made with this key, or was changed."""


class ForeignTenantError(RejectionError, cause=Cause.FOREIGN_TENANT):
    """The checkpoint is another tenant's."""


class StaleError(RejectionError, cause=Cause.STALE):
    """The checkpoint is too old, was seen before, or was made for another restore."""


class TooSmallError(RejectionError, cause=Cause.TOO_SMALL):
    """The target lacks something that the checkpoint needs."""


class WrongContractError(RejectionError, cause=Cause.WRONG_CONTRACT):
    """The target computes other bits."""


class WrongWatermarkError(RejectionError, cause=Cause.WRONG_WATERMARK):
    """Structure or weights differ from the model that the owner has marked."""


class WrongPeersError(RejectionError, cause=Cause.WRONG_PEERS):
    """The ring of the target is another one, or a node of it does not answer."""


class _RegionError(RejectionError):
    """A region has wrong contents."""

    def __init__(self, node: int | None, region: str, reason: str):
        where = f"region {region}" if node is None else f"node {node}, region {region}"
        super().__init__(f"{where} {reason}")
        self.node, self.region = node, region  # rank of its node, None for a region of the process


class BadRegionError(_RegionError, cause=Cause.BAD_REGION):
    """A region has other contents than the manifest states."""


class ReadBackError(_RegionError, cause=Cause.READ_BACK):
    """The target does not hold the written data."""
