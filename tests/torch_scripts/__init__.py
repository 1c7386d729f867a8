"""Random PyTorch scripts on modules, optimizers and groups, on the ring and over gloo only."""
