"""Training with quorum updates, where rounds close without waiting for stragglers; checked bit for bit.

Computation is modelled: COMPUTE delivers a gradient when an engine would have computed it; a straggler is slower by a
given factor. The nodes select the gradients of a round and report them as masks in the events of APPLY_LATE; the
golden model uses only these masks. After every round, the ledger records each computed element as applied in time,
applied late, dropped or pending. At the end of a block, the weights, state and gradient counts of all nodes are
compared with the golden model.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hdl.config import NodeConfig, SingleRing
from hdl.features.compute_stub.feature import ComputeStub
from hdl.features.grid.feature import Grid
from hdl.features.replay.feature import Replay
from hdl.group import GROUP
from host.cycles.estimate import Collective, Costs
from host.driver.command import Event
from host.driver.memory import Allocation, fitted
from host.driver.optimizer_settings import Settings
from host.driver.ring import Ring
from host.driver.trace import TraceRecord
from host.features.grid.grid import Kind, Part, Shape
from host.features.grid.switching import GridNodes
from host.features.quorum.config import Late, LateConfig
from host.features.quorum.feeding import UPDATE, Closing, QuorumFeeder, QuorumModel, QuorumProgram, TraceReader
from host.models.digits import Dataset
from host.models.layer_shapes import layers_of
from host.models.layers import Array
from host.training.batches import Batch, QuorumBatches, Shares
from host.training.comparison import growth, no_masks
from host.training.executor import Executor
from host.training.optimizers import SGD
from host.training.record import DivergenceError
from host.training.reference import Reference
from host.training.trainer import Trainer
from host.training.workloads import Classifier
from sim.golden import ring as golden
from sim.golden.features.quorum.rounds import Close, QuorumRounds, scale_table

__all__ = ["BLOCK", "COUNTERS", "GradientStatus", "Outcome", "QuorumExecutor", "Workers", "make_quorum_trainer",
           "node_for", "patience_of", "quorum_batches"]

#: Maximum number of rounds in a block.
BLOCK = 32
#: Maximum duration, in cycles, of a computation that other nodes wait for.
_MAX_COMPUTATION = 1 << 28
#: Approximate number of cycles for control words and for starting an APPLY_LATE, excluding delays by late nodes.
_CLOSING = 150

COUNTERS = ("computed", "applied", "applied_late", "dropped")


@dataclasses.dataclass
class Outcome:
    """Measured results of a run."""

    #: Modelled cycle in which each round ended.
    cycles: list[int] = dataclasses.field(default_factory=list)
    #: Mean loss of each round's on-time gradients, before the update.
    losses: list[float] = dataclasses.field(default_factory=list)
    #: Cycle and test accuracy, after each block and at the end.
    measured: list[tuple[int, float]] = dataclasses.field(default_factory=list)
    #: Number of gradients of all workers, keyed by status.
    counts: dict[str, int] = dataclasses.field(default_factory=dict)

    @property
    def accuracy(self) -> float:
        return self.measured[-1][1]


class Workers:
    """Workers that train a classifier on separate examples, with modelled computation times."""

    def __init__(self, data: Dataset, config: LateConfig):
        self._config = config
        #: Model and examples; the parameters of each layer start at a multiple of 32 elements.
        self.task = Classifier(data, config.hidden, align=GROUP)
        self.task.initialize(config.seed)
        #: Weights with which gradients are computed.
        self.parameters = self.task.parameters
        #: Number of elements of a gradient.
        self.length = self.parameters.size
        #: Factor applied to a worker's gradient, which is summed over its batch.
        self.scale = 1 / config.batch
        self._rule = SGD(learning_rate=config.learning_rate, momentum=config.momentum)
        self._scales = scale_table(self.scale)
        self._costs = Costs(examples=config.batch, macs=config.macs)
        self._losses: dict[tuple[int, int], float] = {}

    def durations(self) -> list[int]:
        """Cycles of one computation, for each worker."""
        compute = sum(self._costs.compute(layer.multiplications(backward=backward))
                      for layer in layers_of(self.task.widths) for backward in (False, True))
        return [round(compute * self._config.slow.get(worker, 1)) for worker in range(self._config.workers)]

    def update_cycles(self, nodes: int) -> int:
        """Number of cycles to close a round and update the weights on a given number of nodes."""
        return self._costs.collective(Collective.FUSED_UPDATE, self.length, nodes=nodes) + _CLOSING

    def gradient(self, worker: int, number: int, batch: Batch) -> Array:
        """Compute the gradient of a worker for a round, using the weights after all previous rounds."""
        examples = batch.examples.reshape(self._config.workers, -1)[worker]
        loss, gradient = self.task.differentiate([examples], no_masks)[0]
        self._losses[worker, number] = loss / self._config.batch
        return gradient

    def loss(self, number: int, workers: Sequence[int]) -> float:
        """Mean loss of the given workers' gradients in a round; NaN without workers."""
        in_time = [self._losses.pop((worker, number)) for worker in workers]
        return float(np.mean(in_time)) if in_time else float("nan")

    def settings(self, number: int) -> Settings:
        """Settings for a round's update, excluding the scale of its sum, which is in the table of scales."""
        return self._rule.settings(number + 1, gradient_scale=1.0)

    def closed_settings(self, closed: Close) -> Settings:
        """Settings for the update of a closed round, including the factor that scales its sum."""
        scale = float(self._scales[closed.index:closed.index + 1].view(np.float32)[0])
        return dataclasses.replace(self.settings(closed.tag), gradient_scale=scale)

    def accuracy(self) -> float:
        """Fraction of the test set classified correctly."""
        return self.task.measure(self._config.workers, no_masks, last=True)


@dataclasses.dataclass(frozen=True)
class GradientStatus:
    """Masks of the workers in a round, keyed by gradient status."""

    #: Masks of the workers with an on-time gradient, a late gradient of an earlier round, and a dropped gradient.
    on_time: int
    late: int
    dropped: int
    #: Age in rounds of each late gradient, in worker order.
    ages: tuple[int, ...]


class QuorumExecutor(Executor[GradientStatus]):
    """Executes rounds in blocks; removes stragglers from the ring if nodes form a ``grid`` of one row."""

    def __init__(self, ring: Ring, data: Dataset, config: LateConfig, *, block: int = BLOCK,
                 grid: GridNodes | None = None):
        self._ring, self._config, self._grid = ring, config, grid
        self.most = block
        self._workers = Workers(data, config)
        #: Participating workers, in order of rank.
        self.members = list(range(config.workers))
        self._rounds = QuorumRounds(nodes=config.workers, length=self._workers.length, weights=config.weights)
        self._reference: Reference | None = None
        #: Outcome of the run so far, with measured cycles.
        self.outcome = Outcome()
        #: Status of the gradients of each round.
        self.statuses: list[GradientStatus] = []
        #: Messages about workers with mostly dropped gradients.
        self.stragglers: list[str] = []
        #: Number of rounds completed before each worker was removed from the ring.
        self.left_after: dict[int, int] = {}
        #: Number of computations abandoned at the end of a block, for each worker.
        self.abandoned = [0] * config.workers
        self._batches: dict[int, Batch] = {}  # batches of a block, keyed by round
        self._ages: dict[int, tuple[int, ...]] = {}  # ages of late gradients, keyed by round
        self._span = 0  # number of cycles that the rounds of a block took, known once they have ended
        self._since = 0  # value of register CYCLES of rank 0 at the start of a block
        self._begun = [0] * config.workers  # cycle within the block when each rank started to compute
        self._dropped: dict[int, int] = {}  # masks of dropped gradients, keyed by round
        self._known_dropped = [0] * config.workers
        self.cycles = 0
        self._before = [dict.fromkeys(COUNTERS, 0) for _ in range(config.workers)]  # counts from before the ledgers

    @property
    def left(self) -> int:
        """Number of rounds that fit in the remaining cycles, given a round's mean cycles."""
        durations, update = self._durations
        closed = sorted(durations)[self._quorum - 1]
        if self._config.closing_deadline:
            closed = min(closed, min(durations) + self._config.closing_deadline)
        each = self.cycles / len(self.statuses) if self.statuses else closed + update
        return int((self._config.cycles - self.cycles) // each)

    @property
    def reference(self) -> Reference:
        """State of the golden model, available once the run has started."""
        assert self._reference is not None
        return self._reference

    @property
    def _durations(self) -> tuple[list[int], int]:
        """Modelled cycles of each rank's computation, and of closing a round including its update."""
        durations = self._workers.durations()
        return [durations[worker] for worker in self.members], self._workers.update_cycles(len(self.members))

    @property
    def _quorum(self) -> int:
        """Number of on-time gradients needed to close a round."""
        return min(self._config.closing, len(self.members))

    def begin(self, *, restored: bool = False) -> None:
        """Write the program, quorum rules, weights, state and pending gradients to the nodes, unless the nodes have
        been ``restored``."""
        if self._grid is not None:
            plan = self._grid.grid.disable(*(Part(Kind.NODE, worker) for worker in self.left_after)).plan(Shape.FLAT)
            self._grid.switch(plan)
            self._ring = self._grid.ring(plan)
        ring, workers = self._ring, self._workers
        before = self._reference
        self._bind(workers.parameters if before is None else before.master.view(np.float32),
                   None if before is None else before.state)
        self._program = QuorumProgram(nodes=len(self.members), length=workers.length, durations=self._durations[0])
        self._closing = Closing(quorum=self._quorum, deadline=self._config.closing_deadline,
                                weights=self._config.weights)
        if not restored:
            ring.collectives.distribute(self.reference.master.view(np.float32))
            ring.memory.write_state(self.reference.state[0].view(np.float32))
            ring.counters.clear()
            self._program.prepare(ring, self._closing, scale=workers.scale)
            self._program.resume(ring, self._rounds)
        self._counters = ring.counters.read()

    def _bind(self, master: Array, state: list[npt.NDArray[np.uint32]] | None) -> None:
        """Create the golden model's state for the current ring."""
        self._reference = Reference(self._ring, master, 1)
        if state is not None:
            self._reference.state = state
        self._workers.parameters[...] = golden.floats(self._reference.weights)

    def state(self) -> dict[str, Any]:
        pending = [self._rounds.pending(rank) for rank in range(len(self.members))]
        return {"cycles": self.cycles, "outcome": dataclasses.asdict(self.outcome),
                "stragglers": list(self.stragglers),
                "fates": [list(dataclasses.astuple(status)) for status in self.statuses],
                "counts": self._counts_to_resume(),
                "abandoned": list(self.abandoned), "left": [list(pair) for pair in self.left_after.items()],
                "master": self.reference.master.copy(), "state": [plane.copy() for plane in self.reference.state],
                "pending": [[[tag, gradient] for tag, gradient in sets.items()] for sets in pending]}

    def resume(self, state: dict[str, Any], *, restored: bool = False) -> None:
        self.cycles, self.stragglers = state["cycles"], list(state["stragglers"])
        self.statuses = [GradientStatus(on_time, late, dropped, tuple(ages))
                         for on_time, late, dropped, ages in state["fates"]]
        self.abandoned = list(state["abandoned"])
        self.outcome = Outcome(**state["outcome"])
        self.outcome.measured = [(cycle, accuracy) for cycle, accuracy in self.outcome.measured]
        self._count_from([dict(counts) for counts in state["counts"]])
        self.left_after = {worker: rounds for worker, rounds in state["left"]}
        if self.left_after:
            self._keep([worker for worker in self.members if worker not in self.left_after])
        self._bind(state["master"].view(np.float32), list(state["state"]))
        for rank, sets in enumerate(state["pending"]):
            for tag, gradient in sets:
                self._rounds.ready(rank, tag, gradient)
        self.begin(restored=restored)

    def _keep(self, members: Sequence[int]) -> None:
        """Continue with only these workers, in rank order, and drop the pending gradients of the rest."""
        pending = {worker: self._rounds.pending(rank) for rank, worker in enumerate(self.members)}
        self.members = list(members)
        self._rounds = QuorumRounds(nodes=len(members), length=self._workers.length, weights=self._config.weights)
        for rank, worker in enumerate(members):
            for tag, gradient in pending[worker].items():
                self._rounds.ready(rank, tag, gradient)

    def counts(self) -> list[dict[str, int]]:
        """Count the gradients of each worker by status, excluding pending gradients."""
        ledgers = dict(zip(self.members, self._rounds.ledgers, strict=True))
        return [{status: before[status] + (ledgers[worker].counts[status] if worker in ledgers else 0)
                 for status in COUNTERS} for worker, before in enumerate(self._before)]

    def _counts_to_resume(self) -> list[dict[str, int]]:
        """Gradient counts without pending gradients, which are computed and counted again when a run resumes."""
        return [{**counted, "computed": counted["computed"] - len(pending)}
                for counted, pending in zip(self.counts(), self.pending(), strict=True)]

    def pending(self) -> list[list[int]]:
        """Return, for each worker, the rounds whose gradients have no status yet."""
        return [list(self._rounds.pending(self.members.index(worker))) if worker in self.members else []
                for worker in range(self._config.workers)]

    def execute(self, first: int, batches: Sequence[Batch]) -> list[GradientStatus]:
        """Run a block of rounds, compare the nodes with the golden model, and measure the accuracy."""
        ring, begin, passes = self._ring, first - 1, len(batches)  # rounds are numbered from 0
        self._batches = dict(enumerate(batches, begin))
        feeder = QuorumFeeder(ring, self._program, QuorumModel(
            rounds=self._rounds, gradient=self._gradient, closed=self._close, may_begin=self._may_begin,
            settings=lambda number: ring.settings.write(self._workers.settings(number))), passes=passes, first=begin)
        reader = TraceReader(ring)
        over = False

        def on_event(rank: int, event: Event) -> None:
            feeder.on_event(rank, event)
            reader.on_event(rank)

        def is_over() -> bool:
            nonlocal over
            if feeder.ended and not over:
                self._span = self._span or self._elapsed
                over = feeder.last < begin + passes or self._abandons(feeder)
            return over

        self._since, self._span = self._clock(), 0
        feeder.begin()
        ring.programs.run(collectives=1, passes=passes, parity=begin % 2, first=begin, traced=False,
                          on_event=on_event, over=is_over)
        counters = self._settled(on_event) if over else ring.counters.read()
        hopeless = self._hopeless(feeder) if over else []
        self._note(reader.finish(), feeder, over=over)
        behind = self._compare(begin, counters, abandoned=hopeless)
        self.outcome.measured.append((self.cycles, self._workers.accuracy()))
        counts = self.counts()
        self.outcome.counts = {**{status: sum(worker[status] for worker in counts) for status in COUNTERS},
                               "pending": sum(map(len, self.pending()))}
        if self.left > 0:
            self._prepare_next(behind, over=over)
        return self.statuses[begin:]

    def _clock(self) -> int:
        """Read the cycle counter of rank 0."""
        return int(self._ring.devices[0].read_register("CYCLES"))

    @property
    def _elapsed(self) -> int:
        """Number of cycles since the block started."""
        return (self._clock() - self._since) % (1 << 32)

    def _gradient(self, rank: int, number: int) -> Array:
        """Compute the gradient of a rank's worker for a round, and record that the node starts computing now."""
        self._begun[rank] = self._elapsed
        return self._workers.gradient(self.members[rank], number, self._batches[number])

    def _may_begin(self, number: int) -> bool:
        """Whether enough cycles of the run remain for another round after the previous round's update."""
        return self.cycles + self._elapsed + self._durations[1] < self._config.cycles

    def _abandons(self, feeder: QuorumFeeder) -> bool:
        """Whether to abandon the computations in progress at the end of a block, because the run ends or because all
        of their gradients would be too late to have any weight."""
        total = self.cycles + self._span
        is_last = (self._config.cycles - total) * feeder.last < total
        return bool(feeder.computing) and (is_last or len(self._hopeless(feeder)) == len(feeder.computing))

    def _hopeless(self, feeder: QuorumFeeder) -> list[int]:
        """Ranks with computations that would finish too late to have any weight if rounds continued."""
        elapsed, durations = self._elapsed, self._durations[0]
        each = self._span // (feeder.last - len(self.statuses))
        return [rank for rank, number in feeder.computing.items()
                if feeder.last - number + max(0, self._begun[rank] + durations[rank] - elapsed) // each
                > self._config.oldest]

    def _settled(self, on_event: Callable[[int, Event], None]) -> list[dict[str, int]]:
        """Take events until none are left; return the nodes' counters, which no command has changed since."""
        while True:
            counters = self._ring.counters.read()
            events = [(rank, event) for rank, device in enumerate(self._ring.devices)
                      if (event := device.pop_event(0)) is not None]
            if not events:
                return counters
            for rank, event in events:
                on_event(rank, event)

    def _note(self, traces: list[list[TraceRecord]], feeder: QuorumFeeder, *, over: bool) -> None:
        first = len(self.statuses)
        times = np.array([[record.time for record in trace if record.end and record.tag == UPDATE]
                          for trace in traces]).max(axis=0)
        # A gradient too late for any round is dropped when its computation ends, even after the last round.
        self._dropped[feeder.last - 1] |= self._newly_dropped()
        begun = min(record.time for trace in traces for record in trace)
        self.outcome.cycles += [self.cycles + int(time - begun) for time in times]
        # The next block begins when all nodes have ended this block, including stragglers that are not abandoned.
        end = int(times[-1]) if over else max(record.time for trace in traces for record in trace)
        self.cycles += end - begun
        self.statuses += [GradientStatus(self._by_worker(feeder.masks[number] & 0xFFFF),
                             self._by_worker(feeder.masks[number] >> 16), self._dropped.pop(number),
                             self._ages.pop(number))
                       for number in range(first, feeder.last)]
        for rank in feeder.computing if over else ():
            self.abandoned[self.members[rank]] += 1

    def _prepare_next(self, behind: Sequence[int], *, over: bool) -> None:
        """Prepare the next block: remove workers that are never on time, and make all nodes idle."""
        if over:
            self._ring.recover()
        switched = bool(behind) and self._grid is not None and self._switch_out(behind)
        if over and not switched:
            self._begin_again(self.members, self._counts_to_resume())

    def _begin_again(self, members: Sequence[int], counts: list[dict[str, int]]) -> None:
        """Restart with ``members`` and their pending gradients; ``counts`` are all workers' counts so far."""
        self._count_from(counts)
        self._keep(members)
        self.begin()

    def _count_from(self, counts: list[dict[str, int]]) -> None:
        """Use ``counts`` as the gradient counts from before the new ledgers."""
        self._before, self._known_dropped = counts, [worker_counts["dropped"] for worker_counts in counts]

    def _by_worker(self, ranks: int) -> int:
        return sum((ranks >> rank & 1) << worker for rank, worker in enumerate(self.members))

    def _switch_out(self, workers: Sequence[int]) -> bool:
        """Continue in a ring without these workers' gradients; return False if no ring would remain."""
        members = [worker for worker in self.members if worker not in workers]
        if len(members) < 2:
            self.stragglers.append(f"rounds from {len(self.statuses)} on: no ring would be left without workers "
                                 f"{', '.join(map(str, workers))}, so they stay")
            return False
        counts, pending = self._counts_to_resume(), self.pending()
        for worker in workers:
            counts[worker]["computed"] += len(pending[worker])
            counts[worker]["dropped"] += len(pending[worker])
            self.left_after[worker] = len(self.statuses)
        self._begin_again(members, counts)
        return True

    def _close(self, closed: Close, contributions: list[npt.NDArray[np.uint32]]) -> None:
        """Apply a closed round to the golden model, and check that the ledger of each rank balances."""
        rounds = self._rounds
        self._ages[closed.tag] = tuple(rounds.ages[rank] for rank in sorted(rounds.ages))
        self.reference.step([row.view(np.float32) for row in contributions], self._workers.closed_settings(closed))
        self._workers.parameters[...] = golden.floats(self.reference.weights)
        self.outcome.losses.append(self._workers.loss(closed.tag, [
            worker for rank, worker in enumerate(self.members) if closed.on_time >> rank & 1]))
        for rank, ledger in enumerate(rounds.ledgers):
            left, elements = ledger.balance(list(rounds.pending(rank).values()))
            if left or any(elements):
                raise DivergenceError(f"Round {closed.tag}: {left} gradients of node {rank}, and "
                                      f"{np.count_nonzero(elements)} elements, have no status")
        self._dropped[closed.tag] = self._newly_dropped()

    def _newly_dropped(self) -> int:
        """Mask of the workers with a gradient that was dropped since the last call."""
        before, self._known_dropped = self._known_dropped, [counts["dropped"] for counts in self.counts()]
        return sum((now > was) << rank for rank, (now, was) in enumerate(
            zip(self._known_dropped, before, strict=True)))

    def _compare(self, first: int, counters: list[dict[str, int]], *, abandoned: Sequence[int]) -> list[int]:
        """Compare nodes and their counts with the golden model; return workers that were never on time.

        The computations of ranks in ``abandoned`` have not ended in this block.
        """
        memory, reference = self._ring.memory, self.reference
        number, length = len(self.statuses), self._workers.length
        pairs = {"weights": (memory.read_weights(length), reference.weights),
                 "momenta": (memory.read_state(length), reference.state[0])}
        if self._ring.formats.has_master:
            pairs["masters"] = memory.read_master(length), reference.master
        for name, (actual, expected) in pairs.items():
            if not (actual.view(np.uint32) == expected).all():
                raise DivergenceError(f"Round {number}: {name} of nodes differ from the golden model")
        before, self._counters = self._counters, counters
        dropped = growth("GRADIENTS_DROPPED", before, self._counters)
        behind = []
        for rank, (ledger, counted) in enumerate(zip(self._rounds.ledgers, self._counters, strict=True)):
            counts = {status: counted[f"GRADIENTS_{status.upper()}"] for status in COUNTERS}
            if counts != ledger.counts:
                raise DivergenceError(f"Round {number}: node {rank} has counted {counts} gradients, and must have "
                                      f"counted {ledger.counts}")
            worker = self.members[rank]
            on_time = sum(past.on_time >> worker & 1 for past in self.statuses[first:])
            if (dropped[rank] or rank in abandoned) and not on_time and self._config.late is not Late.WAIT:
                behind.append(worker)
                advice = "" if self._grid else (
                    ": apply them late, wait longer (a larger quorum or deadline), or switch it out (--switch-out)")
                what = f"{dropped[rank]} of its gradients were dropped" if dropped[rank] else (
                    "its computation was abandoned")
                self.stragglers.append(f"rounds {first} to {number - 1}: worker {worker} was never in time, and "
                                     f"{what}{advice}")
        return behind


def make_quorum_trainer(ring: Ring, data: Dataset, config: LateConfig, **options: Any) -> Trainer[QuorumExecutor]:
    """Create a trainer for quorum rounds on nodes; ``options`` are as for :class:`QuorumExecutor`."""
    return Trainer(QuorumExecutor(ring, data, config, **options), quorum_batches(data, config))


def quorum_batches(data: Dataset, config: LateConfig) -> QuorumBatches:
    """Create the examples of all workers for each round."""
    shares = Shares(data.train_y, workers=config.workers, skew=config.skew, seed=config.seed)
    return QuorumBatches(shares, config.batch)


def node_for(length: int, *, nodes: int, node: NodeConfig | None = None, ports: int = 1) -> NodeConfig:
    """Configure a node with rounds for vectors of a given length, with the codecs and rows of ``node``.

    With two ``ports``, the memories are large enough for the blocks in a ring of two nodes, the smallest ring that
    can remain after nodes have been removed.
    """
    base = NodeConfig() if node is None else node
    base = base.replace(
        programs={}, link=Replay(), stub=ComputeStub(quorum=True), masking=False, sparsify=False,
        topology=(SingleRing if ports == 1 else Grid)(max_nodes=base.topology.max_nodes))
    words = QuorumProgram(nodes=nodes, length=length, durations=[0] * nodes).words
    base = base.replace(memories={"gradient": max(base.memories.gradient, 1 << (words - 1).bit_length())})
    return fitted(base, [Allocation(length=length, planes=1)], nodes=nodes if ports == 1 else 2)


def patience_of(data: Dataset, config: LateConfig) -> int:
    """Maximum number of cycles that a node waits for a round; raises ``ValueError`` if a computation is too long."""
    longest = max(Workers(data, config).durations())
    if longest > _MAX_COMPUTATION:
        raise ValueError(f"Computations must take at most {_MAX_COMPUTATION:,} cycles, not {longest:,}: take fewer "
                         f"examples, a smaller model, or a smaller factor")
    return 4000 + 2 * longest
