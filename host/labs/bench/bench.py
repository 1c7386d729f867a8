"""Measured cycles compared with their bounds, for the ring and for every unit that has a benchmark.

A row is ``{"name", "config", "measured", "bound", "ratio", "unit"}``, where a lower value is better. Rows in cycles
must not exceed their :func:`limit`. The other rows are only shown:

- rows in seconds or nanoseconds, since they depend on the machine;
- the scatter-reduce phase of a plain all-reduce: its last sum is read and added during the phase, but the cycles are
  attributed to the first step of the all-gather, which sends the sum;
- a reduce-scatter of sparse gradients, since its bound does not include the last sums;
- with a gradient codec, scatter-reduce phases, plain all-reduces and reduce-scatters: headers are significant in
  short packets, and the bound does not include the last sum of each block, which is not sent;
- the effective bandwidth of an all-reduce, compared with its target.

An update in two dimensions is compared with the flat ring of its nodes, and with the sum of its commands run one by
one (:mod:`host.labs.bench.grid_speed`).

Weights are raw, and gradients are compressed by zero value, unless a row states otherwise.
"""

import importlib
import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from hdl.compression.registry import RAW, ZERO_VALUE
from hdl.config import NodeConfig, Weights
from hdl.features.quantization.arithmetic import Variant
from hdl.features.quantization.engine import peak_cycles
from hdl.features.quantization.feature import Quantization
from host.columns import Column, Table, columns_of
from host.driver.masking import Mask, MaskJob
from host.driver.optimizer_settings import Rule, Settings
from host.driver.results import known
from host.driver.ring import Ring
from host.features.codebook.codebooks import codebook
from host.jobs import speed
from host.labs.bench import grid_speed
from host.pytorch import speed as pytorch_speed
from host.schema import Schema
from host.training import golden_speed
from host.training.optimizers import Adam
from host.training.reference import Reference
from host.transports.session import open_session
from sim.golden import ring as golden
from sim.golden.codecs import GRADIENT_CODECS
from sim.golden.features.quantization.quantization import Layer
from sim.golden.ring import largest_block

__all__ = ["CODECS", "LENGTH", "NODES", "SCHEMA", "bandwidth_rows", "collect", "exceeds_limit", "infer_rows", "limit",
           "node_rows", "ring_rows", "table", "update_bound"]

Row = dict[str, Any]

#: Schema of the benchmark's report.
SCHEMA = Schema("gradring.bench", 2, (Column("rows", columns=columns_of("name config measured bound ratio unit")),))

NODES = (2, 4, 8)
LENGTH = 16384
SPARSE = 0.1
SIZE = 64
SAMPLES = 16

#: Pairs of a weight codec and a gradient codec. Rings are measured with each pair, and without codecs.
CODECS = (("mx9", ZERO_VALUE), ("table32", ZERO_VALUE), (RAW, "mx9"), ("mx9", "mx9"), (RAW, "sum32"), (RAW, "sum16"))

#: Maximum ratios of a row's cycles to its bound: for collectives with dense or sparse gradients, for fused updates
#: with codecs, and for hardware units, including their latency.
_LIMITS = {"dense": 1.05, "sparse": 1.10}
_CODEC_LIMIT = 1.25
_UNIT_LIMIT = 1.05

#: Kind of gradients: sparse, with nonzeros at different positions on each node, so that each hop makes sums denser.
_APART = "sparse apart"

#: Minimum effective bandwidth of an all-reduce, relative to the link bandwidth, keyed by codec and kind of gradients.
_BANDWIDTH = {(ZERO_VALUE, "dense"): 0.95, (ZERO_VALUE, "sparse"): 5.0, (ZERO_VALUE, _APART): 1.0,
              ("mx9", "dense"): 3.35, ("sum32", "dense"): 0.9, ("sum16", "dense"): 1.7}


def _row(name: str, config: str, measured: int, bound: int) -> Row:
    return {"name": name, "config": config, "measured": measured, "bound": bound, "ratio": measured / bound,
            "unit": "cycles"}


def bandwidth_rows(measured: list[Row], *, nodes: int, codec: str, length: int = LENGTH) -> list[Row]:
    """Return a row for each all-reduce: its cycles divided by the 2 (N - 1) / N · K words that a link transfers with
    raw gradients. The quotient is the inverse of the effective bandwidth relative to the link bandwidth."""
    words = 2 * (nodes - 1) * length / nodes
    rows = []
    for row in measured:
        if row["name"] != "ring.all_reduce":
            continue
        bar = _BANDWIDTH[codec, next(kind for kind in (_APART, "sparse", "dense") if kind in row["config"])]
        cycles = row["measured"]
        rows.append({"name": "ring.all_reduce.bandwidth", "measured": cycles / words, "bound": 1 / bar,
                     "config": f"{row['config']}, {words / cycles:.2f} x the link's", "ratio": bar * cycles / words,
                     "unit": "cycles/word"})
    return rows


def limit(row: Row) -> float:
    """Return the maximum ratio of a row's measured value to its bound, or infinity if it has no limit."""
    name, config = row["name"], row["config"]
    if row["unit"] != "cycles":
        return math.inf
    if name in (grid_speed.UPDATE, grid_speed.COMMANDS):
        return grid_speed.limit(row)
    if not name.startswith("ring."):
        return _UNIT_LIMIT
    if name == "ring.all_reduce.scatter_reduce" or (name == "ring.reduce_scatter" and "dense" not in config):
        return math.inf
    if "weights" in config or "gradients" in config:
        return _CODEC_LIMIT if name == "ring.fused_update" else math.inf
    return math.inf if _APART in config else _LIMITS["dense" if "dense" in config else "sparse"]


def exceeds_limit(row: Row) -> bool:
    """Return whether a row of the benchmark exceeds its limit."""
    return bool(row["ratio"] > limit(row))


def gradients(nodes: int, density: float, length: int = LENGTH, *, apart: bool = False) -> np.ndarray:
    """Generate random gradients; zeros are at the same positions on all nodes unless ``apart`` is set."""
    generator = np.random.default_rng(nodes)
    values = generator.standard_normal((nodes, length)).astype(np.float32)
    for ranks in np.arange(nodes)[:, np.newaxis] if apart else [slice(None)]:
        values[ranks, generator.permutation(length)[round(density * length):]] = 0
    return values


def update_bound(ring: Ring, traffic: golden.Traffic, length: int) -> int:
    """Return the minimum cycles of a fused update: the larger of the bounds of the links and of the optimizer.

    - Links, :class:`~sim.golden.ring.Traffic`: the sum, over the packets that the busiest rank sends, of the largest
      of a packet's words, elements / lanes and, with zero-value gradients, positions at the adder. For K elements
      that N divides into whole segments of S this is

          (N - 1) / N · K / S · (max(G, S / lanes) + max(W, S / lanes))

      with G words of a segment's gradients (33/32 · S if dense, in zero-value form), and W words of its weights (S if
      raw): see the codecs of :mod:`hdl.compression.registry`. The words of a table depend on the weights. The bound
      does not include reading a codebook, or the latency of encoders and decoders.
    - The optimizer: number of elements in the largest block, ceil(K / N) rounded up to groups of 32, times
      ``optimizer.interval``, divided by ``optimizer.lanes``.
    """
    config = ring.devices[0].config
    owned = largest_block(length, ring.nodes)
    return max(traffic.bound, int(-(-owned * config.optimizer.interval // config.optimizer.lanes)))


def ring_rows(ring: Ring, *, length: int = LENGTH) -> list[Row]:
    """Measure plain and fused all-reduces of dense and of sparse gradients, the scatter-reduce phase of each, a
    reduce-scatter, and a plain all-reduce of gradients with different nonzero positions on each node.

    The fused update uses SGD and, for dense gradients, also Adam, which moves the most state. With codecs, gradients
    are dense, and a plain all-reduce is omitted if gradients have no codec.
    """
    rows = []
    codecs = ring.formats.weight_codec, ring.formats.gradient_codec
    formats = "" if codecs == (RAW, ZERO_VALUE) else f", weights {codecs[0]}, gradients {codecs[1]}"
    weights = np.random.default_rng(0).standard_normal(length).astype(np.float32) / 10
    centroids = codebook(codecs[0], weights) if ring.formats.has_codebook else None
    if centroids is not None:
        ring.memory.write_codebook(centroids)
    sgd = Settings(rule=Rule.SGD, gradient_scale=1.0, learning_rate=0.1)
    for kind, density in (("dense", 1.0), ("sparse", SPARSE), (_APART, SPARSE))[:1 if formats else 3]:
        values = gradients(ring.nodes, density, length, apart=kind == _APART)
        update = Reference(ring, weights, 0, centroids).step(list(values), sgd)
        collectives = {"fused_update": (update, update_bound(ring, update, length))}
        if not formats or codecs[1] != ZERO_VALUE:
            sums = {}
            for name, add in (("reduce_scatter", golden.reduce_scatter), ("all_reduce", golden.all_reduce)):
                traffic = add(golden.bits(values), gradient_codec=GRADIENT_CODECS[codecs[1]],
                              residuals=np.zeros(values.shape, np.uint32), segment=ring.formats.segment,
                              lanes=ring.formats.lanes)[1]
                sums[name] = traffic, traffic.bound
            collectives = {**sums, **collectives} if kind != _APART else {"all_reduce": sums["all_reduce"]}
        config = f"N={ring.nodes}, K={length}, {kind}" + ("" if kind == "dense" else f" {density:.0%}") + formats
        for name, (traffic, bound) in collectives.items():
            ring.collectives.distribute(weights)
            ring.settings.write(sgd)
            ring.memory.write_gradients(list(values))
            ring.counters.clear()
            cycles = getattr(ring.collectives, name)(length).cycles
            scatter = max(counters["SCATTER_REDUCE_CYCLES"] for counters in ring.counters.read())
            rows.append(_row(f"ring.{name}", config, cycles, bound))
            if name != "reduce_scatter":  # a reduce-scatter has only one phase
                rows.append(_row(f"ring.{name}.scatter_reduce", config, scatter, traffic.scatter_bound))
        if not formats and kind == "dense":
            ring.memory.clear_state(length)
            ring.settings.write(Adam().settings(1, gradient_scale=1.0))
            cycles = ring.collectives.fused_update(length).cycles
            rows.append(_row("ring.fused_update", f"{config}, Adam", known(cycles), collectives["fused_update"][1]))
    return rows


def infer_rows(ring: Ring) -> list[Row]:
    """Measure two integer layers per node. The bound assumes that all lanes multiply in every cycle."""
    generator = np.random.default_rng(0)
    layers = [Layer(codes=generator.integers(0, 16, (SIZE, SIZE)), offsets=np.full(SIZE, -8), variant=Variant.MIN,
                    bits=4, bias=np.zeros(SIZE, np.int64), multiplier=np.full(SIZE, 40_000),
                    shift=np.full(SIZE, 24), relu=True, signed=False, last=last) for last in (False, True)]
    x = generator.integers(0, 256, (SAMPLES * ring.nodes, SIZE))
    cycles = ring.inference.infer(layers, x).cycles
    return [_row("node.infer", f"{len(layers)} layers of {SIZE} x {SIZE}, {SAMPLES} samples", known(cycles),
                 peak_cycles([(SIZE, SIZE)] * len(layers), SAMPLES, lanes=ring.formats.lanes))]


def node_rows(ring: Ring) -> list[Row]:
    """Measure generated masks, fetched masks and sparsification; the bound is one memory row per cycle."""
    rows = []
    generator = np.random.default_rng(0)
    matrices = generator.standard_normal((1, SIZE, SIZE)).astype(np.float32)
    external = generator.random(matrices.shape) < 0.5
    for kind, mask, words in (("made", Mask(triangle=True, padding=True, length_rows=SIZE, length_columns=48), None),
                              ("fetched", Mask(external=True), external)):
        jobs = [MaskJob(matrices=matrices, mask=mask, external=words)] * (LENGTH // matrices.size)
        cycles = known(ring.local.mask([jobs] * ring.nodes, alternative=-10000.0).cycles)
        rows.append(_row("node.mask", f"K={LENGTH}, {SIZE} x {SIZE}, {kind}", cycles, LENGTH // ring.formats.lanes))
    length = LENGTH // 2  # half, since the weight memory also holds one error per element
    cycles = known(ring.local.sparsify(length, threshold=0.5).cycles)
    rows.append(_row("node.sparsify", f"K={length}", cycles, length // ring.formats.lanes))
    return rows


def collect(*, announce: Callable[[str], None] = lambda stage: None) -> list[Row]:
    """Measure all rows; ``announce`` is called with the name of each stage when the stage starts."""
    rows = []
    for module in ("sim.bench.zero_value", "sim.bench.round_trip", "sim.bench.optimizer", "sim.bench.product",
                   "sim.bench.formats", "sim.bench.optimizers"):
        announce(module.rpartition(".")[2])
        rows += importlib.import_module(module).rows()

    def measure(config: NodeConfig, nodes: int, name: str, measured: Callable[[Ring], list[Row]]) -> list[Row]:
        with open_session(config, nodes=nodes, announce=lambda stage: announce(f"{name}: {stage}")) as session:
            announce(name)
            made = measured(session.ring)
        return made + bandwidth_rows(made, nodes=nodes, codec=config.gradients)

    for nodes in NODES:
        rows += measure(NodeConfig(), nodes, f"ring of {nodes}",
                        lambda ring: ring_rows(ring) + (node_rows(ring) if ring.nodes == NODES[0] else []))
    for (weight_codec, gradient_codec), nodes in itertools.product(CODECS, NODES):
        rows += measure(NodeConfig(weights=Weights(codec=weight_codec), gradients=gradient_codec), nodes,
                        f"ring of {nodes}, weights {weight_codec}, gradients {gradient_codec}", ring_rows)
    rows += measure(NodeConfig(features=(Quantization(),)), 1, "infer", infer_rows)
    rows += grid_speed.rows(announce=announce)
    from sim.bench import array_speed, partition_speed
    from sim.bench import ring_speed as bench_ring_speed

    rows += bench_ring_speed.rows(bench_ring_speed.measure(compared=True, announce=announce))
    announce("processes")
    rows += partition_speed.rows(partition_speed.measure())
    announce("array")
    rows += array_speed.rows(array_speed.measure())
    announce("golden nodes")
    rows += golden_speed.rows(golden_speed.measure())
    announce("jobs")
    rows += speed.rows(speed.measure())
    announce("sums of PyTorch")
    return rows + pytorch_speed.rows(pytorch_speed.measure())


def table(rows: list[Row]) -> Table:
    """Format the rows as a table, with configurations below the names, and mark rows above their limits."""
    def number(value: float) -> str:
        return f"{value:,}" if isinstance(value, int) else f"{value:.2f}"

    return Table("measured against bounds", (
        Column("name", title="name, configuration", of=lambda row: f"{row['name']}\n  {row['config']}"),
        Column("measured", format=number), Column("bound", format=number), Column("ratio", format=".3f"),
        Column("unit")), rows, marked=exceeds_limit)
