"""The report of a training run: report.json and report.png.

docs/report_fields.md lists the fields of the JSON.
"""

import dataclasses
import operator
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from host import schema
from host.columns import Column, columns_of, record
from host.reports.changes import CHANGES, hops
from host.reports.measured import SCHEDULES
from host.reports.summary import verdict
from host.reports.training_picture import draw
from host.topology.course import Course
from host.training.record import NODE, Step, Training, TrainingConfig
from host.transports.session import Elapsed, TransportName
from sim.link_faults import RandomFaults, wires

__all__ = ["SCHEMA", "TARGET", "Simulation", "build_report", "write_report"]

#: Test accuracy for which the epochs are counted.
TARGET = 0.97


@dataclasses.dataclass(frozen=True, kw_only=True)
class Simulation:
    """Figures of the simulation as a whole.

    Members
    -------
    transport : str
        Transport to the nodes.
    threads : int
        Threads of the simulation.
    arithmetic : str
        Simulation of the floating-point units.
    link_latency : int
        Cycles of each link.
    configuration : dict
        Sections of every node's configuration that are there; the codecs of weights and gradients are among them.
    configuration_hash : int
        Its hash.
    host_port : bool
        Whether transfers from and to memories went through the simulated host ports.
    elapsed : Elapsed
        Cycles in all, host traffic included.
    seconds : dict
        Wall time per stage: Verilog, Verilate and compile, where they were needed, and run.
    simulation_seconds : float
        Seconds of the run that the simulation took.
    faults : RandomFaults, optional
        Faults of the links, of nodes whose links repeat words.
    course : Course, optional
        Rings of a grid.
    partitioning : dict, optional
        Partition of a ring with a slow link, and the cycles for which it was chosen.
    """

    transport: str
    threads: int
    arithmetic: str
    link_latency: int
    configuration: dict[str, Any]
    configuration_hash: int
    host_port: bool
    elapsed: Elapsed
    seconds: dict[str, float]
    simulation_seconds: float
    faults: RandomFaults | None = None
    course: Course | None = None
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


def _of(name: str, help: str, value: Callable[[_Run], Any], columns: Sequence[Column] = ()) -> Column:
    return Column(name, ",", help, of=value, columns=columns)


def _sum(name: str, figure: str, help: str) -> Column:
    """Column with the sum of a figure over steps, or None where a step does not have it."""
    def total(run: _Run) -> int | None:
        values = [getattr(step, figure) for step in run.training.steps]
        return None if None in values else sum(values)

    return _of(name, help, total)


_DIGITS = (
    _of("accuracy", "Accuracy on the test images after the last step; null if it was not measured.",
        lambda run: run.last),
    _of("loss_per_epoch", "Mean loss during each epoch.", lambda run: run.training.losses),
    _of("accuracy_per_epoch", "Test accuracy after each epoch.", lambda run: run.training.measures),
)
_TEXT = (
    _of("held_out_loss", "Nats per character on all held-out text, after the last step.", lambda run: run.last),
    _of("bigram_loss", "Nats per character of the bigram model.", lambda run: run.bigram_loss),
    _of("below_bigram", "Their difference.",
        lambda run: None if run.last is None else (run.bigram_loss or 0) - run.last),
    _of("loss_per_interval", "Mean training loss during each interval.", lambda run: run.training.losses),
    _of("held_out_loss_per_interval", "Held-out loss after each interval; except for the last one, on every fourth "
        "sequence.", lambda run: run.training.measures),
)
#: Sums of figures of steps, and members of the outcome, by their names in the report.
_SUMS = {
    "cycles_fused_update": "cycles", "bound_cycles": "bound", "cycles_scatter_reduce": "scatter_cycles",
    "bound_scatter_reduce": "scatter_bound", "cycles_sparsify": "sparsify_cycles", "cycles_compute": "compute_cycles",
    "cycles_gemm": "gemm_cycles", "cycles_vector": "vector_cycles", "cycles_communicate": "communicate_cycles",
    "words_sent": "words_sent", "words_scatter_reduce": "scatter_words", "words_dense": "words_dense",
    "link_restarts": "link_restarts", "words_repeated": "words_repeated", "checks_failed": "checks_failed",
    "faults_injected": "faults_injected", "weight_elements": "weight_elements", "weight_words": "weight_words",
    "codebook_words": "codebook_words"}
_OUTCOME = {"measured_at": "measured", "bit_exact": "bit_exact", "retries": "repeats", "cycles_mask": "mask_cycles",
            "elements_through": "elements_through", "elements_masked": "elements_masked",
            "mask_words_fetched": "mask_words_fetched"}
_MEMBERS = {column.name: column for column in columns_of(Training)}
_COUNTS = (
    *(_of(name, _MEMBERS[member].help, operator.attrgetter(f"training.{member}"))
      for name, member in _OUTCOME.items()),
    *(_sum(name, figure, f"Sums over steps of {', '.join(f'`{sum}`' for sum in _SUMS.values())}, in this order.")
      for name, figure in _SUMS.items()),
    _of("codebooks", "Codebooks that were loaded.",
        lambda run: sum(step.codebook_words > 0 for step in run.training.steps)),
    _of("density_per_hop", "Non-zero elements sent at each hop of scatter-reduce, mean over the steps that have it. "
        "In two dimensions hops of rows come before hops of columns.", lambda run: run.density_per_hop),
    _of("density", "Mean over hops.", lambda run: run.density),
    _of("changes", "A row for each change of the rings:", lambda run: run.training.changes, CHANGES),
    _of("training", "Options of the training (`TrainingConfig` in host/training/record.py), the `optimizer` with its "
        "parameters, `moments` (`fp32`, `bf16`, or null without state), and `label`, the name of the run.",
        lambda run: run.settings),
    _of("per_step", "A row for each step:", lambda run: run.training.steps, columns_of(Step, repeats="retries")),
)

#: Report of a training run.
SCHEMA = schema.Schema("gradring.training", 2, "gradring train: build/sim/report.json", {
    "The run": (
        *schema.RUN,
        Column("workload", help="`digits` or `text`."),
        Column("nodes", help="Nodes at the first step."), Column("steps", help="Steps."),
        Column("parameters", help="Parameters of the model."),
        Column("interrupted", help="Whether a signal has ended the run early."),
        Column("topology", help="Null, or of `--topology` its `rows` and `columns`, `shape` (null: as the nodes "
                                "allow), `requests`, and `stages`: for each, the number of steps before it (`step`), "
                                "its `rings` in words, and its `nodes` in the order of their shares."),
        Column("partitioning", help="Null, or of `--slow-link` `root` (null: a block for each rank), `order` of a "
                                    "sum, `rates` of the links, measured, the `slowest`, and `cycles` of a dense "
                                    "update with `block_offset` and with `root_reduce`, as `modelled` too."),
        Column("compute", help="`host`, `engine` with `--compute node`, or `modelled` with `--overlap` only."),
        Column("schedules", help="With `--overlap` a row for each run that has begun:", columns=SCHEDULES),
        Column("notes", help="Without `--overlap`, lines about a run on nodes that compute: the plan of their "
                             "activation memory."),
        Column("faults", help="Null, or `rate` and `seed` of `--faults`."),
        Column("wires_per_link", help="Wires of each link, forward and back."),
        Column("links", help="`credits`, `replay`, `slots` or `job_slots`."),
        Column("comparison", help="Null, or all fields from `accuracy` to `per_step` of the other run: plain SGD, or "
                                  "without density."),
        *(column for column in columns_of(Simulation) if column.name in (
            "transport", "threads", "arithmetic", "link_latency", "configuration", "configuration_hash")),
    ),
    "Results on digits": (
        *_DIGITS,
        Column("target_accuracy", help="Accuracy for which epochs are counted."),
        Column("epochs_to_target", help="By the label of each run, the first epoch that reached it, or null."),
    ),
    "Results on text": (
        *_TEXT,
        Column("sample", help="A held-out sequence, attention weights of its characters in the first layer, and 80 "
                              "characters that the model wrote."),
    ),
    "Comparisons, cycles and words": (
        *_COUNTS,
        Column("modelled", help="Whether cycles come from a model, since nodes are golden models; null where the "
                                "model does not have them."),
        Column("cycles", help="All cycles, host traffic included, without the comparison; of a run that "
                                        "was resumed, the sum of its parts up to their last checkpoints."),
        Column("cycles_simulated", help="Cycles that were simulated."),
        Column("host_port", help="`simulated`: whether transfers from and to memories went through the host ports; "
                                 "if not, their `cycles_modelled` and `words_modelled`, which `cycles` includes."),
        Column("simulated_cycles_per_second", help="Simulated cycles of the whole ring per second."),
        Column("stage_seconds", help="Wall time of `Verilog`, and where needed `Verilate` and `compile`; of "
                                          "`run`, which is all runs with `--overlap all`; of `comparison` if there "
                                          "was one."),
    ),
})


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
    config : TrainingConfig
    training : Training
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
        "transport": simulation.transport,
        "threads": simulation.threads,
        "arithmetic": simulation.arithmetic,
        "link_latency": simulation.link_latency,
        **_ring(simulation),
        "configuration": simulation.configuration,
        "configuration_hash": simulation.configuration_hash,
    })


def _elapsed(simulation: Simulation) -> dict[str, Any]:
    """Cycles in all; golden nodes have none."""
    elapsed, seconds = simulation.elapsed, simulation.simulation_seconds
    figures = {"cycles": elapsed.cycles, "cycles_simulated": elapsed.simulated,
               "host_port": {"simulated": simulation.host_port, "cycles_modelled": elapsed.port_cycles,
                             "words_modelled": elapsed.port_words},
               "simulated_cycles_per_second": elapsed.simulated / seconds if seconds else 0.0}
    return {"modelled": simulation.modelled, **(dict.fromkeys(figures) if simulation.modelled else figures)}


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


def write_report(report: dict[str, Any], directory: pathlib.Path) -> tuple[pathlib.Path, pathlib.Path]:
    """Write report.json and report.png; their paths."""
    written, picture = schema.write_report(report, directory), directory / "report.png"
    note = "" if report["compute"] == "host" else f" (compute: {report['compute']})"
    draw(report, picture, note=verdict(report) + note)
    return written, picture
