"""Runs of a relay on nodes: the same sets as those of golden ones, on a ring of workers and a server.

Golden workers that have all layers go along, so what nodes make is compared set by set: the loss, and before an edit
and at the end the server's weights and state. An edit takes effect between two sets: the host gives workers and
server programs of the new structure, and the server the weights and state of units that now lie elsewhere. An
assessor reads the server's own counts, which are compared as well.
"""

from collections.abc import Mapping, Sequence
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from hdl.config import NodeConfig
from host.compute.factors import Array
from host.driver.optimizer_settings import Settings
from host.driver.ring import Ring
from host.models.digits import Dataset
from host.relay.edits import Edit, Kind, Structure
from host.relay.lists import compile_relay
from host.relay.measured import SetTimes, set_times
from host.relay.plan import Worker, check_server
from host.relay.ring import RelayRing
from host.relay.run import Assessor, RelayRun, SetReport
from host.relay.timeline import Costs, link_cycles, words_per_parameter
from host.training.golden_steps import golden_settings
from host.training.optimizers import Optimizer
from sim.arithmetic import functions
from sim.golden.codecs import RAW
from sim.golden.relay import Counts, Share, resident_set, total_loss

__all__ = ["NodeRun", "server_node", "worker_node", "worker_of"]

Bits = npt.NDArray[np.uint32]


def worker_node(*, window: int, activation_words: int, far_words: int, depth: int) -> NodeConfig:
    """A worker of four by four units with two windows of ``window`` elements, and as many accumulators."""
    return NodeConfig(role="worker", compute=4, queues=3, masking=False, error_feedback=False, state_planes=0,
                      fetch_formats=True,
                      state_words=32, gradient_words=2 * window, weight_words=2 * window,
                      activation_words=activation_words, far_words=far_words, program_depth=depth)


def server_node(*, words: int, planes: int, depth: int) -> NodeConfig:
    """A server of ``words`` weights with ``planes`` words of state for each, which updates a row per cycle."""
    return NodeConfig(role="server", queues=3, masking=False, error_feedback=False, gradient_words=64,
                      weight_words=words, state_words=words, state_planes=planes, far_words=(1 + planes) * words,
                      update_lanes=4, program_depth=depth, fetch_formats=True)


def worker_of(config: NodeConfig) -> Worker:
    """Memories of a worker, for plans."""
    return Worker(lanes=config.lanes, weight_words=config.weight_words, gradient_words=config.gradient_words,
                  activation_words=config.activation_words, far_words=config.far_words)


class NodeRun(RelayRun):
    """Run of a relay on nodes, and on golden ones beside them, which have all layers.

    Parameters
    ----------
    ring : Ring
        Workers and as the last node their server; connected.
    data, structure, optimizer, seed, assessor, edits
        Parameters of :class:`~host.relay.run.RelayRun`.
    traced : bool
        Whether to read traces.

    Members
    -------
    same : bool
        Whether nodes have had the golden bits and counts until now.
    times : list of SetTimes
        Cycles of each set that was traced.
    """

    def __init__(self, ring: Ring, data: Dataset, structure: Structure, *, optimizer: Optimizer, seed: int = 0,
                 assessor: Assessor | None = None, edits: Sequence[Edit] = (), traced: bool = False):
        super().__init__(data, structure, workers=ring.nodes - 1, optimizer=optimizer, seed=seed, assessor=assessor,
                         edits=edits)
        self._nodes, self._traced = ring, traced
        self._relay: RelayRing | None = None
        self._running: Structure | None = None
        self._found: tuple[Mapping[int, Counts], Mapping[int, Counts]] | None = None
        self.same = True
        self.times: list[SetTimes] = []

    def _on_nodes(self, structure: Structure) -> RelayRing:
        """Nodes with the lists of a structure; the server's weights and state are those of the golden one, with which
        they were compared if it has run before."""
        if self._relay is not None and self._running is not None and (
                self._running.plan.digest == structure.plan.digest):
            return self._relay
        config, server = self._nodes.devices[0].config, self._nodes.devices[-1].config
        units, others = structure.plan.units, set(structure.formats) - {RAW}
        if not all(device.config.fetch_formats for device in self._nodes.devices) and others:
            raise ValueError(f"Format of layers on nodes without fetch_formats must be {RAW}, not "
                             f"{' and '.join(sorted(others))}")
        if server.fetch_formats and len(units) > server.memories["counts"].words // 4:
            raise ValueError(f"Units must be at most {server.memories['counts'].words // 4}, those of the server's "
                             f"table of counts, not {len(units)}")
        check_server(units, planes=self._optimizer.planes, far_words=server.far_words)
        lists = compile_relay(structure.plan, array=Array(rows=config.compute, lanes=config.lanes,
                                                          operands=config.operands))
        self._relay, self._running = RelayRing(self._nodes, lists), structure
        self._relay.serve(self.server.masters, self.server.state)
        return self._relay

    def step(self) -> SetReport:
        """Run the next set; what nodes have is compared before an edit."""
        if self._pending:
            self.compare()
        return super().step()

    def _carry_out(self, shares: Sequence[Share], settings: Settings, structure: Structure) -> int:
        relay = self._on_nodes(structure)
        self._nodes.write_settings(settings)
        outcome = relay.run_set(shares, traced=self._traced)
        loss = resident_set(self.server, shares, golden_settings(settings), microbatch=structure.microbatch,
                            functions=functions)
        self.same &= int(total_loss([[one[np.newaxis] for one in mine] for mine in outcome.losses])[0]) == loss
        if self._nodes.devices[-1].config.fetch_formats:
            self._found = relay.counts()
            wanted = super()._counts  # of units that there were before an edit, too
            self.same &= all(mine[number] == golden[number] for number in range(len(self.server.units))
                             for mine, golden in zip(self._found, wanted, strict=True))
        if self._traced:
            self.times.append(set_times(outcome))
        return loss

    @property
    def _counts(self) -> tuple[Mapping[int, Counts], Mapping[int, Counts]]:
        return super()._counts if self._found is None else self._found

    def choose(self, count: int) -> Edit:
        """Choose the microbatches of all sets from the next one on: the first edit of a log."""
        return self.propose(0, Kind.MICROBATCHES, count)

    def costs(self, times: SetTimes, *, rate: Fraction) -> list[Costs]:
        """Measured executions of all units, and cycles of FETCH and PUSH by their formula.

        Parameters
        ----------
        times : SetTimes
            Of a set of the present units.
        rate : Fraction
            Words per cycle of the server's far memory.
        """
        moved = 2 * (1 + self._optimizer.planes)
        return times.costs([link_cycles(unit.words, workers=self._workers, state_words=moved, rate=rate,
                                        words_per_parameter=words_per_parameter(unit)) for unit in self.server.units])

    def compare(self) -> bool:
        """Compare the server's weights and state with the golden ones."""
        if self._relay is not None:
            weights, state = self._relay.served(self._optimizer.planes)
            self.same &= all(np.array_equal(mine, golden) for mine, golden in zip(
                weights, self.server.masters, strict=True))
            self.same &= all(np.array_equal(mine, golden) for plane, found in enumerate(state)
                             for mine, golden in zip(found, (one[plane] for one in self.server.state), strict=True))
        return self.same
