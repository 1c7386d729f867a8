"""Time slots: a common clock for the nodes of a ring, and their slots for sending."""
