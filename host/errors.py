"""The base of errors that a user can correct, or that the nodes report."""

__all__ = ["ExpectedError"]


class ExpectedError(Exception):
    """An error of the input, of the machine, or of the nodes: commands print its message, without a traceback."""
