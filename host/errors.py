"""Base class of errors that a user can correct, or that nodes report."""

__all__ = ["ExpectedError"]


class ExpectedError(Exception):
    """An error of the input, the machine or the nodes; commands print its message without a traceback."""
