"""Base class of errors that a user can correct, or that nodes report."""

__all__ = ["ExpectedError"]


class ExpectedError(Exception):
    """An error in the input, the machine or the nodes; commands print the message without a traceback."""
