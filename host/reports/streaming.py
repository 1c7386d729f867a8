"""Report of a run of layer streaming: its schema, a table of its steps, and a line about its link."""

from collections.abc import Mapping, Sequence
from typing import Any

from host.columns import Column, Table
from host.schema import RUN, Schema

__all__ = ["SCHEMA", "link_line", "table"]


def _share(value: float) -> str:
    return f"{100 * value:.2f}"


_STEPS = (
    Column("set", title="step", help="From 0."), Column("microbatches", title="u", help="Microbatches."),
    Column("loss", format=".4f", help="Mean loss."), Column("cycles", ",", "Cycles of the step."),
    Column("stall", format=_share, title="stall, %", help="Fraction of time in which workers have no work."),
    Column("modelled_stall", format=_share, title="modelled, %", help="The same, modelled."),
    Column("idle", format=_share, title="idle, %", help="Fraction of time in which the link is idle."),
    Column("modelled_idle", format=_share, title="modelled, %", help="The same, modelled."))

#: Report of a run.
SCHEMA = Schema("gradring.streaming", 2, "gradring train --schedule streaming: build/sim/report.json", {"The run": (
    *RUN, Column("start", help="Structure at the first step, with its `digest`."),
    Column("workers", help="Workers."), Column("seed", help="Seed."), Column("sets", help="Steps that have ended."),
    Column("edits", help="Edits of the model, in order."),
    Column("losses", help="Sum of losses of each step, as the bits of an FP32 number."),
    Column("digest", help="Digest of weights and state."), Column("widths", help="Widths of the model."),
    Column("microbatch", help="Examples of a microbatch."), Column("peak", help="Words on a worker's chip."),
    Column("interrupted", help="Whether a signal has ended the run early.")), "Results": (
        Column("bit_exact", help="Whether weights, losses and counts are equal to golden nodes."),
        Column("accuracy", help="Accuracy on the test images at the end."),
        Column("per_step", help="A row for each step:", columns=(
            *_STEPS, Column("with_host", help="Cycles until the host has done its part."),
            Column("words", help="Words of the longest unit, for the figures that follow."),
            *(Column(name, help="Cycles of a microbatch: forward, backward; to fetch its weights, to push its "
                                "gradients, modelled, and by packets.")
              for name in ("forward", "backward", "fetch", "push", "packets_fetch", "packets_push")),
            *(Column(name, help="Cycles of each FETCH, of each PUSH, measured.")
              for name in ("measured_fetch", "measured_push")),
            Column("chosen", help="Microbatches that the figures lead to.")))),
})


def table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Steps of a run; the first and the last ones of many."""
    return Table("steps on nodes of u microbatches; modelled: a timeline of measured executions, and of moves",
                 _STEPS, rows if len(rows) <= 10 else [*rows[:5], *rows[-5:]])


def link_line(row: Mapping[str, Any]) -> str:
    """Line about FETCH and PUSH of the longest units in a step."""
    parts = []
    for kind in ("fetch", "push"):
        cycles = row[f"measured_{kind}"]
        measured = " to ".join(f"{count:,}" for count in dict.fromkeys((cycles[0], cycles[-1]))) if cycles else "not"
        parts.append(f"{kind.upper()} {measured} measured, {row[f'packets_{kind}']:,} by packets, {row[kind]:,} by "
                     f"the formula for u")
    return f"cycles for {row['words']:,} words in step {row['set']}: {'; '.join(parts)}"
