"""PyTorch on a simulated ring: a backend of torch.distributed, optimizers on the nodes, and their launcher.

Ranks are ordinary processes. The launcher has the ring; a rank asks it over a Unix socket, and an operation is done
when all ranks have asked for it. Only :mod:`~host.pytorch.rank` and its imports need PyTorch.
"""
