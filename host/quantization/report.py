"""The quantization report in a few sentences, as a table, and as a picture: accuracy by scheme and bits, and which
weights codes can stand for.
"""

import pathlib
from typing import Any

import numpy as np
from rich import box
from rich.table import Table

from host.output import replacing
from host.quantization.candidates import SKEWED, TRAINED
from host.quantization.schemes import Extrema, Rounding, Scheme
from host.reports.style import FAINT, INK, STYLE

__all__ = ["advice", "draw", "table", "verdict"]

Row = dict[str, Any]


def _find(report: dict[str, Any], network: str, bits: int, scheme: Scheme, scale: str) -> Row:
    """The row that is rounded to nearest, with plain extrema."""
    return next(row for row in report["rows"] if (
        row["network"], row["bits"], row["scheme"], row["scale"], row["rounding"], row["extrema"]) == (
        network, bits, scheme.value, scale, Rounding.NEAREST.value, Extrema.ZERO.value))


def verdict(report: dict[str, Any]) -> str:
    """The verdict of the report, in two or three sentences."""
    sentences = []
    if compared := sum(row["bit_exact"] is True for row in report["rows"]):
        sentences.append(f"Scores of all {compared * report['examples']:,} inferences on {report['nodes']} nodes "
                         f"identical to the golden model, bit for bit.")
    gained: dict[int, list[float]] = {8: [], 4: []}
    gains = []
    for scale in ("layer", "output"):
        for bits, found in gained.items():
            found.append(_find(report, TRAINED, bits, Scheme.IAQ_MIN, scale)["accuracy"] - report["accuracy_float"])
        symmetric, iaq = (_find(report, SKEWED, 4, scheme, scale) for scheme in (Scheme.SYMMETRIC, Scheme.IAQ_MIN))
        gains.append(f"{_difference(iaq, symmetric, 'scores_db'):+.1f} dB and "
                     f"{100 * _difference(iaq, symmetric, 'accuracy'):+.2f} points per {scale}")
    sentences.append("IAQ to float: " + ", ".join(
        f"{100 * min(found):+.2f} points with {bits} bits" for bits, found in gained.items()) + ".")
    sentences.append(f"Skewed layer with 4 bits, IAQ to symmetric: {', '.join(gains)}.")
    return " ".join(sentences)


def _difference(one: Row, other: Row, name: str) -> float:
    return float((one[name] or 0.0) - (other[name] or 0.0))


_CAPTION = ("trunc.: weights truncated, else rounded to nearest. error: largest of a weight, in steps, of both. "
            "integer, float, cycles: multiplications and cycles of one inference. skewed: last layer "
            "without negative weights.")


def table(report: dict[str, Any]) -> Table:
    """The rows as a table: those rounded to nearest, with the accuracy under truncation beside."""
    result = Table(title=f"test accuracy in floats {report['accuracy_float']:.2%}", title_justify="left",
                   caption=_CAPTION,
                   caption_justify="left", border_style="dim", box=box.SIMPLE_HEAD, padding=0,
                   show_edge=False)
    result.add_column("bits, scale; scheme", no_wrap=True)
    for heading in ("test", "trunc.", "error < 1", "integer", "float", "cycles", "LUT4"):
        result.add_column(heading, justify="right", no_wrap=True)
    keys = ("network", "bits", "scale", "label")
    truncated = {tuple(row[key] for key in keys): row for row in report["rows"]
                 if row["rounding"] == Rounding.TRUNCATE.value}
    before = None
    for row in report["rows"]:
        if row["rounding"] != Rounding.NEAREST.value:
            continue
        if before != (place := tuple(row[key] for key in keys[:3])):
            result.add_section()
            result.add_row(_heading(row))
        twin = truncated.get(tuple(row[key] for key in keys))
        both = [row, *([twin] if twin is not None else [])]
        result.add_row(
            f"  {row['label']}", f"{row['accuracy']:.2%}",
            "-" if twin is None else f"{twin['accuracy']:.2%}",
            " · ".join(_steps(one) for one in both), f"{row['products'] + row['requantizations']:,}",
            f"{row['float_multiplications']}",
            *("-" if row[name] is None else f"{row[name]:,.0f}" for name in ("cycles", "lut4")))
        before = place
    return result


def _steps(row: Row) -> str:
    """An error, which is not rounded up to 1."""
    return f"{min(row['error_in_steps'], 0.999):.3f}" if row["bound_met"] else f"{row['error_in_steps']:.3f}!"


def _heading(row: Row) -> str:
    """Heading of a section: bits, scale and network that its rows have in common."""
    bits = "+".join(map(str, row["bits_per_layer"])) if row["network"] == SKEWED else f"{row['bits']}"
    return f"{bits}, {row['scale']}{', skewed' if row['network'] == SKEWED else ''}"


def advice(report: dict[str, Any]) -> str | None:
    """Commands that show why LUTs are missing in the table; None if none are."""
    missing = [unit.partition("-") for unit, lut4 in report["units"].items() if lut4 is None]
    commands = [f"python -m boards.synth --count --unit {unit}{f' --set {option}' if option else ''}"
                for unit, _, option in missing]
    return f"For LUT4: {'; '.join(commands)}" if missing else None


_COLORS = {"symmetric": "#e4a53a", "float-offset": "#5b6f8a", "iaq-min": "#0b7a75", "iaq-max": "#7353ba",
           "iaq-min, aligned": "#d1495b"}


def draw(report: dict[str, Any], path: pathlib.Path, *, note: str) -> None:
    """Draw a report.

    Parameters
    ----------
    report : dict
        Report, as :func:`host.quantization.experiment.collect` makes it.
    note : str
        A line below the title.
    """
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    shape = " → ".join(map(str, [report["layers"][0][0], *(layer[1] for layer in report["layers"])]))
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(15.5, 8.2), layout="constrained")
        FigureCanvasAgg(figure)
        figure.suptitle(f"A perceptron {shape} in integers: {report['accuracy_float']:.2%} in floats\n", x=0.012,
                        ha="left", fontsize=15, fontweight="bold")
        figure.text(0.012, 0.952, note, fontsize=8.6, color=_COLORS["iaq-min"], va="top")
        left, right = figure.subplots(2, 2, width_ratios=(1.25, 1)).T
        _draw_accuracy(left[0], report)
        _draw_skewed(left[1], report)
        for axes, grid in zip(right, report["grids"], strict=True):
            _draw_grid(axes, grid)
        with replacing(path) as file:
            figure.savefig(file, dpi=130)


def _draw_accuracy(axes: Any, report: dict[str, Any]) -> None:
    """Every scheme of the network as it was trained, in a group per bits and scale."""
    rows = [row for row in report["rows"] if row["network"] == "trained"]
    groups = list(dict.fromkeys((row["bits"], row["scale"]) for row in rows))
    labels = list(dict.fromkeys(row["label"] for row in rows))
    lowest = min(row["accuracy"] for row in rows) * 100
    axes.set_title("Test accuracy, as trained (hollow: truncated)")
    axes.axhline(report["accuracy_float"] * 100, color=INK, linewidth=1.2, linestyle=(0, (4, 3)), label="float")
    for place, (bits, scale) in enumerate(groups):
        for number, label in enumerate(labels):
            x = place + (number - (len(labels) - 1) / 2) * 0.16
            found = {row["rounding"]: row["accuracy"] * 100 for row in rows
                     if (row["bits"], row["scale"], row["label"]) == (bits, scale, label)}
            if len(found) == 2:
                axes.plot([x, x], list(found.values()), color=_COLORS[label], linewidth=1, alpha=0.5)
            for rounding, value in found.items():
                nearest = rounding == "nearest"
                axes.plot([x], [value], marker="o", markersize=7 if nearest else 5.5, linestyle="none",
                          color=_COLORS[label] if nearest else "white", markeredgecolor=_COLORS[label],
                          label=label if nearest and not place else None)
    axes.set_xticks(range(len(groups)), [f"{bits} bits, scale per {scale}" for bits, scale in groups])
    axes.set_ylim(lowest - 1, 100)
    axes.grid(False, axis="x")
    axes.set_ylabel("%")
    axes.legend(loc="lower left", ncols=2)


def _draw_skewed(axes: Any, report: dict[str, Any]) -> None:
    """Quality of the scores of a last layer that has no negative weight and 4 bits."""
    rows = [row for row in report["rows"] if row["network"] == "skewed"]
    axes.set_title("Last layer skewed, all weights ≥ 0, and of 4 bits: how far scores are above their error")
    scales = list(dict.fromkeys(row["scale"] for row in rows))
    labels = list(dict.fromkeys(row["label"] for row in rows))
    for number, label in enumerate(labels):
        found = [row for row in rows if row["label"] == label]
        places = [scales.index(row["scale"]) + (number - (len(labels) - 1) / 2) * 0.2 for row in found]
        values = list(map(_decibels, found))
        axes.bar(places, values, width=0.18, color=_COLORS[label])
        for place, value, row in zip(places, values, found, strict=True):
            axes.annotate(f"{value:.1f} dB\n{row['accuracy']:.2%}", (place, value), xytext=(0, 3),
                          textcoords="offset points", ha="center", fontsize=8.5, color=_COLORS[label],
                          fontweight="bold")
            axes.text(place, 0.6, label, rotation=90, ha="center", va="bottom", color="white", fontsize=9)
    axes.set_xticks(range(len(scales)), [f"scale per {scale}" for scale in scales])
    axes.set_ylim(0, 1.25 * max(map(_decibels, rows)))
    axes.set_ylabel("dB (below: test accuracy)")
    axes.grid(False, axis="x")


def _decibels(row: dict[str, Any]) -> float:
    """Quality of a row's scores, as its bar has it: none where they are exact, or too large to be squared."""
    value = row["scores_db"]
    return 0.0 if value is None or not np.isfinite(value) else float(value)


def _draw_grid(axes: Any, grid: dict[str, Any]) -> None:
    """A histogram, and below it the 16 levels of each scheme."""
    edges, counts = np.array(grid["edges"]), np.array(grid["counts"])
    low, high = edges[0], edges[-1]
    margin = (high - low) * 0.06
    axes.set_title(f"Weights of the {grid['name']}, and the levels of 4 bits")
    axes.bar(edges[:-1], counts, width=np.diff(edges), align="edge", color=FAINT, alpha=0.6, linewidth=0)
    step = counts.max() * 0.16
    places, names = [], []
    for number, (label, levels) in enumerate(grid["levels"].items()):
        base = -step * (number + 1)
        values = np.array(levels)
        axes.vlines(values[(values >= low - margin) & (values <= high + margin)], base + step * 0.12,
                    base + step * 0.72, color=_COLORS[label], linewidth=2.5)
        within = int(np.count_nonzero((values >= low - 1e-6) & (values <= high + 1e-6)))
        places.append(base + step * 0.42)
        names.append(f"{label}\n{within} of 16 within")
    axes.set_xlim(low - margin, high + margin)
    axes.set_ylim(-step * (len(names) + 0.3), counts.max() * 1.05)
    axes.set_yticks(places, names, fontsize=8.5)
    for tick, label in zip(axes.get_yticklabels(), grid["levels"], strict=True):
        tick.set(color=_COLORS[label], fontweight="bold")
    axes.tick_params(axis="y", length=0)
    axes.grid(False, axis="y")
    axes.set_xlabel("weight")
