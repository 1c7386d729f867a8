"""Units that are synthesised only for comparison with the units of a node."""
