"""Fused updates on a ring with a slow link: groups dealt in turn, and groups of one owner, measured and modelled.

Run as a program, ``python -m host.reports.slow_link``, it measures the rows of docs/ring/one_owner.md and writes them
to build/slow_link/slow_link.json.
"""

import dataclasses
from collections.abc import Callable, Iterator
from fractions import Fraction

import numpy as np

from hdl.config import Memories, NodeConfig, RootReduce
from host.driver.optimizer_settings import Rule, Settings
from host.driver.partitioning import choose, link_rates
from host.driver.results import known
from host.driver.ring import Ring
from host.output import claim, write_json
from host.training.golden_run import Reference
from host.transports.session import LATENCY, open_session
from sim.golden.ring_cycles import update_cycles
from sim.verilated import toolchain

__all__ = ["BARS", "CASES", "Case", "Row", "line", "measure"]

#: Most cycles of an owner on a link of half the rate, in terms of groups in turn on links of full rate, by nodes and
#: elements.
BARS = {(4, 16384): 1.36, (8, 16384): 1.18, (8, 4832): 1.26}

#: Node of the rows, with room for the state of all groups.
NODE = NodeConfig(role=RootReduce(), memories=Memories(state=16384, planes=1), masking=False, sparsify=False)

_RATE = Fraction(1, 2)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """A vector on a ring, one of whose links is slow.

    Parameters
    ----------
    nodes, length : int
    rate : Fraction
        Words per cycle of the slow link.
    link : int
        Rank that sends on it.
    density : float
        Part of the gradients that are not zero.
    latency : int
        Cycles of each link.
    """

    nodes: int
    length: int
    rate: Fraction = _RATE
    link: int = 1
    density: float = 1.0
    latency: int = LATENCY


#: Rows of the page, those that gain nothing too.
CASES = (
    Case(nodes=4, length=16384), Case(nodes=8, length=16384), Case(nodes=8, length=4832), Case(nodes=4, length=4832),
    Case(nodes=8, length=1024), Case(nodes=4, length=1024), Case(nodes=2, length=16384),
    Case(nodes=8, length=16384, rate=Fraction(1, 4)), Case(nodes=8, length=16384, rate=Fraction(4, 5)),
    Case(nodes=4, length=16384, rate=Fraction(4, 5)), Case(nodes=8, length=16384, rate=Fraction(1)),
    Case(nodes=8, length=16384, density=0.1), Case(nodes=8, length=16384, latency=200),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """Cycles of one case.

    Members
    -------
    case : Case
    clean : int
        Groups in turn, all links at full rate.
    turn, owner : int
        Groups in turn, and of the node that drives the slow link, with that link slow.
    modelled_turn, modelled_owner : float
        The same by the model, dense.
    measured : float
        Rate of the slow link that the host has measured.
    taken : int, optional
        Owner that the host takes; None for groups in turn.
    """

    case: Case
    clean: int
    turn: int
    owner: int
    modelled_turn: float
    modelled_owner: float
    measured: float
    taken: int | None

    @property
    def bar(self) -> float | None:
        """Most that owner / clean may be, if there is such a bar."""
        plain = self.case == Case(nodes=self.case.nodes, length=self.case.length)
        return BARS.get((self.case.nodes, self.case.length)) if plain else None


def _update(ring: Ring, case: Case, owner: int | None) -> int:
    """Cycles of an update, whose bits are compared with the golden model of that partition."""
    generator = np.random.default_rng(case.length)
    weights = generator.standard_normal(case.length).astype(np.float32)
    gradients = generator.standard_normal((case.nodes, case.length)).astype(np.float32)
    gradients[generator.random(gradients.shape) >= case.density] = 0
    ring.partition.set_root(owner)
    ring.memory.write_weights(weights)
    ring.memory.write_gradients(list(gradients))
    settings = Settings(rule=Rule.SGD, gradient_scale=1 / case.nodes, learning_rate=0.1)
    ring.settings.write(settings)
    cycles = ring.collectives.fused_update(case.length).cycles
    reference = Reference(ring, weights, 0)
    reference.step(list(gradients), settings)
    ring.partition.set_root(None)
    if not (ring.memory.read_weights(case.length).view(np.uint32) == reference.weights).all():
        raise AssertionError(f"Weights of {case} with owner {owner} must be those of the golden model")
    return known(cycles)


def measure(cases: tuple[Case, ...] = CASES, *, node: NodeConfig = NODE,
            announce: Callable[[str], None] = lambda stage: None) -> Iterator[Row]:
    """Measure cases, in order.

    Parameters
    ----------
    cases : tuple of Case
    node : NodeConfig
        Configuration of every node.
    announce : callable
        Called with the name of each stage of a build as it begins.
    """
    for case in cases:
        with open_session(node, nodes=case.nodes, host_port=False, latency=case.latency,
                          slow_link=None, announce=announce) as session:
            clean = _update(session.ring, case, None)
        with open_session(node, nodes=case.nodes, host_port=False, latency=case.latency,
                          slow_link=(case.link, case.rate), announce=announce) as session:
            ring = session.ring
            rates = link_rates(ring)
            taken = choose(ring, case.length, rates, latency=case.latency).root
            options = {"rates": [float(case.rate) if rank == case.link else 1.0 for rank in range(case.nodes)],
                       "latency": case.latency, "segment": node.segment, "credits": node.link.ingress}
            yield Row(case=case, clean=clean, turn=_update(ring, case, None), owner=_update(ring, case, case.link),
                      modelled_turn=update_cycles(case.length, case.nodes, **options),
                      modelled_owner=update_cycles(case.length, case.nodes, owner=case.link, **options),
                      measured=rates[case.link], taken=taken)


def line(row: Row) -> str:
    """Line of the page's table."""
    case = row.case
    notes = [text for text, wanted in ((f"{case.density:.0%} not zero", case.density < 1),
                                       (f"links of {case.latency} cycles", case.latency != LATENCY)) if wanted]
    model = "" if case.density < 1 else f"{row.modelled_turn / row.clean:.3f}, {row.modelled_owner / row.clean:.3f}"
    return (f"| {case.nodes} | {case.length:,} | {float(case.rate):.2f}{''.join(', ' + note for note in notes)} "
            f"| {row.clean:,} | {row.turn / row.clean:.3f} | {row.owner / row.clean:.3f} | {model} "
            f"| {row.measured:.2f} | {'in turn' if row.taken is None else 'one owner'} |")


def main() -> None:
    folder = toolchain.BUILD / "slow_link"
    claim(folder, files=("slow_link.json",))
    rows = []
    for row in measure(announce=print):
        print(line(row), flush=True)
        rows.append({**{name: value for name, value in dataclasses.asdict(row).items() if name != "case"},
                     **{name: float(value) for name, value in dataclasses.asdict(row.case).items()}})
        if row.bar is not None and row.owner > row.bar * row.clean:
            raise AssertionError(f"Cycles must be at most {row.bar} of {row.clean:,}, not {row.owner:,}")
    write_json(folder / "slow_link.json", {"node": dataclasses.asdict(NODE), "rows": rows})


if __name__ == "__main__":
    main()
