"""An open FPGA fabric for data-parallel neural-network training, as a library.

::

    import gradring

    with gradring.simulate(nodes=4, length=10_000, optimizer=gradring.Adam(1e-3)) as ring:
        sums, figures = ring.all_reduce(gradients)        # (4, n) float32 -> (n,)
        weights, figures = ring.step(gradients)           # the optimizer on the nodes

:mod:`gradring.torch` is the interface for PyTorch. In an installed wheel, hdl, sim, host and boards are packages
within this one; in a clone, they are next to it. They are imported when a name is first used.
"""

import importlib
from typing import TYPE_CHECKING

from gradring import names as names  # must precede all other imports of gradring

if TYPE_CHECKING:
    from hdl.config import NodeConfig
    from host.driver.diagnosis import RingError
    from host.driver.ring import Ring
    from host.jobs.figures import Figures
    from host.jobs.job import Job, JobError
    from host.jobs.simulate import node_for, simulate
    from host.run.execution import train
    from host.run.spec import RunSpec
    from host.training.optimizers import SGD, Adam, AdamW
    from host.transports.session import Session, TransportName, open_session
    from sim.verilated.native import Arithmetic

    __version__: str

__all__ = ["SGD", "Adam", "AdamW", "Arithmetic", "Figures", "Job", "JobError", "NodeConfig", "Ring", "RingError",
           "RunSpec", "Session", "TransportName", "node_for", "open_session", "simulate", "train"]

#: Module that defines each of the names above.
_MODULES = {
    "NodeConfig": "hdl.config", "RingError": "host.driver.diagnosis", "Ring": "host.driver.ring",
    "RunSpec": "host.run.spec", "train": "host.run.execution",
    "Figures": "host.jobs.figures", "Job": "host.jobs.job", "JobError": "host.jobs.job",
    "node_for": "host.jobs.simulate", "simulate": "host.jobs.simulate", "SGD": "host.training.optimizers",
    "Adam": "host.training.optimizers", "AdamW": "host.training.optimizers", "Session": "host.transports.session",
    "open_session": "host.transports.session", "TransportName": "host.transports.session",
    "Arithmetic": "sim.verilated.native",
}


def __getattr__(name: str) -> object:
    """Import a name on first use, so that the command's signal handlers are in place before the slow imports
    begin."""
    if name == "__version__":
        from host.versions import version

        value: object = version()
    elif name in _MODULES:
        value = getattr(importlib.import_module(_MODULES[name]), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})
