"""PyTorch on a ring: simulated by ``gradring launch``, or in software under torchrun; and reproducible sums.

In a script that ``gradring launch`` has started, ``init_process_group()`` uses the ring without any change to the
script. Without a launcher, ``init_process_group("gradring")`` uses a ring in software after this module has been
imported. :class:`SGD`, :class:`Adam` and :class:`AdamW` accept the arguments of their ``torch.optim`` counterparts
and run their steps on the ring. :mod:`gradring.torch.reproducible` needs neither a ring nor a launcher.
"""

import importlib
from typing import TYPE_CHECKING

from host.pytorch.backend import register

if TYPE_CHECKING:
    from host.pytorch.hooks import local_gradients
    from host.pytorch.optimizers import SGD, Adam, AdamW

__all__ = ["SGD", "Adam", "AdamW", "local_gradients"]

#: Modules that define the names above; they are imported on first use, since reproducible sums need none of them.
_MODULES = {"local_gradients": "host.pytorch.hooks", "SGD": "host.pytorch.optimizers",
            "Adam": "host.pytorch.optimizers", "AdamW": "host.pytorch.optimizers"}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(importlib.import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


register()
