"""PyTorch on a simulated ring, in a script that ``gradring launch`` has started.

``init_process_group()`` uses the ring without any change to the script. :class:`SGD`, :class:`Adam` and
:class:`AdamW` accept the arguments of their ``torch.optim`` counterparts and run their steps on the nodes.
"""

from host.pytorch.hooks import local_gradients
from host.pytorch.optimizers import SGD, Adam, AdamW

__all__ = ["SGD", "Adam", "AdamW", "local_gradients"]
