"""Time slots: the nodes of a ring share a common clock, which determines when each of them may send."""
