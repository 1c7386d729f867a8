"""Report of a training run: report.json, report.png and report.html.

docs/report_fields.md lists the fields of report.json.
"""

import dataclasses
import operator
import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hdl.config import NodeConfig
from host import schema
from host.columns import Column, Table, columns_of, record
from host.driver.results import total
from host.levels import described_levels
from host.reports import page, summary
from host.reports.changes import CHANGES, hops, table_of_changes
from host.reports.training_picture import draw, heading
from host.training.record import NODE, Step, Training, TrainingConfig
from host.transports.session import Elapsed, TransportName
from sim.link_faults import RandomFaults, wires

if TYPE_CHECKING:
    from host.features.grid.reconfiguration import ReconfigurationPlan

__all__ = ["SCHEMA", "TARGET", "Simulation", "build_report", "draw_report", "write_page"]

#: Target test accuracy. The report shows the number of epochs to reach it.
TARGET = 0.97


@dataclasses.dataclass(frozen=True, kw_only=True)
class Simulation:
    """Figures of a training run's simulation as a whole."""

    transport: str
    threads: int
    #: How floating-point units are simulated: as gateware or native code.
    arithmetic: str
    #: Latency of each link of the ring, in cycles.
    link_latency: int
    #: Configuration that all nodes share, including the weight and gradient codecs.
    configuration: dict[str, Any]
    configuration_hash: int
    #: Whether memory transfers used the simulated host ports.
    host_port: bool
    #: Total cycles, including transfers by the host.
    elapsed: Elapsed
    #: Seconds of each stage: Verilog, Verilator and compilation if they were needed, and the run.
    seconds: dict[str, float]
    #: Seconds of the run spent in simulation.
    simulation_seconds: float
    #: Injected link faults, for nodes with links that resend words.
    faults: RandomFaults | None = None
    #: Rings of a grid, and their reconfigurations.
    reconfiguration: "ReconfigurationPlan | None" = None
    #: Partitioning of a ring with a slow link, with the cycle counts that determined the choice.
    partitioning: dict[str, Any] | None = None

    @property
    def modelled(self) -> bool:
        """Whether nodes are golden models, with cycles that are modelled or None."""
        return self.transport == TransportName.GOLDEN.value


@dataclasses.dataclass(frozen=True)
class _Run:
    """A training run: its configuration, its results, and a bigram model's loss on its text."""

    config: TrainingConfig
    training: Training
    bigram_loss: float | None

    @property
    def last(self) -> float | None:
        """Last measurement of accuracy or loss, or None if the run ended before the first."""
        return self.training.measures[-1] if self.training.measures else None

    @property
    def density_per_hop(self) -> list[float]:
        """Mean density at each hop, over all steps with a ring that is large enough to have that hop."""
        densities = [step.density for step in self.training.steps]
        means = np.nanmean(hops(densities), axis=0) if self._changes else np.mean(densities, axis=0)
        return list(means.tolist())

    @property
    def _changes(self) -> bool:
        """Whether the rings changed, during the run or between a checkpoint and the run that continued from it."""
        return bool(self.training.changes) or len({step.nodes for step in self.training.steps}) > 1

    @property
    def density(self) -> float | None:
        """Mean density over all hops and steps, or None if no step has hops."""
        means = ([np.mean(step.density) for step in self.training.steps if step.density] if self._changes
                 else self.density_per_hop)
        return float(np.mean(means)) if means else None

    @property
    def settings(self) -> dict[str, Any]:
        """Configuration as a flat dictionary, with the optimizer's name and parameters."""
        config, optimizer = self.config, self.config.optimizer
        settings = {name: value for name, value in dataclasses.asdict(config).items()
                    if name not in ("optimizer", "packed_state")}
        moments = "bf16" if config.packed_state else "fp32"
        # Label that distinguishes the run from its comparison run.
        label = optimizer.name if config.density is None else f"{optimizer.name}, {config.density:.0%}"
        return {**settings, "hidden": list(config.hidden), "optimizer": optimizer.name,
                **dataclasses.asdict(optimizer), "moments": moments if optimizer.planes else None, "label": label}


def _sum(name: str, figure: str) -> Column:
    """Return a column with the sum of a figure over all steps, or None if a step lacks the figure."""
    return Column(name, of=lambda run: total(getattr(step, figure) for step in run.training.steps))


_LAST, _LOSSES, _MEASURES = (operator.attrgetter(name) for name in ("last", "training.losses", "training.measures"))
_DIGITS = (Column("accuracy", of=_LAST), Column("loss_per_epoch", of=_LOSSES),
           Column("accuracy_per_epoch", of=_MEASURES))
_TEXT = (Column("held_out_loss", of=_LAST), Column("bigram_loss"),
         Column("below_bigram", of=lambda run: None if run.last is None else (run.bigram_loss or 0) - run.last),
         Column("loss_per_interval", of=_LOSSES), Column("held_out_loss_per_interval", of=_MEASURES))
#: Figures that are summed over steps, and attributes of the results, keyed by their names in the report.
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
#: Figures of :class:`Simulation` that are included in the report.
_SIMULATION = columns_of("transport threads arithmetic link_latency configuration configuration_hash modelled")

#: Schema of the report of a training run.
SCHEMA = schema.Schema("gradring.training", 2, columns_of(
    *schema.RUN, "workload nodes steps parameters interrupted topology partitioning compute",
    Column("schedules", columns=summary.SCHEDULES), "notes faults wires_per_link links comparison", *_SIMULATION,
    *_DIGITS, "target_accuracy epochs_to_target", *_TEXT, "sample", *_COUNTS,
    "cycles cycles_simulated host_port simulated_cycles_per_second stage_seconds"))


def build_report(config: TrainingConfig, training: Training, simulation: Simulation,
                 comparison: tuple[TrainingConfig, Training] | None = None, *,
                 bigram_loss: float | None = None, interrupted: bool = False,
                 schedules: Sequence[tuple[TrainingConfig, Training]] = ()) -> dict[str, Any]:
    """Build the report as a JSON-serializable object.

    Parameters
    ----------
    simulation : Simulation
        Simulation of this training run, without the comparison run.
    comparison : tuple, optional
        A second training run with the same number of steps, ring, seed and batches, but a different optimizer, or no
        density.
    bigram_loss : float, optional
        Loss of a bigram model on held-out text, for a character model; None for a classifier.
    schedules : sequence of tuple
        All runs, with the same steps and different schedules, if nodes have a program.
    """
    columns = (*(_DIGITS if bigram_loss is None else _TEXT), *_COUNTS)
    runs = ((config, training), *([] if comparison is None else [comparison]))
    figures = [record(columns, _Run(*run, bigram_loss)) for run in runs]
    digits = {} if bigram_loss is not None else {
        "target_accuracy": TARGET,
        "epochs_to_target": {run["training"]["label"]: next(
            (epoch for epoch, accuracy in enumerate(run["accuracy_per_epoch"], start=1) if accuracy >= TARGET), None)
            for run in figures}}
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
        # Where gradients were computed: on nodes, on the host, or on the host while nodes wait for the modelled time.
        "compute": "engine" if config.compute == NODE else "host" if config.overlap is None else "modelled",
        "schedules": [record(summary.SCHEDULES, run) for run in schedules],
        "notes": [] if schedules else training.search,
        "sample": training.sample,
        **_ring(simulation),
        **record(_SIMULATION, simulation),
    })


def _elapsed(simulation: Simulation) -> dict[str, Any]:
    """Return the total cycles, or None for golden nodes."""
    elapsed, seconds = simulation.elapsed, simulation.simulation_seconds
    figures = {"cycles": elapsed.cycles, "cycles_simulated": elapsed.simulated,
               "host_port": {"simulated": simulation.host_port, "cycles_modelled": elapsed.port_cycles,
                             "words_modelled": elapsed.port_words},
               "simulated_cycles_per_second": elapsed.simulated / seconds if seconds else 0.0}
    return dict.fromkeys(figures) if simulation.modelled else figures


def _ring(simulation: Simulation) -> dict[str, Any]:
    """Return the report's entries for links, rings and link faults."""
    # A configuration section that has only one possible type has no entry ``kind``.
    links = simulation.configuration.get("link", {}).get("kind", "credits")
    reconfiguration = simulation.reconfiguration
    return {"links": links, "wires_per_link": [len(wires(replay=links != "credits")) - 1, 1],
            "faults": None if simulation.faults is None else dataclasses.asdict(simulation.faults),
            "partitioning": simulation.partitioning,
            "topology": None if reconfiguration is None else {
                "rows": reconfiguration.rows, "columns": reconfiguration.columns,
                "shape": None if reconfiguration.shape is None else reconfiguration.shape.value,
                "requests": reconfiguration.texts(),
                "stages": [{"step": stage.step, "rings": str(stage), "nodes": list(stage.plan.order)}
                           for stage in reconfiguration.stages]}}


def draw_report(report: dict[str, Any], directory: pathlib.Path) -> pathlib.Path:
    """Draw report.png, and return its path."""
    picture = directory / "report.png"
    note = "" if report["compute"] == "host" else f" (compute: {report['compute']})"
    draw(report, picture, note=summary.verdict(report) + note)
    return picture


#: Settings in report.json other than the settings of training and of nodes.
_SETTINGS = ("workload", "nodes", "compute", "transport", "threads", "arithmetic", "link_latency")
#: Optional sections of a node's configuration that the page lists if they are absent.
_ABSENT = {field.name: None for field in dataclasses.fields(NodeConfig) if field.default is None}


def write_page(report: dict[str, Any], directory: pathlib.Path, *,
               timelines: Sequence[pathlib.Path] = ()) -> pathlib.Path:
    """Write report.html, with the figure drawn by :func:`draw_report` and the figures in ``timelines``, which are
    files written by :func:`host.features.programs.measured.write`; return its path."""
    marked = " Vertical lines mark changes of the rings." if report["changes"] else ""
    pictures = [page.Picture(directory / "report.png", f"A chart; the tables below have its figures.{marked}"),
                *(page.Picture(path, f"Commands of one step on each node over time: {path.stem.replace('-', ', ')}.")
                  for path in timelines if path.suffix == ".png")]
    port = report["host_port"]
    training = {name: value for name, value in report["training"].items() if name != "label"}
    asked = {name: report[name] for name in _SETTINGS} | (
        {} if port is None else {"host_port_simulated": port["simulated"]})
    return page.write_page(
        directory / "report.html", title=f"gradring: {heading(report)}", verdict=summary.verdict(report),
        tables=[summary.figures(report), *summary.schedules_of(report), *table_of_changes(report), _measures(report)],
        settings=[page.settings_table("Run", asked), page.settings_table("Training", training),
                  page.settings_table("Every node", {**_ABSENT, **report["configuration"], "configuration_hash":
                                                     f"0x{report['configuration_hash']:08x}"})],
        pictures=pictures, notes=_notes(report), report=report)


def _measures(report: dict[str, Any]) -> Table:
    """Return a table of training loss, and of held-out loss or test accuracy, at each measurement."""
    text = report["workload"] == "text"
    measures = ((f"loss_per_{'interval' if text else 'epoch'}", "training loss", ".4f"),
                ("held_out_loss_per_interval", "held-out loss", ".4f") if text else
                ("accuracy_per_epoch", "test accuracy", ".2%"))
    runs = [report, *([report["comparison"]] if report["comparison"] is not None else [])]
    ends = [""] if len(runs) == 1 else [f", {run['training']['label']}" for run in runs]
    return Table("Measurements", [
        Column("step", format=",", title="after step", of=report["measured_at"].__getitem__),
        *(Column(name, format=form, title=title + end, of=run[name].__getitem__)
          for run, end in zip(runs, ends, strict=True) for name, title, form in measures)],
        range(len(report["measured_at"])))


def _notes(report: dict[str, Any]) -> list[page.Note]:
    gradients = {
        "host": "The host computes the gradients, which takes no cycles here: cycles are those of the nodes' work on "
                "gradients and weights.",
        "engine": "Nodes compute losses and gradients themselves, in simulated gateware.",
        "modelled": f"Computing is modelled: nodes wait for the cycles that an engine of "
                    f"{report['training']['macs']} multiply-adds per cycle would take, and the host computes the "
                    f"gradients.",
    }
    port = report["host_port"]
    return [
        *page.simulation_notes(TransportName(report["transport"]), latency=report["link_latency"],
                               arithmetic=report["arithmetic"]),
        page.Note(gradients[report["compute"]], ("cycles per",)),
        *([] if port is None or port["simulated"] else [page.Note(
            f"Host ports are modelled: {port['words_modelled']:,} words have bypassed them, and the "
            f"{port['cycles_modelled']:,} cycles that they would have taken are computed and not among the simulated "
            f"cycles.", ("… host ports", "simulated cycles"))]),
        *([] if report["topology"] is None else [page.Note(
            "Cycles to switch are those from the last command in the old rings until the new ones are in order: "
            "counters read, SWITCH on all nodes, links begun again. Cycles to hand state over are those in which the "
            "host reads state, master weights, residuals and weights and writes them to their new nodes.",
            ("cycles to switch",))]),
        page.Note("The link-cycle bound and the words of raw payloads come from the golden model for the same "
                  "vectors.", ("… of its link-cycle bound", "… of raw words")),
        *([] if report.get("levels") is None else [page.Note(described_levels(report["levels"]))]),
        page.Note("Seconds, and simulated cycles per second, are those of the computer that has simulated the ring.",
                  ("simulated cycles per second", "stages")),
    ]
