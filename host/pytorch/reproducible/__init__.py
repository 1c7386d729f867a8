"""Reproducible sums of PyTorch tensors over any backend: the gateware's bits, without a ring.

Addends become integers below an exponent on which all ranks agree. A maximum and a sum of integers are exact in every
backend of ``torch.distributed``, in any order and topology, so results do not depend on either. The arithmetic is
that of :mod:`sim.golden.features.reproducible.sums`.
"""
