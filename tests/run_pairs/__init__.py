"""Random pairs of training options; each pair runs or is rejected with a message that names both."""
