"""Cost of a job's operations on nodes, without a simulation: words from the golden ring, and modelled cycles.

A ring in software sends packets of its own. The figures are for a ring of boards, with packets whose sizes do not
depend on the data.
"""

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from hdl.config import NodeConfig
from host.cycles.collective import cycles_of_costs
from host.cycles.costs import Costs, Format
from host.cycles.estimate import Collective
from host.cycles.timing import timing_of
from host.driver.results import Cycles
from host.jobs import checks
from host.jobs.figures import Figures
from host.jobs.slots import parts_of
from host.training.optimizers import Optimizer
from host.training.reference import golden_settings
from sim.arithmetic import ring as compiled
from sim.golden.codecs import CODECS
from sim.golden.ring import GROUP, Traffic

__all__ = ["JobCosts"]


class JobCosts:
    """Figures of a job's operations, as golden nodes would report them.

    ``words_zero_value``, ``sent`` and ``nonzeros`` depend on the data, and are 0.

    Parameters
    ----------
    config : NodeConfig
        Nodes that would run the job; their codec of gradients must have packets of a fixed size.
    lengths : sequence of int
        Number of elements of each group of the job's vector.
    nodes : int
        Number of nodes in the ring.
    latency : int
        Modelled latency of the links in cycles.
    optimizers : sequence of Optimizer
        Optimizer of each group; empty if the job only sums.
    packed_state : bool
        Whether nodes store state as bfloat16.
    """

    def __init__(self, config: NodeConfig, lengths: Sequence[int], *, nodes: int, latency: int,
                 optimizers: Sequence[Optimizer] = (), packed_state: bool = False) -> None:
        self._config, self._nodes, self._latency = config, nodes, latency
        self._timing, self._optimizers = timing_of(config), list(optimizers)
        largest = checks.check_job(config, lengths, nodes=nodes, optimizers=optimizers, packed_state=packed_state)
        self._parts = [(group, len(places)) for group, places in parts_of(checks.groups_of(lengths), largest)]
        self._longest = max(-(-length // GROUP) * GROUP for _, length in self._parts) if optimizers else largest
        self._part = functools.lru_cache(maxsize=None)(self._figures)

    def all_reduce(self, count: int, *, begin: int = 0) -> Figures:
        """Figures of a sum of ``count`` elements, which begin at an index of a longer vector."""
        return Figures.total(self._part(Collective.ALL_REDUCE, min(self._longest, count - first),
                                        (begin + first) // GROUP % self._nodes)
                             for first in range(0, count, self._longest))

    def step(self, used: Sequence[Optimizer | None]) -> Figures:
        """Figures of an update of the groups that have an optimizer."""
        return Figures.total(self._part(Collective.FUSED_UPDATE, length, 0)
                             for group, length in self._parts if used[group] is not None)

    def _figures(self, kind: Collective, length: int, offset: int) -> Figures:
        """Figures of one command for one part of a vector."""
        traffic = self._traffic(kind, length, offset)
        return Figures(elements=length, commands=1, cycles=self._cycles(kind, length), host_cycles=None,
                       words=int(traffic.words.sum()), bound=traffic.bound, words_dense=traffic.dense_words)

    def _cycles(self, kind: Collective, length: int) -> Cycles:
        if self._nodes == 1:
            return self._timing.alone(length=length) if kind is Collective.FUSED_UPDATE else None
        form = Format(gradients=self._config.gradients, weights=self._config.weights.codec)
        costs = Costs(form, length=length, nodes=self._nodes, segment=self._timing.segment,
                      sums=kind is Collective.ALL_REDUCE)
        return cycles_of_costs(kind, costs, self._timing, latency=self._latency).cycles

    def _traffic(self, kind: Collective, length: int, offset: int) -> Traffic:
        """Traffic of a command, computed for gradients of zero."""
        gradients = np.zeros((self._nodes, length), np.uint32)
        codec = CODECS[self._config.gradients]
        shape: dict[str, Any] = {"segment": self._timing.segment, "lanes": self._config.lanes,
                                 "gradient_codec": codec,
                                 "residuals": None if codec.exact else np.zeros_like(gradients)}
        if kind is Collective.ALL_REDUCE:
            return compiled.all_reduce(gradients, block_offset=offset, **shape)[1]
        optimizer = self._optimizers[0]
        settings = golden_settings(optimizer.settings(1, gradient_scale=1 / self._nodes))
        planes = [gradients[0].copy() for _ in range(optimizer.planes)]
        return compiled.fused_update(gradients, gradients[0], planes, settings,
                                     weight_codec=CODECS[self._config.weights.codec], **shape).traffic
