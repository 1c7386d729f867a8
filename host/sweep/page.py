"""The result of a sweep as an HTML page."""

import pathlib
from collections.abc import Sequence
from typing import Any

from host.reports.notes import simulation_notes
from host.reports.page import Note, Picture, write_page
from host.sweep.tables import tables
from host.transports.session import LATENCY, TransportName
from host.versions import program

__all__ = ["write"]


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
