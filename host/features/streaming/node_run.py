"""Layer streaming on a ring of workers and a server, compared with golden nodes.

Golden workers that hold all layers run the same sets. The loss and the server's counts are compared after each set,
the server's weights and state before an edit and after each block. The assessor reads the server's own counts.

Nodes with two program banks receive the lists, programs, new units and settings of the next set while a set runs,
and an EDIT that all of them must acknowledge before the next set begins. Units keep their addresses on the server
(:mod:`host.features.streaming.lists`). On nodes with one bank an edit takes effect between two sets: the host writes
the programs of the new structure to workers and server, and the weights and state of all units to the server.

Checkpoints are files that contain a :class:`NodeRun` and all of its nodes between two sets. They can be restored on
any nodes that compute the same bits, even if the speeds of links and far memories, or the contents of banks, differ.
"""

import contextlib
import copy
import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hdl.config import Memories, NodeConfig
from hdl.config import Optimizer as NodeOptimizer
from hdl.features.compute.feature import Compute
from hdl.features.programs.feature import Programs
from hdl.features.settable_version.feature import SettableVersion
from hdl.features.streaming.feature import Server, ServerConfig, ServerMemories
from hdl.features.streaming.feature import Worker as WorkerRole
from hdl.features.streaming.tally import ENTRIES
from host.checkpoints.checkpoint import restore
from host.checkpoints.device_frame import DeviceFrame, read
from host.checkpoints.keys import user_key
from host.checkpoints.rejections import RejectionError
from host.driver.device import Device
from host.driver.optimizer_settings import Settings
from host.driver.ring import Ring
from host.features.compute.instructions import Array, best_factors
from host.features.streaming.edits import Edit, RefusedError, Structure
from host.features.streaming.lists import StreamingLists, compile_streaming, lists_base, next_bases
from host.features.streaming.plan import Worker, check_server
from host.features.streaming.ring import SetOutcome, SetProgram, StreamingRing
from host.features.streaming.run import Assessor, GoldenStreaming, SetReport, edit_server
from host.features.streaming.timeline import (
    Costs,
    Far,
    Run,
    SetTimes,
    link_cycles,
    packet_cycles,
    program_run,
    set_times,
    words_per_parameter,
)
from host.models.digits import Dataset
from host.training import checkpoint
from host.training.batches import Batch
from host.training.experiment import Checkpointer
from host.training.optimizers import Optimizer
from host.training.reference import golden_settings
from host.training.trainer import Trainer
from host.transports.backdoor import BackdoorTransport, PortTime
from host.transports.verilated import open_ring
from sim.arithmetic import functions
from sim.golden.codecs import RAW
from sim.golden.features.streaming.streaming import Counts, Share, resident_set, total_loss
from sim.verilated.native import Arithmetic
from sim.verilated.ring import VerilatedRing

__all__ = ["LATENCY", "NodeRun", "StreamingCheckpointer", "StreamingNodes", "check_structure", "open_streaming",
           "streaming_nodes",
           "worker_of"]


Bits = npt.NDArray[np.uint32]


def worker_of(config: NodeConfig, *, windows: int = 2) -> Worker:
    """Worker memories that a plan requires."""
    return Worker(lanes=config.lanes, weight_words=config.memories.weight, gradient_words=config.memories.gradient,
                  activation_words=config.compute.activations, far_words=config.far_words, windows=windows)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Next:
    """Outcome of edits: number of the last edit, the resulting structure and program, and new units."""

    number: int
    structure: Structure
    program: SetProgram
    units: Sequence[tuple[int, Bits, Sequence[Bits]]]


def check_structure(structure: Structure, worker: NodeConfig, server: ServerConfig, *, planes: int) -> None:
    """Raise ``ValueError`` if nodes lack the formats of a structure, or if its units, with ``planes`` state planes
    each, do not all fit on the server."""
    formats, units = set(structure.formats) - {RAW}, len(structure.plan.units)
    if formats and not (worker.role.broadcast_formats and server.role.broadcast_formats):
        raise ValueError(f"Format of layers on nodes without broadcast_formats must be {RAW}, not "
                         f"{' and '.join(sorted(formats))}")
    if server.role.broadcast_formats and units > ENTRIES:
        raise ValueError(f"Units must be at most {ENTRIES}, the entries of the server's table of counts, not {units}")
    check_server(structure.plan.units, planes=planes, far_words=server.far_words)


class NodeRun(GoldenStreaming):
    """Layer streaming on connected nodes (the last one is the server), compared with golden nodes that hold all
    layers; traces are read if ``traced``. See :class:`~host.features.streaming.run.GoldenStreaming`."""

    #: Outcome of the latest set.
    outcome: SetOutcome

    def __init__(self, ring: Ring, data: Dataset, structure: Structure, *, optimizer: Optimizer, seed: int = 0,
                 assessor: Assessor | None = None, edits: Sequence[Edit] = (), traced: bool = False):
        super().__init__(data, structure, workers=ring.nodes - 1, optimizer=optimizer, seed=seed, assessor=assessor,
                         edits=edits)
        self._nodes, self._traced = ring, traced
        self._banked = all(device.config.has_banks for device in ring.devices)
        self._factors = functools.cache(best_factors)
        #: The nodes of the ring; None before the first set.
        self.relay: StreamingRing | None = None
        self._running: Structure | None = None
        self._next: _Next | None = None  # result of the edits that are pending
        self._staged = False  # whether the nodes have acknowledged the edits
        self._node_counts: tuple[Mapping[int, Counts], Mapping[int, Counts]] | None = None
        #: Whether the nodes' bits and counts have matched the golden nodes so far.
        self.same = True
        #: Cycles of each set that was traced since the run was started or resumed.
        self.times: list[SetTimes] = []

    def _compiled(self, structure: Structure, base: int | None = None) -> StreamingLists:
        """Compile the lists of a structure; raises ``ValueError`` if nodes lack its formats, or the server's table of
        counts is too small for its units."""
        worker, server = self._nodes.devices[0].config, self._nodes.devices[-1].config
        check_structure(structure, worker, server, planes=self._optimizer.planes)
        return compile_streaming(structure.plan, base=base, factors=self._factors, array=Array(
            rows=worker.compute.rows, lanes=worker.lanes, operands=worker.compute.operands))

    def _on_nodes(self, structure: Structure) -> StreamingRing:
        """Write a structure's lists to the nodes, and the golden weights and state to the server."""
        if self.relay is not None and self._running is not None and (
                self._banked or self._running.plan.digest == structure.plan.digest):
            return self.relay
        self.relay = StreamingRing(self._nodes, self._compiled(structure))
        self.relay.serve(self.server.masters, self.server.state)
        return self.relay

    # Edits.

    def _send(self, edit: Edit) -> None:
        """Send an edit; raises ``RefusedError`` if nodes with two banks cannot hold both programs."""
        if self._banked and self.relay is not None:
            following = self._following(self.relay, [*self._pending, edit])
            super()._send(edit)
            self._next, self._staged = following, False
        else:
            super()._send(edit)

    def _following(self, relay: StreamingRing, edits: Sequence[Edit]) -> _Next:
        """Compute the outcome of edits: structure, program and new units."""
        server, structure = copy.copy(self.server), self._structure
        for edit in edits:
            structure = edit_server(server, structure, edit)
        config = self._nodes.devices[-1].config
        bases = next_bases(self.server.masters, relay.bases, server.masters,
                           words=min(config.memories.weight, config.memories.state))
        try:
            program = relay.prepare(self._compiled(structure, lists_base(
                structure.plan, relay.lists.plan, relay.lists.base)), bases)
        except ValueError as error:
            raise RefusedError(str(error)) from error
        units = [(base, master, planes) for base, master, planes in zip(
            bases, server.masters, server.state, strict=True) if base not in relay.bases]
        return _Next(number=edits[-1].number, structure=structure, program=program, units=units)

    def _steps(self, relay: StreamingRing, number: int) -> Iterator[None]:
        """Stage the result of pending edits on the nodes step by step, to take effect with set ``number``."""
        following = self._next
        if following is None or self._staged:
            return
        structure = following.structure
        yield from relay.stage(following.program, number=following.number, units=following.units,
                               settings=self._optimizer.settings(
                                   number + 1, learning_rate=structure.rate,
                                   gradient_scale=1 / (structure.count * structure.microbatch * self._workers)))
        self._staged = True

    # Checkpoints.

    def state(self) -> dict[str, Any]:
        """Return the state on which the rest of the run depends, apart from the nodes' own (:meth:`live`). Raises
        ``ValueError`` before the first set."""
        return {**super().state(), "relay": self._begun.state(), "staged": self._staged and bool(self._pending),
                "same": self.same}

    def live(self) -> list[dict[str, list[tuple[int, int]]]]:
        """Memory windows of each node that the rest of the run depends on; see :meth:`StreamingRing.live`."""
        return self._begun.live(self._optimizer.planes)

    @property
    def _begun(self) -> StreamingRing:
        if self.relay is None:
            raise ValueError("Run must have done a set before it is saved")
        return self.relay

    def resume(self, state: dict[str, Any], *, restored: bool = True) -> None:
        """Continue from a state, on nodes with already restored :meth:`live` windows."""
        super().resume(state)
        self.same = state["same"]
        self.relay = StreamingRing(self._nodes, self._compiled(self._structure, state["relay"]["lists"]),
                               state=state["relay"])
        self._running = self._structure
        self._next, self._staged = None, state["staged"]
        if self._banked and self._pending:
            self._next = self._following(self.relay, self._pending)
            if self._staged:
                self.relay.follow(self._next.program)

    def prepare(self, number: int) -> None:
        """Prepare the next set. Before an edit, compare the nodes with the golden nodes."""
        if self._pending:
            self.compare()
            if self.relay is not None:  # the edit was made after the latest set
                for _ in self._steps(self.relay, number):
                    pass
                self.relay.turn()
                self._next = None
        super().prepare(number)

    def execute(self, first: int, batches: Sequence[Batch]) -> list[SetReport]:
        """Run a set and compare the nodes with the golden nodes."""
        reports = super().execute(first, batches)
        self.compare()
        return reports

    def _carry_out(self, shares: Sequence[Share], settings: Settings, structure: Structure) -> int:
        relay = self._on_nodes(structure)
        self._running = structure
        self._nodes.settings.write(settings)
        outcome = relay.run_set(shares, traced=self._traced, meanwhile=self._steps(
            relay, len(self.reports) + 1) if self._banked else iter(()))
        loss = resident_set(self.server, shares, golden_settings(settings), microbatch=structure.microbatch,
                            functions=functions)
        self.same &= int(total_loss([[value[np.newaxis] for value in row] for row in outcome.losses])[0]) == loss
        if self._nodes.devices[-1].config.role.broadcast_formats:
            self._node_counts = relay.counts()
            wanted = super()._counts  # these counts still include units that an edit has removed
            self.same &= all(row[number] == golden[number] for number in range(len(self.server.units))
                             for row, golden in zip(self._node_counts, wanted, strict=True))
        if self._traced:
            self.times.append(set_times(outcome))
        self.outcome = outcome
        return loss

    @property
    def _counts(self) -> tuple[Mapping[int, Counts], Mapping[int, Counts]]:
        return super()._counts if self._node_counts is None else self._node_counts

    @property
    def _moved(self) -> int:
        """Number of words that the server's far memory moves per parameter in a PUSH."""
        return 2 * (1 + self._optimizer.planes)

    def costs(self, times: SetTimes, *, rate: Fraction) -> list[Costs]:
        """Costs of all units of a set: executions as measured in ``times``, and FETCH and PUSH according to the
        formula for choosing microbatches, with ``rate`` words per cycle for the server's far memory."""
        return times.costs([link_cycles(unit.words, workers=self._workers, state_words=self._moved, rate=rate,
                                        words_per_parameter=words_per_parameter(unit)) for unit in self.server.units])

    def timeline(self, number: int, *, rate: Fraction, far: Far) -> tuple[Run, list[Costs]]:
        """Timeline of a traced set, and costs of its units. Executions are measured; packets and moves are modelled.
        The server's far memory moves ``rate`` words per cycle; ``far`` is the speed of the workers' far memories."""
        report, times = self.reports[number], self.times[number - len(self.reports)]
        costs = times.costs([packet_cycles(unit, workers=self._workers, state_words=self._moved, rate=rate,
                                           zeros=report.pushed[unit.layer].zero_part, lanes=far.lanes)
                             for unit in report.structure.plan.units])
        return program_run(times.program, costs, far), costs

    def compare(self) -> bool:
        """Compare the server's weights and state with the golden model; return whether everything has matched."""
        if self.relay is not None:
            weights, state = self.relay.served(self._optimizer.planes)
            golden = self.server.masters, *zip(*self.server.state, strict=True)
            self.same &= all(np.array_equal(*pair) for vectors in zip([weights, *state], golden, strict=True)
                             for pair in zip(*vectors, strict=True))
        return self.same


#: Sizes of server memories are multiples of this number of elements, so similar models share a simulation library.
_STEP = 1 << 14
#: Elements of a worker's memories.
_ACTIVATIONS, _FAR = 8192, 1 << 17
#: Latency in cycles from a request to a far memory until its answer.
LATENCY = 16


class StreamingNodes(NamedTuple):
    """Configurations of the worker and the server."""

    worker: NodeConfig
    server: ServerConfig
    #: Worker memories required by a plan.
    memories: Worker


def streaming_nodes(*, words: int, planes: int, window: int = 4160, windows: int = 2) -> StreamingNodes:
    """Configure nodes for a model of ``words`` weights and biases in total and ``planes`` state planes.

    A worker has four by four multiply-accumulate units, ``windows`` windows of ``window`` elements, and accumulators.
    The server updates one row per cycle.
    """
    served, common = -(-words // _STEP) * _STEP, {
        "programs": Programs(depth=1024, banks=2, move_queue=True), "features": (SettableVersion(),)}
    worker = NodeConfig(
        role=WorkerRole(broadcast_formats=True), masking=False, sparsify=False,
        memories=Memories(gradient=windows * window, weight=windows * window, state=32, planes=0),
        compute=Compute(rows=4, activations=_ACTIVATIONS, far=_FAR), **common)
    server = ServerConfig(
        role=Server(broadcast_formats=True), optimizer=NodeOptimizer(lanes=4), memories=ServerMemories(
            gradient=64, weight=served, state=served, planes=planes, far=(1 + planes) * served), **common)
    return StreamingNodes(worker, server, worker_of(worker, windows=windows))


@contextlib.contextmanager
def open_streaming(nodes: StreamingNodes, *, workers: int, rate: Fraction = Fraction(4),
                   worker_rate: Fraction = Fraction(1),
               threads: int = 1,
               arithmetic: Arithmetic = Arithmetic.GATEWARE) -> Iterator[tuple[Ring, VerilatedRing]]:
    """Open a ring of workers and a server; far memories move ``worker_rate`` and ``rate`` words per cycle."""
    configs = [nodes.worker] * workers + [nodes.server]
    with open_ring(configs, threads=threads, arithmetic=arithmetic) as opened:
        simulation = opened.simulation
        for rank in range(workers + 1):
            simulation.set_far_speed(latency=LATENCY, rate=rate if rank == workers else worker_rate, node=rank)
        time = PortTime(lambda: simulation.cycle)
        ring = Ring([Device(BackdoorTransport(transport, simulation, rank, config, time), config,
                            name=f"worker {rank}" if rank < workers else "server")
                     for rank, (transport, config) in enumerate(zip(opened.transports, configs, strict=True))])
        ring.connect()
        yield ring, simulation


@dataclasses.dataclass
class StreamingCheckpointer(Checkpointer):
    """Checkpoints of nodes, written every few sets and when a run is interrupted."""

    _latest: tuple[dict[str, Any], DeviceFrame] | None = None

    def keep(self, ring: Ring, trainer: Trainer[NodeRun], rows: list[Any]) -> None:
        """Store the state after the latest set and the report of all sets; write the file if due."""
        self._latest = copy.deepcopy({"state": trainer.state(), "rows": rows}), read(
            ring, trainer.executor.live())
        if self.due(trainer):
            self.write()

    def write(self) -> None:
        """Write the state after the latest set to the file, unless it is already there or no set has ended."""
        if self._latest is not None:
            content, frame = self._latest
            self.save(content, len(content["rows"]), device=frame)
            self._latest = None

    def resume(self, ring: Ring, trainer: Trainer[NodeRun]) -> list[Any]:
        """Restore nodes and run from the file, and return the report of all sets. Raises ``CheckpointError`` if the
        file does not fit these nodes."""
        try:
            with self.path.open("rb") as file:
                state, _ = restore(file, ring, key=user_key())
        except RejectionError as error:
            raise checkpoint.CheckpointError(f"{self.path} must be one that these nodes can go on from: {error}; "
                                             f"{checkpoint.ADVICE}") from None
        content = state["content"]
        trainer.resume(content["state"], restored=True)
        rows: list[Any] = content["rows"]
        self.kept = len(rows)
        return rows
