"""Errors of the link to a board."""

from host.driver.errors import DeviceError

__all__ = ["BoardResetError", "LinkError", "LinkLostError"]


class LinkError(DeviceError):
    """The link to the board does not work."""


class LinkLostError(LinkError):
    """The serial port is gone, or the board behind it no longer answers."""


class BoardResetError(LinkError):
    """The board no longer knows this link: it has been reset, or another program has opened it."""
