"""Devices of a ring's nodes in rank order, their common formats, and requests to all nodes.

A request to all nodes is sent to every node before waiting for the first answer, so that they work in parallel. Nodes
may have different configurations if they agree on :data:`ALIKE`; buffers must then fit in the smallest memory of each
region.
"""

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self, TypeVar

from hdl.config import Configuration
from host.driver.device import Device
from host.driver.elements import element_format
from host.driver.transport import Pending, results_of
from host.driver.words import Vector, Words

__all__ = ["ALIKE", "TIMEOUT", "Devices", "Formats", "alike"]

T = TypeVar("T")

TIMEOUT = 1 << 17
"""Cycles that a node waits for the ring before it abandons a command, by default."""

ALIKE = ("element", "segment", "weights", "gradients", "link", "has_quorum", "queues", "role.root_reduce",
         "role.interleaved")
"""Sections and properties of a configuration that must be the same on all nodes of a ring: packets, links, master
weights and programs."""


def alike(configs: Sequence[Configuration], name: str) -> Any:
    """Value of a parameter that must be the same on all nodes."""
    values = list(dict.fromkeys(map(operator.attrgetter(name), configs)))
    if len(values) > 1:
        raise ValueError(f"Nodes of a ring must have the same {name}, not {' and '.join(map(repr, values))}")
    return values[0]


class Formats:
    """Formats of elements, memory rows, segments and codecs; the configurations must agree on :data:`ALIKE`."""

    def __init__(self, configs: Sequence[Configuration]):
        for name in ALIKE:
            alike(configs, name)
        config, self._configs = configs[0], configs
        self.segment = int(config.segment)  # number of elements in a segment
        self.elements = element_format(config)
        self.weight_codec = str(config.weights.codec)  # name of the codec for new weights in a fused update
        self.has_codebook = bool(config.codebook_words)  # whether the codec has a codebook, which the host must load
        self.gradient_codec = str(config.gradients)  # name of the codec for gradients and their sums
        # whether nodes store master weights of their blocks separately from the weights that all nodes compute with
        self.has_master = bool(config.weights.has_master)
        self.has_residual = bool(config.has_residual)  # whether nodes store the gradient codec's residual

    @property
    def lanes(self) -> int:
        """Number of elements per memory row; raises ``ValueError`` if it differs between nodes."""
        return int(alike(self._configs, "lanes"))


class Devices(tuple[Device, ...]):
    """Devices of a ring's nodes in rank order, with configurations that agree on :data:`ALIKE`."""

    def __new__(cls, devices: Iterable[Device], *, timeout: int = TIMEOUT) -> Self:
        return super().__new__(cls, devices)

    def __init__(self, devices: Iterable[Device], *, timeout: int = TIMEOUT):
        if not self:
            raise ValueError("A ring must have at least one node")
        if not 1 <= timeout < 1 << 30:
            raise ValueError(f"Timeout must be between 1 and {(1 << 30) - 1} cycles, not {timeout!r}")
        # distinct node configurations; rank 0's configuration, for parameters that are the same on all nodes
        self.configs: list[Configuration] = list(dict.fromkeys(device.config for device in self))
        self.config = self.configs[0]
        self.formats = Formats(self.configs)
        self.timeout = timeout  # number of cycles without a word on its links after which a node abandons a command

    @property
    def privileged(self) -> bool:
        """Whether all devices may write privileged registers."""
        return all(device.privileged for device in self)

    def ask(self, submit: Callable[[int, Device], Pending[T]], ranks: Iterable[int] | None = None) -> list[T]:
        """Send a request to all nodes, or to the given ranks, then wait for all answers."""
        ranks = range(len(self)) if ranks is None else ranks
        return results_of([submit(rank, self[rank]) for rank in ranks])

    def write_register(self, name: str, value: float) -> None:
        """Write the same value to a register on all nodes."""
        self.ask(lambda rank, device: device.submit_write_register(name, value))

    def write_space(self, name: str, base: int, contents: Mapping[int, Vector]) -> None:
        """Write each rank's words to a space, from ``base`` on; raises ``KeyError`` if a node lacks it."""
        numbers = self._numbers(name, contents)
        self.ask(lambda rank, device: device.submit_write_memory(numbers[rank], base, contents[rank]), contents)

    def read_space(self, name: str, base: int, counts: Mapping[int, int]) -> dict[int, Words]:
        """Read ``counts`` words, given for each rank, of a memory space; see :meth:`write_space`."""
        numbers = self._numbers(name, counts)
        words = self.ask(lambda rank, device: device.submit_read_memory(numbers[rank], base, counts[rank]), counts)
        return dict(zip(counts, words, strict=True))

    def _numbers(self, name: str, ranks: Iterable[int]) -> dict[int, int]:
        """Number that identifies a memory space in packets; depends on the node's configuration."""
        return {rank: int(self[rank].config.memory_map[name].number) for rank in ranks}
