"""Random pairs of options for training. Each pair runs, or is rejected with a message that names both options."""
