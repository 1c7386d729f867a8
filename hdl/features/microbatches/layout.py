"""Limits on the number of addends, per node and in total."""

__all__ = ["ADDENDS", "MAX_ADDENDS"]

#: Shape of the number of addends of a node.
ADDENDS = range(256)

#: Maximum total number of addends of all nodes.
MAX_ADDENDS = 256
