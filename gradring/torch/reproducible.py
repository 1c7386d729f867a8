"""Reproducible sums of PyTorch tensors, over any backend of ``torch.distributed``, without a launcher or a ring.

::

    from gradring.torch import reproducible

    model = DistributedDataParallel(model)
    model.register_comm_hook(reproducible.Reducer(), reproducible.average)

:class:`Reducer` sums tensors, and :func:`average` is the hook for DDP. With :class:`Microbatches`, bits do not depend
on the number of ranks either.
"""

from host.pytorch.reproducible.hook import average
from host.pytorch.reproducible.microbatches import Microbatches
from host.pytorch.reproducible.reducer import Counts, Reducer

__all__ = ["Counts", "Microbatches", "Reducer", "average"]
