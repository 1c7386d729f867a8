"""Session with golden nodes: drivers that answer requests without sending packets, and supported configurations."""

from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from hdl.config import Configuration
from hdl.control.registers import Kind, register
from host.driver.command import Command, Event
from host.driver.device import Device
from host.driver.elements import element_format
from host.driver.errors import BadAddressError
from host.driver.transport import Pending
from host.driver.words import Words, bits_of, from_bits, to_bits
from host.feature import features_of
from host.transports.golden.nodes import GoldenNodes

__all__ = ["GoldenDevice", "GoldenSession", "check_golden", "open_golden"]

T = TypeVar("T")


class _NoTransport:
    """Placeholder for a transport: golden nodes exchange no packets with the host."""

    def send(self, packet: Words) -> None:
        raise ValueError("Requests to golden nodes must be those of registers, memories, commands and programs")

    def receive(self, timeout_cycles: int) -> Words:
        raise ValueError("Golden nodes send no packets")

    def close(self) -> None:
        """Do nothing: there is nothing to close."""


class GoldenDevice(Device):
    """Driver of a golden node, which answers every request immediately."""

    def __init__(self, nodes: GoldenNodes, rank: int):
        super().__init__(_NoTransport(), nodes.config, name=f"node {rank}")
        self._nodes, self._rank, self._elements = nodes, rank, element_format(nodes.config)

    def _answer(self, value: T) -> Pending[T]:
        return Pending(self.complete, [], lambda payloads: value)

    def connect(self) -> None:
        """Do nothing, because golden nodes always have the expected configuration."""

    # Registers.

    def submit_read_register(self, name: str) -> "Pending[int | float]":
        return self._answer(self.register(name))

    def register(self, name: str) -> int | float:
        """Return the value of a register of the golden node."""
        match name:
            case "STATUS":
                return int(self._nodes.running(self._rank))
            case "FLAGS":
                return self._nodes.flags[self._rank]
        return self._nodes.registers[self._rank].get(name, 0.0 if register(name).kind is Kind.FLOAT32 else 0)

    def submit_write_register(self, name: str, value: float) -> Pending[None]:
        entry, integers = register(name), self._elements.integers
        bits = np.array([to_bits(entry, value, integers=integers)], np.uint32)
        match name:
            case "CONTROL":
                self._control(int(value))
            case "FLAGS":
                self._nodes.flags[self._rank] |= int(value)
            case _:
                self._nodes.registers[self._rank][name] = from_bits(entry, bits, integers=integers)
        if name == "WEIGHT_STRIDE":
            self._nodes.weight_stride = int(value)
        return self._answer(None)

    def _control(self, value: int) -> None:
        """Handle a write to CONTROL: bit 0 resets the links, which ends all commands, and bit 1 clears counters."""
        if value & 1:
            self._nodes.abandon(self._rank)
            self._nodes.flags[self._rank] = 0
        if value & 2:
            for counts in self._nodes.counters.values():
                counts[self._rank] = 0

    def submit_counters(self) -> Pending[dict[str, int]]:
        return self._answer({name: int(counts[self._rank]) % (1 << 32)
                             for name, counts in self._nodes.counters.items()})

    # Memories.

    def _space(self, space: int, address: int, count: int) -> str:
        """Return the name of the memory that holds these elements; raises ``BadAddressError`` if none does."""
        memory = next((entry for entry in self.config.memory_map if entry.number == space), None)
        if memory is None or not 0 <= address <= address + count <= memory.words:
            raise BadAddressError(f"{self.name}: {count} elements of {self._memory_name(space)} memory from "
                                  f"{address} on must be in it; check the range against the node's configuration")
        name: str = memory.name
        return name

    def submit_read_memory(self, space: int, address: int, count: int) -> Pending[Words]:
        memory = self._nodes.memories[self._space(space, address, count)]
        return self._answer(memory[self._rank, address:address + count].copy())

    def submit_write_memory(self, space: int, address: int, elements: npt.NDArray[Any]) -> Pending[None]:
        words = self._elements.stored(bits_of(elements))
        self._nodes.write(self._rank, self._space(space, address, words.size), address, words)
        return self._answer(None)

    # Commands and events.

    def submit_push(self, command: Command) -> Pending[None]:
        self._nodes.push(self._rank, command)
        return self._answer(None)

    def submit_pop_event(self, timeout: int) -> "Pending[Event | None]":
        events = self._nodes.events[self._rank]
        return self._answer(events.popleft() if events else None)


class GoldenSession(NamedTuple):
    """Golden nodes and their drivers, in the order of ranks."""

    nodes: GoldenNodes
    devices: list[Device]


def check_golden(config: Configuration) -> None:
    """Raise ``ValueError`` if golden nodes do not support this configuration."""
    for feature in features_of(config):
        if feature.not_golden is not None:
            name, reason = feature.not_golden
            raise ValueError(f"{name} must be left out of nodes on transport golden: {reason}")


def open_golden(config: Configuration, *, nodes: int, latency: int) -> GoldenSession:
    """Create ``nodes`` golden nodes with links of the given modelled latency in cycles."""
    check_golden(config)
    golden = GoldenNodes(config, nodes=nodes, latency=latency)
    of_features = (feature.golden_devices(golden, latency) for feature in features_of(config))
    devices = next((devices for devices in of_features if devices is not None), None)
    return GoldenSession(golden, devices or [GoldenDevice(golden, rank) for rank in range(nodes)])
