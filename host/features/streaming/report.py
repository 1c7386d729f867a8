"""Report of a layer-streaming run: its schema, a table of its steps, and a line about its link."""

from collections.abc import Mapping, Sequence
from typing import Any

from host.columns import Column, Table, columns_of
from host.schema import RUN, Schema

__all__ = ["SCHEMA", "link_line", "table"]


def _share(value: float) -> str:
    return f"{100 * value:.2f}"


_STEPS = columns_of(
    Column("set", title="step"), Column("microbatches", title="u"), "loss:.4f cycles:,",
    *(Column(f"{modelled}{name}", _share, f"{modelled.strip('_') or name}, %")
      for name in ("stall", "idle") for modelled in ("", "modelled_")))

#: Schema of the report of a run.
SCHEMA = Schema("gradring.streaming", 2, columns_of(
    *RUN, "start workers seed sets edits losses digest widths microbatch peak interrupted bit_exact accuracy",
    Column("per_step", columns=columns_of(
        *_STEPS, "with_host words forward backward fetch push packets_fetch packets_push measured_fetch "
        "measured_push chosen"))))


def table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Tabulate the steps of a run; if there are many, show only the first and last ones."""
    return Table("steps on nodes of u microbatches; modelled: a timeline of measured executions, and of moves",
                 _STEPS, rows if len(rows) <= 10 else [*rows[:5], *rows[-5:]])


def link_line(row: Mapping[str, Any]) -> str:
    """Describe the FETCH and PUSH of a step's longest units in one line."""
    parts = []
    for kind in ("fetch", "push"):
        cycles = row[f"measured_{kind}"]
        measured = " to ".join(f"{count:,}" for count in dict.fromkeys((cycles[0], cycles[-1]))) if cycles else "not"
        parts.append(f"{kind.upper()} {measured} measured, {row[f'packets_{kind}']:,} by packets, {row[kind]:,} by "
                     f"the formula for u")
    return f"cycles for {row['words']:,} words in step {row['set']}: {'; '.join(parts)}"
