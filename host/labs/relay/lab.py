"""The lab `gradring lab relay`."""

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from host.columns import show
from host.console import Progress, shown
from host.features.streaming.edits import read_log
from host.features.streaming.timeline import costs_of, uniform
from host.labs.kit import BUILD, Results, end
from host.labs.relay import experiment, report
from host.labs.relay.experiment import Row
from host.models.digits import Dataset, digits
from host.options import Option, command
from host.output import write_json
from sim.golden.features.streaming.relay import Unit

__all__ = ["relay_lab"]


@command
def relay_lab(
    *,
    seeds: Annotated[int | None, Option("Seeds of each case.", minimum=1, maximum=1000,
                                        shown_default="10, and 5 for the deep one")] = None,
    epochs: Annotated[int | None, Option("Epochs of each run.", minimum=1, maximum=1000,
                                         shown_default="16, and 8 of two layers and more")] = None,
    replay: Annotated[Path | None, Option("Log of edits to run again, without an assessor.")] = None,
    nodes: Annotated[bool, Option("Run the first seed of each case that has a bar on simulated nodes as well.",
                                  ("--nodes",))] = False,
    output: Annotated[Path, Option("Folder of relay.json, relay.png, edits.json.", shown_default="build/relay")] =
        BUILD / "relay",
) -> None:
    """Train layer by layer from a server, on golden nodes, with a model that is edited meanwhile."""
    data = digits()
    if replay is not None:
        _replay(replay, data)
        return
    results = Results(output, "relay.json", "relay.png", "edits.json")
    with results.progress() as progress:
        rows = _learned(data, seeds=seeds, epochs=epochs, progress=progress)
        simulated = _learned_on_nodes(data, rows, epochs=epochs, progress=progress) if nodes else []
    stalls, choices = experiment.stalls(), experiment.choices()
    results.show(*report.tables(rows, simulated, stalls, choices),
                 "accuracies: golden nodes, which have the bits of gateware; cycles and stalls: modelled")
    edited = next(row for row in rows if row.beside)
    results.write(report.SCHEMA.report({"cases": list(map(report.record_of, rows)), "nodes": simulated,
                                        "stalls": stalls, "choices": choices}),
                  functools.partial(_draw, stalls, rows), lambda path: write_json(path, dict(edited.log)))
    results.show_paths()
    missed = experiment.failures(rows) if seeds is None and epochs is None else []
    missed += [f"{row['name']} must have the golden bits on nodes" for row in simulated if not row["bit_exact"]]
    results.end(f"relay: {failure}" for failure in missed)


def _replay(path: Path, data: Dataset) -> None:
    """Run a log of edits again; exit code 1 where the run is another one."""
    log = read_log(path)
    run = experiment.replay_log(data, log)
    same = run.digest == log["digest"]
    show(f"{shown(path)}: {len(run.log)} edits, {len(run.reports)} sets, digest {run.digest[:16]}: "
         f"{'the same' if same else 'ANOTHER'} run")
    end(not same)


def _learned(data: Dataset, *, seeds: int | None, epochs: int | None, progress: Progress) -> list[Row]:
    """Rows of all cases, on golden nodes."""
    rows = []
    for case in experiment.CASES:
        count = case.seeds if seeds is None else seeds
        progress.stage(f"relay: {case.name}", count)
        runs = []
        for seed in range(count):
            runs.append(experiment.learn(case, data, seed, epochs=epochs))
            progress.advance(f"accuracy {runs[-1].accuracy:.2%}")
        rows.append(experiment.row_of(case, runs))
    return rows


def _learned_on_nodes(data: Dataset, rows: Sequence[Row], *, epochs: int | None,
                      progress: Progress) -> list[dict[str, Any]]:
    """The first seed of each case that has a bar, on simulated nodes."""
    simulated = []
    for case, row in zip(experiment.CASES, rows, strict=True):
        if case.bar:
            progress.stage(f"nodes: {case.name}", experiment.sets_of(case, data, epochs))
            run = experiment.learn_on_nodes(
                case, data, 0, epochs=epochs, on_set=lambda sets: progress.advance(f"loss {sets.mean_loss:.4f}"))
            simulated.append({"name": case.name, "sets": len(run.reports), "accuracy": run.accuracy,
                              "bit_exact": run.same and run.digest == row.log["digest"]})
    return simulated


def _draw(stalls: Sequence[dict[str, Any]], rows: Sequence[Row], path: Path) -> None:
    """Draw timelines of sets of 1 and of 3 microbatches, stalls, and accuracies."""
    costs = costs_of([Unit(1, 64, 64)], workers=experiment.WORKERS, microbatch=experiment.MICROBATCH,
                     macs=experiment.MACS)[0]
    report.draw({count: uniform(4, costs, count) for count in (1, 3)}, stalls, rows, path)
