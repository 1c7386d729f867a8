"""Slow link in a ring, and the choice of the fastest partitioning for such a ring."""

import contextlib
from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from hdl.config import NodeConfig, RootReduce
from host.driver.optimizer_settings import Rule, Settings
from host.driver.partitioning import choose, link_rates
from host.driver.results import known
from host.driver.ring import Ring

__all__ = ["SlowLink", "partition", "with_option"]


class SlowLink(NamedTuple):
    """A slow link: the rank that sends over it, and its rate in words per cycle."""

    rank: int
    rate: Fraction

    @classmethod
    def parse(cls, text: str) -> "SlowLink":
        """Parse a slow link from text like ``2:0.5``."""
        rank, _, rate = text.partition(":")
        with contextlib.suppress(ValueError, ZeroDivisionError):
            link = cls(int(rank), Fraction(rate).limit_denominator(1000))
            if link.rank >= 0 and 0 < link.rate <= 1:
                return link
        raise ValueError(f"Slow link must be a rank and a rate above 0 and up to 1, like 2:0.5, not {text!r}")

    def check(self, *, nodes: int) -> None:
        """Raise ``ValueError`` unless the link exists in a ring of ``nodes`` nodes."""
        if self.rank >= nodes:
            raise ValueError(f"Slow link must be from a rank below {nodes}, not {self.rank}")


def with_option(node: NodeConfig, length: int, *, planes: int) -> NodeConfig:
    """Add the RootReduce role, and memory for the state of all groups, to a node configuration."""
    state = max(node.memories.state, 1 << (length - 1).bit_length()) if planes else node.memories.state
    return node.replace(role=RootReduce(), memories={"state": state})


def partition(ring: Ring, length: int, *, planes: int, latency: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Measure the links, set the best partitioning, and return figures for the report. Updates with both
    partitionings are measured with dense gradients, which overwrite the contents of the memories."""
    partitioning = choose(ring, length, link_rates(ring), planes=planes, latency=latency)
    say(str(partitioning))
    slowest = min(range(ring.nodes), key=lambda rank: partitioning.rates[rank])
    tried = {"block_offset": _tried(ring, length, None), "root_reduce": _tried(ring, length, slowest)}
    ratio = tried["root_reduce"] / tried["block_offset"]
    say(f"dense update of {length:,}: {tried['block_offset']:,} cycles with a block for each rank, "
        f"{tried['root_reduce']:,} with all blocks at rank {slowest} ({ratio:.3f})")
    ring.partition.set_root(partitioning.root)
    return {"root": partitioning.root, "rates": list(partitioning.rates), "slowest": slowest, "cycles": tried,
            "modelled": {"block_offset": partitioning.cycles[None], "root_reduce": partitioning.cycles[slowest]},
            "order": "from the rank of its block on" if partitioning.root is None else
            f"from rank {(partitioning.root + 1) % ring.nodes} to rank {partitioning.root}"}


def _tried(ring: Ring, length: int, owner: int | None) -> int:
    """Measure the cycles of a fused update with dense gradients and without optimizer state."""
    gradients = np.random.default_rng(0).standard_normal(length).astype(np.float32)
    ring.memory.write_gradients([gradients] * ring.nodes)
    ring.settings.write(Settings(rule=Rule.SGD, gradient_scale=1.0, learning_rate=0.0))
    return known(ring.collectives.fused_update(length, owner=owner).cycles)
