"""Fused updates with interleaved packet order: measured on links with credits, and modelled with slots.
Produces the table in docs/ring/interleaved.md."""

import dataclasses
import functools
from collections.abc import Iterable, Iterator

from hdl.config import Memories, NodeConfig, Peer, Weights
from host.columns import Column, Table, show
from host.labs.slow_link.lab import measured_update
from host.transports.session import LATENCY, open_session
from sim.golden.features.slots.slot_cycles import DENSE, MX9, slot_cycles

__all__ = ["CASES", "Case", "interleaved_lab", "measure", "modelled", "table"]

_DENSE = NodeConfig(memories=Memories(planes=0), masking=False, sparsify=False)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """A fused update to measure: the ring, the vector, its density and its codec."""

    nodes: int
    length: int
    density: float = 1.0  # fraction of nonzero gradients
    codec: str = "dense"  # ``dense``: zero-value gradients and raw weights; ``mx9``: both in format mx9


CASES = tuple(Case(nodes=nodes, length=length, density=density, codec=codec)
              for length, density, codec in ((16384, 1.0, "dense"), (16384, 0.1, "dense"), (4832, 1.0, "dense"),
                                             (16384, 1.0, "mx9")) for nodes in (2, 4, 8))


def measure() -> Iterator[tuple[Case, int, int]]:
    """Yield each case with the cycles measured on links with credits, in default and interleaved order."""
    def cycles(case: Case, *, interleaved: bool) -> int:
        config = _DENSE.replace(role=Peer(interleaved=interleaved))
        if case.codec != "dense":
            config = config.replace(weights=Weights(codec=case.codec), gradients=case.codec)
        with open_session(config, nodes=case.nodes, host_port=False, latency=LATENCY) as session:
            return measured_update(session.ring, case.length, case.density)

    for case in CASES:
        yield case, cycles(case, interleaved=False), cycles(case, interleaved=True)


def modelled(case: Case) -> dict[str, int]:
    """Model an update with slots. All slots have the length of a dense packet, so the density has no effect."""
    form = MX9 if case.codec == "mx9" else DENSE
    update = functools.partial(slot_cycles, case.length, case.nodes, latency=LATENCY, form=form)
    return {"one lap": update(laps=1).cycles, "two laps": update().cycles,
            "with messages": update(messages=True).cycles, "other order": update(interleaves=False).cycles}


def table(rows: Iterable[tuple[Case, int, int]]) -> Table:
    """Format the cycles of each case, and their ratio to the cycles of the default order, as a table."""
    records = [{**dataclasses.asdict(case), "other": other, "interleaved": interleaved, **modelled(case),
                "kind": case.codec if case.density == 1 else f"{case.density:.0%} not zero"}
               for case, other, interleaved in rows]

    def ratio(name: str, *, modelled: bool = True) -> Column:
        return Column(f"{name}_ratio", format=".3f", title=f"{name} / other", modelled=modelled,
                      of=lambda row: row[name] / row["other"])

    return Table("cycles of fused updates: measured with credits, and modelled in slots", (
        Column("nodes"), Column("length", format=","), Column("kind"), Column("other", format=","),
        Column("interleaved", format=","), ratio("interleaved", modelled=False), ratio("one lap"), ratio("two laps"),
        ratio("with messages"), ratio("other order")), records)


def interleaved_lab() -> None:
    """Measure fused updates in the interleaved order, and model them in slots."""
    show(table(measure()))
