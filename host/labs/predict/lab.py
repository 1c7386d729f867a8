"""The lab `gradring lab predict`, which predicts training steps without simulation."""

import dataclasses
import functools
import time
from pathlib import Path
from typing import Annotated

from host.columns import show
from host.features.programs.chakra import CLOCK
from host.labs.kit import BUILD, Results
from host.labs.predict import points
from host.labs.predict.model import Step, describe, draw, format_of, model_of, predict, sizes, table
from host.options import COUNT, Option, Section, command, option
from host.output import prepare
from host.transports.session import LATENCY

__all__ = ["predict_lab"]


@dataclasses.dataclass(frozen=True)
class ComparedOptions(Section):
    """Options of the model to train and of the number formats."""

    model: str = option("digits", help="Model: digits, widths of layers such as 784,128,10, or a number of "
                                       "parameters such as 25M, for which only communication is predicted.")
    formats: str = option(
        "dense,10%,mx9", help="Comma-separated formats to compare: dense, densities such as 10% or 10%-apart, "
                              "codecs such as mx9, or codecs of weights and gradients such as mx9/zero_value.")

    def __post_init__(self) -> None:
        super().__post_init__()
        model_of(self.model)
        for name in self.names:
            format_of(name)

    @property
    def names(self) -> list[str]:
        """Names of the requested number formats."""
        return [name.strip() for name in self.formats.split(",")]


@dataclasses.dataclass(frozen=True)
class RingOptions(Section):
    """Options of the links and of the clock."""

    link_latency: int = option(LATENCY, help="Latency of a link in cycles.", minimum=1, maximum=COUNT)
    clock: float = option(CLOCK / 1e6, help="Clock frequency of the nodes in MHz.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.clock <= 10_000:
            raise ValueError(f"Clock must be above 0 and at most 10000 MHz, not {self.clock!r}")


@command
def predict_lab(
    *,
    nodes: Annotated[int, Option("Number of nodes in the largest ring; the picture also shows smaller rings.",
                                 minimum=2, maximum=100_000)] = 1000,
    ring: RingOptions, compared: ComparedOptions, step: Step,
    validate: Annotated[bool, Option("Compare predictions with measurements on simulated rings, and print errors.",
                                     ("--validate",))] = False,
    measure: Annotated[bool, Option("Repeat measurements on simulated rings (15 minutes).", ("--measure",))] = False,
    chakra: Annotated[Path | None, Option(
        "Prefix of the names of execution traces for ASTRA-sim, one file per format and node of the largest ring. "
        "Needs gradring[chakra].")] = None,
    output: Annotated[Path, Option("Folder for predict.json and predict.png.", shown_default="build/predict")] =
        BUILD / "predict",
) -> None:
    """Predict cycles and words of a training step on rings of any size."""
    from host.features.programs import chakra as traces

    if measure:
        begun = time.process_time()
        show(f"{points.measure_all()} points, {time.process_time() - begun:.0f} CPU seconds")
    if validate:
        _validate()
    if measure or validate:
        return
    if chakra is not None:
        traces.needed()
        prepare(chakra.parent)
    link_latency, clock = ring.link_latency, ring.clock * 1e6
    results = Results(output, "predict.json", "predict.png")
    model = model_of(compared.model)
    compute = f"{step.macs} multiply-adds per cycle" if model.widths and step.macs else "not predicted"
    note = (f"modelled; links of {link_latency:,} cycles, {ring.clock:g} MHz, schedule {step.schedule}, "
            f"{step.examples:,} examples per node, compute: {compute}")
    with results.progress() as progress:
        progress.stage("predict")
        predictions = [predict(model, form, step, nodes=count, latency=link_latency, clock=clock)
                       for form in compared.names for count in sizes(nodes)]
        progress.stage("picture")
        results.write(describe(
            predictions, model=model.name, parameters=model.parameters, link_latency=link_latency, clock=clock,
            examples=step.examples, macs=step.macs, schedule=str(step.schedule)), functools.partial(
                draw, predictions, note=note, title=f"a step of {model.name}: {model.parameters:,} parameters"))
    largest = [prediction for prediction in predictions if prediction.nodes == nodes]
    results.show(table(largest, f"a step of {model.name}, {model.parameters:,} parameters, on {nodes:,} nodes"), note)
    if chakra is not None:
        results.paths += [traces.write([prediction.commands] * nodes,
                                 chakra.with_name(f"{chakra.name}-{_file_name(prediction.form)}"),
                                 clock=clock, note=f"gradring lab predict: {note}") for prediction in largest]
    results.show_paths()


def _file_name(form: str) -> str:
    """Convert the name of a number format to a form for file names."""
    return form.replace("%", "pct").replace("/", "-")


def _validate() -> None:
    """Print the prediction errors of all measured points and list those above the limit."""
    measured = points.load()
    off = []
    for name, rings in (("chosen", "up to 16 nodes"), ("large", "more than 16 nodes")):
        expected, counted = (points.compare(measured[name], counted=counted) for counted in (False, True))
        show(points.table(rings, expected, counted))
        off += [f"off, {how}: {row.line}" for how, rows in (("zeros expected", expected), ("zeros counted", counted))
                for row in rows if abs(row.error) > points.WORST]
    _, number, mean, worst = points.summary(points.compare(measured["fitted"]))[0]
    show(f"fitted, two constants: {number} points, mean error {mean:.2%}, worst {worst:.2%}", *off)
