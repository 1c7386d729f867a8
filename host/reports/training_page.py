"""The report of a training run as an HTML page: report.html."""

import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Any

from hdl.config import NodeConfig
from host.columns import Column, Table
from host.reports.changes import table_of_changes
from host.reports.page import Note, Picture, settings_table, simulation_notes, write_page
from host.reports.schedules import schedules_of
from host.reports.summary import figures, verdict
from host.reports.training_picture import heading
from host.transports.session import TransportName

__all__ = ["write"]

#: Of report.json, in addition to the settings of training and of nodes.
_SETTINGS = ("workload", "nodes", "compute", "transport", "threads", "arithmetic", "link_latency")
#: Sections that nodes may have, which the page names where they are absent.
_ABSENT = {field.name: None for field in dataclasses.fields(NodeConfig) if field.default is None}


def write(report: dict[str, Any], directory: pathlib.Path, *, timelines: Sequence[pathlib.Path] = ()) -> pathlib.Path:
    """Write report.html, with report.png and the pictures among ``timelines`` in it, which are the files of
    :func:`host.features.programs.measured.write`.

    The report is that of :func:`host.reports.report.build_report`, in the folder that
    :func:`host.reports.report.draw_report` has drawn to.
    """
    marked = " Vertical lines mark changes of the rings." if report["changes"] else ""
    pictures = [Picture(directory / "report.png", f"A chart; the tables below have its figures.{marked}"),
                *(Picture(path, f"Commands of one step on each node over time: {path.stem.replace('-', ', ')}.")
                  for path in timelines if path.suffix == ".png")]
    port = report["host_port"]
    training = {name: value for name, value in report["training"].items() if name != "label"}
    asked = {name: report[name] for name in _SETTINGS} | (
        {} if port is None else {"host_port_simulated": port["simulated"]})
    return write_page(
        directory / "report.html", title=f"gradring: {heading(report)}", verdict=verdict(report),
        tables=[figures(report), *schedules_of(report), *table_of_changes(report), _measures(report)],
        settings=[settings_table("Run", asked), settings_table("Training", training),
                  settings_table("Every node", {**_ABSENT, **report["configuration"],
                                                "configuration_hash": f"0x{report['configuration_hash']:08x}"})],
        pictures=pictures, notes=_notes(report), report=report)


def _measures(report: dict[str, Any]) -> Table:
    """Losses, and measures of the model, each time that it was measured."""
    text = report["workload"] == "text"
    names = ("loss_per_interval", "held_out_loss_per_interval") if text else ("loss_per_epoch", "accuracy_per_epoch")
    runs = [report, *([report["comparison"]] if report["comparison"] is not None else [])]
    columns = [Column("step", format=",", title="after step", of=lambda at: report["measured_at"][at])]
    for run in runs:
        end = "" if len(runs) == 1 else f", {run['training']['label']}"
        for name, title, form in zip(names, ("training loss", "held-out loss" if text else "test accuracy"),
                                     (".4f", ".4f" if text else ".2%"), strict=True):
            columns.append(Column(name, format=form, title=f"{title}{end}", of=run[name].__getitem__))
    return Table("Measurements", columns, range(len(report["measured_at"])))


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
            f"Host ports are modelled: {port['words_modelled']:,} words have bypassed them, and the "
            f"{port['cycles_modelled']:,} cycles that they would have taken are computed and not among the simulated "
            f"cycles.", ("… host ports", "simulated cycles"))]),
        *([] if report["topology"] is None else [Note(
            "Cycles to switch are those from the last command in the old rings until the new ones are in order: "
            "counters read, SWITCH on all nodes, links begun again. Cycles to hand state over are those in which the "
            "host reads state, master weights, residuals and weights and writes them to their new nodes.",
            ("cycles to switch",))]),
        Note("The link-cycle bound and the words of raw payloads come from the golden model for the same vectors.",
             ("… of its link-cycle bound", "… of raw words")),
        Note("Seconds, and simulated cycles per second, are those of the computer that has simulated the ring.",
             ("simulated cycles per second", "stages")),
    ]
