"""Training with late gradients on golden nodes: loss and accuracy over cycles, without any gateware.

``python -m host.training.late_learning`` trains the digits classifier on a ring of which one worker is a straggler,
for a given number of cycles, by each way to treat its gradients: wait for them, drop them, or fold them into a later
round. Time is modelled: a computation takes the cycles of an engine, times the straggler's factor, and rounds are
closed by the rules of :class:`sim.golden.rounds.Closer`. Sums, weights and updates are those of the golden model.
"""

import argparse
import dataclasses
import enum
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hdl.config import NodeConfig
from hdl.group import GROUP
from host.columns import Column, Table, columns_of, show
from host.driver.optimizer_settings import Settings
from host.models.digits import Dataset, digits
from host.models.layers import Array, widths
from host.output import claim
from host.program.estimate import Collective, Costs
from host.program.schedules import layers_of
from host.schema import Schema, write_report
from host.training.golden_steps import golden_settings, no_masks, percentages
from host.training.optimizers import SGD
from host.training.shares import Shares
from host.training.workloads import Classifier
from sim.golden import ring
from sim.golden.codecs import WEIGHT_CODECS
from sim.golden.rounds import Close, Closer, Rounds, late_weights, scale_table

__all__ = ["SCHEMA", "Late", "LateConfig", "Model", "Outcome", "add_options", "configs_of", "learn", "main",
           "stragglers", "table"]

#: Cycles of control words and of a FOLD's beginning, about; a late node's own FOLD is beside them.
_CLOSING = 150


class Late(enum.Enum):
    """Ways to treat late gradients, by the names the command line knows them by."""

    APPLY = "apply-late"
    WAIT = "wait"
    DROP = "drop"


@dataclasses.dataclass(frozen=True, kw_only=True)
class LateConfig:
    """A run with a straggler.

    Parameters
    ----------
    late : Late
        ``wait`` closes rounds with all workers, whatever the quorum and the deadline.
    slow : dict of int to float
        Factor of the computations of each straggler.
    deadline : int
        Cycles after which a round is closed that has a gradient; 0 for none.
    factor : float
        Factor of a gradient for each round that it is late.
    ages : int
        Largest number of rounds that a gradient is late.
    skew : float
        Part of a worker's examples that comes from its own classes.
    batch : int
        Examples of a worker in a round.
    learning_rate, momentum : float
        The learning rate does not change.
    cycles : int
        Modelled cycles of the run.
    macs : int
        Multiply-adds per cycle of a worker.
    """

    late: Late = Late.APPLY
    workers: int = 4
    slow: dict[int, float] = dataclasses.field(default_factory=lambda: {3: 4.5})
    quorum: int = 3
    deadline: int = 0
    factor: float = 1.0
    ages: int = 15
    skew: float = 0.0
    batch: int = 16
    hidden: tuple[int, ...] = (64,)
    learning_rate: float = 0.05
    momentum: float = 0.9
    cycles: int = 1_500_000
    macs: int = 16
    seed: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.quorum <= self.workers:
            raise ValueError(f"Quorum must be between 1 and the workers, {self.workers}, not {self.quorum!r}")
        for worker, factor in self.slow.items():
            if not 0 <= worker < self.workers:
                raise ValueError(f"Straggler must be a worker, 0 to {self.workers - 1}, not {worker!r}")
            if not 1 <= factor <= 1000:
                raise ValueError(f"Factor of a straggler must be between 1 and 1,000, not {factor!r}")

    @property
    def weights(self) -> tuple[int, ...]:
        """Weights of late gradients, in sixteenths, by their age."""
        return late_weights(self.factor, ages=self.ages if self.late is Late.APPLY else 0)

    @property
    def oldest(self) -> int:
        """Largest age of a gradient that has a weight; 0 if late ones have none."""
        return sum(weight > 0 for weight in self.weights)

    @property
    def closing(self) -> int:
        """Gradients in time that close a round."""
        return self.workers if self.late is Late.WAIT else self.quorum

    @property
    def closing_deadline(self) -> int:
        """Cycles after which a round is closed that has a gradient; 0 for none."""
        return 0 if self.late is Late.WAIT else self.deadline


@dataclasses.dataclass
class Outcome:
    """Outcome of a run.

    Members
    -------
    cycles : list of int
        Modelled cycle in which each round ended.
    losses : list of float
        Mean loss of the gradients that each round has, before its update.
    measured : list of (int, float)
        Cycle and test accuracy, now and then and at the end.
    counts : dict
        Gradients by their fate, over all workers.
    """

    cycles: list[int] = dataclasses.field(default_factory=list)
    losses: list[float] = dataclasses.field(default_factory=list)
    measured: list[tuple[int, float]] = dataclasses.field(default_factory=list)
    counts: dict[str, int] = dataclasses.field(default_factory=dict)

    @property
    def accuracy(self) -> float:
        return self.measured[-1][1]


#: Report of runs by several ways to treat late gradients.
SCHEMA = Schema("gradring.late", 1, columns_of(
    "compute", Column("runs", columns=columns_of("skew late seed", Outcome, "masks"))))


class Model:
    """A classifier that is trained in rounds, and the golden model of its weights and state.

    Parameters
    ----------
    node : NodeConfig
        Nodes, whose weights may be coded.

    Members
    -------
    length : int
        Elements of a gradient.
    rounds : Rounds
        Gradients, and their fates.
    members : list of int
        Workers that take part, by rank.
    weights, master : array of uint32
        Weights that nodes compute with, and masters that those are encoded from; the same if weights are not coded.
    state : list of array of uint32
    losses : list of float
        Mean loss of the gradients in time of each round, before its update; NaN for a round that has none.
    """

    def __init__(self, data: Dataset, config: LateConfig, node: NodeConfig | None = None):
        node = NodeConfig() if node is None else node
        self._config = config
        self._coding: dict[str, Any] = {"weight_codec": WEIGHT_CODECS[node.weights.codec], "segment": node.segment}
        self._lanes = node.lanes
        self._task = Classifier(data, config.hidden, align=GROUP)
        self._task.initialize(config.seed)
        self.length = self._task.parameters.size
        self._shares = Shares(data.train_y, workers=config.workers, skew=config.skew, seed=config.seed)
        self._rule = SGD(learning_rate=config.learning_rate, momentum=config.momentum)
        self._scales = scale_table(self.scale)
        self.members = list(range(config.workers))
        self.rounds = Rounds(nodes=config.workers, length=self.length, weights=config.weights)
        self.losses: list[float] = []
        self.restore(ring.bits(self._task.parameters).copy(), [np.zeros(self.length, np.uint32)])
        self._found: dict[tuple[int, int], float] = {}

    def restore(self, master: npt.NDArray[np.uint32], state: list[npt.NDArray[np.uint32]]) -> None:
        """Take other masters and state, from which training goes on."""
        self.master, self.state = master, state
        self.weights = ring.distribute(master, len(self.members), **self._coding)
        self._task.parameters[...] = ring.floats(self.weights)

    def keep(self, members: Sequence[int]) -> None:
        """Go on with these workers alone, ranks in this order. What others have pending is dropped with them."""
        pending = {worker: self.rounds.pending(rank) for rank, worker in enumerate(self.members)}
        self.members = list(members)
        self.rounds = Rounds(nodes=len(members), length=self.length, weights=self._config.weights)
        for rank, worker in enumerate(members):
            for tag, gradient in pending[worker].items():
                self.rounds.ready(rank, tag, gradient)
        self.restore(self.master, self.state)

    @property
    def scale(self) -> float:
        """Factor of a worker's gradient, which is a sum over its batch."""
        return 1 / self._config.batch

    def durations(self) -> tuple[list[int], int]:
        """Cycles of a computation of each member, and of closing and updating."""
        config = self._config
        costs = Costs(examples=config.batch, macs=config.macs)
        compute = sum(costs.compute(layer.multiplications(backward=backward))
                      for layer in layers_of(self._task.widths) for backward in (False, True))
        update = costs.collective(Collective.FUSED_UPDATE, self.length, nodes=len(self.members))
        return [round(compute * config.slow.get(worker, 1)) for worker in self.members], update + _CLOSING

    def gradient(self, rank: int, number: int) -> Array:
        """Gradient of the member of a rank for a round, at the weights that all rounds before have made."""
        worker = self.members[rank]
        batch = self._shares.batch(worker, number, self._config.batch)
        loss, gradient = self._task.differentiate([batch], no_masks)[0]
        self._found[worker, number] = loss / self._config.batch
        return gradient

    def settings(self, number: int) -> Settings:
        """Settings of a round's update, but for the factor of the sum, which the table of scales has."""
        return self._rule.settings(number + 1, gradient_scale=1.0)

    def update(self, closed: Close, contributions: Sequence[npt.NDArray[np.uint32]]) -> None:
        """Update the weights by a closed round."""
        scale = float(self._scales[closed.index:closed.index + 1].view(np.float32)[0])
        settings = golden_settings(dataclasses.replace(self.settings(closed.tag), gradient_scale=scale))
        found = ring.fused_update(np.stack(contributions), self.master, self.state, settings, lanes=self._lanes,
                                  **self._coding)
        self.weights, self.master, self.state = found.weights, found.master, found.state
        self._task.parameters[...] = ring.floats(self.weights)
        in_time = [self._found.pop((worker, closed.tag)) for rank, worker in enumerate(self.members)
                   if closed.on_time >> rank & 1]
        self.losses.append(float(np.mean(in_time)) if in_time else float("nan"))

    def accuracy(self) -> float:
        """Part of the test set that is classified right."""
        return self._task.measure(self._config.workers, no_masks, last=True)

    def counts(self) -> dict[str, int]:
        """Gradients of all workers by their fate."""
        ledgers = [ledger.counts for ledger in self.rounds.ledgers]
        pending = sum(len(self.rounds.pending(rank)) for rank in range(self._config.workers))
        return {**{fate: sum(one[fate] for one in ledgers) for fate in ledgers[0]}, "pending": pending}


@dataclasses.dataclass
class _Worker:
    """A worker: cycles of its computations, and the end of the one that is under way, or was the last."""

    duration: int
    free: int = 0


def learn(data: Dataset, config: LateConfig, *, points: int = 20) -> Outcome:
    """Train until the cycles are over, measured about ``points`` times."""
    model = Model(data, config)
    durations, update = model.durations()
    closer = Closer(nodes=config.workers, quorum=config.closing, deadline=config.closing_deadline,
                    weights=config.weights)
    workers = [_Worker(duration) for duration in durations]
    outcome, now, number = Outcome(), 0, 0
    computing: list[tuple[int, int, int, Array]] = []  # cycle of the end, worker, round, and gradient
    while True:
        # Whoever has ended begins for this round: at once, or when it has ended if the round is not closed by then.
        for cycle, rank in sorted((max(worker.free, now), rank) for rank, worker in enumerate(workers)):
            known, worker = closer.time(number, now), workers[rank]
            if known is None or cycle < known:
                worker.free = cycle + worker.duration
                computing.append((worker.free, rank, number, model.gradient(rank, number)))
                closer.ready(rank, number, worker.free)
        closed_at = closer.time(number, now)
        assert closed_at is not None
        closed = closer.close(number, closed_at)
        end = closed_at + update
        if end > config.cycles:
            break
        for _, rank, tag, gradient in (one for one in computing if one[0] <= closed_at):
            model.rounds.ready(rank, tag, gradient)
        computing = [one for one in computing if one[0] > closed_at]
        model.update(closed, model.rounds.close(closed))
        outcome.cycles.append(end)
        if end // (config.cycles // points) > now // (config.cycles // points):
            outcome.measured.append((end, model.accuracy()))
        now, number = end, number + 1
    outcome.losses = model.losses
    outcome.measured.append((now, model.accuracy()))
    outcome.counts = model.counts()
    return outcome


def table(results: dict[tuple[float, Late], list[Outcome]]) -> Table:
    """Mean accuracies of all seeds."""
    def mean(fate: str) -> Column:
        return Column(fate, format=".0f", of=lambda row: np.mean([run.counts[fate] for run in row[1]]))

    return Table("training with stale gradients; accuracies in per cent", (
        Column("skew", format="g", of=lambda row: row[0][0]),
        Column("late gradients", of=lambda row: row[0][1].value),
        Column("mean_accuracy", format=".2f", of=lambda row: 100 * np.mean([run.accuracy for run in row[1]])),
        Column("updates", format=".0f", of=lambda row: np.mean([len(run.cycles) for run in row[1]])),
        dataclasses.replace(mean("folded"), title="applied late"), mean("dropped"),
        Column("accuracy of each seed", of=lambda row: percentages([run.accuracy for run in row[1]]))),
        list(results.items()))


def add_options(parser: argparse.ArgumentParser, *, seeds: int) -> None:
    """Add the options of runs with a straggler."""
    default = LateConfig()
    parser.add_argument("--skew", default="0,0.9", help="parts of own classes [0,0.9]")
    parser.add_argument("--late", default="apply-late,wait,drop",
                        help="ways to treat late gradients [apply-late,wait,drop]")
    parser.add_argument("--straggler", default="3:4.5", help="slow workers and their factors [3:4.5]")
    parser.add_argument("--quorum", type=int, default=default.quorum, help=f"[{default.quorum}]")
    parser.add_argument("--deadline", type=int, default=default.deadline, help="cycles, 0 for none [0]")
    parser.add_argument("--factor", type=float, default=default.factor, help=f"lambda [{default.factor:g}]")
    parser.add_argument("--seeds", type=int, default=seeds, help=f"seeds [{seeds}]")
    parser.add_argument("--first-seed", type=int, default=0, help="the first of them [0]")
    parser.add_argument("--batch", type=int, default=default.batch, help=f"examples of a worker [{default.batch}]")
    parser.add_argument("--learning-rate", type=float, default=default.learning_rate,
                        help=f"[{default.learning_rate:g}]")
    parser.add_argument("--hidden", default="64", help="widths of hidden layers [64]")
    parser.add_argument("--cycles", type=int, default=default.cycles, help=f"cycles of a run [{default.cycles:,}]")


def stragglers(text: str) -> dict[int, float]:
    """Factors of slow workers, as in ``3:4.5,1:2``.

    Raises
    ------
    ValueError
        The text is not such a list.
    """
    found: dict[int, float] = {}
    for one in text.split(",") if text else ():
        worker, _, factor = one.partition(":")
        try:
            number, times = int(worker), float(factor)
        except ValueError:
            raise ValueError(f"Straggler must be a worker and its factor, as in 3:4.5, not {one!r}") from None
        if number in found:
            raise ValueError(f"Stragglers must be different workers, not {number} twice")
        found[number] = times
    return found


def configs_of(options: argparse.Namespace) -> list[LateConfig]:
    """Configurations of all runs that such options ask for."""
    slow = stragglers(options.straggler)
    return [LateConfig(late=late, slow=slow, quorum=options.quorum, deadline=options.deadline, factor=options.factor,
                       skew=skew, batch=options.batch, learning_rate=options.learning_rate,
                       hidden=tuple(widths(options.hidden)), cycles=options.cycles, seed=options.first_seed + seed)
            for skew in map(float, options.skew.split(",")) for late in map(Late, options.late.split(","))
            for seed in range(options.seeds)]


def main(arguments: Sequence[str]) -> int:
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m host.training.late_learning",
                                     description=__doc__.split("\n", 1)[0])
    add_options(parser, seeds=5)
    parser.add_argument("--output", type=Path, default=Path("build/late"), help="folder of late.json [build/late]")
    options = parser.parse_args(arguments)
    claim(options.output, files=("late.json",))
    data = digits()
    results: dict[tuple[float, Late], list[Outcome]] = {}
    runs: list[dict[str, Any]] = []
    for config in configs_of(options):
        outcome = learn(data, config)
        results.setdefault((config.skew, config.late), []).append(outcome)
        runs.append({"skew": config.skew, "late": config.late.value, "seed": config.seed,
                     **dataclasses.asdict(outcome)})
    show(table(results))
    print("compute and time: modelled")
    write_report(SCHEMA.report({"compute": "modelled", "runs": runs}), options.output, "late.json")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
