"""PyTorch on a simulated ring: a backend of torch.distributed, optimizers on the nodes, and their launcher.

Ranks are ordinary processes. The launcher owns the ring; ranks send it requests over a Unix socket, and an operation
is carried out when all ranks have requested it. Only :mod:`~host.pytorch.rank` and its imports need PyTorch.
"""
