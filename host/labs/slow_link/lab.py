"""Measure and model fused updates on a ring with a slow link, where either each rank owns a block, or a single root
owns all.

The results are the rows of the table in docs/ring/root_reduce.md, also written to build/slow_link/slow_link.json.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction

import numpy as np

from hdl.config import Memories, NodeConfig, RootReduce
from hdl.config.forms import as_dict
from host.columns import Column, Table, columns_of, record
from host.driver.optimizer_settings import Rule, Settings
from host.driver.partitioning import choose, link_rates
from host.driver.results import known
from host.driver.ring import Ring
from host.labs.kit import BUILD, Results
from host.schema import Schema
from host.training.reference import Reference
from host.transports.session import LATENCY, open_session
from sim.golden.ring_cycles import update_cycles

__all__ = ["BARS", "CASES", "SCHEMA", "Case", "Row", "measure", "measured_update", "slow_link_lab", "table"]

#: Maximum ratio of two cycle counts of an update, keyed by number of nodes and of elements. The first has one root
#: and a half-rate link; the second has a block for each rank and full-rate links.
BARS = {(4, 16384): 1.36, (8, 16384): 1.18, (8, 4832): 1.26}

#: Node configuration of all rows. The state memory can hold the state of all groups.
NODE = NodeConfig(role=RootReduce(), memories=Memories(state=16384, planes=1), masking=False, sparsify=False)

_RATE = Fraction(1, 2)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """Case to measure: a fused update of a vector on a ring with a slow link."""

    #: Number of nodes in the ring and of elements in the vector.
    nodes: int
    length: int

    rate: Fraction = _RATE  # rate of the slow link in words per cycle
    link: int = 1  # rank that sends on the slow link
    density: float = 1.0  # fraction of nonzero gradients
    latency: int = LATENCY  # latency of each link in cycles


#: Cases in the table of docs/ring/root_reduce.md, including some for which ``root_reduce`` is not faster.
CASES = (
    Case(nodes=4, length=16384), Case(nodes=8, length=16384), Case(nodes=8, length=4832), Case(nodes=4, length=4832),
    Case(nodes=8, length=1024), Case(nodes=4, length=1024), Case(nodes=2, length=16384),
    Case(nodes=8, length=16384, rate=Fraction(1, 4)), Case(nodes=8, length=16384, rate=Fraction(4, 5)),
    Case(nodes=4, length=16384, rate=Fraction(4, 5)), Case(nodes=8, length=16384, rate=Fraction(1)),
    Case(nodes=8, length=16384, density=0.1), Case(nodes=8, length=16384, latency=200),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """Measured and modelled cycles of one case."""

    case: Case
    clean: int  # cycles if each rank owns a block and all links have full rate
    #: Cycles with the slow link: if each rank owns a block, and if the node that sends over it owns all blocks.
    block_offset: int
    root_reduce: int

    #: Modelled cycles of the two updates with a slow link, with dense gradients.
    modelled_block_offset: float
    modelled_root_reduce: float

    measured: float  # the slow link's rate as measured by the host
    root: int | None  # root selected by the host, or None if each rank owns a block

    @property
    def bar(self) -> float | None:
        """Maximum ratio of the cycle counts ``root_reduce`` and ``clean``, or None for no limit."""
        size = self.case.nodes, self.case.length
        return BARS.get(size) if self.case == Case(nodes=size[0], length=size[1]) else None


def measured_update(ring: Ring, length: int, density: float) -> int:
    """Run a fused SGD update on random vectors, compare it bit for bit with the golden model, and return its cycles.
    ``density`` is the fraction of nonzero gradients."""
    generator = np.random.default_rng(length)
    weights = generator.standard_normal(length).astype(np.float32)
    gradients = generator.standard_normal((ring.nodes, length)).astype(np.float32)
    gradients[generator.random(gradients.shape) >= density] = 0
    settings = Settings(rule=Rule.SGD, gradient_scale=1 / ring.nodes, learning_rate=0.1)
    ring.memory.write_weights(weights)
    ring.memory.write_gradients(list(gradients))
    ring.settings.write(settings)
    reference = Reference(ring, weights, 0)
    cycles = ring.collectives.fused_update(length).cycles
    reference.step(list(gradients), settings)
    if not (ring.memory.read_weights(length).view(np.uint32) == reference.weights).all():
        raise AssertionError(f"Weights of {length:,} elements must be those of the golden model")
    return known(cycles)


def _update(ring: Ring, case: Case, root: int | None) -> int:
    """Return an update's cycles if ``root`` owns all blocks or, with None, if each rank owns one block."""
    ring.partition.set_root(root)
    cycles = measured_update(ring, case.length, case.density)
    ring.partition.set_root(None)
    return cycles


def measure(*, announce: Callable[[str], None]) -> Iterator[Row]:
    """Measure all cases in order. ``announce`` is called with the name of each build stage when the stage starts."""
    for case in CASES:
        opened = functools.partial(open_session, NODE, nodes=case.nodes, host_port=False, latency=case.latency,
                                   announce=announce)
        with opened() as session:
            clean = _update(session.ring, case, None)
        with opened(slow_link=(case.link, case.rate)) as session:
            ring = session.ring
            rates = link_rates(ring)
            root = choose(ring, case.length, rates, latency=case.latency).root
            options = {"rates": [float(case.rate) if rank == case.link else 1.0 for rank in range(case.nodes)],
                       "latency": case.latency, "segment": NODE.segment, "credits": NODE.link.ingress}
            yield Row(case=case, clean=clean, block_offset=_update(ring, case, None),
                      root_reduce=_update(ring, case, case.link),
                      modelled_block_offset=update_cycles(case.length, case.nodes, **options),
                      modelled_root_reduce=update_cycles(case.length, case.nodes, owner=case.link, **options),
                      measured=rates[case.link], root=root)


def table(rows: Sequence[Row]) -> Table:
    """Format cycles as a table, relative to updates with full-rate links and one block per rank."""
    def case_of(row: Row) -> str:
        text = f"{float(row.case.rate):.2f}"
        if row.case.density < 1:
            text += f", {row.case.density:.0%} not zero"
        return text if row.case.latency == LATENCY else f"{text}, links of {row.case.latency} cycles"

    def ratio(name: str, *, modelled: bool = False) -> Column:
        return Column(name, format=".3f", modelled=modelled, of=lambda row: (
            None if modelled and row.case.density < 1
            else getattr(row, f"{'modelled_' * modelled}{name}") / row.clean))

    return Table("cycles of fused updates with a slow link", (
        Column("nodes", of=lambda row: row.case.nodes),
        Column("elements", format=",", of=lambda row: row.case.length),
        Column("rate", of=case_of), Column("clean", format=","), ratio("block_offset"), ratio("root_reduce"),
        ratio("block_offset", modelled=True), ratio("root_reduce", modelled=True),
        Column("measured", format=".2f", title="measured rate"),
        Column("chosen", of=lambda row: "block offset" if row.root is None else "root reduce")), rows)


#: Schema of the report.
SCHEMA = Schema("gradring.slow_link", 1, columns_of(
    "node", Column("rows", columns=columns_of(Row, Case)[1:])))


def slow_link_lab() -> None:
    """Measure and model fused updates on a ring with a slow link for each partitioning."""
    results, rows = Results(BUILD / "slow_link", "slow_link.json"), []
    for row in measure(announce=print):
        rows.append(row)
        if row.bar is not None and row.root_reduce > row.bar * row.clean:
            raise AssertionError(f"Cycles must be at most {row.bar} of {row.clean:,}, not {row.root_reduce:,}")
    results.show(table(rows))
    results.write(SCHEMA.report({"node": as_dict(NODE), "rows": [
        {**record(columns_of(Row)[1:], row), **{name: float(value) for name, value in record(
            columns_of(Case), row.case).items()}} for row in rows]}))
