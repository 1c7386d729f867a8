"""Simulated ring for tests in which this process stands in for all ranks."""

import contextlib
import dataclasses

import numpy as np

from host.jobs.simulate import simulate
from host.pytorch import jobs as module
from host.pytorch.jobs import Jobs, Options
from host.pytorch.messages import AllReduce, Open, Save

__all__ = ["SimulatedJobs", "standing_in"]


class SimulatedJobs:
    """Client that makes each request for all ranks; a rank's values are this process's, times the rank's factor."""

    def __init__(self, jobs, factors):
        self._jobs, self._factors = jobs, factors

    def ask(self, request):
        if isinstance(request, Save):
            return self._jobs.save(request)
        name = "values" if isinstance(request, AllReduce) else "gradients"
        return self._jobs.answer([
            request if isinstance(request, Open) else
            dataclasses.replace(request, **{name: np.float32(factor) * getattr(request, name)})
            for factor in self._factors])


@contextlib.contextmanager
def standing_in(monkeypatch, node, *factors, **options):
    """Open a client of a simulated ring with the given options. The ring has one node per factor."""
    def simulated(*, gradients, weights, **options):
        return simulate(node=node, **options)

    monkeypatch.setattr(module, "simulate", simulated)
    with contextlib.ExitStack() as stack:
        yield SimulatedJobs(Jobs(Options(nodes=len(factors), **options), stack), factors)
