"""The page docs/run.md: sections and fields of a run's description, and its couplings."""

import textwrap

from host.options import Section
from host.run.command_line import SECTIONS
from host.run.couplings import COUPLINGS, SCHEDULED
from host.run.sections import SCHEDULES, Update
from host.run.spec import fields_of

__all__ = ["run_page"]

_WIDTH = 118

_INTRODUCTION = """\
# Description of a run

Made by `python -m host.documents` from host/run. Do not edit.

A training run is described in sections. The command line, TOML files, `make`, the library and reports share the
description: every field is an option of `gradring train`, a variable of `make sim`, and a key in a file.

    [workload]
    steps = 20

    [optimizer]
    rule = "adam"

    [schedule]
    kind = "program"
    overlap = "layers"

- `gradring train run.toml` carries the run out; options after the file change it, and so does
  `--set section.field=value`. Each run writes the description with all its defaults to `run.toml` in its output
  folder.
- `gradring train build/sim/report.json` carries the run of a report out again, and prints whether losses, cycles,
  words and the bits of the trained weights are equal.
- In Python, `gradring.RunSpec` is the description, and `gradring.train` carries it out.

A field that is left out has the default that is shown. One that does not apply to a run is refused before anything is
built.

"""

_SCHEDULES = """\
`kind` is one of {kinds}; without it, the schedule is that of the fields that are given. `update` has no fields. The
schedules `quorum`, `streaming` and `side-by-side` train the perceptron on Verilated nodes with momentum,
and take only
these fields of other sections:

"""


def _paragraph(text: str, *, item: bool = False) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent="- " if item else "", subsequent_indent="  " if item else "",
                         break_long_words=False, break_on_hyphens=False)


def _fields(kind: type[Section]) -> list[str]:
    """Lines of the list of a section's fields."""
    lines, types = [], fields_of(kind)
    for name, option in kind.options().items():
        default = kind.__dataclass_fields__[name].default
        shown = option.shown_default
        if shown is None and default is not None:
            shown = str(getattr(default, "value", default)).lower()
        text = f"`{name}` ({option.flags[0].partition('/')[0]}, {_type(types[name])}): {option.help}"
        lines += _paragraph(text + ("" if shown is None else f" Default: {shown}."), item=True)
    return lines


def _type(kind: type) -> str:
    names = {int: "integer", float: "number", bool: "true or false"}
    return names.get(kind, "text")


def run_page() -> str:
    """The text of docs/run.md."""
    lines = []
    for name, kind in SECTIONS:
        if name != "schedule":
            lines += [f"## {name}", "", *_fields(kind), ""]
    names = ", ".join(f"`{kind}`" for kind in SCHEDULES)
    lines += ["## Schedules", "", *_paragraph(_SCHEDULES.format(kinds=names)), ""]
    for schedule, fields in SCHEDULED.items():
        lines += _paragraph(f"`{schedule}`: " + ", ".join(f"`{field}`" for field in fields) + ".", item=True)
    for schedule, section in SCHEDULES.items():
        if section is not Update:
            lines += ["", f"### {schedule}", "", *_fields(section)]
    lines += ["", "## Couplings", "", *_paragraph(
        f"{len(COUPLINGS)} couplings of options, each with the reason why the option does not apply to other runs:"),
        "", "| Option | is for | Reason |", "|---|---|---|"]
    lines += [f"| `{coupling.left}` | {coupling.condition} | {coupling.reason} |" for coupling in COUPLINGS]
    return _INTRODUCTION + "\n".join(lines) + "\n"

