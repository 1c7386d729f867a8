"""What a training run leaves behind: a table, build/sim/report.json and report.png.

docs/training.md lists the fields of the JSON.
"""

import dataclasses
import json
import pathlib
from typing import Any

import numpy as np
from rich.table import Table

from host.trainer import Training, TrainingConfig

__all__ = ["TARGET", "Simulation", "build_report", "draw", "summary", "table", "verdict", "write_report"]

#: Test accuracy for which the epochs are counted.
TARGET = 0.97


@dataclasses.dataclass(frozen=True, kw_only=True)
class Simulation:
    """Figures of the simulation as a whole.

    Members
    -------
    transport : str
    threads, link_latency : int
    configuration : dict
        Parameters of a node, by name.
    configuration_hash : int
    cycles : int
        Simulated in all, host traffic included.
    seconds : dict
        Wall time per stage: Verilog, Verilate and compile, where they were needed, and run.
    simulation_seconds : float
        That part of the run which the simulation took.
    """

    transport: str
    threads: int
    link_latency: int
    configuration: dict[str, int]
    configuration_hash: int
    cycles: int
    seconds: dict[str, float]
    simulation_seconds: float


def _settings(config: TrainingConfig) -> dict[str, Any]:
    """The configuration in one level, with the optimizer's name and parameters."""
    settings = {name: value for name, value in dataclasses.asdict(config).items()
                if name not in ("optimizer", "packed_state")}
    moments = "bf16" if config.packed_state else "fp32"
    return {**settings, "hidden": list(config.hidden), "optimizer": config.optimizer.name,
            **dataclasses.asdict(config.optimizer), "moments": moments if config.optimizer.planes else None}


def _first_epoch(accuracies: list[float]) -> int | None:
    """The first epoch that reached the target."""
    return next((epoch for epoch, accuracy in enumerate(accuracies, start=1) if accuracy >= TARGET), None)


def build_report(config: TrainingConfig, training: Training, simulation: Simulation,
                 comparison: tuple[TrainingConfig, Training] | None = None) -> dict[str, Any]:
    """The report, ready to be written as JSON.

    Parameters
    ----------
    config : TrainingConfig
    training : Training
    simulation : Simulation
        Of this training run alone.
    comparison : tuple, optional
        Another training run of as many steps on the same ring, seed and batches, by an optimizer of another name.
    """
    steps = training.steps
    epochs_to_target = {config.optimizer.name: _first_epoch(training.accuracies)}
    other: dict[str, Any] | None = None
    if comparison is not None:
        settings, outcome = comparison
        epochs_to_target[settings.optimizer.name] = _first_epoch(outcome.accuracies)
        other = {
            "accuracy": outcome.accuracies[-1],
            "bit_exact": outcome.bit_exact,
            "loss_per_epoch": outcome.losses,
            "accuracy_per_epoch": outcome.accuracies,
            "cycles_all_reduce": sum(step.cycles for step in outcome.steps),
            "words_sent": sum(step.words_sent for step in outcome.steps),
            "training": _settings(settings),
        }
    seconds = simulation.simulation_seconds
    return {
        "accuracy": training.accuracies[-1],
        "bit_exact": training.bit_exact,
        "nodes": training.nodes,
        "steps": len(steps),
        "parameters": training.parameters,
        "loss_per_epoch": training.losses,
        "accuracy_per_epoch": training.accuracies,
        "cycles": simulation.cycles,
        "cycles_all_reduce": sum(step.cycles for step in steps),
        "bound_cycles": sum(step.bound for step in steps),
        "cycles_scatter_reduce": sum(step.scatter_cycles for step in steps),
        "bound_scatter_reduce": sum(step.scatter_bound for step in steps),
        "words_sent": sum(step.words_sent for step in steps),
        "words_dense": sum(step.words_dense for step in steps),
        "density_per_hop": np.mean([step.density for step in steps], axis=0).tolist(),
        "simulated_cycles_per_second": simulation.cycles / seconds if seconds else 0.0,
        "stage_seconds": simulation.seconds,
        "target_accuracy": TARGET,
        "epochs_to_target": epochs_to_target,
        "comparison": other,
        "training": _settings(config),
        "transport": simulation.transport,
        "threads": simulation.threads,
        "link_latency": simulation.link_latency,
        "configuration": simulation.configuration,
        "configuration_hash": simulation.configuration_hash,
        "per_step": [dataclasses.asdict(step) for step in steps],
    }


def write_report(report: dict[str, Any], directory: pathlib.Path) -> tuple[pathlib.Path, pathlib.Path]:
    """Write report.json and report.png; their paths."""
    directory.mkdir(parents=True, exist_ok=True)
    text, picture = directory / "report.json", directory / "report.png"
    text.write_text(json.dumps(report, indent=2, allow_nan=False) + "\n")
    draw(report, picture)
    return text, picture


def verdict(report: dict[str, Any]) -> str:
    """What the comparison with the golden model has shown, in one sentence."""
    steps = f"each of {report['steps']} steps" if report["steps"] > 1 else "the only step"
    if report["bit_exact"] is None:
        return f"Weights were not compared (--no-check) after {steps}."
    if report["nodes"] == 1:
        return f"Weights of the node identical to the golden model, bit for bit, after {steps}."
    return f"Weights of all nodes identical to each other and to the golden model, bit for bit, after {steps}."


def _ratio(part: float, whole: float) -> str:
    return f"{part / whole:.3f}" if whole else "-"


def summary(report: dict[str, Any]) -> list[tuple[str, str]]:
    """Name and value of each line of the table."""
    steps = report["steps"]
    training = report["training"]
    seconds = report["stage_seconds"]
    losses, density = report["loss_per_epoch"], report["density_per_hop"]
    compared = []
    if report["comparison"] is not None:
        epochs = " · ".join(f"{name} {epoch or '-'}" for name, epoch in report["epochs_to_target"].items())
        compared = [(f"first epoch with {report['target_accuracy']:.0%}", epochs),
                    (f"test accuracy of {report['comparison']['training']['optimizer']}",
                     f"{report['comparison']['accuracy']:.2%}")]
    return [
        ("test accuracy", f"{report['accuracy']:.2%}"),
        ("training loss, first and last epoch", f"{losses[0]:.4f} → {losses[-1]:.4f}"),
        *compared,
        ("nodes · optimizer · batch", f"{report['nodes']} · {training['optimizer']} · {training['batch']}"),
        ("parameters · steps", f"{report['parameters']:,} · {steps}"),
        ("cycles per fused all-reduce", f"{report['cycles_all_reduce'] / steps:,.0f}"),
        ("… of its link-cycle bound", _ratio(report["cycles_all_reduce"], report["bound_cycles"])),
        ("link words per step", f"{report['words_sent'] / steps:,.0f}"),
        ("… of raw words", _ratio(report["words_sent"], report["words_dense"])),
        ("density hop by hop", " → ".join(f"{value:.1%}" for value in density) or "-"),
        ("simulated cycles", f"{report['cycles']:,}"),
        ("simulated cycles per second", f"{report['simulated_cycles_per_second']:,.0f}"),
        ("stages", " · ".join(f"{name} {value:.1f} s" for name, value in seconds.items())),
    ]


def table(report: dict[str, Any]) -> Table:
    """The figures of the run, to be printed."""
    result = Table(show_header=False, title="gradring", title_justify="left", border_style="dim")
    result.add_column(style="dim")
    result.add_column(justify="right")
    for name, value in summary(report):
        result.add_row(name, value)
    return result


_INK, _FAINT, _SENT, _DENSE, _SCATTER = "#1d2733", "#8a97a6", "#0b7a75", "#e4a53a", "#d1495b"
_OTHER = "#5b6f8a"


def draw(report: dict[str, Any], path: pathlib.Path) -> None:
    """Loss, accuracy, link words per step against dense, and density hop by hop."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    style = {
        "font.family": "DejaVu Sans", "font.size": 9.5, "text.color": _INK, "axes.edgecolor": _FAINT,
        "axes.labelcolor": _INK, "xtick.color": _FAINT, "ytick.color": _FAINT, "xtick.labelcolor": _INK,
        "ytick.labelcolor": _INK, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
        "grid.color": "#e7ebef", "axes.axisbelow": True, "axes.titleweight": "bold", "axes.titlelocation": "left",
        "axes.titlesize": 11, "legend.frameon": False,
    }
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(11, 7.4), layout="constrained")
        FigureCanvasAgg(figure)
        (loss, accuracy), (words, density) = figure.subplots(2, 2)
        training = report["training"]
        figure.suptitle(
            f"{report['nodes']} nodes, {report['parameters']:,} parameters, {training['optimizer']}: "
            f"{report['accuracy']:.2%} after {report['steps']} steps\n", x=0.012, ha="left", fontsize=15,
            fontweight="bold")
        figure.text(0.012, 0.945, verdict(report), fontsize=10,
                    color=_SENT if report["bit_exact"] else _FAINT, va="top")
        _draw_loss(loss, report)
        _draw_accuracy(accuracy, report)
        _draw_words(words, report)
        _draw_density(density, report)
        figure.savefig(path, dpi=130)


def _column(report: dict[str, Any], name: str) -> Any:
    return np.array([step[name] for step in report["per_step"]])


def _draw_loss(axes: Any, report: dict[str, Any]) -> None:
    losses, other = report["loss_per_epoch"], report["comparison"]
    epochs = np.arange(1, len(losses) + 1)
    axes.set_title("Training loss")
    axes.plot(_column(report, "number") * len(losses) / report["steps"], _column(report, "loss"), color=_SCATTER,
              alpha=0.35, linewidth=1)
    if other is not None:
        axes.plot(epochs, other["loss_per_epoch"], color=_OTHER, linewidth=2, marker="s", markersize=3.5,
                  label=other["training"]["optimizer"])
    axes.plot(epochs, losses, color=_SCATTER, linewidth=2, marker="o", markersize=4,
              label=report["training"]["optimizer"])
    if other is not None:
        axes.legend(loc="upper right")
    axes.set_yscale("log")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_xlabel("epoch (dots: mean of each)")


def _draw_accuracy(axes: Any, report: dict[str, Any]) -> None:
    values = np.array(report["accuracy_per_epoch"]) * 100
    epochs = np.arange(1, len(values) + 1)
    lowest = values.min()
    axes.set_title("Test accuracy")
    if report["comparison"] is not None:
        lowest = min(lowest, 100 * min(report["comparison"]["accuracy_per_epoch"]))
        _draw_race(axes, report, epochs)
    else:
        axes.annotate(f"{values[-1]:.2f} %", (epochs[-1], values[-1]), xytext=(0, -16), textcoords="offset points",
                      ha="right", fontweight="bold", color=_SENT)
    axes.plot(epochs, values, color=_SENT, linewidth=2, marker="o", markersize=4)
    axes.fill_between(epochs, values, lowest - 2, color=_SENT, alpha=0.08, linewidth=0)
    axes.set_ylim(lowest - 2, 100)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_xlabel("epoch")
    axes.set_ylabel("%")


def _draw_race(axes: Any, report: dict[str, Any], epochs: Any) -> None:
    """The other optimizer's curve, and where each of the two reaches the target."""
    other, target = report["comparison"], report["target_accuracy"] * 100
    curves = [(report, _SENT, "o"), (other, _OTHER, "s")]
    axes.axhline(target, color=_FAINT, linewidth=1, linestyle=(0, (4, 3)))
    axes.plot(epochs, np.array(other["accuracy_per_epoch"]) * 100, color=_OTHER, linewidth=2, marker="s",
              markersize=3.5)
    for line, (source, color, marker) in enumerate(curves):
        name = source["training"]["optimizer"]
        epoch = report["epochs_to_target"][name]
        if epoch is not None:
            axes.plot(epoch, source["accuracy_per_epoch"][epoch - 1] * 100, marker=marker, markersize=12,
                      markerfacecolor="none", markeredgewidth=2, color=color)
        reached = f"does not reach {target:.0f} %" if epoch is None else f"{target:.0f} % in epoch {epoch}"
        axes.text(0.99, 0.14 - 0.08 * line, f"{name}: {reached}, {source['accuracy'] * 100:.2f} % at the end",
                  transform=axes.transAxes, ha="right", fontweight="bold", color=color)


def _draw_words(axes: Any, report: dict[str, Any]) -> None:
    steps = _column(report, "number")
    sent, dense = _column(report, "words_sent") / 1000, _column(report, "words_dense") / 1000
    axes.set_title("Words on the links, per step")
    axes.plot(steps, dense, color=_DENSE, linewidth=2, label="every payload raw")
    axes.plot(steps, sent, color=_SENT, linewidth=2, label="sent")
    axes.fill_between(steps, sent, dense, where=sent < dense, color=_DENSE, alpha=0.18, linewidth=0)
    axes.fill_between(steps, 0, sent, color=_SENT, alpha=0.08, linewidth=0)
    axes.set_ylim(0, max(float(sent.max()), float(dense.max()), 1) * 1.15)
    if report["words_dense"]:
        saved = 1 - report["words_sent"] / report["words_dense"]
        axes.text(0.99, 0.04, f"{saved:.1%} fewer words", transform=axes.transAxes, ha="right", color=_SENT,
                  fontweight="bold")
    axes.legend(loc="upper right", ncols=2)
    axes.set_xlabel("step")
    axes.set_ylabel("thousand words, all links")


def _draw_density(axes: Any, report: dict[str, Any]) -> None:
    from matplotlib.patheffects import withStroke

    axes.set_title("Density of gradients, hop by hop")
    values = np.array([step["density"] for step in report["per_step"]]) * 100
    hops = values.shape[1]
    if not hops:
        axes.text(0.5, 0.5, "one node: no links", transform=axes.transAxes, ha="center", color=_FAINT)
        axes.set_axis_off()
        return
    bodies = axes.violinplot(values, positions=range(1, hops + 1), widths=0.75, showextrema=False)
    for body in bodies["bodies"]:
        body.set(facecolor=_SENT, alpha=0.16, edgecolor="none")
    steps = len(values)
    spread = np.random.default_rng(0).uniform(-0.16, 0.16, steps)
    for hop in range(hops):
        points = axes.scatter(hop + 1 + spread, values[:, hop], c=np.arange(steps), cmap="viridis", s=7, alpha=0.75,
                              linewidths=0)
    means = values.mean(axis=0)
    axes.plot(range(1, hops + 1), means, color=_INK, linewidth=1.2, marker="D", markersize=4)
    for hop, mean in enumerate(means):
        axes.annotate(f"{mean:.1f} %", (hop + 1, mean), xytext=(0, 9), textcoords="offset points", ha="center",
                      fontweight="bold", path_effects=[withStroke(linewidth=3, foreground="white")])
    axes.figure.colorbar(points, ax=axes, label="step", pad=0.01, aspect=30)
    axes.set_xticks(range(1, hops + 1))
    axes.set_xlabel("hop of scatter-reduce")
    axes.set_ylabel("non-zero elements, %")
