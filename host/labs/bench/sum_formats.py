"""Measure words and cycles of sums in several formats. ``python -m host.labs.bench.sum_formats`` prints the table of
docs/reproducible.md.

Each row is one all-reduce of 16,384 Gaussian gradients on a simulated ring of 4 nodes with the default
configuration, apart from the format of gradients.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hdl.compression.registry import RAW
from hdl.config import NodeConfig
from hdl.ring.header import OVERHEAD_WORDS
from host.columns import Column, Table, show
from host.driver.results import known
from host.driver.ring import Ring
from host.transports.session import open_session

__all__ = ["FORMATS", "LENGTH", "NODES", "Cost", "gradients", "measure", "table"]

NODES, LENGTH = 4, 16384
#: Gradient formats in the order of the table. Payload sizes are compared with the first format.
FORMATS = (RAW, "mx9", "sum32", "sum16")


class Cost(NamedTuple):
    """Cost of a collective in words and cycles."""

    words: int
    """Words that the busiest node sends, including headers and CRCs."""
    payload: int
    """The same words without headers and CRCs."""
    cycles: int


def gradients(nodes: int, length: int) -> np.ndarray:
    """Generate Gaussian gradients, one row per node."""
    return np.random.default_rng(nodes).standard_normal((nodes, length)).astype(np.float32)


def measure(ring: Ring, length: int = LENGTH) -> Cost:
    """Measure an all-reduce of ``length`` gradients on a simulated ring."""
    ring.memory.write_gradients(list(gradients(ring.nodes, length)), length)
    ring.counters.clear()
    cycles = known(ring.collectives.all_reduce(length).cycles)
    words, payload = max((node["WORDS_SENT"], node["WORDS_SENT"] - OVERHEAD_WORDS * node["PACKETS_SENT"])
                         for node in ring.counters.read())
    return Cost(words, payload, cycles)


def table(costs: Sequence[tuple[str, Cost]]) -> Table:
    """Format the cost of each format, keyed by its name, as a table. The first format must be raw."""
    raw = costs[0][1].payload
    rows = [{"gradients": name, **cost._asdict(), "relative": cost.payload / raw, "ratio": cost.cycles / cost.words}
            for name, cost in costs]
    return Table("", (Column("gradients"), Column("words", ","),
                      Column("relative", ".4f", title="payload, relative to raw"), Column("cycles", ","),
                      Column("ratio", ".3f", title="cycles / words")), rows)


def _costs() -> list[tuple[str, Cost]]:
    costs = []
    for name in FORMATS:
        with open_session(NodeConfig(gradients=name), nodes=NODES) as session:
            costs.append((name, measure(session.ring)))
    return costs


if __name__ == "__main__":
    show(table(_costs()))
