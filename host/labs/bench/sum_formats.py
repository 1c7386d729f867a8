"""Words and cycles of sums in several formats: ``python -m host.labs.bench.sum_formats`` prints the table of
docs/reproducible.md.

Each row is one all-reduce of 16,384 Gaussian gradients on a simulated ring of 4 nodes with the default
configuration, apart from the format of gradients.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from hdl.compression.registry import RAW
from hdl.config import NodeConfig
from hdl.ring.header import OVERHEAD_WORDS
from host.driver.results import known
from host.driver.ring import Ring
from host.transports.session import open_session

__all__ = ["FORMATS", "LENGTH", "NODES", "Cost", "gradients", "measure", "table"]

NODES, LENGTH = 4, 16384
#: Formats in the order of the table. Payloads are compared with the first one.
FORMATS = (RAW, "mx9", "sum32", "sum16")


class Cost(NamedTuple):
    """Cost of a collective."""

    words: int
    """Words that the busiest node sends, including headers and CRCs."""
    payload: int
    """The same words without headers and CRCs."""
    cycles: int


def gradients(nodes: int, length: int) -> np.ndarray:
    """Gaussian gradients, one row per node."""
    return np.random.default_rng(nodes).standard_normal((nodes, length)).astype(np.float32)


def measure(ring: Ring, length: int = LENGTH) -> Cost:
    """Cost of an all-reduce of ``length`` gradients."""
    ring.memory.write_gradients(list(gradients(ring.nodes, length)), length)
    ring.counters.clear()
    cycles = known(ring.collectives.all_reduce(length).cycles)
    words, payload = max((node["WORDS_SENT"], node["WORDS_SENT"] - OVERHEAD_WORDS * node["PACKETS_SENT"])
                         for node in ring.counters.read())
    return Cost(words, payload, cycles)


def table(costs: Iterable[tuple[str, Cost]]) -> Iterator[str]:
    """Lines of the table, in Markdown, of the cost of each format; the first one must be raw."""
    yield "| gradients | words | payload, relative to raw | cycles | cycles / words |"
    yield "|---|---:|---:|---:|---:|"
    raw = 0
    for name, cost in costs:
        raw = raw or cost.payload
        yield (f"| `{name}` | {cost.words:,} | {cost.payload / raw:.4f} | {cost.cycles:,} | "
               f"{cost.cycles / cost.words:.3f} |")


def _costs() -> Iterator[tuple[str, Cost]]:
    """Cost of each format, measured when it is requested."""
    for name in FORMATS:
        with open_session(NodeConfig(gradients=name), nodes=NODES) as session:
            yield name, measure(session.ring)


if __name__ == "__main__":
    for line in table(_costs()):
        print(line, flush=True)
