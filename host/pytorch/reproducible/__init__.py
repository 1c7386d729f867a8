"""Reproducible sums of PyTorch tensors over any backend, with the same bits as the gateware but without a ring.

Addends are converted to integers with an exponent that is the same on all ranks. Every backend of
``torch.distributed`` computes maxima and sums of integers exactly, so results do not depend on order or topology. The
arithmetic is the same as in :mod:`sim.golden.features.reproducible.sums`.
"""
