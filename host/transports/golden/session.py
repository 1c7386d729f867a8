"""Golden nodes for a session, and what they refuse."""

from collections.abc import Callable
from typing import NamedTuple

from hdl.config import Configuration, Quantization, Tenants, Throttles
from host.driver.device import Device
from host.topology.grid import Plan
from host.topology.switching import GridNodes
from host.transports.golden.device import GoldenDevice
from host.transports.golden.nodes import GoldenNodes
from host.transports.golden.programs import GoldenPrograms

__all__ = ["GoldenGrid", "GoldenSession", "check_golden", "open_golden"]

def _has(kind: type[object]) -> Callable[[Configuration], bool]:
    """A test for a feature of nodes."""
    return lambda config: any(isinstance(part, kind) for part in config.features)


#: Parts of a configuration that golden nodes do not have, the test for them, and the reason.
_REFUSED: tuple[tuple[str, Callable[[Configuration], bool], str], ...] = (
    ("Links that repeat words, or slots,", lambda config: config.link.replay, "its links have no state"),
    ("Quorum updates", lambda config: config.has_quorum, "gradients are late or not by measured cycles"),
    ("Roles of layer streaming", lambda config: config.role.streams, "microbatches are chosen by measured cycles"),
    ("Tenants", _has(Tenants), "its nodes have no windows"),
    ("Throttles", _has(Throttles), "its nodes have no speed"),
    ("Quantized inference", _has(Quantization), "its nodes infer nothing"),
)


class GoldenSession(NamedTuple):
    """Golden nodes, and their drivers in order of rank."""

    nodes: GoldenNodes
    devices: list[Device]


class GoldenGrid(GridNodes):
    """Golden nodes of a grid."""

    def __init__(self, golden: GoldenSession, *, rows: int, columns: int):
        super().__init__(golden.devices, rows=rows, columns=columns)
        self._golden = golden.nodes

    def switch(self, plan: Plan) -> None:
        super().switch(plan)
        self._golden.form(plan)


def check_golden(config: Configuration) -> None:
    """Raise ``ValueError`` if there are no such golden nodes."""
    for name, has, reason in _REFUSED:
        if has(config):
            raise ValueError(f"{name} must be left out of nodes on transport golden: {reason}")


def open_golden(config: Configuration, *, nodes: int, latency: int) -> GoldenSession:
    """Make golden nodes.

    Parameters
    ----------
    config : Configuration
        Configuration of every node.
    nodes, latency : int
        Number of nodes, and modelled cycles of a link.
    """
    check_golden(config)
    golden = GoldenNodes(config, nodes=nodes, latency=latency)
    programs = GoldenPrograms(golden, latency=latency)
    return GoldenSession(golden, [GoldenDevice(golden, programs, rank) for rank in range(nodes)])
