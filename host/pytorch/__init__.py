"""PyTorch on a simulated ring: a torch.distributed backend, optimizers on the nodes, and a launcher.

Ranks are ordinary processes. The launcher owns the ring; ranks send it requests over a Unix socket, and an operation
is executed when all ranks have requested it. Only :mod:`~host.pytorch.rank` and its imports need PyTorch.
"""
