"""The command `gradring predict`."""

import dataclasses
from pathlib import Path
from typing import Annotated

from rich.console import Console

from host.console import Link, Progress, make_console, shown
from host.options import COUNT, Option, Section, check_range, command, option
from host.output import claim, prepare
from host.predict.model import Step, describe, draw, format_of, model_of, predict, sizes, table
from host.reports.chakra import CLOCK
from host.schema import write_report
from host.transports.session import LATENCY
from sim.verilated import toolchain

__all__ = ["predict_command"]


@dataclasses.dataclass(frozen=True)
class ComparedOptions(Section):
    """Model and formats."""

    model: str = option("digits", help="digits, widths of layers as 784,128,10, or a number of parameters, whose "
                                       "computation is not predicted, as 25M.")
    formats: str = option(
        "dense,10%,mx9", help="Formats to compare, with commas between them: dense, densities as 10% or 10%-apart, "
                              "codecs as mx9, or those of weights and of gradients as mx9/zero_value.")

    def __post_init__(self) -> None:
        super().__post_init__()
        model_of(self.model)
        for name in self.names:
            format_of(name)

    @property
    def names(self) -> list[str]:
        """Formats."""
        return [name.strip() for name in self.formats.split(",")]


@command
def predict_command(
    *,
    nodes: Annotated[int, Option("Nodes of the largest ring; the picture has smaller ones too.", minimum=2,
                                 maximum=100_000)] = 1000,
    link_latency: Link = LATENCY, compared: ComparedOptions, step: Step,
    clock: Annotated[float, Option("Cycles of the nodes per second, in MHz.")] = CLOCK / 1e6,
    validate: Annotated[bool, Option("Predict what was measured on simulated rings, and print the errors.",
                                     ("--validate",))] = False,
    chakra: Annotated[Path | None, Option(
        "Beginning of the names of execution traces for ASTRA-sim, a file per format and node of the largest ring. "
        "Needs gradring[chakra].")] = None,
    output: Annotated[Path, Option("Folder of predict.json and predict.png.", shown_default="build/predict")] =
        toolchain.BUILD / "predict",
) -> None:
    """Predict cycles and words of a training step on rings that nobody simulates."""
    from host.reports import chakra as traces

    console = make_console()
    if validate:
        _validate(console)
        return
    if chakra is not None:
        traces.needed()
    check_range("Link latency", link_latency, 1, COUNT)
    if not 0 < clock <= 10_000:
        raise ValueError(f"Clock must be above 0 and at most 10000 MHz, not {clock!r}")
    if chakra is not None:
        prepare(chakra.parent)
    written = [output / "predict.json", output / "predict.png"]
    claim(output, files=[path.name for path in written])
    model = model_of(compared.model)
    compute = f"{step.macs} multiply-adds per cycle" if model.widths and step.macs else "not predicted"
    note = (f"modelled; links of {link_latency:,} cycles, {clock:g} MHz, schedule {step.schedule}, {step.examples:,} "
            f"examples per node, compute: {compute}")
    with Progress(console) as progress:
        progress.stage("predict")
        predictions = [predict(model, form, step, nodes=count, latency=link_latency, clock=clock * 1e6)
                       for form in compared.names for count in sizes(nodes)]
        progress.stage("picture")
        write_report(describe(
            predictions, model=model.name, parameters=model.parameters, link_latency=link_latency, clock=clock * 1e6,
            examples=step.examples, macs=step.macs, schedule=str(step.schedule)), output, "predict.json")
        draw(predictions, written[1], note=note, title=f"a step of {model.name}: {model.parameters:,} parameters")
    largest = [prediction for prediction in predictions if prediction.nodes == nodes]
    console.print(table(
        largest, f"a step of {model.name}, {model.parameters:,} parameters, on {nodes:,} nodes"))
    console.print(note, soft_wrap=True)
    if chakra is not None:
        written += [traces.write([prediction.commands] * nodes,
                                 chakra.with_name(f"{chakra.name}-{_file_name(prediction.form)}"),
                                 clock=clock * 1e6, note=f"gradring predict: {note}") for prediction in largest]
    console.print(" · ".join(map(shown, written)), soft_wrap=True)


def _file_name(form: str) -> str:
    """Name of a format, as a part of a file's."""
    return form.replace("%", "pct").replace("/", "-")


def _validate(console: Console) -> None:
    """Print the errors of all points that were measured, and each that is larger than it may be."""
    from host.predict import points

    measured = points.load()
    off = []
    for name, rings in (("chosen", "up to 16 nodes"), ("large", "more than 16 nodes")):
        expected, counted = (points.compare(measured[name], counted=counted) for counted in (False, True))
        console.print(points.table(rings, expected, counted))
        off += [f"off, {how}: {one.line}" for how, found in (("zeros expected", expected), ("zeros counted", counted))
                for one in found if abs(one.error) > points.WORST]
    _, number, mean, worst = points.summary(points.compare(measured["fitted"]))[0]
    console.print(f"fitted, two constants: {number} points, mean error {mean:.2%}, worst {worst:.2%}", soft_wrap=True)
    for line in off:
        console.print(line, soft_wrap=True)
