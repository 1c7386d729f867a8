"""A common clock of the nodes of a ring, and its slots for sending."""
