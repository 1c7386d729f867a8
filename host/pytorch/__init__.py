"""PyTorch on a simulated ring: a backend of torch.distributed, optimizers on the nodes, and their launcher.

Ranks are ordinary processes. The launcher has the ring; a rank asks it over a Unix socket, and an operation is done
when all ranks have asked for it. Nothing here but :mod:`~host.pytorch.rank` and what it imports needs PyTorch.
"""
