"""Errors that users can correct or that nodes report."""

__all__ = ["ExpectedError"]


class ExpectedError(Exception):
    """An error in the input, the machine or the nodes; commands print its message without a traceback."""
