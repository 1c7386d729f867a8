"""People's own jobs: vectors of any length, summed and updated on a ring of nodes."""
