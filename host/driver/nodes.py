"""Nodes of a ring: devices, registers, settings and counters.

A request to all nodes is sent to each of them before the first answer is waited for, so that they work at the same
time.

Nodes may have different configurations, as long as they agree on :data:`ALIKE`. A buffer then has room where the
smallest memory of its region ends.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from hdl.ring.topology import RingTopology
from host.driver.buffers import Allocator, Buffers
from host.driver.device import Device
from host.driver.memory import Allocation
from host.driver.optimizer_settings import FixedSettings, Settings
from host.driver.transport import Pending

__all__ = ["ALIKE", "TIMEOUT", "RingNodes"]

T = TypeVar("T")

TIMEOUT = 1 << 17
"""Cycles that a node waits for the ring before it gives a command up, unless another number is asked for."""

ALIKE = ("element", "segment", "weight_codec", "gradient_codec", "masters", "ingress_segments", "replay", "rounds",
         "queues", "one_owner", "slots", "interleaved", "jobs", "messages")
"""Parameters that all nodes of a ring must have alike: those of packets, links, masters and programs."""


class RingNodes:
    """Nodes in a ring, in the order of their ranks.

    Parameters
    ----------
    devices : sequence of Device
        The node at index r is of rank r; :class:`~hdl.ring.topology.RingTopology` says to which it sends. Their
        configurations must agree on :data:`ALIKE`.
    timeout : int
        Cycles without a word on a node's links after which it gives a command up.
    """

    def __init__(self, devices: Sequence[Device], *, timeout: int = TIMEOUT):
        if not devices:
            raise ValueError("A ring must have at least one node")
        if not 1 <= timeout < 1 << 30:
            raise ValueError(f"Timeout must be between 1 and {(1 << 30) - 1} cycles, not {timeout!r}")
        self._devices = list(devices)
        self._configs = list(dict.fromkeys(device.config for device in self._devices))
        self._config = self._configs[0]  # for what is alike
        for name in ALIKE:
            self._alike(name)
        self._topology = RingTopology(len(self._devices))
        self._allocator = Allocator(*(config.memories for config in self._configs))
        self._timeout = timeout
        self._dealt_to: int | None = None
        self._settings: dict[str, int | float] = {}  # values of the registers of settings, as far as they are known
        self._lost = [0] * len(devices)  # words missing behind each link when the ring was last in order

    def _alike(self, name: str) -> Any:
        """Value of a parameter, which all nodes must have alike."""
        values = list(dict.fromkeys(getattr(config, name) for config in self._configs))
        if len(values) > 1:
            raise ValueError(f"Nodes of a ring must have the same {name}, not {' and '.join(map(repr, values))}")
        return values[0]

    @property
    def nodes(self) -> int:
        return len(self._devices)

    @property
    def topology(self) -> RingTopology:
        """Topology of the ring: neighbours, and owners of blocks."""
        return self._topology

    @property
    def devices(self) -> list[Device]:
        return list(self._devices)

    @property
    def dealt_to(self) -> int | None:
        """Rank that owns all groups of fused updates and all-reduces; None if they are dealt to all nodes in turn."""
        return self._dealt_to

    def deal_to(self, owner: int | None) -> None:
        """Have one rank own all groups in later fused updates and all-reduces, or with None have them dealt to all
        nodes in turn, as they are to begin with: docs/ring/one_owner.md.

        Another dealing is another order of sums. State and masters are not moved: see
        :meth:`host.driver.vectors.RingVectors.move_state`.

        Raises
        ------
        ValueError
            There is no such rank, or nodes have no option one_owner.
        """
        if owner is not None:
            self._check_owner(owner)
        self._dealt_to = owner

    def _check_owner(self, owner: int) -> None:
        if not 0 <= owner < self.nodes:
            raise ValueError(f"Owner must be a rank below {self.nodes}, not {owner!r}")
        if not self._config.one_owner:
            raise ValueError("Nodes must have option one_owner, for one of them to own all groups")

    @property
    def segment(self) -> int:
        """Elements in a segment."""
        return int(self._config.segment)

    @property
    def lanes(self) -> int:
        """Elements in a memory row; a ``ValueError`` if nodes differ."""
        return int(self._alike("lanes"))

    @property
    def reduced(self) -> bool:
        """Whether elements are 16-bit integers."""
        return bool(self._config.reduced)

    @property
    def weight_codec(self) -> str:
        """Name of the codec that new weights go through in a fused update."""
        return str(self._config.weight_codec)

    @property
    def has_codebook(self) -> bool:
        """Whether the weight codec has centroids, which the host loads."""
        return bool(self._config.codebook_words)

    @property
    def gradient_codec(self) -> str:
        """Name of the codec that gradients and their sums go through."""
        return str(self._config.gradient_codec)

    @property
    def has_master(self) -> bool:
        """Whether nodes keep masters of their blocks, beside the weights that all compute with."""
        return bool(self._config.has_master)

    @property
    def has_residual(self) -> bool:
        """Whether nodes keep the residual of the gradient codec."""
        return bool(self._config.has_residual)

    def require(self, allocation: Allocation) -> None:
        """Raise ``ValueError`` unless the nodes have room for the allocation."""
        for config in self._configs:
            allocation.check(config, nodes=self.nodes)

    @property
    def allocator(self) -> Allocator:
        """Allocator of the buffers on these nodes."""
        return self._allocator

    def allocate(self, allocation: Allocation) -> Buffers:
        """Reserve buffers for a vector, its state and its errors, beside the buffers that are reserved already.

        The first buffers are at the start of each memory, where operations that are given a length look for them.

        Raises
        ------
        ValueError
            There is no room.
        """
        self.require(allocation)
        return allocation.place(self._allocator, self._config, nodes=self.nodes)

    def _all(self, submit: Callable[[int, Device], Pending[T]], ranks: Iterable[int] | None = None) -> list[T]:
        """Ask all nodes, then wait for all."""
        ranks = range(self.nodes) if ranks is None else ranks
        pending = [submit(rank, self._devices[rank]) for rank in ranks]
        return [one.result() for one in pending]

    def _write_register(self, name: str, value: float) -> None:
        self._all(lambda rank, device: device.submit_write_register(name, value))

    def set_flags(self, flags: int) -> None:
        """Set flags, of 16 bits, that commands of all nodes wait for."""
        self._write_register("FLAGS", flags)

    def write_weight_stride(self, elements: int) -> None:
        """Set the distance of the weights of odd passes, for commands of a program with ``alternate``."""
        self._write_register("WEIGHT_STRIDE", elements)

    @property
    def known_settings(self) -> dict[str, int | float]:
        """Settings that this driver has written since the ring was last put in order, by register."""
        return dict(self._settings)

    def restore_settings(self, settings: dict[str, int | float]) -> None:
        """Write the :attr:`known_settings` of another ring."""
        self._write_settings(settings)

    def write_settings(self, settings: Settings | FixedSettings) -> None:
        """Set the optimizer for later commands. Values that the nodes already hold are not written again."""
        self._write_settings(settings.registers())

    def _write_settings(self, values: dict[str, int | float]) -> None:
        """Write the values of registers that differ from the known ones."""
        written = {**self._settings, **values}
        # Text tells -0.0 from 0.0.
        changed = [name for name in values if repr(self._settings.get(name)) != repr(values[name])]
        self._settings = {}  # unknown while writes are under way, and after one that fails
        pending = [device.submit_write_register(name, values[name]) for device in self._devices for name in changed]
        for one in pending:
            one.result()
        self._settings = written

    def counters(self) -> list[dict[str, int]]:
        """All counters of each node."""
        return self._all(lambda rank, device: device.submit_counters())

    def clear_counters(self) -> None:
        """Set all counters of all nodes to zero."""
        self._write_register("CONTROL", 2)
        self._lost = [0] * self.nodes
