"""The command `gradring estimate`."""

from pathlib import Path
from typing import Annotated

import typer

from hdl.choices import choice_error
from host.console import Progress, make_console, shown
from host.options import check_range
from host.output import claim
from host.schema import write_report
from sim.verilated import toolchain

__all__ = ["estimate_command"]


def _chosen(kind: str, given: str | None, possible: list[str]) -> list[str]:
    """Names that a list with commas has, all of them by default."""
    names = possible if given is None else [name.strip() for name in given.split(";")]
    unknown = [name for name in names if name not in possible]
    if unknown:
        raise ValueError(choice_error(kind, possible, unknown[0], separator="; "))
    return names


def estimate_command(
    targets: Annotated[str | None, typer.Option(
        help="Targets, with semicolons between them. [default: all]", show_default=False)] = None,
    lengths: Annotated[str, typer.Option(help="Parameters of the networks, with semicolons between them.")] =
        "256;1024;4832",
    examples: Annotated[int, typer.Option(help="Examples of each node.")] = 8,
    ratios: Annotated[bool, typer.Option(help="Estimate ratios of compute to link as well.")] = True,
    output: Annotated[Path, typer.Option(help="Folder of estimate.json and estimate.png. [default: build/estimate]",
                                          show_default=False)] = toolchain.BUILD / "estimate",
) -> None:
    """Estimate training steps on machines that are then built, by runs on one that is throttled."""
    from host.estimate import experiment
    from host.estimate.machine import EXECUTION, RATIOS, TARGETS, opened
    from host.estimate.program import NETWORKS, Case
    from host.reports import estimate as report

    names = _chosen("Target", targets, [target.name for target in TARGETS])
    chosen = [int(length) for length in _chosen("Length", lengths, [str(length) for length in NETWORKS])]
    check_range("Examples", examples, 1, 64)
    cases = [Case(length=length, overlapped=overlapped, examples=examples)
             for length in chosen for overlapped in (False, True)]
    machines = [target for target in TARGETS if target.name in names]
    for target in machines:  # before anything is built
        experiment.rates_of(EXECUTION, target, cases)
    claim(output, files=("estimate.json", "estimate.png"))
    console = make_console()
    parts: dict[str, list[experiment.Row]] = {kind: [] for kind in report.BARS}
    with Progress(console) as progress, opened(EXECUTION, announce=progress.stage) as machine:
        bench = experiment.Bench(machine)
        for target in machines:
            parts["targets"] += experiment.compare(bench, target, cases, announce=progress.stage)
        if ratios:
            parts["ratios"] += experiment.ratios(bench, cases, RATIOS, announce=progress.stage)
    for kind, rows in parts.items():
        if rows:
            console.print(*report.tables(kind, rows))
            console.print(report.summary(kind, rows), soft_wrap=True)
    if parts["ratios"]:
        console.print("compute of ratios: modelled by COMPUTE", soft_wrap=True)
    written, picture = write_report(report.describe(parts), output, "estimate.json"), output / "estimate.png"
    report.draw(parts, picture)
    console.print(" · ".join(map(shown, (written, picture))), soft_wrap=True)
