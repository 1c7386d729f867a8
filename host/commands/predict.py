"""The command `gradring predict`."""

from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from host.commands.console import Link, Progress, make_console, shown
from host.options import COUNT, check_range, command
from host.output import claim, prepare, write_json
from host.reports.chakra import CLOCK
from host.transports.session import LATENCY
from sim.verilated import toolchain

__all__ = ["predict_command"]

#: Formats that are compared, and cycles per second, unless others are asked for.
_FORMATS = "dense,10%,mx9"
_CLOCK = CLOCK / 1e6


@command
def predict_command(
    nodes: Annotated[int, typer.Option(help="Nodes of the largest ring; the picture has smaller ones too.")] = 1000,
    link_latency: Link = LATENCY,
    model: Annotated[str, typer.Option(
        help="digits, widths of layers as 784,128,10, or a number of parameters, whose computation is not predicted, "
             "as 25M.")] = "digits",
    formats: Annotated[str, typer.Option(
        help="Formats to compare, with commas between them: dense, densities as 10% or 10%-apart, codecs as mx9, or "
             "those of weights and of gradients as mx9/zero_value.")] = _FORMATS,
    examples: Annotated[int, typer.Option(help="Examples of each node in a step.")] = 32,
    macs: Annotated[int, typer.Option(
        help="Multiply-adds per cycle of a node's array: 4, 8, 16 or 32, or 0 to communicate alone.")] = 16,
    overlap: Annotated[str, typer.Option(help="Schedule: none, strict, layers or chunks:n.")] = "none",
    clock: Annotated[float, typer.Option(help="Cycles of the nodes per second, in MHz.")] = _CLOCK,
    validate: Annotated[bool, typer.Option(
        "--validate", help="Predict what was measured on simulated rings, and print the errors.")] = False,
    chakra: Annotated[Path | None, typer.Option(
        help="Beginning of the names of execution traces for ASTRA-sim, a file per format and node of the largest "
             "ring. Needs gradring[chakra].", show_default=False)] = None,
    output: Annotated[Path, typer.Option(help="Folder of predict.json and predict.png. [default: build/predict]",
                                          show_default=False)] = toolchain.BUILD / "predict",
) -> None:
    """Predict cycles and words of a training step on rings that nobody simulates."""
    from host.predict import model as predicted
    from host.predict import report
    from host.program.schedules import Schedule
    from host.reports import chakra as traces

    console = make_console()
    if validate:
        _validate(console)
        return
    if chakra is not None:
        traces.needed()
    check_range("Nodes", nodes, 2, 100_000)
    check_range("Link latency", link_latency, 1, COUNT)
    check_range("Examples", examples, 1, 4095)
    predicted.check_macs(macs)
    if not 0 < clock <= 10_000:
        raise ValueError(f"Clock must be above 0 and at most 10000 MHz, not {clock!r}")
    chosen, schedule = predicted.model_of(model), Schedule.parse(overlap)
    forms = [name.strip() for name in formats.split(",")]
    for name in forms:
        predicted.format_of(name)
    if chakra is not None:
        prepare(chakra.parent)
    claim(output, files=("predict.json", "predict.png"))
    with Progress(console) as progress:
        progress.stage("predict")
        found = [predicted.predict(chosen, form, nodes=count, latency=link_latency, clock=clock * 1e6,
                                   examples=examples, macs=macs, schedule=schedule)
                 for form in forms for count in predicted.sizes(nodes)]
        progress.stage("picture")
        compute = f"{macs} multiply-adds per cycle" if chosen.widths and macs else "not predicted"
        note = (f"modelled; links of {link_latency:,} cycles, {clock:g} MHz, schedule {schedule}, {examples:,} "
                f"examples per node, compute: {compute}")
        write_json(output / "predict.json", report.describe(
            found, model=model, parameters=chosen.parameters, link_latency=link_latency, clock=clock * 1e6,
            examples=examples, macs=macs, schedule=str(schedule)))
        report.draw(found, output / "predict.png", note=note,
                        title=f"a step of {model}: {chosen.parameters:,} parameters")
    console.print(report.table([one for one in found if one.nodes == nodes],
                                   f"a step of {model}, {chosen.parameters:,} parameters, on {nodes:,} nodes"))
    console.print(note, soft_wrap=True)
    written = [output / "predict.json", output / "predict.png"]
    if chakra is not None:
        written += [traces.write([one.commands] * nodes, chakra.with_name(f"{chakra.name}-{_file_name(one.form)}"),
                                 clock=clock * 1e6, note=f"gradring predict: {note}")
                    for one in found if one.nodes == nodes]
    console.print(" · ".join(map(shown, written)), soft_wrap=True)


def _file_name(form: str) -> str:
    """Name of a format, as a part of a file's."""
    return form.replace("%", "pct").replace("/", "-")


def _validate(console: Console) -> None:
    """Print the errors of all points that were measured, and each that is larger than it may be."""
    from host.predict import points, validation

    measured = points.load()
    off = []
    for name, rings in (("chosen", "up to 16 nodes"), ("large", "more than 16 nodes")):
        expected, counted = (validation.compare(measured[name], counted=counted) for counted in (False, True))
        table = Table(title=f"errors on rings of {rings}, none of which was fitted", title_justify="left",
                      border_style="dim", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
        table.add_column("points")
        for heading in ("number", "mean error", "worst", "zeros counted: mean", "worst"):
            table.add_column(heading, justify="right")
        for (group, number, *errors), (_, _, *others) in zip(
                validation.summary(expected), validation.summary(counted), strict=True):
            table.add_row(group, f"{number:,}", *(f"{error:.2%}" for error in (*errors, *others)))
        console.print(table)
        off += [f"off, {how}: {one.line}" for how, found in (("zeros expected", expected), ("zeros counted", counted))
                for one in found if abs(one.error) > validation.WORST]
    _, number, mean, worst = validation.summary(validation.compare(measured["fitted"]))[0]
    console.print(f"fitted, two constants: {number} points, mean error {mean:.2%}, worst {worst:.2%}", soft_wrap=True)
    for line in off:
        console.print(line, soft_wrap=True)
