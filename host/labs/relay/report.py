"""Tables, picture and JSON of the study of layer streaming: timelines, stalls, accuracies and losses."""

import functools
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from host.columns import Column, Table, columns_of
from host.features.streaming.timeline import Run
from host.labs.relay.experiment import Row
from host.reports.style import COLOURS, FAINT, INK, picture
from host.schema import Schema

__all__ = ["SCHEMA", "draw", "record_of", "tables"]

_KINDS = dict(zip(("fetch", "push", "forward", "backward"), (COLOURS[4], COLOURS[5], COLOURS[0], FAINT), strict=True))
#: Sets over which losses are averaged.
_MEAN = 15

_SIMULATED = columns_of(Column("name", title="case"), "sets accuracy:.2%", Column(
    "bit_exact", lambda same: "the same" if same else "OTHERS", "bits"))
_CHOICES = columns_of("case fetch:, push:, forward:, backward:, microbatches")
_STALLS = columns_of(Column("layers", title="64 x 64 layers"), "stall idle cycles", Column("peak", ",", "words"))

#: Report of the study.
SCHEMA = Schema("gradring.streaming_study", 1, (
    Column("cases", columns=columns_of("name compared_with bar mean accuracies edits")),
    Column("nodes", columns=_SIMULATED), Column("stalls", columns=_STALLS), Column("choices", columns=_CHOICES)))


def record_of(row: Row) -> dict[str, Any]:
    """A case for JSON."""
    return {"name": row.name, "compared_with": row.beside, "bar": row.bar, "mean": row.mean,
            "accuracies": list(row.accuracies), "edits": row.log["edits"]}


def tables(rows: Sequence[Row], simulated: Sequence[Mapping[str, Any]], stalls: Sequence[Mapping[str, Any]],
           choices: Sequence[Mapping[str, Any]]) -> list[Table]:
    """Accuracies on golden nodes and on simulated ones, stalls, and choices of microbatches."""
    means = {row.name: row.mean for row in rows}
    accuracies = Table("test accuracy on golden nodes, mean of all seeds", (
        Column("name", title="case"), Column("mean", format=".2f", title="mean, %"),
        Column("gain", format="+.2f", of=lambda row: row.mean - means[row.beside] if row.beside else None),
        Column("bar", format=str, of=lambda row: f"{row.bar:{'+' * bool(row.beside)}.1f}" if row.bar else None),
        Column("min", format=".2f", of=lambda row: min(row.accuracies)),
        Column("max", format=".2f", of=lambda row: max(row.accuracies)),
        Column("edits", of=lambda row: len(row.log["edits"]))), rows)
    shares = [Column(title, format=".1f", of=functools.partial(
        lambda part, number, row: 100 * row[part][number], part, number))
              for title, part, number in (*((str(count + 1), "stall", count) for count in range(
                  len(stalls[0]["stall"]))), ("idle at 3", "idle", 2))]
    return [accuracies, *([Table("first seed on simulated nodes: weights, losses, counts and edits against golden "
                                 "nodes", _SIMULATED, simulated)] if simulated else []),
            Table("stall in per cent by microbatches of a set, and words on a worker's chip: modelled",
                  (_STALLS[0], *shares, _STALLS[-1]), stalls),
            Table("chosen microbatches of a set: modelled", _CHOICES, choices)]


def _lanes(axes: Any, runs: Mapping[int, Run]) -> None:
    """Link and executions of sets, one above the other."""
    rows = [(count, name) for count in runs for name in ("link", "compute")]
    for number, (count, name) in enumerate(rows):
        for event in runs[count].events:
            if event.executes == (name == "compute"):
                axes.barh(number, event.end - event.start, left=event.start, height=0.7, color=_KINDS[event.kind],
                          edgecolor="white", linewidth=0.4)
    axes.set(yticks=range(len(rows)), yticklabels=[f"{name}, {count}" for count, name in rows], xlabel="cycles",
             ylim=(len(rows) + 0.1, -0.6), title="A set of 4 layers (modelled)")
    axes.legend(handles=[axes.barh(0, 0, color=color, label=kind) for kind, color in _KINDS.items()], ncols=4,
                loc="lower right", fontsize=7)


def draw(runs: Mapping[int, Run], stalls: Sequence[Mapping[str, Any]], rows: Sequence[Row],
         path: pathlib.Path) -> None:
    """Draw three panels; the losses are of the first case that has an edit after the first one, and of the case that
    it is compared with."""
    with picture(path, size=(14, 4.2), columns=3, width_ratios=(1.6, 1, 1.2)) as (first, second, third):
        _lanes(first, runs)
        for row, color in zip(stalls, (*_KINDS.values(), INK), strict=False):
            second.plot(range(1, len(row["stall"]) + 1), [100 * share for share in row["stall"]], marker="o",
                        color=color, label=f"{row['layers']} layers")
        second.set(title="Stall (modelled)", xlabel="microbatches", ylabel="per cent", ylim=(0, None),
                   xticks=range(1, len(stalls[0]["stall"]) + 1))
        second.legend()
        edited = next((row for row in rows if row.beside and len(row.edits) > 1), None)
        compared = [row for row in rows if edited is not None and row.name in (edited.name, edited.beside)]
        for case, color in zip(compared, _KINDS.values(), strict=False):
            means = np.convolve(case.losses, np.ones(_MEAN) / _MEAN, "valid")
            third.plot(np.arange(len(means)) + _MEAN, means, color=color, label=case.name)
        third.set(title=f"Mean loss of {_MEAN} sets (golden)", xlabel="set")
        if compared:
            third.legend()
