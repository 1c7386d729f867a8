"""Jobs on custom data: vectors of any length that a ring of nodes sums and updates."""
