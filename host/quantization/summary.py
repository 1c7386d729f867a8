"""The quantization report in a few sentences and as a table."""

from typing import Any

from rich import box
from rich.table import Table

from host.quantization.candidates import SKEWED, TRAINED
from host.quantization.schemes import Extrema, Rounding, Scheme

__all__ = ["advice", "table", "verdict"]

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
