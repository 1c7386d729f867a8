"""Units that are synthesised only to be compared with those that nodes have."""
