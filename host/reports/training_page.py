"""The report of a training run as an HTML page: report.html."""

import pathlib
from collections.abc import Sequence
from typing import Any

from rich.table import Table

from host.reports.changes import table_of_changes
from host.reports.notes import count_text, simulation_notes
from host.reports.page import Note, Picture, flat, settings_table, table_of, write_page
from host.reports.report import summary, verdict
from host.reports.training_picture import heading
from host.transports.session import TransportName

__all__ = ["write"]

#: Of report.json, beside the settings of training and of nodes.
_SETTINGS = ("workload", "nodes", "compute", "transport", "threads", "arithmetic", "link_latency")


def write(report: dict[str, Any], directory: pathlib.Path, *, timelines: Sequence[pathlib.Path] = ()) -> pathlib.Path:
    """Write report.html, with report.png and the pictures among ``timelines`` in it.

    Parameters
    ----------
    report : dict
        Report, as :func:`host.reports.report.build_report` makes it.
    directory : Path
        Folder that :func:`host.reports.report.write_report` has written to.
    timelines : sequence of Path
        Files of :func:`host.reports.measured.write`.
    """
    pictures = [Picture(directory / "report.png", _alternative(report)),
                *(Picture(path, f"Commands of one step on each node over time: {path.stem.replace('-', ', ')}.")
                  for path in timelines if path.suffix == ".png")]
    port = report["host_port"]
    training = {name: value for name, value in report["training"].items() if name != "label"}
    asked = {name: report[name] for name in _SETTINGS} | (
        {} if port is None else {"host_port_simulated": port["simulated"]})
    return write_page(
        directory / "report.html", title=f"gradring: {heading(report)}", verdict=verdict(report),
        tables=[_figures(report), *_schedules(report), *table_of_changes(report), _measures(report)],
        settings=[settings_table("Run", asked), settings_table("Training", training),
                  settings_table("Every node", {**flat(report["configuration"]),
                                                "configuration_hash": f"0x{report['configuration_hash']:08x}"})],
        pictures=pictures, notes=_notes(report), program=report["program"])


def _figures(report: dict[str, Any]) -> Table:
    rows = summary(report)
    if max(map(len, rows)) == 2:
        return table_of("Figures", rows)
    labels = ("", report["training"]["label"], f"{report['comparison']['training']['label']}, dense")
    return table_of("Figures", rows, header=labels)


def _measures(report: dict[str, Any]) -> Table:
    """Losses, and measures of the model, each time that it was measured."""
    text = report["workload"] == "text"
    names = ("loss_per_interval", "held_out_loss_per_interval") if text else ("loss_per_epoch", "accuracy_per_epoch")
    runs = [report, *([report["comparison"]] if report["comparison"] is not None else [])]
    header = ["after step"]
    columns = [[f"{step:,}" for step in report["measured_at"]]]
    for run in runs:
        end = "" if len(runs) == 1 else f", {run['training']['label']}"
        header += [f"training loss{end}", f"{'held-out loss' if text else 'test accuracy'}{end}"]
        losses, measures = (run[name] for name in names)
        columns += [[f"{loss:.4f}" for loss in losses],
                    [f"{measure:.4f}" if text else f"{measure:.2%}" for measure in measures]]
    return table_of("Measurements", list(zip(*columns, strict=True)), header=header)


def _schedules(report: dict[str, Any]) -> list[Table]:
    """Schedules of a run by a program, with their cycles."""
    if not report["schedules"]:
        return []
    names = ("cycles", "modelled_cycles", "compute_cycles", "communicate_cycles", "bound")
    rows = [(run["schedule"], *(count_text(run[name]) for name in names)) for run in report["schedules"]]
    return [table_of("Cycles of a step, by schedule", rows,
                     header=("schedule", "measured", "golden time", "compute", "communicate", "bound"))]


def _notes(report: dict[str, Any]) -> list[Note]:
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
        *simulation_notes(TransportName(report["transport"]), latency=report["link_latency"],
                          arithmetic=report["arithmetic"]),
        Note(gradients[report["compute"]], ("cycles per",)),
        *([] if port is None or port["simulated"] else [Note(
            f"Host ports are modelled: {port['words_computed']:,} words have gone round them, and the "
            f"{port['cycles_computed']:,} cycles that they would have taken are computed and not among the simulated "
            f"ones.", ("… host port", "simulated cycles"))]),
        *([] if report["topology"] is None else [Note(
            "Cycles to switch are those from the last command in the old rings until the new ones are in order: "
            "counters read, SWITCH on all nodes, links begun anew. Cycles to carry over are those in which the host "
            "reads state, masters, residuals and weights and writes them to the nodes that have them now.",
            ("cycles to switch",))]),
        Note("The link-cycle bound and the words of raw payloads come of the golden model of the ring, for the same "
             "vectors.", ("… of its link-cycle bound", "… of raw words")),
        Note("Seconds, and simulated cycles per second, are those of the computer that has simulated the ring.",
             ("simulated cycles per second", "stages")),
    ]


def _alternative(report: dict[str, Any]) -> str:
    """Names of the panels of report.png; their figures are in the tables."""
    if report["workload"] == "text":
        panels = ["loss on training and held-out text", "attention weights of a held-out sequence",
                  "elements that masks have replaced", "words on the links per step",
                  "density of gradients hop by hop", "cycles per step"]
    else:
        panels = ["training loss", "test accuracy", "words per step, sent and raw", "density of gradients hop by hop"]
        if report["training"]["density"] is not None:
            panels += ["threshold and density that was got", "cycles per step"]
    marked = " Vertical lines mark changes of the rings." if report["changes"] else ""
    return f"Charts of {', '.join(panels[:-1])} and {panels[-1]}; tables below have their figures.{marked}"
