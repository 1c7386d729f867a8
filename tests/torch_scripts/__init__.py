"""Random PyTorch scripts with modules, optimizers and groups, run on the ring and over gloo only."""
