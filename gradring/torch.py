"""PyTorch on a simulated ring, in a script that ``gradring launch`` has started.

``init_process_group()`` takes the ring without a change of the script. :class:`SGD`, :class:`Adam` and :class:`AdamW`
take the arguments of ``torch.optim`` and do their step on the nodes.
"""

from host.pytorch.hooks import local_gradients
from host.pytorch.optimizers import SGD, Adam, AdamW

__all__ = ["SGD", "Adam", "AdamW", "local_gradients"]
