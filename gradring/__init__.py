"""An open FPGA fabric for data-parallel neural-network training, as a library.

::

    import gradring

    with gradring.simulate(nodes=4, length=10_000, optimizer=gradring.Adam(1e-3)) as ring:
        sums, figures = ring.all_reduce(gradients)        # (4, n) float32 -> (n,)
        weights, figures = ring.step(gradients)           # the optimizer on the nodes

:mod:`gradring.torch` is the same for PyTorch. In an installed wheel hdl, sim, host and boards are packages within
this one; in a clone they stand beside it.
"""

from hdl.config import NodeConfig
from host.driver.diagnosis import RingError
from host.driver.ring import Ring
from host.jobs.figures import Figures
from host.jobs.job import Job, JobError
from host.jobs.simulate import node_for, simulate
from host.training.optimizers import SGD, Adam, AdamW
from host.transports.session import Session, open_session
from host.versions import version
from sim.verilated.native import Arithmetic

__all__ = ["SGD", "Adam", "AdamW", "Arithmetic", "Figures", "Job", "JobError", "NodeConfig", "Ring", "RingError",
           "Session", "node_for", "open_session", "simulate"]

__version__ = version()
