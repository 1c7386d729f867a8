"""Report on a PyTorch script that ran on a simulated ring: a table, report.json, report.png and report.html."""

import dataclasses
import pathlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from hdl.compression.registry import RAW
from host import schema
from host.columns import Column, Table, columns_of, count_text, pairs, ratio_text, shown
from host.jobs.figures import Figures
from host.levels import described_levels, levels_of_ring
from host.pytorch.jobs import Kind, Operation, Operations, Options, nonfinite_text, unequal_text
from host.pytorch.messages import RING
from host.pytorch.norms import OUTLIER, draw_norms, outliers_of
from host.pytorch.server import by_name
from host.reports.page import NO_WITNESS, Note, Picture, settings_table, simulation_notes, write_page
from host.reports.style import COLOURS, FAINT, INK, picture, show_thousands
from host.transports.session import TransportName

__all__ = ["FILES", "build_report", "table", "write_report"]

FILES = (schema.REPORT, "report.png", "report.html")

_FIGURES = columns_of(Figures, "density")

#: Schema of the report on a PyTorch script.
SCHEMA = schema.Schema("gradring.pytorch", 2, columns_of(
    "nodes options checked levels jobs operations", *_FIGURES, "elapsed_cycles",
    Column("groups", columns=columns_of("kind operations", *_FIGURES)), "gloo backends slow_ranks",
    "nonfinite_operations", Column("nonfinite", columns=columns_of(
        "rank operation step backward_pass parameter indices value count")),
    Column("unequal_weights", columns=columns_of("ranks parameter backward_pass")), "stage_seconds",
    Column("per_operation", columns=columns_of("kind job norms", *_FIGURES))))

_NAMES = {"all_reduce": "sums", "step": "optimizer steps", "others": "other operations"}

#: Maximum number of groups that are reported separately. A group has all operations of one kind and size.
GROUPS = 4


def _figures(operations: Sequence[Operation]) -> dict[str, Any]:
    """Return the combined figures of several operations."""
    total = Figures.total(operation.figures for operation in operations)
    return {"operations": len(operations), **dataclasses.asdict(total), "density": total.density}


def _groups(operations: Sequence[Operation]) -> list[dict[str, Any]]:
    """Return figures for each kind and size of operation, in descending order of words; the rest is combined."""
    sizes: dict[tuple[str, int], list[Operation]] = {}
    for op in operations:
        sizes.setdefault((op.kind, op.figures.elements), []).append(op)
    groups = [{"kind": kind, **_figures(ones)} for (kind, _), ones in
              sorted(sizes.items(), key=lambda item: -sum(op.figures.words for op in item[1]))]
    rest = [op for part in groups[GROUPS:] for op in sizes[part["kind"], part["elements"] // part["operations"]]]
    return [*groups[:GROUPS], *([{"kind": "others", **_figures(rest)}] if rest else [])]


def build_report(options: Options, jobs: Operations, *, gloo: dict[str, tuple[int, int, int]],
                 backends: Iterable[Sequence[str]], slow: Sequence[int], seconds: float) -> dict[str, Any]:
    """Build the report as JSON values.

    ``gloo`` has three counts for each gloo collective, over all ranks: calls, bytes, and calls that add floats.
    ``backends`` has the backends of the all-rank groups that each rank has joined, ``slow`` the number of times that
    each rank was slow, and ``seconds`` the duration.
    """
    total = _figures(jobs.operations)
    names = list(dict.fromkeys(name for names in backends for name in names))
    on_ring = jobs.operations and {*names} <= {RING, "gloo"} and not any(sums for _, _, sums in gloo.values())
    return SCHEMA.report({
        "nodes": options.nodes,
        "options": {**dataclasses.asdict(options), "arithmetic": options.arithmetic.value,
                    "transport": (options.transport or Kind.VERILATED).value},
        "checked": options.check and options.transport is Kind.VERILATED,
        "levels": levels_of_ring(options.gradients, cut=options.density is None) if on_ring else [],
        "jobs": len(jobs),
        **total,
        "elapsed_cycles": jobs.cycles if options.transport is Kind.VERILATED else None,
        "groups": _groups(jobs.operations),
        "gloo": {name: {"calls": calls, "bytes": size, "sums": sums}
                 for name, (calls, size, sums) in sorted(gloo.items())},
        "backends": names,
        "slow_ranks": list(slow),
        "nonfinite_operations": jobs.nonfinite_operations,
        "nonfinite": jobs.nonfinite,
        "unequal_weights": jobs.unequal_weights,
        "stage_seconds": {"build": jobs.build_seconds, "simulation": total["seconds"], "script": seconds},
        "per_operation": [{"kind": operation.kind, "job": operation.job, "norms": operation.norms,
                           **dataclasses.asdict(operation.figures), "density": operation.figures.density}
                          for operation in jobs.operations],
    })


def _rows(report: dict[str, Any]) -> list[tuple[str, str]]:
    options = report["options"]
    rows = [("ranks" if _in_software(report) else "ranks, a node each", f"{report['nodes']}")]
    rows += [(title, options[name]) for name, title in (
        ("gradients", "gradients on the ring"), ("weights", "new weights on the ring")) if options[name] != RAW]
    if options["density"] is not None:
        rows.append(("density asked for", f"{options['density']:.1%}"))
    for figures in report["groups"]:
        count, sparsify = figures["operations"], figures["sparsify_cycles"]
        port = "simulated" if options["host_port"] else "modelled"
        rows += [
            (_NAMES[figures["kind"]], f"{count:,}"),
            ("… elements each", f"{figures['elements'] / count:,.0f}"),
            ("… cycles each", count_text(figures["cycles"], count)),
            ("… … of the link-cycle bound", ratio_text(figures["cycles"], figures["bound"])),
            *([] if sparsify == 0 else [("… cycles to choose elements", count_text(sparsify, count))]),
            (f"… cycles of the host ports, {port}", count_text(figures["host_cycles"], count)),
            ("… link words each", f"{figures['words'] / count:,.0f}"),
            ("… … of raw words", ratio_text(figures["words"], figures["words_dense"])),
            *([] if _in_software(report) else [("… density", shown(figures["density"], ".1%"))])]
    rows.append(("over the ring", f"{4 * report['words'] / 1e6:,.3f} MB"))
    if options["gradients"] == RAW and report["words_zero_value"]:
        rows.append(("… with gradients in zero_value", f"{4 * report['words_zero_value'] / 1e6:,.3f} MB, "
                                                       f"{ratio_text(report['words_zero_value'], report['words'])}"))
    rows += [(f"over gloo: {name}, {figures['calls']:,} calls", f"{figures['bytes'] / 1e6:,.3f} MB")
             for name, figures in report["gloo"].items()]
    if report["nonfinite"]:
        rows += [("operations with gradients that are not finite", f"{report['nonfinite_operations']:,}"),
                 ("… first", nonfinite_text(report["nonfinite"][0]))]
    if report["unequal_weights"]:
        rows += [("comparisons of weights that differ", f"{len(report['unequal_weights']):,}"),
                 ("… first", unequal_text(report["unequal_weights"][0]))]
    rows += [(f"gradients of rank {rank}, norms above {OUTLIER:g} times the median", f"{len(numbers):,}, first in "
              f"operation {numbers[0]:,}") for rank, numbers in outliers_of(report["per_operation"]).items()]
    rows += [(f"rank {rank} was slow", f"{count:,} times")
             for rank, count in enumerate(report["slow_ranks"]) if count]
    return [*rows, ("cycles in all", count_text(report["elapsed_cycles"])),
            ("stages", " · ".join(f"{name} {value:.1f} s" for name, value in report["stage_seconds"].items()))]


def table(report: dict[str, Any]) -> Table:
    """Format the report as a table."""
    return pairs("on the ring in software" if _in_software(report) else "on the simulated ring", _rows(report))


def _in_software(report: dict[str, Any]) -> bool:
    return bool(report["options"]["transport"] == Kind.SOFTWARE.value)


def _reason(backends: Sequence[str]) -> str:
    """Return the reason why nothing was sent over the ring."""
    if named := next((backend for backend in backends if backend != RING), None):
        return by_name(named)
    return ("the script has summed nothing in float32, in a group of all ranks" if backends else
            "the script has not called init_process_group()")


def verdict(report: dict[str, Any]) -> str:
    """Return a sentence that summarizes the comparison with the golden model."""
    count = report["operations"]
    if not count:
        return f"No sum went over the ring: {_reason(report['backends'])}."
    if _in_software(report):
        return "Computed by the ranks with compiled kernels: no node was simulated, and cycles are modelled."
    if report["options"]["transport"] == Kind.GOLDEN.value:
        return NO_WITNESS
    if not report["checked"]:
        return "Results were not compared with the golden model (--no-check)."
    return f"Results of all nodes identical to the golden model, bit for bit, in all of {count:,} operations."


def write_report(report: dict[str, Any], folder: pathlib.Path) -> list[pathlib.Path]:
    """Write report.json, report.html and, if the ring was used, report.png; return their paths."""
    _, drawn, page = (folder / name for name in FILES)
    written = schema.write_report(report, folder)
    pictures = []
    if report["per_operation"]:
        _draw(report, drawn)
        pictures.append(Picture(drawn, "Charts of the cycles of each operation, of commands and of host ports, of "
                                         "the words on all links, and of the norms of each rank's gradients; the "
                                         "table has sums and outliers."))
    else:
        drawn.unlink(missing_ok=True)
    write_page(page, title=f"gradring: a PyTorch script on {report['nodes']} nodes", verdict=verdict(report),
               tables=[table(report)], settings=[settings_table("Options", report["options"])], pictures=pictures,
               notes=_notes(report), report=report)
    return [written, *(picture.path for picture in pictures), page]


def _levels(report: dict[str, Any]) -> list[Note]:
    """Return a note on the levels of reproducibility that all sums of the script have."""
    over_gloo = [name for name, figures in report["gloo"].items() if figures["sums"]]
    if over_gloo:
        return [Note(f"No level of reproducibility holds for all sums, since gloo has added floating-point numbers: "
                     f"{', '.join(over_gloo)}.")]
    return [Note(described_levels(report["levels"]))] if report["levels"] else []


def _simulation(options: dict[str, Any]) -> list[Note]:
    """Return notes on what was simulated."""
    if options["transport"] == Kind.SOFTWARE.value:
        return [Note("The ranks have computed all values, in the order of a ring of nodes and with the same bits. No "
                     "gateware has taken part. Words are counted as nodes would send them, and cycles are modelled, "
                     "as gradring lab predict models them.")]
    return simulation_notes(TransportName(options["transport"]), latency=options["link_latency"],
                            arithmetic=options["arithmetic"])


def _notes(report: dict[str, Any]) -> list[Note]:
    options = report["options"]
    return [
        *_simulation(options),
        Note("Ranks compute the gradients, which takes no cycles here; operations run one after the other.",
             ("… cycles each", "cycles in all")),
        *([] if options["host_port"] or report["elapsed_cycles"] is None else [Note(
            "Host ports are modelled: values have bypassed them, and the cycles that they would have taken are "
            "computed.", ("… cycles of the host ports", "cycles in all"))]),
        *([Note("The link-cycle bound, the words of raw payloads and the density come from the golden model of the "
                "ring, for the same values.", ("… … of the link-cycle bound", "… … of raw words", "… density"))]
          if options["check"] and not _in_software(report) else []),
        *_levels(report),
        Note("Seconds are those of this computer." if _in_software(report) else
             "Seconds are those of the computer that has simulated the ring.", ("stages",)),
    ]


def _draw(report: dict[str, Any], path: pathlib.Path) -> None:
    """Plot cycles and words of every operation."""
    operations = report["per_operation"]
    places = np.arange(1, len(operations) + 1)
    commands = np.array([(row["cycles"] or 0) + (row["sparsify_cycles"] or 0) for row in operations])
    ports = np.array([row["host_cycles"] or 0 for row in operations])
    has_norms = any(row["norms"] for row in operations)
    with picture(path, size=(9, 6 + 3 * has_norms), rows=2 + has_norms, sharex=True) as (above, below, *rest):
        above.fill_between(places, commands, step="mid", color=COLOURS[0], label="commands", linewidth=0)
        above.fill_between(places, commands, commands + ports, step="mid", color="#cfd8e0", linewidth=0,
                           label=f"host ports, {'simulated' if report['options']['host_port'] else 'modelled'}")
        above.set_title("Cycles of each operation")
        below.plot(places, [row["words"] for row in operations], color=COLOURS[2], drawstyle="steps-mid",
                   label="sent")
        if report["options"]["check"]:
            below.plot(places, [row["words_dense"] for row in operations], color=FAINT, linestyle="--",
                       drawstyle="steps-mid", label="raw")
        below.set_title("Words on all links")
        for axes in rest:
            draw_norms(axes, operations)
        [above, below, *rest][-1].set_xlabel("operation")
        for axes in (above, below):
            axes.set_ylim(bottom=0)
            axes.legend(loc="upper right", labelcolor=INK)
            show_thousands(axes.yaxis)
