"""Common clock of the nodes of a ring, and their slots for sending."""
