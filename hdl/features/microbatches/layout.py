"""Shapes of the numbers of addends."""

__all__ = ["ADDENDS", "MAX_ADDENDS"]

#: Shape of the number of addends of a node.
ADDENDS = range(256)

#: Largest number of addends of all nodes.
MAX_ADDENDS = 256
