"""Layer streaming experiments on golden nodes: edits, deep perceptrons and modelled timelines.

Simulated nodes produce the same bits, so the accuracies are valid for them as well; cycles are modelled.
:func:`learn_on_nodes` runs a case on simulated nodes and compares them with golden nodes.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from host.features.streaming.edits import Edit, Kind, Structure
from host.features.streaming.node_run import NodeRun, open_streaming, streaming_nodes
from host.features.streaming.plan import Worker, make_streaming_plan
from host.features.streaming.run import Assessor, GoldenStreaming, Plateau, SetReport, Underflow
from host.features.streaming.timeline import Costs, costs_of, microbatches, uniform
from host.models.digits import Dataset
from host.training.optimizers import SGD
from host.training.trainer import Trainer
from sim.golden.features.streaming.streaming import Unit
from sim.verilated.native import Arithmetic

__all__ = ["CASES", "Case", "Row", "choices", "failures", "learn", "learn_on_nodes", "replay_log", "row_of",
           "sets_of", "stalls", "start_of"]

#: Number of workers, of examples per microbatch, and of microbatches per set, which has 96 examples in total.
WORKERS, MICROBATCH, COUNT = 4, 8, 3
#: Optimizer momentum in all runs.
MOMENTUM = 0.9
#: Configuration of a worker with memory windows for layers of 64 x 64 weights.
WORKER = Worker(weight_words=8320, gradient_words=8320, activation_words=8192, far_words=1 << 17)
#: Multiply-adds per cycle of a worker, which determine modelled cycles.
MACS = 16


@dataclasses.dataclass(frozen=True)
class Case:
    """A training case, which is run with several seeds."""

    name: str
    widths: tuple[int, ...]
    #: Initial format in which workers fetch the weights of all layers.
    format: str
    #: Initial learning rate.
    rate: float
    epochs: int
    seeds: int = 10
    #: Function that creates the assessor of a run, or returns None for a run without an assessor.
    assessor: Callable[[], Assessor | None] = lambda: None
    #: Name of the case to compare with, or an empty string.
    beside: str = ""
    #: Minimum gain in percentage points or, without ``beside``, minimum accuracy in per cent; 0 for no limit.
    bar: float = 0.0


#: Cases, each listed after the case it is compared with.
CASES = (
    Case("64-10", (64, 10), "raw", 0.1, 16),
    Case("64-10, a plateau adds a layer", (64, 10), "raw", 0.1, 16, assessor=Plateau, beside="64-10", bar=0.7),
    Case("64-64-10 in mx4", (64, 64, 10), "mx4", 0.1, 8),
    Case("64-64-10 in mx4, underflow widens", (64, 64, 10), "mx4", 0.1, 8, assessor=Underflow,
         beside="64-64-10 in mx4", bar=0.5),
    Case("64-64-10 in mx4, widened blindly", (64, 64, 10), "mx4", 0.1, 8, beside="64-64-10 in mx4",
         assessor=functools.partial(Underflow, part=-1.0, sets=1)),  # the edit after the first set widens all layers
    Case("64-64x4-10", (64, 64, 64, 64, 64, 10), "raw", 0.05, 8, seeds=5, bar=93.0),
)


@dataclasses.dataclass(frozen=True)
class Row:
    """Results of a case."""

    name: str
    beside: str
    bar: float
    #: Accuracy of each seed in per cent.
    accuracies: tuple[float, ...]
    #: Mean loss of each set for the first seed.
    losses: tuple[float, ...]
    #: Log of the edits in the first seed's run.
    log: Mapping[str, Any]

    @property
    def mean(self) -> float:
        """Mean accuracy over all seeds."""
        return float(np.mean(self.accuracies))


def start_of(case: Case) -> Structure:
    """Return the initial program of a case, before the number of microbatches is chosen."""
    return Structure(case.widths, (case.format,) * (len(case.widths) - 1), 1, case.rate, MICROBATCH, WORKER)


def learn(case: Case, data: Dataset, seed: int, *, epochs: int | None = None) -> GoldenStreaming:
    """Run a case with one seed. The first edit sets the number of microbatches."""
    start = start_of(case)
    run = GoldenStreaming(data, start, workers=WORKERS, optimizer=SGD(case.rate, momentum=MOMENTUM), seed=seed,
                   assessor=case.assessor())
    run.propose(0, Kind.MICROBATCHES, COUNT)
    Trainer(run, run.batches, total=sets_of(case, data, epochs)).train()
    return run


def learn_on_nodes(case: Case, data: Dataset, seed: int, *, epochs: int | None = None,
                   arithmetic: Arithmetic = Arithmetic.NATIVE,
                   on_set: Callable[[SetReport], None] = lambda report: None) -> NodeRun:
    """Run a case with one seed like :func:`learn`, but on simulated nodes, and compare them with golden nodes after
    every set; ``on_set`` is called after each comparison."""
    start = start_of(case)
    words = sum(unit.length for unit in start.plan.units)
    optimizer = SGD(case.rate, momentum=MOMENTUM)
    nodes = streaming_nodes(words=words, planes=optimizer.planes, window=WORKER.window)
    with open_streaming(nodes, workers=WORKERS, arithmetic=arithmetic) as (ring, _):
        run = NodeRun(ring, data, start, optimizer=optimizer, seed=seed, assessor=case.assessor())
        run.propose(0, Kind.MICROBATCHES, COUNT)
        Trainer(run, run.batches, total=sets_of(case, data, epochs)).train(on_block=lambda: on_set(run.reports[-1]))
    return run


def sets_of(case: Case, data: Dataset, epochs: int | None = None) -> int:
    """Return the number of sets in a run of a case."""
    return -(-len(data.train_y) // (WORKERS * MICROBATCH * COUNT)) * (case.epochs if epochs is None else epochs)


def replay_log(data: Dataset, log: Mapping[str, Any]) -> GoldenStreaming:
    """Repeat a run with the edits of its log, and without an assessor. Raises ``ValueError`` if the log is for
    different data or a different program, and ``RefusedError`` if nodes reject an edit."""
    start = Structure.parse(log["start"])
    ends, expected = (start.widths[0], start.widths[-1]), (data.train_x.shape[1], data.classes)
    if ends != expected:
        raise ValueError(f"Log must be of a run with {expected[0]} inputs and {expected[1]} outputs, not {ends[0]} "
                         f"and {ends[1]}")
    if log["start"]["digest"] != start.digest:
        raise ValueError(f"Log must be of a run that begins with the program {start.digest}, not "
                         f"{log['start']['digest']}")
    run = GoldenStreaming(data, start, workers=log["workers"], optimizer=SGD(start.rate, momentum=MOMENTUM),
                   seed=log["seed"], edits=[Edit.parse(edit) for edit in log["edits"]])
    Trainer(run, run.batches, total=log["sets"]).train()
    return run


def row_of(case: Case, runs: Sequence[GoldenStreaming]) -> Row:
    """Collect the results of a case's runs in a row of the report."""
    first = runs[0]
    return Row(case.name, case.beside, case.bar, tuple(round(100 * run.accuracy, 4) for run in runs),
               tuple(report.mean_loss for report in first.reports), first.described())


def failures(rows: Sequence[Row]) -> list[str]:
    """Describe the cases with an accuracy or gain below its minimum."""
    means = {"": 0.0, **{row.name: row.mean for row in rows}}
    return [f"{row.name} must {'gain' if row.beside else 'have'} at least {row.bar:g} "
            f"{'points' if row.beside else '%'}, not {row.mean - means[row.beside]:.2f}"
            for row in rows if row.mean - means[row.beside] < row.bar]


def _costs(**options: Any) -> Costs:
    return costs_of([Unit(1, 64, 64, 0, options.pop("format", "raw"))],
                    **{"workers": WORKERS, "microbatch": MICROBATCH, "macs": MACS, **options})[0]


def stalls(most: int = 4) -> list[dict[str, Any]]:
    """Model stall and idle times in sets of 64 x 64 layers, and a worker's peak on-chip words."""
    rows = []
    for layers in (4, 8, 16):
        runs = [uniform(layers, _costs(), count) for count in range(1, most + 1)]
        plan = make_streaming_plan([64] * layers + [10], worker=WORKER, count=COUNT, microbatch=MICROBATCH)
        rows.append({"layers": layers, "stall": [run.stall for run in runs], "idle": [run.idle for run in runs],
                     "cycles": [run.end for run in runs], "peak": plan.peak})
    return rows


def choices() -> list[dict[str, Any]]:
    """Return cases with the costs of 64 x 64 layers, and the microbatch count the model chooses."""
    cases: list[tuple[str, dict[str, Any]]] = [
        *((f"microbatch {size}", {"microbatch": size}) for size in (4, 8, 16)),
        *((f"{name}, server at 1 word per cycle", {"rate": Fraction(1), "state_words": words})
          for name, words in (("sgd", 2), ("momentum", 4), ("adam", 6))),
        ("mx9 in FETCH", {"format": "mx9"})]
    return [{"case": name, **dataclasses.asdict(_costs(**options)), "microbatches": microbatches([_costs(**options)])}
            for name, options in cases]
