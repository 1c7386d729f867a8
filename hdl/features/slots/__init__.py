"""A common clock of the nodes of a ring, and slots of it in which they send."""
