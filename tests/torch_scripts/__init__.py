"""Random scripts of PyTorch: what they do to modules, optimizers and groups, on the ring and over gloo only."""
