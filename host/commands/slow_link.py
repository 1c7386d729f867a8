"""Option `--slow-link` of `gradring train`: a slow link, and groups that are dealt so that it costs least."""

import dataclasses
from collections.abc import Callable
from fractions import Fraction
from typing import Annotated, Any

import numpy as np
import typer

from hdl.compression.registry import RAW, ZERO_VALUE
from hdl.config import NodeConfig, RootReduce
from host.driver.optimizer_settings import Rule, Settings
from host.driver.partitioning import Partitioning, choose, link_rates
from host.driver.ring import Ring
from host.transports.session import TransportName

__all__ = ["SlowLink", "SlowLinkOption", "check", "deal", "with_option"]

SlowLinkOption = Annotated[str | None, typer.Option(
    help="A slow link: the rank that sends on it and its words per cycle, like 2:0.5. Links are measured, and one "
         "node owns all groups if that is faster. [default: all links carry a word per cycle]",
    metavar="RANK:RATE", show_default=False)]


@dataclasses.dataclass(frozen=True)
class SlowLink:
    """A link by the rank that sends on it, and its words per cycle."""

    rank: int
    rate: Fraction

    @classmethod
    def parse(cls, text: str) -> "SlowLink":
        """Make one from its text, like ``2:0.5``."""
        rank, _, rate = text.partition(":")
        try:
            found = cls(int(rank), Fraction(rate).limit_denominator(1000))
        except (ValueError, ZeroDivisionError):
            found = None
        if found is None or found.rank < 0 or not 0 < found.rate <= 1:
            raise ValueError(f"Slow link must be a rank and a rate above 0 and up to 1, like 2:0.5, not {text!r}")
        return found

    def as_tuple(self) -> tuple[int, Fraction]:
        return self.rank, self.rate


def check(text: str | None, *, nodes: int, node: NodeConfig, transport: TransportName, **others: object) -> (
        SlowLink | None):
    """Read the option, if it was given; raise ``ValueError`` if it is not for such a run.

    Parameters
    ----------
    text : str, optional
    nodes, node, transport
        Those of the run.
    others
        Other options that the run must not have, by name; None where they were not given.
    """
    if text is None:
        return None
    slow = SlowLink.parse(text)
    if slow.rank >= nodes:
        raise ValueError(f"Slow link must be from a rank below {nodes}, not {slow.rank}")
    used = [name for name, value in others.items() if value is not None]
    if used:
        raise ValueError(f"Option --slow-link is for a run without --{used[0]}: leave it out")
    if transport is not TransportName.VERILATED:
        raise ValueError(f"Option --slow-link is for transport verilated, not {transport.value}: leave it out")
    if (node.weights.codec, node.gradients) != (RAW, ZERO_VALUE):
        raise ValueError(f"Option --slow-link is for weights as {RAW} and gradients as {ZERO_VALUE}, not "
                         f"{node.weights.codec} and {node.gradients}: leave it out")
    return slow


def with_option(node: NodeConfig, length: int, *, planes: int) -> NodeConfig:
    """The same node with role RootReduce, and room for the state of all groups."""
    state = max(node.memories.state, 1 << (length - 1).bit_length()) if planes else node.memories.state
    return node.replace(role=RootReduce(), memories={"state": state})


def deal(ring: Ring, length: int, *, planes: int, latency: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Measure links, have groups dealt as is best, and return what has been found, for the report.

    Both partitions are tried with dense gradients. What memories held is lost.
    """
    partitioning = choose(ring, length, link_rates(ring), planes=planes, latency=latency)
    say(str(partitioning))
    slowest = min(range(ring.nodes), key=lambda rank: partitioning.rates[rank])
    tried = {"turn": _tried(ring, length, None), "one_owner": _tried(ring, length, slowest)}
    ratio = tried["one_owner"] / tried["turn"]
    say(f"dense update of {length:,}: {tried['turn']:,} cycles with groups in turn, {tried['one_owner']:,} with "
        f"those of rank {slowest} alone ({ratio:.3f})")
    ring.partition.set_root(partitioning.root)
    return {"owner": partitioning.root, "rates": list(partitioning.rates), "slowest": slowest, "cycles": tried,
            "modelled": {"turn": partitioning.cycles[None], "one_owner": partitioning.cycles[slowest]},
            "order": _order(partitioning)}


def _order(partitioning: Partitioning) -> str:
    """Order in which an element is summed."""
    if partitioning.root is None:
        return "from the rank of its block on"
    return f"from rank {(partitioning.root + 1) % len(partitioning.rates)} to rank {partitioning.root}"


def _tried(ring: Ring, length: int, owner: int | None) -> int:
    """Cycles of an update without state, of dense gradients."""
    gradients = np.random.default_rng(0).standard_normal(length).astype(np.float32)
    ring.memory.write_gradients([gradients] * ring.nodes)
    ring.settings.write(Settings(rule=Rule.SGD, gradient_scale=1.0, learning_rate=0.0))
    return ring.collectives.fused_update(length, owner=owner).cycles
