"""The lab `gradring lab estimate`."""

import functools
from pathlib import Path
from typing import Annotated

from host.labs.estimate import experiment, machine, report
from host.labs.estimate.program import NETWORKS, Case
from host.labs.kit import BUILD, Results, chosen_names
from host.options import Option, command

__all__ = ["estimate_lab"]


@command
def estimate_lab(
    *,
    targets: Annotated[str | None, Option("Targets, with semicolons between them.", shown_default="all")] = None,
    lengths: Annotated[str, Option("Parameters of the networks, with semicolons between them.")] = "256;1024;4832",
    examples: Annotated[int, Option("Examples of each node.", minimum=1, maximum=64)] = 8,
    ratios: Annotated[bool, Option("Estimate ratios of compute to link as well.")] = True,
    output: Annotated[Path, Option("Folder of estimate.json and estimate.png.", shown_default="build/estimate")] =
        BUILD / "estimate",
) -> None:
    """Estimate training steps on machines that are then built, by runs on one that is throttled."""
    execution = machine.EXECUTION
    chosen = chosen_names("Target", targets, [target.name for target in machine.TARGETS], ";")
    cases = [Case(length=int(length), overlapped=overlapped, examples=examples)
             for length in chosen_names("Length", lengths, [str(length) for length in NETWORKS], ";")
             for overlapped in (False, True)]
    machines = [target for target in machine.TARGETS if target.name in chosen]
    for target in machines:  # before anything is built
        experiment.rates_of(execution, target, cases)
    results = Results(output, "estimate.json", "estimate.png")
    parts: dict[str, list[experiment.Row]] = {kind: [] for kind in report.BARS}
    with results.progress() as progress, machine.opened(execution, announce=progress.stage) as opened:
        bench = experiment.Bench(opened)
        for target in machines:
            parts["targets"] += experiment.compare(bench, target, cases, announce=progress.stage)
        if ratios:
            parts["ratios"] += experiment.ratios(bench, cases, machine.RATIOS, announce=progress.stage)
    for kind, rows in parts.items():
        if rows:
            results.show(*report.tables(kind, rows), report.summary(kind, rows))
    if parts["ratios"]:
        results.show("compute of ratios: modelled by COMPUTE")
    results.write(report.describe(parts), functools.partial(report.draw, parts))
    results.show_paths()
