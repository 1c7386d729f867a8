"""Results of a sweep: row columns, tables, a figure and an HTML page.

The figure shows loss against words on the wire, codec sizes and product formats. Rows come from
:func:`host.labs.sweep.plan.collect`, and rows for product formats from :func:`host.labs.sweep.plan.products`.
"""

import math
import pathlib
from collections.abc import Sequence
from typing import Any

from host.columns import Column, Table, columns_of
from host.reports.page import Note, Picture, simulation_notes, write_page
from host.reports.style import COLOURS, FAINT, INK, picture
from host.schema import Schema
from host.transports.session import LATENCY, TransportName

__all__ = ["SCHEMA", "draw", "tables", "write"]

Row = dict[str, Any]

_COLORS = {"neither": INK, "weights": COLOURS[0], "gradients": COLOURS[5], "both": COLOURS[4]}
_KINDS = {"neither": "raw weights, zero-value gradients", "weights": "format of weights (gradients: zero-value)",
          "gradients": "format of gradients (weights: raw)", "both": "format of weights and gradients"}
_MARKERS = ("^", "o", "s", "D", "v", "P", "X", "p", "h")
#: Marker areas in square points: of the codec with the largest area, and of codecs whose area is unknown.
_LARGEST, _UNKNOWN = 420.0, 26.0
_DPI = 130
_TOLERANCE = 0.05  # losses count as equal up to this fraction above the loss with raw weights

_RUN = columns_of(
    "workload", Column("nodes", title="N"), "steps loss:.4f", Column("accuracy", ".2%", "test"),
    "bit_exact words:,.0f", Column("cycles_per_step", ",.0f", "cycles"),
    "simulated_cycles simulation_seconds configuration_hash")
_AREA = columns_of("lut4 ccu2c lut_ram ff dsp bram", Column("fmax_mhz", ".0f", "MHz"))
_FORMATS = columns_of("weights gradients")
_ROW = columns_of(
    *_RUN, *_FORMATS, *_AREA, "held_out_loss:.4f bigram_loss words_gradients words_weights",
    Column("words_ratio", ".3f", "ratio"), Column("bound_ratio", ".3f", "of bound"),
    Column("effective_bandwidth", ".3f", "bandwidth"), "host_port_cycles_modelled parameters")
_PRODUCT = columns_of(
    *_RUN, *_AREA, Column("compute_format", title="format"), "macs", Column("cycles_products", ",.0f", "of products"),
    "cycles_functions multiply_adds", Column("macs_reached", ".2f", "MACs/cycle"), Column("luts", ",", "LUTs"),
    Column("luts_per_mac", ",.0f", "LUTs/MAC"), Column("gflops_peak", ".2f", "GFLOP/s"), "gflops",
    *(Column(f"{name}_per_lut", lambda value: f"{1000 * value:.3f}", f"{title}/LUT")
      for name, title in (("gflops_peak", "peak"), ("gflops", "reached"))))

#: Schema of a sweep's report.
SCHEMA = Schema("gradring.sweep", 2, (Column("rows", columns=_ROW), Column("compute", columns=_PRODUCT)))


def draw(rows: Sequence[Row], path: pathlib.Path, *, products: Sequence[Row] = ()) -> None:
    """Draw the rows of a sweep, with a panel for each workload and a panel for product formats with known area."""
    workloads = list(dict.fromkeys(row["workload"] for row in rows))
    products = [row for row in products if row["luts"] is not None]
    sizes = sorted({row["nodes"] for row in [*rows, *products]})
    markers = {nodes: _MARKERS[index % len(_MARKERS)] for index, nodes in enumerate(sizes if 4 in sizes[:2]
                                                                                   else [0, *sizes])}
    largest = max((row["lut4"] or 0 for row in rows), default=0)
    count = max(len(workloads) + bool(products), 1)
    with picture(path, size=(8.5 * count, 8.6), columns=count, legend=True,
                 title="Cost of each format in loss, and saving on the wire") as (*panels, legend):
        drawn = [_panel(axes, [row for row in rows if row["workload"] == name], markers, largest)
                 for name, axes in zip(workloads, panels, strict=False)]
        if products:
            drawn.append(_products(panels[-1], products, markers))
        legend.legend(handles=_legend(rows, markers, largest), loc="upper left", ncols=3, handletextpad=0.8,
                      columnspacing=3, labelspacing=0.8, fontsize=9)
        figure = legend.figure
        figure.draw_without_rendering()
        for axes, labels in zip(panels, drawn, strict=False):
            _place_labels(axes, labels, figure.canvas.get_renderer())


def _kind(row: Row) -> str:
    """Return which formats of a row differ from the baseline: neither, weights, gradients or both."""
    if row["weights"] == "raw":
        return "neither" if row["gradients"] == "zero_value" else "gradients"
    return "weights" if row["gradients"] == "zero_value" else "both"


def _name(row: Row) -> str:
    return str(row["gradients"] if _kind(row) == "gradients" else row["weights"])


def _loss(row: Row) -> float:
    return float(row["loss"] if row["held_out_loss"] is None else row["held_out_loss"])


def _area(row: Row, largest: int) -> float:
    """Return the area of a row's marker, in square points."""
    return max(6.0, _LARGEST * int(row["lut4"]) / largest) if row["lut4"] is not None and largest else _UNKNOWN


def _panel(axes: Any, rows: Sequence[Row], markers: dict[int, str], largest: int) -> list[tuple[str, str, Any]]:
    """Draw a workload's rows; return the labels to place, with their markers' colour and geometry."""
    from matplotlib.colors import to_rgba

    text = rows[0]["held_out_loss"] is not None
    losses = [_loss(row) for row in rows]
    axes.set_yscale("log" if max(losses) > 3 * min(losses) else "linear")
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["weights"], row["gradients"]), []).append(row)
    labels = []
    for group in groups.values():
        color = _COLORS[_kind(group[0])]
        points = [(math.nan if row["words_ratio"] is None else row["words_ratio"], _loss(row), _area(row, largest))
                  for row in group]
        axes.plot([x for x, _, _ in points], [y for _, y, _ in points], color=color, linewidth=0.8, alpha=0.5,
                  zorder=2)
        for row, (x, y, area) in zip(group, points, strict=True):
            axes.scatter(x, y, s=area, marker=markers[row["nodes"]], linewidths=1, zorder=3, edgecolors=color,
                         facecolors="none" if row["lut4"] is None else to_rgba(color, 0.3))
        labels.append((_name(group[0]), color, points))
    sizes = {row["nodes"] for row in rows}
    nodes = 4 if 4 in sizes else min(sizes)  # ring size for which words are shown
    axes.set_title(f"{rows[0]['workload']}: {_subject([row for row in rows if row['nodes'] == nodes], nodes)}",
                   fontsize=10)
    base = [_loss(row) for row in rows if _kind(row) == "neither" and row["nodes"] == nodes]
    if base:
        axes.axhline(base[0], color=FAINT, linewidth=1, linestyle=(0, (4, 3)), zorder=1)
        axes.axvline(1, color=FAINT, linewidth=1, linestyle=(0, (4, 3)), zorder=1)
    axes.set_xlim(left=0)
    axes.margins(y=0.12)
    # The axis extends at least 5 % beyond the losses, so that insignificant differences do not look large.
    low, high = axes.get_ylim()
    axes.set_ylim(min(low, 0.95 * min(losses)), max(high, 1.05 * max(losses)))
    _point_to_better(axes, (0.015, 0.02), (0.075, 0.07))
    steps = rows[0]["steps"]
    axes.set_ylabel(f"held-out loss after {steps} steps, nat per character" if text
                    else f"training loss, mean of the last epoch of {steps} steps")
    words = " · ".join(f"{row['words']:,.0f} with N = {row['nodes']}" for row in rows if _kind(row) == "neither")
    axes.set_xlabel("words on all links per step, headers and CRCs included; those of raw weights and zero-value "
                    f"gradients are 1\n(which is {words})")
    return labels


def _products(axes: Any, rows: Sequence[Row], markers: dict[int, str]) -> list[tuple[str, str, Any]]:
    """Draw accuracy against multiply-add area for product formats; return labels as in :func:`_panel`."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row["compute_format"], []).append(row)
    labels = []
    for name, group in groups.items():
        points = [(row["luts_per_mac"], 100 * row["accuracy"], _UNKNOWN) for row in group]
        for row, (x, y, area) in zip(group, points, strict=True):
            axes.scatter(x, y, s=2 * area, marker=markers[row["nodes"]], color=INK, zorder=3)
        labels.append((name, INK, points))
    axes.set_xlim(0, 1.1 * max(row["luts_per_mac"] for row in rows))
    accuracies = [100 * row["accuracy"] for row in rows]
    axes.set_ylim(min(accuracies) - 2, max(accuracies) + 2)  # avoids magnifying small differences
    axes.set_title(f"products: {len(labels)} formats with one seed, nodes compute", fontsize=10)
    axes.set_ylabel(f"test accuracy after {rows[0]['steps']} steps, %")
    axes.set_xlabel(f"LUTs per multiply-add: those of an array of {rows[0]['macs']} in all, divided by "
                    f"{rows[0]['macs']};\nits DSP blocks and block RAMs are beside them")
    _point_to_better(axes, (0.015, 0.98), (0.075, 0.93))
    return labels


def _point_to_better(axes: Any, corner: tuple[float, float], text: tuple[float, float]) -> None:
    axes.annotate("better", corner, xytext=text, xycoords="axes fraction", color=FAINT, fontweight="bold",
                  arrowprops={"arrowstyle": "->", "color": FAINT, "linewidth": 1.5})


def _subject(rows: Sequence[Row], nodes: int) -> str:
    """Return a panel's title. It names no best format, since losses vary as much by seed as by format."""
    formats = len({(row["weights"], row["gradients"]) for row in rows})
    within = ""
    if (base := next((row for row in rows if _kind(row) == "neither"), None)) is not None:
        close = sum(_loss(row) <= (1 + _TOLERANCE) * _loss(base) for row in rows)
        within = f"; {close} of {len(rows)} within {_TOLERANCE:.0%} of the loss of raw weights"
    return f"{formats} formats with one seed{within}, on {nodes} nodes"


def _legend(rows: Sequence[Row], markers: dict[int, str], largest: int) -> list[Any]:
    """Create the legend for colours, shapes and sizes, in columns of equal height."""
    from matplotlib.colors import to_rgba
    from matplotlib.lines import Line2D

    def entry(label: str, marker: str, color: str, area: float, *, filled: bool = True) -> Any:
        return Line2D([], [], linestyle="none", marker=marker, markersize=math.sqrt(area), color=color, label=label,
                      markeredgecolor=color, markerfacecolor=to_rgba(color, 0.5) if filled else "none")

    kinds = {_kind(row) for row in rows}
    columns = [[entry(text, "o", _COLORS[kind], 50) for kind, text in _KINDS.items() if kind in kinds],
               [entry(f"N = {nodes} nodes", markers[nodes], FAINT, 50) for nodes in sorted(markers) if nodes]]
    if largest:
        unit = 10 ** math.floor(math.log10(largest))
        top = largest // unit * unit
        columns.append([entry(f"{size:,} LUT4 in the node's codecs", "o", FAINT, _LARGEST * size / largest)
                        for size in dict.fromkeys((max(top // 4, 1), top))])
    if any(row["lut4"] is None for row in rows):
        if not largest:
            columns.append([])
        columns[-1].append(entry("codecs not placed", "o", FAINT, _UNKNOWN, filled=False))
    height = max(map(len, columns))
    return [item for column in columns for item in [*column, *[entry(" ", "", "none", 1)] * (height - len(column))]]


def _place_labels(axes: Any, labels: Sequence[tuple[str, str, Any]], renderer: Any) -> None:
    """Place each label next to one of its points, without overlapping any other label or point."""
    from matplotlib.patheffects import withStroke
    from matplotlib.transforms import Bbox

    spots = [(name, color, [(*axes.transData.transform((x, y)), math.sqrt(area) / 2 * _DPI / 72)
                            for x, y, area in points if math.isfinite(x)]) for name, color, points in labels]
    taken = [Bbox.from_extents(x - half, y - half, x + half, y + half)
             for _, _, shown in spots for x, y, half in shown]
    frame = axes.get_window_extent(renderer)
    turns = [turn * math.pi / 8 for turn in range(16)]
    for name, color, shown in spots:
        text = axes.text(0, 0, name, color=color, fontsize=8.5, fontweight="bold", ha="center", va="center", zorder=5,
                         transform=None, path_effects=[withStroke(linewidth=2.5, foreground="white")])
        box = text.get_window_extent(renderer)
        width, height = box.width + 2, box.height
        places = [(distance, x, y, half, x + math.cos(angle) * (distance + width / 2),
                   y + math.sin(angle) * (distance + height / 2))
                  for x, y, half in shown for distance in range(8, 200, 8) for angle in turns]
        for _, x, y, half, middle_x, middle_y in sorted(places, key=lambda spot: spot[0]):
            box = Bbox.from_extents(middle_x - width / 2, middle_y - height / 2, middle_x + width / 2,
                                    middle_y + height / 2)
            inside = frame.x0 < box.x0 and box.x1 < frame.x1 and frame.y0 < box.y0 and box.y1 < frame.y1
            if inside and not any(box.overlaps(other) for other in taken):
                text.set_position((middle_x, middle_y))
                taken.append(box)
                edge_x = min(max(x, box.x0), box.x1)
                edge_y = min(max(y, box.y0), box.y1)
                if math.hypot(edge_x - x, edge_y - y) > half + 14:
                    axes.annotate("", (x, y), xytext=(edge_x, edge_y), xycoords="figure pixels",
                                  textcoords="figure pixels", zorder=4,
                                  arrowprops={"arrowstyle": "-", "color": color, "linewidth": 0.7, "shrinkA": 0,
                                              "shrinkB": 0})
                break
        else:
            text.remove()


def write(report: dict[str, Any], path: pathlib.Path) -> pathlib.Path:
    """Write sweep.html for a report of :data:`SCHEMA` to the folder of its figure, which is embedded."""
    rows, products = report["rows"], report["compute"]
    runs = [*rows, *products]
    formats = len({(row.get("weights"), row.get("gradients"), row.get("compute_format")) for row in runs})
    checked = all(row["bit_exact"] for row in runs)
    computes = "The host computes the gradients, which takes no cycles here"
    if products:
        computes += ", but for the formats of products, whose nodes compute"
    return write_page(
        path.with_suffix(".html"), title=f"gradring: {formats} formats, {len(runs)} training runs",
        verdict="Weights of all nodes identical to each other and to the golden model, bit for bit, after each step "
                "of each run." if checked else "Weights were not compared with the golden model in all runs.",
        tables=tables(rows, products),
        pictures=[Picture(path, "A chart of loss against words on the links, relative to raw weights and "
                                   "zero-value gradients, or of accuracy against the area of a multiply-add; the "
                                   "tables have its figures.")],
        notes=[*simulation_notes(TransportName.VERILATED, latency=LATENCY, arithmetic="gateware"),
               Note(f"{computes}. Host ports are modelled, and their cycles are not among these: sweep.json has them "
                    "as host_port_cycles_modelled."),
               Note("LUTs, blocks and MHz are of codecs and arrays on their own, placed by nextpnr for an ECP5 with "
                    "one seed, or counted by Yosys where there are no MHz; no board has run them."),
               Note("Runs have one seed each. Losses of other seeds differ by as much as those of formats.")],
        report=report)


def _chosen(columns: Sequence[Column], *names: str) -> list[Column]:
    by_name = {column.name: column for column in columns}
    return [by_name[name] for name in names]


def tables(rows: Sequence[Row], products: Sequence[Row] = ()) -> list[Table]:
    """Create the tables: learning and traffic per workload, codec areas, and product formats."""
    parts = []
    formats, ring = [*_FORMATS], _chosen(_RUN, "nodes")
    for workload in dict.fromkeys(row["workload"] for row in rows):
        own = [row for row in rows if row["workload"] == workload]
        title, measure = f"{workload}, {own[0]['steps']} steps", "accuracy" if own[0]["accuracy"] is not None else (
            "held_out_loss")
        for end, columns in ((": learning", ("loss", measure)), (
                ": traffic of a step", ("words", "words_ratio", "cycles_per_step", "bound_ratio",
                                        "effective_bandwidth"))):
            parts.append(Table(f"{title}{end}", [*formats, *ring, *_chosen(_ROW, *columns)], own, group=_formats))
    placed = list({_formats(row): row for row in rows if row["lut4"] is not None}.values())
    if placed:
        cells = Column("cells", title="LUT4+carry", format=str, of=lambda row: f"{row['lut4']:,}+{row['ccu2c']:,}")
        parts.append(Table("codecs, out of context", [*formats, cells, *_chosen(_AREA, "dsp", "bram", "fmax_mhz")],
                           placed))
    return parts + (_of_products(products) if products else [])


def _of_products(rows: Sequence[Row]) -> list[Table]:
    """Format accuracies and cycles of product formats as a table, with their arrays if areas were measured."""
    first, names = rows[0], ("compute_format", "nodes")
    learned = Table(
        f"{first['workload']}, {first['steps']} steps: formats of products of nodes that compute",
        _chosen(_PRODUCT, *names, "loss", "accuracy", "words", "cycles_per_step", "cycles_products", "macs_reached"),
        rows, group=lambda row: row["compute_format"] if first["nodes"] != rows[-1]["nodes"] else None)
    known = [row for row in rows if row["luts"] is not None]
    arrays = Table(f"arrays of {first['macs']} MACs, out of context; MFLOP/s per LUT", _chosen(
        _PRODUCT, *names, "luts", "dsp", "luts_per_mac", "fmax_mhz", "gflops_peak", "gflops_peak_per_lut",
        "gflops_per_lut"), known)
    return [learned, arrays] if known else [learned]


def _formats(row: Row) -> tuple[str, str]:
    return row["weights"], row["gradients"]
