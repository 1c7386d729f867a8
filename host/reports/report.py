"""The report of a training run: a table, build/sim/report.json and report.png.

docs/training/guide.md lists the fields of the JSON.
"""

import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from rich.table import Table

from host.driver.results import Cycles, total
from host.output import write_json
from host.reports.changes import hops, nodes_of, rows_of
from host.reports.measured import figures_of
from host.reports.notes import NO_WITNESS, count_text, ratio_text
from host.reports.training_picture import codecs_of, compresses_alone, draw
from host.topology.course import Course
from host.training.record import NODE, Training, TrainingConfig
from host.transports.session import Elapsed, TransportName
from host.versions import program
from sim.link_faults import RandomFaults, wires

__all__ = ["TARGET", "Simulation", "build_report", "summary", "table", "verdict", "write_report"]

#: Of report.json; docs/training/guide.md lists its fields.
SCHEMA, VERSION = "gradring.training", 1

#: Test accuracy for which the epochs are counted.
TARGET = 0.97


@dataclasses.dataclass(frozen=True, kw_only=True)
class Simulation:
    """Figures of the simulation as a whole.

    Members
    -------
    transport : str
    threads, link_latency : int
    arithmetic : str
        How floating-point units were simulated.
    configuration : dict
        Parameters of a node, by name.
    configuration_hash : int
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
    dealing : dict, optional
        Dealing of groups on a ring with a slow link, and the cycles for which it was taken.
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
    dealing: dict[str, Any] | None = None


def _settings(config: TrainingConfig) -> dict[str, Any]:
    """The configuration in one level, with the optimizer's name and parameters."""
    settings = {name: value for name, value in dataclasses.asdict(config).items()
                if name not in ("optimizer", "packed_state")}
    moments = "bf16" if config.packed_state else "fp32"
    # A name that tells the run from the one that it is compared with.
    label = config.optimizer.name if config.density is None else f"{config.optimizer.name}, {config.density:.0%}"
    return {**settings, "hidden": list(config.hidden), "optimizer": config.optimizer.name,
            **dataclasses.asdict(config.optimizer), "moments": moments if config.optimizer.planes else None,
            "label": label}


def compute_of(config: TrainingConfig) -> str:
    """Origin of gradients: the host, nodes with an engine, or the host while nodes spend the time of a model."""
    if config.compute == NODE:
        return "engine"
    return "host" if config.overlap is None else "modelled"


def _first_epoch(accuracies: list[float]) -> int | None:
    """The first epoch that reached the target."""
    return next((epoch for epoch, accuracy in enumerate(accuracies, start=1) if accuracy >= TARGET), None)


def _mean_density(training: Training) -> list[float]:
    """Mean density at each hop, over the steps whose rings have such a hop."""
    densities = [step.density for step in training.steps]
    if not training.changes:
        return list(np.mean(densities, axis=0).tolist())
    return list(np.nanmean(hops(densities), axis=0).tolist())


def _overall(training: Training, density: list[float]) -> float | None:
    """Mean density over hops and steps; None without hops."""
    if not training.changes:
        return float(np.mean(density)) if density else None
    means = [np.mean(step.density) for step in training.steps if step.density]
    return float(np.mean(means)) if means else None


def _run(config: TrainingConfig, training: Training, bigram_loss: float | None) -> dict[str, Any]:
    """Figures of one training run."""
    steps = training.steps
    density = _mean_density(training)
    last = training.measures[-1] if training.measures else None  # of a run that has ended early
    if bigram_loss is None:
        measured = {"accuracy": last, "loss_per_epoch": training.losses,
                    "accuracy_per_epoch": training.measures}
    else:
        measured = {"held_out_loss": last, "bigram_loss": bigram_loss,
                    "below_bigram": None if last is None else bigram_loss - last,
                    "loss_per_interval": training.losses,
                    "held_out_loss_per_interval": training.measures}
    return {
        **measured,
        "measured_at": training.measured,
        "bit_exact": training.bit_exact,
        "repeats": training.repeats,
        "cycles_fused_update": total(step.cycles for step in steps),
        "bound_cycles": sum(step.bound for step in steps),
        "cycles_scatter_reduce": total(step.scatter_cycles for step in steps),
        "bound_scatter_reduce": sum(step.scatter_bound for step in steps),
        "cycles_sparsify": total(step.sparsify_cycles for step in steps),
        "cycles_compute": total(step.compute_cycles for step in steps),
        "cycles_gemm": total(step.gemm_cycles for step in steps),
        "cycles_vector": total(step.vector_cycles for step in steps),
        "cycles_communicate": total(step.communicate_cycles for step in steps),
        "cycles_mask": training.mask_cycles,
        "elements_masked": training.elements_masked,
        "elements_through": training.elements_through,
        "mask_words_fetched": training.mask_words_fetched,
        "words_sent": sum(step.words_sent for step in steps),
        "words_scatter_reduce": sum(step.scatter_words for step in steps),
        "words_dense": sum(step.words_dense for step in steps),
        "link_restarts": sum(step.link_restarts for step in steps),
        "words_repeated": sum(step.words_repeated for step in steps),
        "checks_failed": sum(step.checks_failed for step in steps),
        "faults_injected": sum(step.faults_injected for step in steps),
        "weight_elements": sum(step.weight_elements for step in steps),
        "weight_words": sum(step.weight_words for step in steps),
        "codebook_words": sum(step.codebook_words for step in steps),
        "codebooks": sum(step.codebook_words > 0 for step in steps),
        "density_per_hop": density,
        "density": _overall(training, density),
        "changes": [dataclasses.asdict(change) for change in training.changes],
        "training": _settings(config),
        "per_step": [dataclasses.asdict(step) for step in steps],
    }


def _repeats(configuration: dict[str, Any]) -> bool:
    """Whether links repeat words."""
    return bool(configuration.get("link", {"kind": "credits"})["kind"] != "credits")


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
        Simulation of this training run alone.
    comparison : tuple, optional
        Another training run of as many steps on the same ring, seed and batches: by an optimizer of another name, or
        without density.
    bigram_loss : float, optional
        Loss of a bigram model on held-out text if a character model was trained; None for a classifier.
    interrupted : bool
        Whether the run has ended early.
    schedules : sequence of tuple
        All runs, where nodes have a program: with the same steps, by different schedules.
    """
    runs = [(config, training), *([comparison] if comparison is not None else [])]
    figures = [_run(settings, outcome, bigram_loss) for settings, outcome in runs]
    digits = {} if bigram_loss is not None else {
        "target_accuracy": TARGET,
        "epochs_to_target": {run["training"]["label"]: _first_epoch(run["accuracy_per_epoch"]) for run in figures}}
    return {
        "schema": {"name": SCHEMA, "version": VERSION},
        "program": program(),
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
        "schedules": [figures_of(asked, outcome) for asked, outcome in schedules],
        "notes": [] if schedules else training.search,
        "sample": training.sample,
        "transport": simulation.transport,
        "threads": simulation.threads,
        "arithmetic": simulation.arithmetic,
        "link_latency": simulation.link_latency,
        **({"links": "slots"} if "slots" in simulation.configuration.get("link", {}).get("kind", "") else {}),
        "wires_per_link": [len(wires(replay=_repeats(simulation.configuration))) - 1, 1],
        "faults": None if simulation.faults is None else dataclasses.asdict(simulation.faults),
        "topology": None if simulation.course is None else _topology(simulation.course),
        **({} if simulation.dealing is None else {"dealing": simulation.dealing}),
        "configuration": simulation.configuration,
        "configuration_hash": simulation.configuration_hash,
    }


def _elapsed(simulation: Simulation) -> dict[str, Any]:
    """Cycles in all; golden nodes have none."""
    elapsed, seconds = simulation.elapsed, simulation.simulation_seconds
    golden = simulation.transport == TransportName.GOLDEN.value
    found = {"cycles": elapsed.cycles, "cycles_simulated": elapsed.simulated,
             "host_port": {"simulated": simulation.host_port, "cycles_computed": elapsed.port_cycles,
                           "words_computed": elapsed.port_words},
             "simulated_cycles_per_second": elapsed.simulated / seconds if seconds else 0.0}
    return {name: None for name in found} if golden else found


def _topology(course: Course) -> dict[str, Any]:
    """The grid, and the rings that were planned."""
    return {"rows": course.rows, "columns": course.columns,
            "shape": None if course.shape is None else course.shape.value, "requests": course.texts(),
            "stages": [{"step": stage.step, "rings": str(stage), "nodes": list(stage.plan.order)}
                       for stage in course.stages]}


def write_report(report: dict[str, Any], directory: pathlib.Path) -> tuple[pathlib.Path, pathlib.Path]:
    """Write report.json and report.png; their paths."""
    text, picture = directory / "report.json", directory / "report.png"
    write_json(text, report)
    note = "" if report["compute"] == "host" else f" (compute: {report['compute']})"
    draw(report, picture, note=verdict(report) + note)
    return text, picture


def verdict(report: dict[str, Any]) -> str:
    """The verdict of the comparison with the golden model, in one sentence or two."""
    steps = f"each of {report['steps']} steps" if report["steps"] > 1 else "the only step"
    overlapping = str(report["training"]["overlap"]).startswith("delayed")
    if overlapping:
        steps = f"each block of passes that overlap, {report['steps']} steps in all"
    if report["transport"] == TransportName.GOLDEN.value:
        return NO_WITNESS
    if report["bit_exact"] is None:
        return f"Weights were not compared (--no-check) after {steps}."
    nodes = "the node identical" if report["nodes"] == 1 else "all nodes identical to each other and"
    sentence = f"Weights of {nodes} to the golden model, bit for bit, after {steps}."
    if report["changes"]:
        count = len(report["changes"])
        sentence += (f" So is all that nodes keep, after {'each of ' if count > 1 else ''}{count} change"
                     f"{'s' if count > 1 else ''} of the rings; every word sent before was received.")
    if report["compute"] == "engine" and overlapping:
        return f"{sentence} So are the losses of each block's last step, and all scores."
    if report["compute"] == "engine":
        scores = " and scores" if report["workload"] == "digits" else ""
        return f"{sentence} So are all losses{scores} that they have computed."
    if report["elements_through"]:
        return f"{sentence} So are all {report['elements_through']:,} elements that went through masks."
    return sentence


def _hops(density: list[float]) -> str:
    return " → ".join(f"{value:.1%}" for value in density) or "-"


def _traffic(run: dict[str, Any], steps: int, *, reduced: bool) -> list[tuple[str, str]]:
    """Cost of a run on the links, or compression of the gradients of a node without links."""
    if reduced:
        return [
            ("cycles per fused update", count_text(run["cycles_fused_update"], steps)),
            ("words per compressed gradient", f"{run['words_sent'] / steps:,.0f}"),
            ("… of raw words", ratio_text(run["words_sent"], run["words_dense"])),
            ("density", _hops(run["density_per_hop"])),
        ]
    engine = run["training"]["compute"] == NODE
    what = f"step, compute {'on nodes' if engine else 'modelled'}" if run["training"]["overlap"] else "fused update"
    return [
        *(_parts(run, steps) if engine and not run["training"]["overlap"] else []),
        (f"cycles per {what}", count_text(run["cycles_fused_update"], steps)),
        *(_parts(run, steps) if engine and run["training"]["overlap"] else []),
        *([] if engine and run["training"]["overlap"] else [
            ("… of its link-cycle bound", ratio_text(run["cycles_fused_update"], run["bound_cycles"]))]),
        ("link words per step", f"{run['words_sent'] / steps:,.0f}"),
        ("… of raw words", ratio_text(run["words_sent"], run["words_dense"])),
        ("… of which gradients", f"{run['words_scatter_reduce'] / steps:,.0f}"),
        ("density hop by hop", _hops(run["density_per_hop"])),
    ]


def _masks(report: dict[str, Any]) -> list[tuple[str, str]]:
    """Masks by commands of their own, which nodes that compute do not need."""
    steps = report["per_step"]
    return [
        ("elements through masks", f"{report['elements_through']:,}"),
        ("… replaced", f"{report['elements_masked']:,}"),
        ("words of masks fetched", f"{report['mask_words_fetched']:,}"),
        ("cycles per step's masks", count_text(total(step["mask_cycles"] for step in steps), len(steps))),
    ]


def _repairs(report: dict[str, Any]) -> list[tuple[str, str]]:
    """Faults of the links, and how these were mended."""
    faults = report["faults"]
    return [
        ("faults of links · rate · seed", f"{report['faults_injected']:,} · {faults['rate']:g} · {faults['seed']}"),
        ("… found by checks of words", f"{report['checks_failed']:,}"),
        ("restarts of links · words repeated", f"{report['link_restarts']:,} · {report['words_repeated']:,}"),
        ("wires per link, forward · back", " · ".join(map(str, report["wires_per_link"]))),
    ]


def _parts(run: dict[str, Any], steps: int) -> list[tuple[str, str]]:
    """Cycles of a step of nodes that compute, by part; without a program, of its layers."""
    lists = _less(run["cycles_compute"], run["cycles_gemm"], run["cycles_vector"])
    parts = [("… matrix products", run["cycles_gemm"]), ("… functions of rows", run["cycles_vector"]),
             ("… lists of layers", lists)]
    if run["training"]["overlap"] is None:
        parts.insert(0, ("cycles per step's layers", run["cycles_compute"]))
    else:
        parts.append(("… ring", run["cycles_communicate"]))
    if run["training"]["overlap"] == "none":
        waiting = _less(run["cycles_fused_update"], run["cycles_compute"], run["cycles_communicate"])
        parts.append(("… waiting", waiting))
    return [(name, count_text(cycles, steps)) for name, cycles in parts]


def _less(whole: Cycles, *parts: Cycles) -> Cycles:
    """Cycles of a whole that are those of none of its parts."""
    return total([whole, *(None if part is None else -part for part in parts)])


def _sparse(run: dict[str, Any], steps: int, *, reduced: bool) -> list[tuple[str, str]]:
    """Figures of a run with a density, or of the dense one beside it."""
    losses, sparsify = run["loss_per_epoch"], run["cycles_sparsify"]
    return [
        ("test accuracy", f"{run['accuracy']:.2%}"),
        ("loss, first and last epoch", f"{losses[0]:.4f} → {losses[-1]:.4f}"),
        *_traffic(run, steps, reduced=reduced),
        ("… mean", "-" if run["density"] is None else f"{run['density']:.2%}"),
        ("cycles per sparsify", "-" if sparsify == 0 else count_text(sparsify, steps)),
        ("cycles per step, both", count_text(total([sparsify, run["cycles_fused_update"]]), steps)),
    ]


def summary(report: dict[str, Any]) -> list[tuple[str, ...]]:
    """Name and value of each line of the table; with a density, also the value of the dense run beside it."""
    steps, training, other = report["steps"], report["training"], report["comparison"]
    reduced = compresses_alone(report)
    setup = [("nodes · optimizer · batch", f"{nodes_of(report)} · {training['optimizer']} · {training['batch']}"),
             ("parameters · steps", f"{report['parameters']:,} · {steps}")]
    codec, gradients = codecs_of(report)
    if codec != "raw":
        setup.append(("new weights on the ring", codec))
        setup.append(("… weights per word", ratio_text(report["weight_elements"], report["weight_words"])))
        if report["codebooks"]:
            setup.append(("codebooks · words to all nodes",
                          f"{report['codebooks']} · {report['codebook_words']:,}"))
    if gradients != "zero_value":
        setup.append(("gradients on the ring", gradients))
    setup += rows_of(report)
    if "links" in report:
        setup.append(("links", report["links"]))
    if report["faults"] is not None:
        setup += _repairs(report)
    if report["repeats"]:
        setup.append(("repeated after failures of the ring", f"{report['repeats']:,}"))
    port = report["host_port"]
    simulated = [("cycles", "modelled")] if report["cycles"] is None else [
        ("simulated cycles", f"{report['cycles_simulated']:,}"),
        *([] if port["simulated"] else [("… host port, computed", f"{port['cycles_computed']:,}")]),
        *([("floating-point units", "native")] if report["arithmetic"] == "native" else []),
        ("simulated cycles per second", f"{report['simulated_cycles_per_second']:,.0f}"),
    ]
    stages = " · ".join(f"{name} {value:.1f} s" for name, value in report["stage_seconds"].items())
    simulated.append(("stages", stages))
    if training["density"] is not None:
        rows: list[tuple[str, ...]] = [*_sparse(report, steps, reduced=reduced)]
        if other is not None:
            beside = _sparse(other, steps, reduced=reduced)
            rows = [(*row, value) for row, (_, value) in zip(rows, beside, strict=True)]
        return [*rows, *setup, *simulated]
    if report["workload"] == "text":
        losses, held_out = report["loss_per_interval"], report["held_out_loss_per_interval"]
        return [
            ("held-out loss, nat per character", f"{report['held_out_loss']:.4f}"),
            ("… of a bigram model", f"{report['bigram_loss']:.4f}"),
            ("… below it", f"{report['below_bigram']:.4f}"),
            ("training loss, first and last interval", f"{losses[0]:.4f} → {losses[-1]:.4f}"),
            ("held-out loss, after those", f"{held_out[0]:.4f} → {held_out[-1]:.4f}"),
            *setup,
            *([] if report["compute"] == "engine" else _masks(report)),
            *_traffic(report, steps, reduced=reduced), *simulated,
        ]
    losses = report["loss_per_epoch"]
    compared = []
    if other is not None:
        epochs = " · ".join(f"{name} {epoch or '-'}" for name, epoch in report["epochs_to_target"].items())
        compared = [(f"first epoch with {report['target_accuracy']:.0%}", epochs),
                    (f"test accuracy of {other['training']['optimizer']}", f"{other['accuracy']:.2%}")]
    return [
        ("test accuracy", f"{report['accuracy']:.2%}"),
        ("training loss, first and last epoch", f"{losses[0]:.4f} → {losses[-1]:.4f}"),
        *compared, *setup, *_traffic(report, steps, reduced=reduced), *simulated,
    ]


def table(report: dict[str, Any]) -> Table:
    """The figures of the run, to be printed."""
    rows = summary(report)
    wide = max(map(len, rows)) > 2
    result = Table(show_header=wide, title="gradring", title_justify="left", border_style="dim")
    result.add_column(style="dim")
    result.add_column(report["training"]["label"], justify="right")
    if wide:
        result.add_column(f"{report['comparison']['training']['label']}, dense", justify="right")
    for row in rows:
        result.add_row(*row)
    return result
