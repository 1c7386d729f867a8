"""Random pairs of options of training runs: each pair runs, or is rejected with a message that names both."""
