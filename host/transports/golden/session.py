"""Golden nodes for a session, what they refuse, and their drivers, which answer requests without packets."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from hdl.config import Configuration
from hdl.control.registers import Kind, register
from hdl.features.quantization.feature import Quantization
from hdl.features.tenants.feature import Tenants
from hdl.features.throttles.feature import Throttles
from host.driver.command import Command, Event, ProgramRun
from host.driver.device import Device
from host.driver.errors import BadAddressError, ProgramTooLongError
from host.driver.trace import TraceError, TraceRecord
from host.driver.transport import Pending
from host.driver.words import Words, from_bits, to_bits
from host.features.grid.grid import Plan
from host.features.grid.switching import GridNodes
from host.features.programs.golden import GoldenPrograms
from host.transports.golden.nodes import GoldenNodes
from sim.golden.features.int16.int16_node import from_words, to_words

if TYPE_CHECKING:
    from host.driver.transport import Transport

__all__ = ["GoldenDevice", "GoldenGrid", "GoldenSession", "check_golden", "open_golden"]

T = TypeVar("T")


class _NoTransport:
    """Transport of no packets."""

    def send(self, packet: Words) -> None:
        """Refuse a packet."""
        raise ValueError("Requests to golden nodes must be those of registers, memories, commands and programs")

    def receive(self, timeout_cycles: int) -> Words:
        """Refuse to wait for a packet."""
        raise ValueError("Golden nodes send no packets")

    def close(self) -> None:
        """Do nothing."""


class GoldenDevice(Device):
    """Driver of a golden node; every request is answered at once."""

    def __init__(self, nodes: GoldenNodes, programs: GoldenPrograms, rank: int):
        transport: Transport = _NoTransport()
        super().__init__(transport, nodes.config, name=f"node {rank}")
        self._nodes, self._programs, self._rank = nodes, programs, rank

    def _answer(self, value: T) -> Pending[T]:
        return Pending(self.complete, [], lambda payloads: value)

    def connect(self) -> None:
        """Do nothing: golden nodes have the configuration that they were made with."""

    # Registers.

    def submit_read_register(self, name: str) -> "Pending[int | float]":
        return self._answer(self._register(name))

    def _register(self, name: str) -> int | float:
        rank = self._rank
        match name:
            case "STATUS":
                return int(self._nodes.running(rank))
            case "PROGRAM_STATUS":
                return int(self._programs.running(rank))
            case "TRACE_POINTER":
                return self._programs.recorded[rank]
            case "FLAGS":
                return self._nodes.flags[rank]
        return self._nodes.registers[rank].get(name, 0.0 if register(name).kind is Kind.FLOAT32 else 0)

    def submit_write_register(self, name: str, value: float) -> Pending[None]:
        entry, integers = register(name), bool(self.config.is_int16)
        bits = np.array([to_bits(entry, value, integers=integers)], np.uint32)
        if name == "CONTROL":
            self._control(int(value))
        elif name == "FLAGS":
            self._nodes.flags[self._rank] |= int(value)
            self._programs.advance()
        else:
            self._nodes.registers[self._rank][name] = from_bits(entry, bits, integers=integers)
            if name == "WEIGHT_STRIDE":
                self._nodes.weight_stride = int(value)
        return self._answer(None)

    def _control(self, value: int) -> None:
        """Reset links, which ends all commands, or clear counters."""
        if value & 1:
            self._nodes.abandon(self._rank)
            self._programs.abandon(self._rank)
            self._nodes.flags[self._rank] = 0
        if value & 2:
            for counts in self._nodes.counters.values():
                counts[self._rank] = 0

    def submit_counters(self) -> Pending[dict[str, int]]:
        return self._answer({name: int(counts[self._rank]) % (1 << 32)
                             for name, counts in self._nodes.counters.items()})

    # Memories.

    def _words(self, space: int, address: int, count: int) -> npt.NDArray[np.uint32]:
        memory = next((entry for entry in self.config.memory_map if entry.number == space), None)
        if memory is None or not 0 <= address <= address + count <= memory.words:
            raise BadAddressError(f"{self.name}: {count} elements of {self._memory_name(space)} memory from "
                                  f"{address} on must be in it; check the range against the node's configuration")
        return self._nodes.memories[memory.name][self._rank, address:address + count]

    def submit_read_memory(self, space: int, address: int, count: int) -> Pending[Words]:
        return self._answer(self._words(space, address, count).copy())

    def submit_write_memory(self, space: int, address: int, elements: npt.NDArray[Any]) -> Pending[None]:
        if elements.dtype not in (np.uint32, np.float32) or elements.ndim != 1:
            raise TypeError(f"Elements must be one row of uint32 or float32, not {elements.dtype} of shape "
                            f"{elements.shape!r}")
        words = np.ascontiguousarray(elements).view(np.uint32)
        if self.config.is_int16:
            words = to_words(from_words(words))
        self._words(space, address, words.size)[:] = words
        owners = self._nodes.owners(self._rank)
        if owners is not None and self.config.memory_map["activations"].number == space:
            owners.write(np.arange(address, address + words.size) // self.config.lanes)
        return self._answer(None)

    # Commands and events.

    def submit_push(self, command: Command) -> Pending[None]:
        self._nodes.push(self._rank, command)
        return self._answer(None)

    def submit_pop_event(self, timeout: int) -> "Pending[Event | None]":
        events = self._nodes.events[self._rank]
        return self._answer(events.popleft() if events else None)

    # Programs.

    def submit_load_program(self, queue: int, commands: Sequence[Command], *, slot: int = 0, model: int = 0,
                            idle: bool = False) -> Pending[None]:
        depth = self.config.programs.depth
        if slot + len(commands) > depth:
            raise ProgramTooLongError(f"{self.name}: a program of {slot + len(commands)} commands must have at most "
                                      f"{depth}; load a shorter program, or nodes with a larger depth of programs")
        if idle:
            raise ValueError("Programs of golden nodes must be loaded before a run, not staged while one runs")
        self._programs.loaded[self._rank][queue][slot:] = commands
        return self._answer(None)

    def submit_run(self, run: ProgramRun) -> Pending[None]:
        self.latest_run = run.number
        self._programs.run(self._rank, passes=run.passes, parity=run.parity, first=run.first)
        return self._answer(None)

    def trace(self, since: int | None = None) -> list[TraceRecord]:
        records = list(self._programs.traces[self._rank])
        count = len(records) if since is None else self._programs.recorded[self._rank] - since
        if count > len(records):
            raise TraceError(f"Trace must have at most {len(records)} records, not {count:,}: run fewer passes at a "
                             f"time")
        return records[len(records) - count:]


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
    nodes, latency : int
        Number of nodes, and modelled cycles of a link.
    """
    check_golden(config)
    golden = GoldenNodes(config, nodes=nodes, latency=latency)
    programs = GoldenPrograms(golden, latency=latency)
    return GoldenSession(golden, [GoldenDevice(golden, programs, rank) for rank in range(nodes)])
