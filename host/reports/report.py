"""The report of a training run: report.json and report.png.

docs/report_fields.md lists the fields of the JSON.
"""

import dataclasses
import operator
import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from host import schema
from host.columns import Column, columns_of, record
from host.driver.results import total
from host.reports.changes import CHANGES, hops
from host.reports.schedules import SCHEDULES
from host.reports.summary import verdict
from host.reports.training_picture import draw
from host.training.record import NODE, Step, Training, TrainingConfig
from host.transports.session import Elapsed, TransportName
from sim.link_faults import RandomFaults, wires

if TYPE_CHECKING:
    from host.features.grid.course import Course

__all__ = ["SCHEMA", "TARGET", "Simulation", "build_report", "draw_report"]

#: Test accuracy for which the epochs are counted.
TARGET = 0.97


@dataclasses.dataclass(frozen=True, kw_only=True)
class Simulation:
    """Figures of the simulation as a whole."""

    #: Transport to the nodes.
    transport: str
    #: Threads of the simulation.
    threads: int
    #: Simulation of the floating-point units.
    arithmetic: str
    #: Cycles of each link.
    link_latency: int
    #: Sections of every node's configuration that are there; the codecs of weights and gradients are among them.
    configuration: dict[str, Any]
    #: Its hash.
    configuration_hash: int
    #: Whether transfers from and to memories went through the simulated host ports.
    host_port: bool
    #: Cycles in all, host traffic included.
    elapsed: Elapsed
    #: Wall time per stage: Verilog, Verilate and compile, where they were needed, and run.
    seconds: dict[str, float]
    #: Seconds of the run that the simulation took.
    simulation_seconds: float
    #: Faults of the links, of nodes whose links repeat words.
    faults: RandomFaults | None = None
    #: Rings of a grid.
    course: "Course | None" = None
    #: Partition of a ring with a slow link, and the cycles for which it was chosen.
    partitioning: dict[str, Any] | None = None

    @property
    def modelled(self) -> bool:
        """Whether nodes are golden models, so that cycles come from a model, or are None."""
        return self.transport == TransportName.GOLDEN.value


@dataclasses.dataclass(frozen=True)
class _Run:
    """A training run: its configuration, its outcome, and the loss of a bigram model on its text."""

    config: TrainingConfig
    training: Training
    bigram_loss: float | None

    @property
    def last(self) -> float | None:
        """Last measure; None of a run that has ended before it."""
        return self.training.measures[-1] if self.training.measures else None

    @property
    def density_per_hop(self) -> list[float]:
        """Mean density at each hop, over the steps with rings that have such a hop."""
        densities = [step.density for step in self.training.steps]
        means = np.nanmean(hops(densities), axis=0) if self.training.changes else np.mean(densities, axis=0)
        return list(means.tolist())

    @property
    def density(self) -> float | None:
        """Mean density over hops and steps; None without hops."""
        means = ([np.mean(step.density) for step in self.training.steps if step.density] if self.training.changes
                 else self.density_per_hop)
        return float(np.mean(means)) if means else None

    @property
    def settings(self) -> dict[str, Any]:
        """The configuration in one level, with the optimizer's name and parameters."""
        config, optimizer = self.config, self.config.optimizer
        settings = {name: value for name, value in dataclasses.asdict(config).items()
                    if name not in ("optimizer", "packed_state")}
        moments = "bf16" if config.packed_state else "fp32"
        # A name that distinguishes the run from the one that it is compared with.
        label = optimizer.name if config.density is None else f"{optimizer.name}, {config.density:.0%}"
        return {**settings, "hidden": list(config.hidden), "optimizer": optimizer.name,
                **dataclasses.asdict(optimizer), "moments": moments if optimizer.planes else None, "label": label}


def _sum(name: str, figure: str) -> Column:
    """Column with the sum of a figure over steps, or None where a step does not have it."""
    return Column(name, of=lambda run: total(getattr(step, figure) for step in run.training.steps))


_LAST, _LOSSES, _MEASURES = (operator.attrgetter(name) for name in ("last", "training.losses", "training.measures"))
_DIGITS = (Column("accuracy", of=_LAST), Column("loss_per_epoch", of=_LOSSES),
           Column("accuracy_per_epoch", of=_MEASURES))
_TEXT = (Column("held_out_loss", of=_LAST), Column("bigram_loss"),
         Column("below_bigram", of=lambda run: None if run.last is None else (run.bigram_loss or 0) - run.last),
         Column("loss_per_interval", of=_LOSSES), Column("held_out_loss_per_interval", of=_MEASURES))
#: Sums of figures of steps, and members of the outcome, by their names in the report.
_SUMS = {
    "cycles_fused_update": "cycles", "bound_cycles": "bound", "cycles_scatter_reduce": "scatter_cycles",
    "bound_scatter_reduce": "scatter_bound", "words_scatter_reduce": "scatter_words",
    **{f"cycles_{part}": f"{part}_cycles" for part in ("sparsify", "compute", "gemm", "vector", "communicate")},
    **{name: name for name in (
        "words_sent", "words_dense", "link_restarts", "words_repeated", "checks_failed", "faults_injected",
        "weight_elements", "weight_words", "codebook_words")}}
_OUTCOME = {"measured_at": "measured", "retries": "repeats", "cycles_mask": "mask_cycles", **{
    name: name for name in ("bit_exact", "elements_through", "elements_masked", "mask_words_fetched")}}
_COUNTS = (
    *(Column(name, of=operator.attrgetter(f"training.{member}")) for name, member in _OUTCOME.items()),
    *(_sum(name, figure) for name, figure in _SUMS.items()),
    Column("codebooks", of=lambda run: sum(step.codebook_words > 0 for step in run.training.steps)),
    *columns_of("density_per_hop density"),
    Column("changes", of=operator.attrgetter("training.changes"), columns=CHANGES),
    Column("training", of=operator.attrgetter("settings")),
    Column("per_step", of=operator.attrgetter("training.steps"), columns=columns_of(Step, repeats="retries")))
#: Figures of the simulation that the report has.
_SIMULATION = columns_of("transport threads arithmetic link_latency configuration configuration_hash modelled")

#: Report of a training run.
SCHEMA = schema.Schema("gradring.training", 2, columns_of(
    *schema.RUN, "workload nodes steps parameters interrupted topology partitioning compute",
    Column("schedules", columns=SCHEDULES), "notes faults wires_per_link links comparison", *_SIMULATION, *_DIGITS,
    "target_accuracy epochs_to_target", *_TEXT, "sample", *_COUNTS,
    "cycles cycles_simulated host_port simulated_cycles_per_second stage_seconds"))


def compute_of(config: TrainingConfig) -> str:
    """Origin of gradients: the host, nodes with an engine, or the host while nodes spend the time of a model."""
    if config.compute == NODE:
        return "engine"
    return "host" if config.overlap is None else "modelled"


def _first_epoch(accuracies: list[float]) -> int | None:
    """The first epoch that reached the target."""
    return next((epoch for epoch, accuracy in enumerate(accuracies, start=1) if accuracy >= TARGET), None)


def build_report(config: TrainingConfig, training: Training, simulation: Simulation,
                 comparison: tuple[TrainingConfig, Training] | None = None, *,
                 bigram_loss: float | None = None, interrupted: bool = False,
                 schedules: Sequence[tuple[TrainingConfig, Training]] = ()) -> dict[str, Any]:
    """The report, ready to be written as JSON.

    Parameters
    ----------
    simulation : Simulation
        Simulation of this training run, without the comparison.
    comparison : tuple, optional
        Another training run of the same number of steps on the same ring, seed and batches: by an optimizer of
        another name, or without density.
    bigram_loss : float, optional
        Loss of a bigram model on held-out text if a character model was trained; None for a classifier.
    interrupted : bool
        Whether the run has ended early.
    schedules : sequence of tuple
        All runs, where nodes have a program: with the same steps, by different schedules.
    """
    columns = (*(_DIGITS if bigram_loss is None else _TEXT), *_COUNTS)
    runs = ((config, training), *([] if comparison is None else [comparison]))
    figures = [record(columns, _Run(*run, bigram_loss)) for run in runs]
    digits = {} if bigram_loss is not None else {
        "target_accuracy": TARGET,
        "epochs_to_target": {run["training"]["label"]: _first_epoch(run["accuracy_per_epoch"]) for run in figures}}
    return SCHEMA.report({
        "workload": "digits" if bigram_loss is None else "text",
        "nodes": training.nodes,
        "steps": len(training.steps),
        "interrupted": interrupted,
        "parameters": training.parameters,
        **figures[0],
        **_elapsed(simulation),
        "stage_seconds": simulation.seconds,
        **digits,
        "comparison": figures[1] if comparison is not None else None,
        "compute": compute_of(config),
        "schedules": [record(SCHEDULES, run) for run in schedules],
        "notes": [] if schedules else training.search,
        "sample": training.sample,
        **_ring(simulation),
        **record(_SIMULATION, simulation),
    })


def _elapsed(simulation: Simulation) -> dict[str, Any]:
    """Cycles in all; golden nodes have none."""
    elapsed, seconds = simulation.elapsed, simulation.simulation_seconds
    figures = {"cycles": elapsed.cycles, "cycles_simulated": elapsed.simulated,
               "host_port": {"simulated": simulation.host_port, "cycles_modelled": elapsed.port_cycles,
                             "words_modelled": elapsed.port_words},
               "simulated_cycles_per_second": elapsed.simulated / seconds if seconds else 0.0}
    return dict.fromkeys(figures) if simulation.modelled else figures


def _ring(simulation: Simulation) -> dict[str, Any]:
    """Links of the nodes, and what was done to them."""
    links, course = simulation.configuration.get("link", {"kind": "credits"})["kind"], simulation.course
    return {"links": links, "wires_per_link": [len(wires(replay=links != "credits")) - 1, 1],
            "faults": None if simulation.faults is None else dataclasses.asdict(simulation.faults),
            "partitioning": simulation.partitioning,
            "topology": None if course is None else {
                "rows": course.rows, "columns": course.columns,
                "shape": None if course.shape is None else course.shape.value, "requests": course.texts(),
                "stages": [{"step": stage.step, "rings": str(stage), "nodes": list(stage.plan.order)}
                           for stage in course.stages]}}


def draw_report(report: dict[str, Any], directory: pathlib.Path) -> pathlib.Path:
    """Draw report.png; its path."""
    picture = directory / "report.png"
    note = "" if report["compute"] == "host" else f" (compute: {report['compute']})"
    draw(report, picture, note=verdict(report) + note)
    return picture
