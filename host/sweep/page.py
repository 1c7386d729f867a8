"""The result of a sweep as an HTML page."""

import pathlib
from collections.abc import Sequence
from typing import Any

from host.reports.notes import simulation_notes
from host.reports.page import Note, Picture, write_page
from host.sweep.plan import tables
from host.transports.session import LATENCY, TransportName
from host.versions import program

__all__ = ["write"]


def write(rows: Sequence[dict[str, Any]], picture: pathlib.Path) -> pathlib.Path:
    """Write sweep.html beside the picture, with the picture in it.

    Parameters
    ----------
    rows : sequence of dict
        Rows, as :func:`host.sweep.plan.collect` makes them.
    picture : Path
        The file that :func:`host.sweep.picture.draw` has drawn.
    """
    formats = len({(row["weights"], row["gradients"]) for row in rows})
    checked = all(row["bit_exact"] for row in rows)
    return write_page(
        picture.with_suffix(".html"), title=f"gradring: {formats} formats, {len(rows)} training runs",
        verdict="Weights of all nodes identical to each other and to the golden model, bit for bit, after each step "
                "of each run." if checked else "Weights were not compared with the golden model in all runs.",
        tables=tables(rows),
        pictures=[Picture(picture, "Charts, one for each workload, of loss against words on the links, relative to "
                                   "raw weights and zero-value gradients; the tables have their figures.")],
        notes=[*simulation_notes(TransportName.VERILATED, latency=LATENCY, arithmetic="gateware"),
               Note("The host computes the gradients, which takes no cycles here. Host ports are modelled, and their "
                    "cycles are not among these: sweep.json has them as host_port_cycles_computed."),
               Note("LUTs, blocks and MHz are those of the codecs alone, placed by nextpnr for an ECP5 with one "
                    "seed; no board has run them."),
               Note("Runs have one seed each. Losses of other seeds differ by as much as those of formats.")],
        program=program())
