"""Report as a single HTML page without scripts: tables, pictures and notes in one file.

The page's content security policy blocks all external content. On a phone, the panels of a picture are stacked.
"""

import base64
import dataclasses
import functools
import io
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jinja2
import markupsafe

from host.columns import Table, pairs, shown
from host.console import shown as shown_path
from host.output import write_bytes
from host.schema import repeat_command
from host.transports.session import TransportName

__all__ = ["NO_WITNESS", "Note", "Picture", "settings_table", "simulation_notes", "write_page"]


@dataclasses.dataclass(frozen=True)
class Note:
    """A footnote of a report's table."""

    text: str
    #: Prefixes of the row names that the note applies to; empty for a note on all rows.
    rows: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Picture:
    """A picture of a report, with its alternative text."""

    #: PNG file, as written by :func:`host.reports.style.picture`.
    path: pathlib.Path
    alternative: str


#: Verdict that a report gives for a run on golden nodes.
NO_WITNESS = "Computed by the golden model: no second witness."

#: Full names of sections that have short names.
_WORDS = {"stub": "compute stub"}

_SIMULATED = "Cycles are those of a simulation, cycle by cycle, of the Verilog that is synthesised for boards"
_CYCLES = {
    TransportName.VERILATED: f"{_SIMULATED}; no board has taken part.",
    TransportName.MESSAGES: f"{_SIMULATED}, of which only node 0 has a host; no board has taken part.",
    TransportName.PYSIM: "Cycles are those of a simulation of the gateware by Amaranth's simulator; no board has "
                         "taken part.",
    TransportName.BOARD: "The board and its serial port are simulated; cycles are those of the simulated nodes.",
    TransportName.GOLDEN: "Golden models have computed all values and words, and no gateware has taken part. Cycles "
                          "are modelled, as gradring lab predict models them.",
    TransportName.SERIAL: "Cycles are those that the nodes on the board have counted.",
}


def simulation_notes(transport: TransportName, *, latency: int, arithmetic: str) -> list[Note]:
    """Return notes on how nodes, links (with a ``latency`` in cycles) and floating-point units were simulated."""
    notes = [Note(_CYCLES[transport])]
    if transport in (TransportName.VERILATED, TransportName.MESSAGES, TransportName.PYSIM):
        notes.append(Note(f"Links between nodes are modelled: a word, and a credit, arrives after {latency} cycles."))
    if arithmetic == "native":
        notes.append(Note("Floating-point units are simulated by instructions of the computer, with the same bits "
                          "and cycles.", ("floating-point units",)))
    return notes


def settings_table(title: str, values: Mapping[str, Any]) -> Table:
    """Return a table of settings with readable labels, including nested sections."""
    return pairs(title, [(name.replace("_", " ").capitalize(), shown(value, missing="none"))
                         for name, value in _flat(values)])


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Flatten nested sections of settings. Names are joined by spaces, and a ``kind`` takes its section's name."""
    for name, value in values.items():
        path = prefix if prefix and name == "kind" else f"{prefix} {_WORDS.get(name, name)}".strip()
        if isinstance(value, Mapping):
            yield from _flat(value, path)
        else:
            yield path, [part["kind"] for part in value] if name == "features" else value


@functools.cache
def _template() -> jinja2.Template:
    text = pathlib.Path(__file__).with_name("page.html").read_text(encoding="utf-8")
    return jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True,
                              lstrip_blocks=True).from_string(text)


def _contents(table: Table, notes: Sequence[Note]) -> dict[str, Any]:
    """Return a table's cells for the page, and the numbers of the notes for each row."""
    rows = [{"cells": cells, "notes": [number for number, note in enumerate(notes, start=1)
                                       if note.rows and cells[0].startswith(note.rows)]} for cells in table.cells]
    right = markupsafe.Markup(' class="right"')
    return {"title": table.title, "rows": rows, "header": table.headings if table.header else [],
            "aligned": [right if numbers else "" for numbers in table.right]}


def _panels(picture: Picture) -> Iterator[dict[str, Any]]:
    """Yield each panel of a picture as a separate picture, or the whole picture if it has no panels."""
    from PIL import Image

    with Image.open(picture.path) as image:
        panels = image.info.get("panels", "").splitlines()
        for line in panels if len(panels) > 1 else [f"0 0 {image.width} {image.height} "]:
            left, top, right, bottom, title = line.split(" ", 4)
            part = io.BytesIO()
            image.crop((int(left), int(top), int(right), int(bottom))).save(part, "png")
            yield {"data": base64.b64encode(part.getvalue()).decode(), "whole": len(panels) < 2,
                   "alt": f"{title}. {picture.alternative}" if title else picture.alternative}


def write_page(path: pathlib.Path, *, title: str, verdict: str, tables: Sequence[Table],
               settings: Sequence[Table] = (), pictures: Sequence[Picture], notes: Sequence[Note],
               report: Mapping[str, Any]) -> pathlib.Path:
    """Write the page for a ``report``, which describes a program and a run; return the path of the page.

    ``verdict`` is the result of the comparison with the golden model. ``tables`` contain the figures, and the first
    cell of each row is its name. ``settings`` are the run's settings. ``notes`` explain how figures were obtained.
    """
    program = report["program"]
    made = f"{program['name']} {program['version']}"
    if program["commit"] is not None:
        made += f", commit {program['commit']}"
    text = _template().render(
        title=title, verdict=verdict, notes=[note.text for note in notes], program=made,
        repeat=repeat_command(report, pathlib.Path(shown_path(path.parent))),
        tables=[_contents(table, notes) for table in tables if table.rows],
        settings=[_contents(table, ()) for table in settings],
        pictures=[list(_panels(picture)) for picture in pictures])
    write_bytes(path, text.encode())
    return path
