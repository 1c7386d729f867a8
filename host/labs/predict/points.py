"""Data points that check predictions: collectives measured on simulated rings (``make predict-points``).

``points.csv`` contains three sets: one to fit the two constants of :mod:`host.cycles.timing`, and two that the fit
does not use, for rings of up to 16 nodes and for larger ones. :func:`compare` returns all errors.
"""

import csv
import dataclasses
import io
import itertools
import operator
import re
import statistics
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hdl.compression.registry import RAW
from hdl.config import Memories, NodeConfig, SingleRing, Weights
from hdl.ring.topology import MAX_NODES
from host.columns import Column, Table
from host.cycles.collective import collective_cycles, cycles_of_costs
from host.cycles.costs import CountedCosts, Format, Zeros
from host.cycles.estimate import Collective
from host.cycles.timing import timing_of
from host.driver.optimizer_settings import Rule, Settings
from host.driver.protocols import FlatRing
from host.output import write_bytes
from host.transports.session import open_session
from sim.bounded_files import read_bytes
from sim.verilated.native import Arithmetic

__all__ = ["FILE", "FORMATS", "SMALL", "WORST", "Compared", "Point", "compare", "config_of", "gradients", "load",
           "measure", "measure_all", "summary", "table"]

FILE = Path(__file__).with_name("points.csv")
#: Maximum size of points.csv in bytes.
_LARGEST = 1 << 24

#: Formats of gradients and weights to measure, as values for the fields of a :class:`Format`.
FORMATS: dict[str, dict[str, Any]] = {
    "dense": {}, "10%": {"density": 0.1}, "10%-apart": {"density": 0.1, "zeros": Zeros.APART},
    "mx9": {"gradients": "mx9", "weights": "mx9"},
}
#: Node for large rings: the smallest node with a floating-point optimizer, with one lane and no state planes.
SMALL = NodeConfig(lanes=1, topology=SingleRing(max_nodes=MAX_NODES), masking=False, sparsify=False,
                   memories=Memories(gradient=8192, weight=8192, state=32, planes=0))

#: Maximum vector length of a data point, in elements.
_LONGEST = 65536

#: Ring sizes, vector lengths and link latencies of the data points for the fit. The next lines are for validation.
_FITTED = ((2, 5), (64, 640), (4, 40))
_NODES = (2, 3, 5, 7, 9, 12, 16)
_SHORT, _LONG = (32, 333, 2500, 9000), (40_000, _LONGEST)
_LATENCIES = (1, 6, 30, 100, 512)
_KINDS = (Collective.FUSED_UPDATE, Collective.ALL_REDUCE)
#: Vector lengths of points on larger rings, and the link latencies used in rotation, keyed by ring size.
_LARGE = {64: ((2500, 8192), (100, 30, 1)), 255: ((8192,), (30, 6))}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Point:
    """A data point: a collective on a ring, with its cycles and words if they have been measured."""

    kind: Collective
    #: Name of the number format, a key of :data:`FORMATS`.
    form: str
    nodes: int
    length: int
    latency: int
    #: Number of cycles on the slowest node, and number of words sent by the busiest node.
    cycles: int = 0
    words: int = 0

    def row(self) -> list[Any]:
        """Return the data point as a row of points.csv."""
        return [self.kind.name, *dataclasses.astuple(self)[1:]]


def config_of(form: Format, nodes: int = SingleRing.max_nodes) -> NodeConfig:
    """Configure the nodes for data points of a format on a ring of ``nodes`` nodes; large rings have small nodes."""
    codecs = {"gradients": form.gradients, "weights": Weights(codec=form.weights)}
    if nodes > SingleRing.max_nodes:
        # With a weight codec, a node needs state memory for the master weights of its own block.
        return SMALL.replace(memories={"state": SMALL.memories.state if form.weights == RAW else 512}, **codecs)
    return NodeConfig(memories=Memories(gradient=_LONGEST, weight=_LONGEST, state=_LONGEST // 2), masking=False,
                      sparsify=False, **codecs)


def _fitted() -> list[Point]:
    """Return the data points for fitting the two constants; all have dense gradients."""
    return [Point(kind=kind, form="dense", nodes=nodes, length=length, latency=latency)
            for nodes, length, latency, kind in itertools.product(*_FITTED, _KINDS)]


def _chosen() -> list[Point]:
    """Return the validation points. Link latencies rotate: each short vector has two, and each long vector one."""
    points: list[Point] = []
    turn = itertools.count()
    for form, nodes, length in itertools.product(FORMATS, _NODES, (*_SHORT, *_LONG)):
        for _ in range(2 if length in _SHORT else 1):
            latency = _LATENCIES[next(turn) * 3 % len(_LATENCIES)]
            points += [Point(kind=kind, form=form, nodes=nodes, length=length, latency=latency) for kind in _KINDS]
    return points


def _large() -> list[Point]:
    """Return the validation points on larger rings. Each vector length has one of the link latencies, in rotation."""
    points: list[Point] = []
    for index, (form, (nodes, (lengths, latencies))) in enumerate(itertools.product(FORMATS, _LARGE.items())):
        for turn, length in enumerate(lengths):
            latency = latencies[(index // len(_LARGE) + turn) % len(latencies)]
            points += [Point(kind=kind, form=form, nodes=nodes, length=length, latency=latency) for kind in _KINDS]
    return points


def gradients(point: Point) -> npt.NDArray[np.float32]:
    """Generate random gradients with zeros at the positions that the format requires."""
    form = Format(**FORMATS[point.form])
    generator = np.random.default_rng(zlib.crc32(repr(point.row()[:-2]).encode()))
    shape = point.nodes, point.length
    values = generator.standard_normal(shape).astype(np.float32)
    drawn = generator.random(shape if form.zeros is Zeros.APART else point.length)
    return np.where(drawn < form.density, values, np.float32(0))


def _one(ring: FlatRing, point: Point) -> Point:
    ring.settings.write(Settings(rule=Rule.SGD, gradient_scale=1.0, learning_rate=0.1))
    ring.memory.write_gradients(list(gradients(point)))
    ring.counters.clear()
    cycles = getattr(ring.collectives, point.kind.name.lower())(point.length).cycles
    words = max(int(counters["WORDS_SENT"]) for counters in ring.counters.read())
    return dataclasses.replace(point, cycles=cycles, words=words)


def measure(points: Sequence[Point]) -> Iterator[Point]:
    """Measure data points on simulated rings. Points with the same ring and latency share a simulation."""
    def ring_of(point: Point) -> tuple[str, int, int]:
        return point.form, point.nodes, point.latency

    for (form, nodes, latency), group in itertools.groupby(sorted(points, key=ring_of), key=ring_of):
        config = config_of(Format(**FORMATS[form]), nodes)
        with open_session(config, nodes=nodes, latency=latency, arithmetic=Arithmetic.NATIVE,
                          host_port=False) as session:
            for point in group:
                yield _one(session.ring, point)


def load() -> dict[str, list[Point]]:
    """Read the data points from points.csv, keyed by the sets ``fitted``, ``chosen`` and ``large``.

    Raises
    ------
    ValueError
        If the file is damaged, or is not a file of points; the message names the file.
    OSError
        If the file cannot be read.
    """
    try:
        lines = read_bytes(FILE, largest=_LARGEST).decode("ascii").splitlines()
    except ValueError:
        lines = []
    heading, *rows = [line.split(",") for line in lines] or [[]]
    points: dict[str, list[Point]] = {name: [] for name in ("fitted", "chosen", "large")}
    names = [field.name for field in dataclasses.fields(Point)]
    if heading != ["set", *names]:
        raise ValueError(f"{FILE} must be a table of {', '.join(names)}, not damaged or another file")
    for line, row in enumerate(rows, start=2):
        values = dict(zip(["set", *names], row, strict=False))
        numbers = {name: value for name, value in values.items() if name not in ("set", "kind", "form")}
        if (len(row) != len(heading) or values["set"] not in points or values["kind"] not in Collective.__members__
                or values["form"] not in FORMATS
                or not all(re.fullmatch("[0-9]{1,15}", value) for value in numbers.values())):
            raise ValueError(f"{FILE} must have a point in line {line}, not damaged or another file")
        points[values["set"]].append(Point(kind=Collective[values["kind"]], form=values["form"],
                                           **{name: int(value) for name, value in numbers.items()}))
    return points


def write(points: Mapping[str, Sequence[Point]]) -> None:
    """Write data points to points.csv."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["set", *(field.name for field in dataclasses.fields(Point))])
    rows.writerows([name, *point.row()] for name, group in points.items() for point in group)
    write_bytes(FILE, text.getvalue().encode())


#: Maximum prediction error of a data point; points above it are listed.
WORST = 0.05


@dataclasses.dataclass(frozen=True)
class Compared:
    """A measured data point, with its predicted cycles and words."""

    point: Point
    cycles: int
    words: int

    @property
    def error(self) -> float:
        """Prediction error: predicted minus measured cycles, relative to the measured cycles."""
        return self.cycles / self.point.cycles - 1

    @property
    def line(self) -> str:
        """One-line description of the data point and its error."""
        point = self.point
        return (f"{point.kind.name.lower()}, {point.form}, N={point.nodes}, K={point.length:,}, links of "
                f"{point.latency}: {point.cycles:,} cycles, {self.cycles:,} predicted, {self.error:+.1%}")


def compare(points: Sequence[Point], *, counted: bool = False) -> list[Compared]:
    """Predict the cycles and words of measured data points.

    The number of zeros is estimated from the format's density or, if ``counted``, counted in the gradients.
    """
    compared = []
    for point in points:
        form = Format(**FORMATS[point.form])
        timing = timing_of(config_of(form, point.nodes))
        if counted and form.density < 1:
            costs = CountedCosts(form, gradients(point), segment=timing.segment,
                                 sums=point.kind is Collective.ALL_REDUCE)
            predicted = cycles_of_costs(point.kind, costs, timing, latency=point.latency)
        else:
            predicted = collective_cycles(point.kind, form, timing, length=point.length, nodes=point.nodes,
                                          latency=point.latency)
        compared.append(Compared(point, predicted.cycles, predicted.words))
    return compared


def table(rings: str, expected: Sequence[Compared], counted: Sequence[Compared]) -> Table:
    """Format the prediction errors as a table, both for the expected and for the actual number of zeros."""
    rows = [(*row, *more[2:]) for row, more in zip(summary(expected), summary(counted), strict=True)]
    titles = {"points": "", "number": ",", "mean error": ".2%", "worst": ".2%", "zeros counted: mean": ".2%",
              "zeros counted: worst": ".2%"}
    return Table(f"errors on rings of {rings}, none of which was fitted", [
        Column(title, format=form, of=operator.itemgetter(number))
        for number, (title, form) in enumerate(titles.items())], rows)


def _groups(compared: Sequence[Compared]) -> Iterator[tuple[str, list[Compared]]]:
    """Yield a group of all data points, followed by groups of points that share a property."""
    yield "all", list(compared)
    for title, of in (("", lambda point: f"{point.kind.name.lower()}, {point.form}"),
                      ("N=", lambda point: point.nodes), ("K=", lambda point: point.length),
                      ("links of ", lambda point: point.latency)):
        groups: dict[str | int, list[Compared]] = {}
        for entry in compared:
            groups.setdefault(of(entry.point), []).append(entry)
        for key in sorted(groups, key=lambda key: (isinstance(key, str), key)):
            yield f"{title}{key:,}" if isinstance(key, int) else key, groups[key]


def summary(compared: Sequence[Compared]) -> list[tuple[str, int, float, float]]:
    """Return for each group of data points: name, number of points, mean error and largest error."""
    return [(name, len(group), statistics.mean(abs(entry.error) for entry in group),
             max(abs(entry.error) for entry in group)) for name, group in _groups(compared)]


def measure_all() -> int:
    """Measure all data points, write them to points.csv, and return their number."""
    measured: dict[str, list[Point]] = {}
    for name, points in (("fitted", _fitted()), ("chosen", _chosen()), ("large", _large())):
        measured[name] = []
        for number, point in enumerate(measure(points), start=1):
            print(f"{name} {number} of {len(points)}: {point.row()}", file=sys.stderr)
            measured[name].append(point)
    write(measured)
    return sum(len(points) for points in measured.values())
