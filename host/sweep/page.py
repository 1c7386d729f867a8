"""The result of a sweep: tables of 80 columns, and an HTML page."""

import pathlib
from collections.abc import Sequence
from typing import Any

from rich import box
from rich.table import Table

from host.reports.notes import simulation_notes
from host.reports.page import Note, Picture, write_page
from host.transports.session import LATENCY, TransportName
from host.versions import program

__all__ = ["tables", "write"]


def write(rows: Sequence[dict[str, Any]], picture: pathlib.Path, *,
          products: Sequence[dict[str, Any]] = ()) -> pathlib.Path:
    """Write sweep.html beside the picture, with the picture in it.

    Parameters
    ----------
    rows : sequence of dict
        Rows, as :func:`host.sweep.plan.collect` makes them.
    picture : Path
        The file that :func:`host.sweep.picture.draw` has drawn.
    products : sequence of dict
        Rows of formats of products, as :func:`host.sweep.plan.products` makes them.
    """
    runs = [*rows, *products]
    formats = len({(row.get("weights"), row.get("gradients"), row.get("compute_format")) for row in runs})
    checked = all(row["bit_exact"] for row in runs)
    computes = "The host computes the gradients, which takes no cycles here"
    if products:
        computes += ", but for the formats of products, whose nodes compute"
    return write_page(
        picture.with_suffix(".html"), title=f"gradring: {formats} formats, {len(runs)} training runs",
        verdict="Weights of all nodes identical to each other and to the golden model, bit for bit, after each step "
                "of each run." if checked else "Weights were not compared with the golden model in all runs.",
        tables=tables(rows, products),
        pictures=[Picture(picture, "Charts, one for each workload, of loss against words on the links, relative to "
                                   "raw weights and zero-value gradients, and of accuracy against the area of a "
                                   "multiply-add where arrays were measured; the tables have their figures.")],
        notes=[*simulation_notes(TransportName.VERILATED, latency=LATENCY, arithmetic="gateware"),
               Note(f"{computes}. Host ports are modelled, and their cycles are not among these: sweep.json has them "
                    "as host_port_cycles_computed."),
               Note("LUTs, blocks and MHz are those of the codecs and arrays alone, placed by nextpnr for an ECP5 "
                    "with one seed, or counted by Yosys where there are no MHz; no board has run them."),
               Note("Runs have one seed each. Losses of other seeds differ by as much as those of formats.")],
        program=program())


Row = dict[str, Any]


def tables(rows: Sequence[Row], products: Sequence[Row] = ()) -> list[Table]:
    """Learning and traffic of each workload, the area of codecs, and formats of products.

    Parameters
    ----------
    rows : sequence of dict
        Rows, as :func:`host.sweep.plan.collect` makes them.
    products : sequence of dict
        Those of :func:`host.sweep.plan.products`.
    """
    found = []
    for workload in dict.fromkeys(row["workload"] for row in rows):
        mine = [row for row in rows if row["workload"] == workload]
        title = f"{workload}, {mine[0]['steps']} steps"
        learned = _of_codecs(f"{title}: learning", "N", "loss", "test")
        moved = _of_codecs(f"{title}: traffic of a step", "N", "words", "ratio", "cycles", "of bound", "bandwidth")
        for number, row in enumerate(mine):
            ends = len(mine) > 1 and (number + 1 == len(mine) or _formats(mine[number + 1]) != _formats(row))
            measure = f"{row['accuracy']:.2%}" if row["accuracy"] is not None else f"{row['held_out_loss']:.4f}"
            learned.add_row(*_formats(row), f"{row['nodes']}", f"{row['loss']:.4f}", measure, end_section=ends)
            moved.add_row(*_formats(row), f"{row['nodes']}", f"{row['words']:,.0f}",
                          _figure(row["words_ratio"], ".3f"), f"{row['cycles_per_step']:,.0f}",
                          f"{row['bound_ratio']:.3f}", f"{row['effective_bandwidth']:.3f}", end_section=ends)
        found += [learned, moved]
    placed = {_formats(row): row for row in rows if row["lut4"] is not None}
    if placed:
        codecs = _of_codecs("codecs, out of context", "LUT4+carry", "DSP", "BRAM", "MHz")
        for formats, row in placed.items():
            codecs.add_row(*formats, f"{row['lut4']:,}+{row['ccu2c']:,}", f"{row['dsp']}", f"{row['bram']}",
                           _figure(row["fmax_mhz"], ".0f"))
        found.append(codecs)
    return found + (_of_products(products) if products else [])


def _of_products(rows: Sequence[Row]) -> list[Table]:
    """Learning and cycles of formats of products, and their arrays where there is an area."""
    first = rows[0]
    learned = _table(f"{first['workload']}, {first['steps']} steps: formats of products of nodes that compute",
                     ("format",), ("N", "loss", "test", "words", "cycles", "of products", "MACs/cycle"))
    for number, row in enumerate(rows):
        ends = number + 1 < len(rows) and rows[number + 1]["compute_format"] != row["compute_format"]
        learned.add_row(row["compute_format"], f"{row['nodes']}", f"{row['loss']:.4f}", f"{row['accuracy']:.2%}",
                        f"{row['words']:,.0f}", f"{row['cycles_per_step']:,.0f}", f"{row['cycles_products']:,.0f}",
                        f"{row['macs_reached']:.2f}", end_section=ends and first["nodes"] != rows[-1]["nodes"])
    known = [row for row in rows if row["luts"] is not None]
    if not known:
        return [learned]
    arrays = _table(f"arrays of {first['macs']} MACs, out of context; MFLOP/s per LUT", ("format",),
                    ("N", "LUTs", "DSP", "LUTs/MAC", "MHz", "GFLOP/s", "peak/LUT", "reached/LUT"))
    for row in known:
        arrays.add_row(row["compute_format"], f"{row['nodes']}", f"{row['luts']:,}", f"{row['dsp']}",
                       f"{row['luts_per_mac']:,.0f}", _figure(row["fmax_mhz"], ".0f"),
                       _figure(row["gflops_peak"], ".2f"), _figure(row["gflops_peak_per_lut"], ".3f", 1000),
                       _figure(row["gflops_per_lut"], ".3f", 1000))
    return [learned, arrays]


def _formats(row: Row) -> tuple[str, str]:
    return row["weights"], row["gradients"]


def _of_codecs(title: str, *headings: str) -> Table:
    """A table of formats that travel, and of figures under these headings."""
    return _table(title, ("weights", "gradients"), headings)


def _table(title: str, names: Sequence[str], figures: Sequence[str]) -> Table:
    result = Table(title=title, title_justify="left", border_style="dim", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in names:
        result.add_column(heading, no_wrap=True)
    for heading in figures:
        result.add_column(heading, justify="right", no_wrap=True)
    return result


def _figure(value: float | None, form: str, factor: float = 1) -> str:
    return "-" if value is None else f"{value * factor:{form}}"
