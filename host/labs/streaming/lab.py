"""The lab `gradring lab streaming`, which trains with weights streamed layer by layer from a server."""

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from host.columns import Column, Table, columns_of, record, show
from host.console import Progress, shown
from host.features.streaming.edits import read_log
from host.features.streaming.timeline import Run, costs_of, uniform
from host.labs.kit import BUILD, Results, end
from host.labs.streaming import experiment
from host.labs.streaming.experiment import Row
from host.models.digits import Dataset, digits
from host.options import Option, command
from host.output import write_json
from host.reports.style import COLOURS, FAINT, INK, picture
from host.schema import Schema
from sim.golden.features.streaming.streaming import Unit

__all__ = ["SCHEMA", "streaming_lab"]

_KINDS = dict(zip(("fetch", "push", "forward", "backward"), (COLOURS[4], COLOURS[5], COLOURS[0], FAINT), strict=True))
#: Number of sets over which losses are averaged.
_MEAN = 15

_SIMULATED = columns_of(Column("name", title="case"), "sets accuracy:.2%", Column(
    "bit_exact", lambda same: "the same" if same else "OTHERS", "bits"))
_CHOICES = columns_of("case fetch:, push:, forward:, backward:, microbatches")
_STALLS = columns_of(Column("layers", title="64 x 64 layers"), "stall idle cycles", Column("peak", ",", "words"))

_CASES = columns_of("name", Column("compared_with", of=lambda row: row.beside), "bar mean accuracies",
                    Column("edits", of=lambda row: row.log["edits"]))
#: Schema of the study's report.
SCHEMA = Schema("gradring.streaming_study", 1, (
    Column("cases", columns=_CASES), Column("nodes", columns=_SIMULATED), Column("stalls", columns=_STALLS),
    Column("choices", columns=_CHOICES)))


@command
def streaming_lab(
    *,
    seeds: Annotated[int | None, Option("Number of seeds of each case.", minimum=1, maximum=1000,
                                        shown_default="10, or 5 for the deep model")] = None,
    epochs: Annotated[int | None, Option("Number of epochs of each run.", minimum=1, maximum=1000,
                                         shown_default="16, or 8 with two or more layers")] = None,
    replay: Annotated[Path | None, Option("Log of edits to repeat, without an assessor.")] = None,
    nodes: Annotated[bool, Option("Also run the first seed of each case with a required result on simulated nodes.",
                                  ("--nodes",))] = False,
    output: Annotated[Path, Option("Folder for streaming.json, streaming.png, edits.json.",
                                   shown_default="build/streaming")] =
        BUILD / "streaming",
) -> None:
    """Train layer by layer from a server on golden nodes, with edits of the model during training."""
    data = digits()
    if replay is not None:
        _replay(replay, data)
        return
    results = Results(output, "streaming.json", "streaming.png", "edits.json")
    with results.progress() as progress:
        rows = _learned(data, seeds=seeds, epochs=epochs, progress=progress)
        simulated = _learned_on_nodes(data, rows, epochs=epochs, progress=progress) if nodes else []
    stalls, choices = experiment.stalls(), experiment.choices()
    results.show(*_tables(rows, simulated, stalls, choices),
                 "accuracies: golden nodes, which have the bits of gateware; cycles and stalls: modelled")
    edited = next(row for row in rows if row.beside)
    results.write(SCHEMA.report({"cases": [record(_CASES, row) for row in rows], "nodes": simulated,
                                        "stalls": stalls, "choices": choices}),
                  functools.partial(_draw, stalls, rows), lambda path: write_json(path, dict(edited.log)))
    results.show_paths()
    missed = experiment.failures(rows) if seeds is None and epochs is None else []
    missed += [f"{row['name']} must have the golden bits on nodes" for row in simulated if not row["bit_exact"]]
    results.end(f"streaming: {failure}" for failure in missed)


def _replay(path: Path, data: Dataset) -> None:
    """Repeat a run with the edits of its log; exits with code 1 if the results differ from the log."""
    log = read_log(path)
    run = experiment.replay_log(data, log)
    same = run.digest == log["digest"]
    show(f"{shown(path)}: {len(run.log)} edits, {len(run.reports)} sets, digest {run.digest[:16]}: "
         f"{'the same' if same else 'ANOTHER'} run")
    end(not same)


def _learned(data: Dataset, *, seeds: int | None, epochs: int | None, progress: Progress) -> list[Row]:
    """Run all cases on golden nodes; return the rows of results."""
    rows = []
    for case in experiment.CASES:
        count = case.seeds if seeds is None else seeds
        progress.stage(f"streaming: {case.name}", count)
        runs = []
        for seed in range(count):
            runs.append(experiment.learn(case, data, seed, epochs=epochs))
            progress.advance(f"accuracy {runs[-1].accuracy:.2%}")
        rows.append(experiment.row_of(case, runs))
    return rows


def _learned_on_nodes(data: Dataset, rows: Sequence[Row], *, epochs: int | None,
                      progress: Progress) -> list[dict[str, Any]]:
    """Run the first seed of each case that has a limit, on simulated nodes."""
    simulated = []
    for case, row in zip(experiment.CASES, rows, strict=True):
        if case.bar:
            progress.stage(f"nodes: {case.name}", experiment.sets_of(case, data, epochs))
            run = experiment.learn_on_nodes(
                case, data, 0, epochs=epochs, on_set=lambda sets: progress.advance(f"loss {sets.mean_loss:.4f}"))
            simulated.append({"name": case.name, "sets": len(run.reports), "accuracy": run.accuracy,
                              "bit_exact": run.same and run.digest == row.log["digest"]})
    return simulated


def _tables(rows: Sequence[Row], simulated: Sequence[Mapping[str, Any]], stalls: Sequence[Mapping[str, Any]],
           choices: Sequence[Mapping[str, Any]]) -> list[Table]:
    """Format three tables: accuracies on golden and simulated nodes, stalls, and the chosen microbatch counts."""
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
    """Draw the timelines of several sets, each with one row for the link and one for computation."""
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


def _draw(stalls: Sequence[Mapping[str, Any]], rows: Sequence[Row], path: Path) -> None:
    """Draw timelines of sets of 1 and 3 microbatches, stalls, and losses. The losses are from the first case with an
    edit after the initial one, and from the case it is compared with."""
    costs = costs_of([Unit(1, 64, 64)], workers=experiment.WORKERS, microbatch=experiment.MICROBATCH,
                     macs=experiment.MACS)[0]
    with picture(path, size=(14, 4.2), columns=3, width_ratios=(1.6, 1, 1.2)) as (first, second, third):
        _lanes(first, {count: uniform(4, costs, count) for count in (1, 3)})
        for row, color in zip(stalls, (*_KINDS.values(), INK), strict=False):
            second.plot(range(1, len(row["stall"]) + 1), [100 * share for share in row["stall"]], marker="o",
                        color=color, label=f"{row['layers']} layers")
        second.set(title="Stall (modelled)", xlabel="microbatches", ylabel="per cent", ylim=(0, None),
                   xticks=range(1, len(stalls[0]["stall"]) + 1))
        second.legend()
        edited = next((row for row in rows if row.beside and len(row.log["edits"]) > 1), None)
        compared = [row for row in rows if edited is not None and row.name in (edited.name, edited.beside)]
        for case, color in zip(compared, _KINDS.values(), strict=False):
            means = np.convolve(case.losses, np.ones(_MEAN) / _MEAN, "valid")
            third.plot(np.arange(len(means)) + _MEAN, means, color=color, label=case.name)
        third.set(title=f"Mean loss of {_MEAN} sets (golden)", xlabel="set")
        if compared:
            third.legend()
