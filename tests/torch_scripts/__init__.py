"""Random PyTorch scripts with modules, optimizers and groups, run both on the ring and over gloo alone."""
