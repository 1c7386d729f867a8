"""Loss and accuracy over cycles for several treatments of late gradients, golden or simulated.

The lab trains the digits classifier for a number of cycles on a ring with a straggler. Late gradients are waited for,
dropped, or applied in a later round. Time is modelled: a computation takes the cycles of an engine times the
straggler's factor, and rounds are closed by the rules of :class:`sim.golden.features.quorum.rounds.Closer`. Golden
nodes compute sums, weights and updates.

With ``--simulated``, nodes select the gradients of a round, and all cycles except computations are measured.
"""

import dataclasses
import functools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from hdl.config import NodeConfig
from host.columns import Column, Table, columns_of, show
from host.console import shown
from host.driver.memory import Allocation, fitted
from host.driver.ring import Ring
from host.features.quorum.config import Late, LateConfig, stragglers
from host.features.quorum.updates import (
    Outcome,
    QuorumExecutor,
    Workers,
    make_quorum_trainer,
    node_for,
    patience_of,
    quorum_batches,
)
from host.labs.kit import BUILD, Results, chosen_names, numbers
from host.models.digits import Dataset, digits
from host.models.layers import Array, widths
from host.options import COUNT, Option, Section, command, option
from host.reports.style import COLOURS, FAINT, picture, show_thousands, smoothed
from host.schema import Schema, read_report
from host.training.batches import Batch
from host.training.executor import Executor
from host.training.trainer import Trainer
from host.transports.session import TransportName, open_session
from sim.fields import choice, having, number, optional, several
from sim.golden.features.quorum.rounds import Closer, QuorumRounds

__all__ = ["SCHEMA", "draw_report", "draw_runs", "late_lab", "learn", "percentages", "train"]

#: Schema of reports with several treatments of late gradients.
SCHEMA = Schema("gradring.late", 1, columns_of(
    "compute", Column("runs", columns=columns_of("skew late seed", Outcome, "masks"))))

_COLOURS = dict(zip(("apply-late", "wait", "drop"), COLOURS, strict=False))
_number = number(-1e300, 1e300)
_RUN = having(skew=_number, late=choice(_COLOURS), cycles=several(_number, 1, 1 << 22),
              losses=several(optional(_number), 1, 1 << 22), measured=several(several(_number, 2, 2), 1, 1 << 22))
_RUNS = several(_RUN, 1, 1024)
#: Number of points in time at which losses are averaged over the seeds, whose updates end in different cycles.
_POINTS = 120


class _ModelledExecutor(Executor[None]):
    """Executor of rounds on golden nodes with modelled times. It measures the model about ``points`` times."""

    def __init__(self, ring: Ring, data: Dataset, config: LateConfig, points: int):
        self._ring, self._config, self._points = ring, config, points
        self._workers = Workers(data, config)
        self._durations = self._workers.durations()
        self._update = self._workers.update_cycles(config.workers)
        self._closer = Closer(nodes=config.workers, quorum=config.closing, deadline=config.closing_deadline,
                              weights=config.weights)
        self._rounds = QuorumRounds(nodes=config.workers, length=self._workers.length, weights=config.weights)
        self._free = [0] * config.workers  # end cycle of each worker's current or last computation
        self._computing: list[tuple[int, int, int, Array]] = []  # end cycle, worker, round, gradient
        self._now, self._over = 0, False
        self.outcome = Outcome()

    @property
    def left(self) -> int:
        """Number of rounds to request next: one, or zero after the cycle limit."""
        return int(not self._over)

    def begin(self) -> None:
        self._ring.collectives.distribute(self._workers.parameters)
        self._ring.memory.write_state(np.zeros(self._workers.length, np.float32))

    def execute(self, first: int, batches: Sequence[Batch]) -> list[None]:
        number, config, ring = first - 1, self._config, self._ring  # rounds are numbered from 0
        # Each worker starts to compute as soon as it is free, unless the round closes first.
        for cycle, rank in sorted((max(free, self._now), rank) for rank, free in enumerate(self._free)):
            known = self._closer.time(number, self._now)
            if known is None or cycle < known:
                self._free[rank] = cycle + self._durations[rank]
                gradient = self._workers.gradient(rank, number, batches[0])
                self._computing.append((self._free[rank], rank, number, gradient))
                self._closer.ready(rank, number, self._free[rank])
        closed_at = self._closer.time(number, self._now)
        assert closed_at is not None
        closed = self._closer.close(number, closed_at)
        end = closed_at + self._update
        self._over = end > config.cycles
        if self._over:
            return []
        for _, rank, tag, gradient in (item for item in self._computing if item[0] <= closed_at):
            self._rounds.ready(rank, tag, gradient)
        self._computing = [item for item in self._computing if item[0] > closed_at]
        ring.memory.write_gradients([item.view(np.float32) for item in self._rounds.close(closed)])
        ring.settings.write(self._workers.closed_settings(closed))
        ring.collectives.fused_update(self._workers.length)
        self._workers.parameters[...] = ring.memory.read_weights(self._workers.length, ranks=[0])[0]
        self.outcome.losses.append(self._workers.loss(number, [
            worker for worker in range(config.workers) if closed.on_time >> worker & 1]))
        self.outcome.cycles.append(end)
        if end // (config.cycles // self._points) > self._now // (config.cycles // self._points):
            self.outcome.measured.append((end, self._workers.accuracy()))
        self._now = end
        return [None]

    def finish(self) -> None:
        self.outcome.measured.append((self._now, self._workers.accuracy()))
        ledgers = [ledger.counts for ledger in self._rounds.ledgers]
        pending = sum(len(self._rounds.pending(rank)) for rank in range(self._config.workers))
        self.outcome.counts = {**{status: sum(counts[status] for counts in ledgers) for status in ledgers[0]},
                               "pending": pending}


def learn(data: Dataset, config: LateConfig, *, points: int = 20) -> Outcome:
    """Train on golden nodes until the modelled cycle limit, with about ``points`` measurements."""
    length = Workers(data, config).length
    node = fitted(NodeConfig(), [Allocation(length=length, planes=1)], nodes=config.workers)
    with open_session(node, nodes=config.workers, transport=TransportName.GOLDEN) as session:
        trainer = Trainer(_ModelledExecutor(session.ring, data, config, points), quorum_batches(data, config))
        trainer.begin()
        trainer.train()
        trainer.finish()
    return trainer.executor.outcome


def train(data: Dataset, config: LateConfig) -> QuorumExecutor:
    """Train on simulated nodes and return the executor after the run."""
    node = node_for(Workers(data, config).length, nodes=config.workers)
    with open_session(node, nodes=config.workers, host_port=False, threads=1,
                      timeout=patience_of(data, config)) as session:
        trainer = make_quorum_trainer(session.ring, data, config)
        trainer.begin()
        trainer.train()
    return trainer.executor


def percentages(accuracies: Iterable[float]) -> str:
    """Format the accuracies of all seeds as percentages."""
    return ", ".join(f"{100 * accuracy:.2f}" for accuracy in accuracies)


def table(results: dict[tuple[float, Late], list[Outcome]]) -> Table:
    """Format the mean accuracies over all seeds as a table."""
    def mean(status: str) -> Column:
        return Column(status, format=".0f", of=lambda row: np.mean([run.counts[status] for run in row[1]]))

    return Table("training with stale gradients; accuracies in per cent", (
        Column("skew", format="g", of=lambda row: row[0][0]),
        Column("late gradients", of=lambda row: row[0][1].value),
        Column("mean_accuracy", format=".2f", of=lambda row: 100 * np.mean([run.accuracy for run in row[1]])),
        Column("updates", format=".0f", of=lambda row: np.mean([len(run.cycles) for run in row[1]])),
        dataclasses.replace(mean("applied_late"), title="applied late"), mean("dropped"),
        Column("accuracy of each seed", of=lambda row: percentages([run.accuracy for run in row[1]]))),
        list(results.items()))


def draw_runs(report: dict[str, Any], path: Path) -> None:
    """Draw the smoothed loss of each seed and its mean over all seeds, with one panel per skew."""
    skews = sorted({run["skew"] for run in report["runs"]})
    with picture(path, size=(6 * len(skews), 4.5), columns=len(skews),
                 title="Loss over cycles, compute: modelled") as panels:
        for axes, skew in zip(panels, skews, strict=True):
            axes.set(title=f"skew {skew:g}", xlabel="cycle")
            show_thousands(axes.xaxis)
            if axes is not panels[0]:
                axes.sharey(panels[0])
            for late, colour in _COLOURS.items():
                runs = [run for run in report["runs"] if (run["skew"], run["late"]) == (skew, late)]
                if not runs:
                    continue
                cycles = np.linspace(max(run["cycles"][0] for run in runs), min(run["cycles"][-1] for run in runs),
                                     _POINTS)
                curves = [np.interp(cycles, run["cycles"], smoothed(run["losses"])) for run in runs]
                for curve in curves:
                    axes.plot(cycles, curve, color=colour, linewidth=0.6, alpha=0.35)
                accuracy = 100 * np.mean([run["measured"][-1][1] for run in runs])
                axes.plot(cycles, np.mean(curves, axis=0), color=colour, linewidth=1.8,
                          label=f"{late}, {accuracy:.1f} % at the end")
            axes.legend(fontsize=9)
        panels[0].set_ylabel("loss of gradients in time", color=FAINT)


def draw_report(folder: Path) -> Path:
    """Draw the results in the folder's late.json and return the path of the picture."""
    path = folder / "late.json"
    report = read_report(path, SCHEMA)
    if not _RUNS(report.get("runs")) or not all(len(run["cycles"]) == len(run["losses"]) for run in report["runs"]):
        raise ValueError(f"{path} must be a report of training with stale gradients, not damaged or another file")
    draw_runs(report, folder / "late.png")
    return folder / "late.png"


_DEFAULT = LateConfig()


@dataclasses.dataclass(frozen=True)
class RunOptions(Section):
    """Training options for each run, and the treatments of late gradients to compare."""

    skew: str = option("0,0.9", help="Comma-separated fractions of examples taken from a worker's own classes.")
    late: str = option("apply-late,wait,drop", help="Comma-separated treatments of late gradients.")
    straggler: str = option("3:4.5", help="Slow workers and their slow-down factors.")
    quorum: int = option(_DEFAULT.quorum, help="Number of gradients that close a round.")
    deadline: int = option(_DEFAULT.deadline, help="Cycles after which a round is closed; 0 for no deadline.",
                           minimum=0, maximum=COUNT)
    factor: float = option(_DEFAULT.factor, help="Factor applied to a gradient for each round that it is late.",
                           minimum=0, maximum=1)
    seeds: int = option(5, help="Number of seeds for each treatment.", minimum=1, maximum=COUNT)
    first_seed: int = option(0, help="First seed.", minimum=0, maximum=COUNT)
    batch: int = option(_DEFAULT.batch, help="Number of examples per worker.", minimum=1, maximum=COUNT)
    learning_rate: float = option(_DEFAULT.learning_rate, help="Learning rate.", minimum=0, maximum=1000)
    hidden: str = option("64", help="Widths of hidden layers.")
    cycles: int = option(_DEFAULT.cycles, help="Duration of a run in cycles.", minimum=1, maximum=COUNT)

    def configs(self) -> list[LateConfig]:
        """Create the training configurations of all runs."""
        late = chosen_names("Late gradients", self.late, [way.value for way in Late])
        plain = {name: getattr(self, name) for name in (
            "quorum", "deadline", "factor", "batch", "learning_rate", "cycles")}
        return [LateConfig(late=Late(way), slow=stragglers(self.straggler), skew=skew, hidden=widths(self.hidden),
                           seed=self.first_seed + seed, **plain)
                for skew in numbers("Skews", self.skew, float) for way in late for seed in range(self.seeds)]


@command
def late_lab(
    *,
    runs: RunOptions,
    simulated: Annotated[bool, Option("Run on simulated nodes.", ("--simulated",))] = False,
    draw: Annotated[Path | None, Option("Folder with late.json: only draw late.png.")] = None,
    output: Annotated[Path | None, Option("Folder for late.json and late.png.",
                                          shown_default="build/late, simulated build/late-run")] = None,
) -> None:
    """Train with late gradients that are waited for, dropped or applied later, and compare the accuracies."""
    if draw is not None:
        show(shown(draw_report(draw)))
        return
    configs = runs.configs()
    results = Results(output or BUILD / ("late-run" if simulated else "late"), "late.json", "late.png")
    data = digits()
    outcomes: dict[tuple[float, Late], list[Outcome]] = {}
    rows: list[dict[str, Any]] = []
    for config in configs:
        outcome, figures = _simulated(data, config) if simulated else (learn(data, config), {})
        outcomes.setdefault((config.skew, config.late), []).append(outcome)
        rows.append({"skew": config.skew, "late": config.late.value, "seed": config.seed, **figures,
                     **dataclasses.asdict(outcome)})
    report = SCHEMA.report({"compute": "modelled", "runs": rows})
    results.show(table(outcomes), "compute: modelled; rounds, sums and updates: gateware" if simulated else
                 "compute and time: modelled")
    results.write(report, functools.partial(draw_runs, report))
    results.show_paths()


def _simulated(data: Dataset, config: LateConfig) -> tuple[Outcome, dict[str, Any]]:
    """Train on simulated nodes; return the outcome, and the masks of the gradients in each round."""
    run = train(data, config)
    outcome = run.outcome
    ledger = ", ".join(f"{count} {status}" for status, count in outcome.counts.items())
    print(f"{config.late.value}, skew {config.skew:g}, seed {config.seed}: {len(run.statuses)} rounds, "
          f"{outcome.measured[-1][0]:,} cycles, accuracy {outcome.accuracy:.2%}; gradients: {ledger}; all nodes "
          f"equal to golden", flush=True)
    print("\n".join(run.stragglers), end="\n" if run.stragglers else "")
    return outcome, {"masks": [(past.on_time, past.late) for past in run.statuses]}
