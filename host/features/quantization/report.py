"""Quantization reports as a few sentences, a table, and a picture of accuracy by scheme and bits and of representable
weights.
"""

import pathlib
from typing import Any

import numpy as np

from host.columns import Column, Table, columns_of
from host.features.quantization.schemes import Extrema, Rounding, Scheme
from host.reports.style import COLOURS, FAINT, INK, picture
from host.schema import Schema

__all__ = ["SCHEMA", "SKEWED", "TRAINED", "advice", "draw", "table", "verdict"]

Row = dict[str, Any]

TRAINED, SKEWED = "trained", "skewed"  # names of the networks: as trained, and with a skewed last layer

#: Schema of the report of ``gradring quantize``.
SCHEMA = Schema("gradring.quantization", 2, columns_of(
    "onnx accuracy_float examples layers nodes trained_weights stage_seconds configuration grids units",
    Column("rows", columns=columns_of(
        "network scheme extrema label bits bits_per_layer rounding scale accuracy accuracy_float agreement "
        "error_in_steps bound_met weights_db scores_db requantization_error products requantizations "
        "float_multiplications cycles on_nodes bit_exact lut4"))))


def _find(report: dict[str, Any], network: str, bits: int, scheme: Scheme, scale: str) -> Row:
    """Find the row of a scheme with rounding to nearest and plain extrema."""
    return next(row for row in report["rows"] if (
        row["network"], row["bits"], row["scheme"], row["scale"], row["rounding"], row["extrema"]) == (
        network, bits, scheme.value, scale, Rounding.NEAREST.value, Extrema.ZERO.value))


def verdict(report: dict[str, Any]) -> str:
    """Summarise the report in two or three sentences."""
    sentences = []
    if compared := sum(row["bit_exact"] is True for row in report["rows"]):
        sentences.append(f"Scores of all {compared * report['examples']:,} inferences on {report['nodes']} nodes "
                         f"identical to the golden model, bit for bit.")
    gained: dict[int, list[float]] = {8: [], 4: []}
    gains = []
    for scale in ("layer", "output"):
        for bits, points in gained.items():
            points.append(_find(report, TRAINED, bits, Scheme.IAQ_MIN, scale)["accuracy"] - report["accuracy_float"])
        symmetric, iaq = (_find(report, SKEWED, 4, scheme, scale) for scheme in (Scheme.SYMMETRIC, Scheme.IAQ_MIN))
        gains.append(f"{_difference(iaq, symmetric, 'scores_db'):+.1f} dB and "
                     f"{100 * _difference(iaq, symmetric, 'accuracy'):+.2f} points per {scale}")
    sentences.append("IAQ to float: " + ", ".join(
        f"{100 * min(points):+.2f} points with {bits} bits" for bits, points in gained.items()) + ".")
    sentences.append(f"Skewed layer with 4 bits, IAQ to symmetric: {', '.join(gains)}.")
    return " ".join(sentences)


def _difference(row: Row, other: Row, name: str) -> float:
    return float((row[name] or 0.0) - (other[name] or 0.0))


_CAPTION = ("trunc.: weights truncated, else rounded to nearest. error: largest of a weight, in steps, of both. "
            "integer, float, cycles: multiplications and cycles of one inference. skewed: last layer "
            "without negative weights.")


def table(report: dict[str, Any]) -> Table:
    """Tabulate the rows with rounding to nearest, showing the accuracy with truncation for comparison."""
    keys = ("network", "bits", "scale", "label")
    truncated = {tuple(row[key] for key in keys): row for row in report["rows"]
                 if row["rounding"] == Rounding.TRUNCATE.value}
    nearest = [row for row in report["rows"] if row["rounding"] == Rounding.NEAREST.value]

    def twin(row: Row) -> Row | None:
        return truncated.get(tuple(row[key] for key in keys))

    return Table(f"test accuracy in floats {report['accuracy_float']:.2%}", (
        Column("label", lambda label: f"  {label}", "bits, scale; scheme"), Column("accuracy", ".2%", "test"),
        Column("truncated", ".2%", "trunc.", of=lambda row: (twin(row) or {}).get("accuracy")),
        Column("error < 1", str, of=lambda row: " · ".join(map(_steps, filter(None, (row, twin(row)))))),
        Column("integer", ",", of=lambda row: row["products"] + row["requantizations"]),
        Column("float_multiplications", ",", "float"), Column("cycles", ",.0f"),
        Column("lut4", ",", "LUT4")), nearest, caption=_CAPTION, group=_heading, headed=True)


def _steps(row: Row) -> str:
    """Format an error in quantization steps; an error within the bound is never rounded up to 1."""
    return f"{min(row['error_in_steps'], 0.999):.3f}" if row["bound_met"] else f"{row['error_in_steps']:.3f}!"


def _heading(row: Row) -> str:
    """Describe the number of bits, the scale and the network that the rows of a section have in common."""
    bits = "+".join(map(str, row["bits_per_layer"])) if row["network"] == SKEWED else f"{row['bits']}"
    return f"{bits}, {row['scale']}{', skewed' if row['network'] == SKEWED else ''}"


def advice(report: dict[str, Any]) -> str | None:
    """Return the commands that show why LUT counts are missing; None if none are missing."""
    missing = [unit.partition("-") for unit, lut4 in report["units"].items() if lut4 is None]
    commands = [f"python -m boards.synth --count --unit {unit}{f' --set {option}' if option else ''}"
                for unit, _, option in missing]
    return f"For LUT4: {'; '.join(commands)}" if missing else None


_COLORS = dict(zip(("iaq-min", "symmetric", "iaq-min, aligned", "float-offset", "iaq-max"), COLOURS, strict=False))


def draw(report: dict[str, Any], path: pathlib.Path, *, note: str) -> None:
    """Draw a report of :func:`host.features.quantization.experiment.collect` with a note below the title."""
    shape = " → ".join(map(str, [report["layers"][0][0], *(layer[1] for layer in report["layers"])]))
    with picture(path, size=(15.5, 8.2), rows=2, columns=2, width_ratios=(1.25, 1), note=note, colour=COLOURS[0],
                 title=f"A perceptron {shape} in integers: {report['accuracy_float']:.2%} in floats") as panels:
        _draw_accuracy(panels[0], report)
        _draw_skewed(panels[2], report)
        for axes, grid in zip(panels[1::2], report["grids"], strict=True):
            _draw_grid(axes, grid)


def _draw_accuracy(axes: Any, report: dict[str, Any]) -> None:
    """Draw the accuracy of each scheme on the trained network, grouped by bits and scale."""
    rows = [row for row in report["rows"] if row["network"] == TRAINED]
    groups = list(dict.fromkeys((row["bits"], row["scale"]) for row in rows))
    labels = list(dict.fromkeys(row["label"] for row in rows))
    lowest = min(row["accuracy"] for row in rows) * 100
    axes.set_title("Test accuracy, as trained (hollow: truncated)")
    axes.axhline(report["accuracy_float"] * 100, color=INK, linewidth=1.2, linestyle=(0, (4, 3)), label="float")
    for group, (bits, scale) in enumerate(groups):
        for number, label in enumerate(labels):
            x = group + (number - (len(labels) - 1) / 2) * 0.16
            accuracies = {row["rounding"]: row["accuracy"] * 100 for row in rows
                          if (row["bits"], row["scale"], row["label"]) == (bits, scale, label)}
            if len(accuracies) == 2:
                axes.plot([x, x], list(accuracies.values()), color=_COLORS[label], linewidth=1, alpha=0.5)
            for rounding, value in accuracies.items():
                nearest = rounding == "nearest"
                axes.plot([x], [value], marker="o", markersize=7 if nearest else 5.5, linestyle="none",
                          color=_COLORS[label] if nearest else "white", markeredgecolor=_COLORS[label],
                          label=label if nearest and not group else None)
    axes.set_xticks(range(len(groups)), [f"{bits} bits, scale per {scale}" for bits, scale in groups])
    axes.set_ylim(lowest - 1, 100)
    axes.grid(False, axis="x")
    axes.set_ylabel("%")
    axes.legend(loc="lower left", ncols=2)


def _draw_skewed(axes: Any, report: dict[str, Any]) -> None:
    """Draw the quality of the scores with a 4-bit last layer that has no negative weights."""
    rows = [row for row in report["rows"] if row["network"] == SKEWED]
    axes.set_title("Last layer skewed, all weights ≥ 0, and of 4 bits: how far scores are above their error")
    scales = list(dict.fromkeys(row["scale"] for row in rows))
    labels = list(dict.fromkeys(row["label"] for row in rows))
    for number, label in enumerate(labels):
        selected = [row for row in rows if row["label"] == label]
        positions = [scales.index(row["scale"]) + (number - (len(labels) - 1) / 2) * 0.2 for row in selected]
        values = list(map(_decibels, selected))
        axes.bar(positions, values, width=0.18, color=_COLORS[label])
        for position, value, row in zip(positions, values, selected, strict=True):
            axes.annotate(f"{value:.1f} dB\n{row['accuracy']:.2%}", (position, value), xytext=(0, 3),
                          textcoords="offset points", ha="center", fontsize=8.5, color=_COLORS[label],
                          fontweight="bold")
            axes.text(position, 0.6, label, rotation=90, ha="center", va="bottom", color="white", fontsize=9)
    axes.set_xticks(range(len(scales)), [f"scale per {scale}" for scale in scales])
    axes.set_ylim(0, 1.25 * max(map(_decibels, rows)))
    axes.set_ylabel("dB (below: test accuracy)")
    axes.grid(False, axis="x")


def _decibels(row: dict[str, Any]) -> float:
    """Bar height in decibels for the quality of a row's scores; 0 if they are exact or errors overflow."""
    value = row["scores_db"]
    return 0.0 if value is None or not np.isfinite(value) else float(value)


def _draw_grid(axes: Any, grid: dict[str, Any]) -> None:
    """Draw a histogram of weights, with the 16 levels of each scheme below it."""
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
