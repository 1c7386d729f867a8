"""Predict the duration of a training step. Collectives are predicted by simulating their packet sequences, products
by the array's cycle model, and the overlap of both by the golden timeline of the step's program.

Predictions are output as a table, as JSON, and as a plot of step time against ring size.
"""

import dataclasses
import functools
import pathlib
import re
from collections.abc import Sequence
from typing import Any

from hdl.choices import suggestion
from hdl.compression.registry import GRADIENT_CODECS, RAW, WEIGHT_CODECS, ZERO_VALUE
from hdl.config import NodeConfig, Weights
from host.columns import Column, Table, columns_of, record
from host.cycles.collective import CollectiveCycles, collective_cycles
from host.cycles.costs import Format, Zeros, check_gradients
from host.cycles.estimate import Collective, Costs
from host.cycles.timing import Timing, timing_of
from host.features.compute.instructions import Array, best_factors
from host.features.programs import chakra
from host.features.programs.program import CompiledProgram
from host.features.programs.schedules import Computed, Kind, Schedule, Work, build, modelled
from host.models.layer_shapes import Dense, layers_of
from host.options import Section, option
from host.reports.style import COLOURS, FAINT, INK, picture
from host.schema import Schema
from host.training.record import TrainingConfig
from sim.golden.features.compute.gemm import ONES, GemmJob
from sim.golden.features.compute.gemm_estimate import estimate
from sim.golden.features.compute.gemm_factors import training_step
from sim.golden.features.programs.program import Span, makespan, timeline

__all__ = ["SCHEMA", "Model", "Prediction", "Step", "describe", "draw", "format_of", "model_of", "predict",
           "sizes", "table"]

#: Sizes (rows, lanes) of multiply-add arrays, keyed by multiply-adds per cycle.
_ARRAYS = {4: (2, 2), 8: (2, 4), 16: (4, 4), 32: (4, 8)}
#: Widths of the digits classifier: inputs, default hidden layers, and classes.
_DIGITS = (64, *TrainingConfig.hidden, 10)
#: Kinds of collectives in execution traces. A fused update is an all-reduce with the optimizer between its phases.
_KINDS = {"FUSED_UPDATE": chakra.Kind.ALL_REDUCE, "REDUCE_SCATTER": chakra.Kind.REDUCE_SCATTER,
          "ALL_GATHER": chakra.Kind.ALL_GATHER}
_UNITS = {"": 1, "k": 10 ** 3, "M": 10 ** 6, "G": 10 ** 9}


@dataclasses.dataclass(frozen=True)
class Model:
    """Model to train: a perceptron, or only a parameter vector, for which no computation is predicted."""

    name: str
    #: Number of elements in the vector that the nodes reduce.
    parameters: int
    #: Widths: inputs of the first layer and outputs of all layers; empty for a vector.
    widths: tuple[int, ...] = ()

    @property
    def layers(self) -> list[Dense]:
        """Layers of the perceptron, in forward order."""
        return layers_of(self.widths) if self.widths else [Dense(1, self.parameters - 1, 1, 0)]


def model_of(text: str) -> Model:
    """Parse a model: ``digits``, layer widths (``784,128,10``), or a parameter count (``25M``)."""
    if text == "digits":
        widths = _DIGITS
    elif re.fullmatch(r"\d+(,\d+)+", text):
        widths = tuple(map(int, text.split(",")))
        if not all(widths):
            raise ValueError(f"Widths must be at least 1, not {text}")
    else:
        match = re.fullmatch(r"(\d+(?:\.\d+)?)([kMG]?)", text)
        count = round(float(match[1]) * _UNITS[match[2]]) if match else 0
        if not 2 <= count <= 10 ** 10:
            raise ValueError("Model must be digits, widths of layers as 784,128,10, or a number of parameters from 2 "
                             f"to 10G as 25M, not {text!r}")
        return Model(text, count)
    return Model(text, sum(layer.length for layer in layers_of(widths)), widths)


def format_of(text: str) -> Format:
    """Parse the format of a prediction.

    ``dense`` and ``10%`` mean zero-value gradients and raw weights; with ``10%-apart``, the zeros are at different
    positions on each node. The name of one codec applies to gradients and weights, while ``mx9/zero_value`` names one
    codec for weights and one for gradients.
    """
    if text == "dense":
        return Format()
    match = re.fullmatch(r"(\d+(?:\.\d+)?)%(-apart)?", text)
    if match:
        return Format(density=float(match[1]) / 100, zeros=Zeros.APART if match[2] else Zeros.TOGETHER)
    weights, slash, gradients = text.partition("/")
    gradients = gradients if slash else weights
    if gradients in GRADIENT_CODECS:
        check_gradients(gradients)
    if gradients not in GRADIENT_CODECS or weights not in WEIGHT_CODECS:
        codecs = [name for name in GRADIENT_CODECS if name in WEIGHT_CODECS]
        raise ValueError(f"Format must be dense, a density as 10% or 10%-apart, one of {', '.join(codecs)}, or "
                         f"weights and gradients as {RAW}/{ZERO_VALUE}, not {text!r}"
                         f"{suggestion(['dense', *codecs], text)}")
    return Format(gradients=gradients, weights=weights)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prediction:
    """Prediction of a training step."""

    form: str
    #: Ring size, cycles of the whole step, cycles of its computation and of its communication, and words sent by the
    #: busiest node.
    nodes: int
    cycles: int
    compute: int
    communicate: int
    words: int

    seconds: float
    #: Timeline of one of the nodes.
    spans: list[Span] = dataclasses.field(repr=False)
    #: Commands in the timeline, as they appear in an execution trace.
    commands: list[chakra.Command] = dataclasses.field(repr=False)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Predicted(Costs):
    """Command durations predicted by the model. The cycles of each collective are also added to ``walks``."""

    form: Format
    timing: Timing
    latency: int
    walks: list[CollectiveCycles] = dataclasses.field(default_factory=list)

    def collective(self, kind: Collective, length: int, *, nodes: int) -> int:
        if nodes == 1:  # one node updates all blocks, without any transfer
            return self.timing.alone(length=length)
        walk = collective_cycles(kind, self.form, self.timing, length=length, nodes=nodes, latency=self.latency)
        self.walks.append(walk)
        return walk.cycles


def _product(array: Array, job: GemmJob) -> int:
    """Estimate the cycles of a matrix product with the fastest tiling factors."""
    factors = best_factors(array, (job.m, job.k, job.n), transpose_a=bool(job.transpose_a),
                           transpose_b=bool(job.transpose_b), ones=job.a.place == ONES, starts=bool(job.initial),
                           gated=bool(job.gated))
    fields: dict[str, Any] = dict(factors)
    return estimate(array.model, dataclasses.replace(job, **fields))


@functools.cache
def _computed(widths: tuple[int, ...], share: int, macs: int) -> dict[str, int]:
    """Return the cycles of each layer's forward and backward commands for one node's examples."""
    rows, lanes = _ARRAYS[macs]
    array = Array(rows=rows, lanes=lanes)
    cycles: dict[str, int] = {}
    for name, job in training_step(share, widths, lanes).items():
        part, number = name.split()
        command = f"{'forward' if part == 'forward' else 'backward'} {int(number) + 1}"
        cycles[command] = cycles.get(command, 0) + _product(array, job)
    return cycles


def _commands(model: Model, *, examples: int, macs: int) -> list[Work]:
    """Create the compute commands of a training step."""
    layers = model.layers
    staged = sum(layer.length for layer in layers)
    computed = _computed(model.widths, examples, macs) if model.widths and macs else {}
    return [dataclasses.replace(work, duration=computed.get(work.name, 0))
            for work in modelled(layers, staged=staged)]


@dataclasses.dataclass(frozen=True)
class Step(Section):
    """Options of a training step on the nodes. The schedule must be ``none`` for a model without layers."""

    examples: int = option(32, help="Number of examples per node in a step.", minimum=1, maximum=4095)
    macs: int = option(
        16, help="Multiply-adds per cycle of a node's array: 4, 8, 16 or 32, or 0 for communication only.")
    overlap: str = option("none", help="Schedule: none, strict, layers or chunks:n.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.macs and self.macs not in _ARRAYS:
            raise ValueError(f"Multiply-adds per cycle must be 0, {', '.join(map(str, _ARRAYS))}, not {self.macs!r}")
        if self.schedule.kind not in (Kind.NONE, Kind.STRICT, Kind.LAYERS, Kind.CHUNKS):
            raise ValueError(f"Schedule that is predicted must be none, strict, layers or chunks:n, not "
                             f"{self.schedule}")

    @property
    def schedule(self) -> Schedule:
        """The schedule of the training step."""
        return Schedule.parse(self.overlap)


def predict(model: Model, form: str, step: Step, *, nodes: int, latency: int, clock: float,
            node: NodeConfig | None = None) -> Prediction:
    """Predict a training step on two or more nodes, with a format that :func:`format_of` returned.

    ``latency`` is the link latency in cycles, and ``clock`` is in cycles per second. ``node`` is the configuration of
    the nodes except their codecs, by default :class:`~hdl.config.NodeConfig`.
    """
    if not model.widths and step.schedule.kind is not Kind.NONE:
        raise ValueError(f"Schedule of a model without layers must be none, not {step.schedule}")
    chosen = format_of(form)
    config = (NodeConfig() if node is None else node).replace(
        gradients=chosen.gradients, weights=Weights(codec=chosen.weights))
    costs = _Predicted(examples=step.examples, form=chosen, timing=timing_of(config), latency=latency)
    commands = _commands(model, examples=step.examples, macs=step.macs)
    layers = model.layers
    depth = len(commands) + len(layers) + 3
    compiled = build(step.schedule, layers, nodes=nodes, costs=costs, computed=Computed(commands), depth=depth)
    spans = [span for span in timeline(compiled.timed()) if span.end > span.start]
    cycles = makespan(spans)
    times = [sum(span.end - span.start for span in spans if span.queue == queue) for queue in (0, 1)]
    return Prediction(form=form, nodes=nodes, cycles=cycles, compute=times[0], communicate=times[1],
                      words=sum(walk.words for walk in costs.walks), seconds=cycles / clock, spans=spans,
                      commands=_trace(compiled, spans, costs.walks, nodes))


def _trace(compiled: CompiledProgram, spans: Sequence[Span], walks: Sequence[CollectiveCycles],
           nodes: int) -> list[chakra.Command]:
    """Convert a step to the commands of an execution trace, with their dependencies."""
    words = iter(walks)
    sizes: dict[str, tuple[chakra.Kind, int, int]] = {}
    for task in compiled.tasks:  # ``walks`` was filled in this order
        if task.collective:
            walked = next(words)
            kind = _KINDS[task.operation]
            hops = (nodes - 1) * (2 if kind is chakra.Kind.ALL_REDUCE else 1)
            elements = task.fields["length"]
            assert isinstance(elements, int)
            sizes[task.name] = kind, elements, round(4 * walked.words * nodes / hops)
        else:
            sizes[task.name] = chakra.Kind.COMPUTE, 0, 0
    times = {(span.queue, span.place): span for span in spans}
    commands = []
    for number, queue in enumerate(compiled.queues):
        before: tuple[str, ...] = ()
        rest = [other for other in range(len(compiled.queues)) if other != number]
        for position, instruction in enumerate(queue):
            span = times.get((number, position))
            if span is None:  # commands that take no time are left out
                continue
            waits = [compiled.queues[other][wait.after - 1].task.name
                     for other, wait in zip(rest, instruction.waits, strict=True)
                     if wait.after and not wait.lag and (other, wait.after - 1) in times]
            kind, elements, size = sizes[span.name]
            commands.append(chakra.Command(name=span.name, kind=kind, start=span.start, end=span.end,
                                           after=(*before, *waits), elements=elements, size=size))
            before = (span.name,)
    return sorted(commands, key=lambda command: (command.start, command.end))


def sizes(nodes: int) -> list[int]:
    """Return the ring sizes to plot: powers of two, and the largest ring."""
    counts = [1 << bit for bit in range(1, nodes.bit_length()) if 1 << bit < nodes]
    return [*counts, nodes]


_COLORS = (COLOURS[0], COLOURS[5], COLOURS[4], COLOURS[6], COLOURS[3], FAINT, INK)
_MARKERS = "os^Dv<>"


def _seconds(seconds: float) -> str:
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if seconds * factor >= 1 or unit == "us":
            return f"{seconds * factor:,.3g} {unit}" if seconds * factor < 1000 else f"{seconds * factor:,.0f} {unit}"
    return ""


_FORMAT, _NODES, _CYCLES, _SECONDS, _COMPUTE, _COMMUNICATE, _WORDS = (
    Column("format", of=lambda row: row.form), Column("nodes"),
    Column("cycles", ","),
    Column("seconds", _seconds, "step"),
    Column("compute_cycles", ",", "compute", of=lambda row: row.compute),
    Column("communicate_cycles", ",", "communicate",
           of=lambda row: row.communicate),
    Column("words", ","))
_ROW = (_FORMAT, _NODES, _CYCLES, _SECONDS, _COMPUTE, _COMMUNICATE, _WORDS)

#: Schema of the report of predictions.
SCHEMA = Schema("gradring.predict", 2, columns_of(
    "modelled model link_latency examples macs schedule clock parameters", Column("rows", columns=_ROW)))


def describe(predictions: Sequence[Prediction], **asked: Any) -> dict[str, Any]:
    """Build the content of predict.json: the requested options, and a row for each format and ring size."""
    return SCHEMA.report({"modelled": True, **asked, "rows": [
        record(_ROW, prediction) for prediction in predictions]})


def table(predictions: Sequence[Prediction], title: str) -> Table:
    """Format the predictions for one ring size as a table, with one row per number format."""
    return Table(f"{title}: modelled", (
        _FORMAT, _SECONDS, _CYCLES, _COMPUTE, _COMMUNICATE, _WORDS,
        Column("link", format=".0%", of=lambda row: row.words / row.communicate if row.communicate else 0.0)),
        predictions)


def draw(predictions: Sequence[Prediction], path: pathlib.Path, *, title: str, note: str) -> None:
    """Plot step time against ring size, with one line per number format."""
    with picture(path, size=(8.4, 5.2), title=title, note=note) as (axes,):
        for number, form in enumerate(dict.fromkeys(row.form for row in predictions)):
            chosen = [row for row in predictions if row.form == form]
            axes.plot([row.nodes for row in chosen], [row.seconds for row in chosen], label=form, markersize=4,
                      color=_COLORS[number % len(_COLORS)], marker=_MARKERS[number % len(_MARKERS)])
        axes.set_xscale("log", base=2)
        axes.set_ylim(0, 1.05 * max(row.seconds for row in predictions))
        counts = sorted({row.nodes for row in predictions})
        axes.set_xticks(counts, [f"{count:,}" for count in counts])
        axes.minorticks_off()
        axes.set(xlabel="nodes", ylabel="time of a step")
        axes.yaxis.set_major_formatter(lambda value, _: _seconds(value))
        axes.legend()
