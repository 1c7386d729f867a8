"""Units that are synthesised only for comparison with a node's units."""
