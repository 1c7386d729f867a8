"""Fused updates in the interleaved order: measured with credits beside the other order, and modelled in slots.

Run as a program, ``python -m host.reports.interleaved``, it prints the tables of docs/ring/interleaved.md.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator

import numpy as np

from hdl.config import Memories, NodeConfig, Peer, Weights
from host.driver.optimizer_settings import Rule, Settings
from host.driver.results import known
from host.training.golden_run import Reference
from host.transports.session import LATENCY, open_session
from sim.golden.slot_cycles import DENSE, MX9, slot_cycles

__all__ = ["CASES", "Case", "measure", "modelled"]

_NODES = {"dense": NodeConfig(memories=Memories(planes=0), masking=False, sparsify=False)}
_NODES["mx9"] = _NODES["dense"].replace(weights=Weights(codec="mx9"), gradients="mx9")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """A vector on a ring.

    Parameters
    ----------
    nodes, length : int
    density : float
        Part of the gradients that are not zero.
    codec : str
        ``dense``: zero-value gradients and raw weights; ``mx9``: both in that format.
    """

    nodes: int
    length: int
    density: float = 1.0
    codec: str = "dense"


CASES = (
    *(Case(nodes=nodes, length=16384) for nodes in (2, 4, 8)),
    *(Case(nodes=nodes, length=16384, density=0.1) for nodes in (2, 4, 8)),
    *(Case(nodes=nodes, length=4832) for nodes in (2, 4, 8)),
    *(Case(nodes=nodes, length=16384, codec="mx9") for nodes in (2, 4, 8)),
)


def _cycles(case: Case, interleaved: bool, announce: Callable[[str], None]) -> int:
    """Cycles of an update with credits, whose bits are compared with the golden model."""
    config = _NODES[case.codec].replace(role=Peer(interleaved=interleaved))
    generator = np.random.default_rng(case.length)
    weights = generator.standard_normal(case.length).astype(np.float32)
    gradients = generator.standard_normal((case.nodes, case.length)).astype(np.float32)
    gradients[generator.random(gradients.shape) >= case.density] = 0
    settings = Settings(rule=Rule.SGD, gradient_scale=1 / case.nodes, learning_rate=0.1)
    with open_session(config, nodes=case.nodes, host_port=False, latency=LATENCY, announce=announce) as session:
        ring = session.ring
        ring.memory.write_weights(weights)
        ring.memory.write_gradients(list(gradients))
        ring.settings.write(settings)
        reference = Reference(ring, weights, 0)
        cycles = ring.collectives.fused_update(case.length).cycles
        reference.step(list(gradients), settings)
        if not (ring.memory.read_weights(case.length).view(np.uint32) == reference.weights).all():
            raise AssertionError(f"Weights of {case} must be those of the golden model")
    return known(cycles)


def measure(cases: tuple[Case, ...] = CASES, *, announce: Callable[[str], None] = lambda stage: None
            ) -> Iterator[tuple[Case, int, int]]:
    """Measure cycles with credits: those of the order without the option, and of the interleaved one."""
    for case in cases:
        yield case, _cycles(case, False, announce), _cycles(case, True, announce)


def modelled(case: Case) -> dict[str, int]:
    """Cycles in slots by the model; packets have the words of dense ones, since slots are as long for all."""
    form = MX9 if case.codec == "mx9" else DENSE
    update = functools.partial(slot_cycles, case.length, case.nodes, latency=LATENCY, form=form)
    return {"one lap": update(laps=1).cycles, "two laps": update().cycles,
            "with messages": update(messages=True).cycles, "other order": update(interleaves=False).cycles}


def main() -> None:
    for case, other, interleaved in measure():
        slots = modelled(case)
        kind = case.codec if case.density == 1 else f"{case.density:.0%} not zero"
        columns = [str(case.nodes), f"{case.length:,}", kind, f"{other:,}", f"{interleaved:,}",
                   *(f"{cycles / other:.3f}" for cycles in (interleaved, *slots.values()))]
        print("| " + " | ".join(columns) + " |", flush=True)


if __name__ == "__main__":
    main()
