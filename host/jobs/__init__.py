"""Jobs on custom data: vectors of any length, which a ring of nodes sums and updates."""
