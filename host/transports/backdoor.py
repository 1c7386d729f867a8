"""Transport that accesses memories and counters of simulated nodes without using their host ports.

Results have the same bits and the same order as through a host port. The words and cycles of the port are computed
and added, so that bypassing it does not improve any figure. Settings, commands and events still use the port.
"""

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from hdl.config import Configuration
from hdl.control.protocol import RESPONSE, Opcode, Status, access_layout, header_layout
from hdl.control.registers import COUNTERS
from host.driver.transport import Transport
from host.driver.words import Words, fields, places
from sim.golden.host_port import PortModel

if TYPE_CHECKING:
    from sim.verilated.ring import VerilatedRing

__all__ = ["BackdoorTransport", "PortTime"]

_HEADER, _ACCESS = places(header_layout()), places(access_layout())


class PortTime:
    """Time that the host ports of a ring's nodes would have taken for the transfers that bypassed them.

    The time is exact if the host waits for a node's answers before it sends the node a request that does not access
    memory. ``cycle`` returns the cycle of the simulation. While the host waits for a packet, the simulation runs in
    steps of ``grid`` cycles, and stops after the step in which the packet is complete.
    """

    def __init__(self, cycle: Callable[[], int] = lambda: 0, grid: int = 16) -> None:
        self._cycle, self._grid = cycle, grid
        self.cycles = 0  # extra cycles that the same accesses would have taken through simulated ports
        self.words = 0  # number of words in requests and responses

    @property
    def now(self) -> int:
        """Current cycle, as if the ports were simulated."""
        return self._cycle() + self.cycles

    def wait_for(self, cycle: int) -> None:
        """Advance the time to the end of a wait for a packet whose last word arrives in ``cycle``."""
        self.cycles += max(0, (cycle // self._grid + 1) * self._grid - self.now)


class BackdoorTransport:
    """Transport to a node of a Verilated ring, which serves memory accesses and counter reads without the node.

    All other requests, invalid requests, and reads of counters that the library of ``ring`` does not have are sent
    through the node's port by ``transport``. All transports of a ring share one ``time``.
    """

    def __init__(self, transport: Transport, ring: "VerilatedRing", node: int, config: Configuration,
                 time: PortTime) -> None:
        self._transport = transport
        self._ring, self._node = ring, node
        self._memories = [ring.memory(node, space) for space in range(ring.spaces[node])]
        self._owners, self._lanes = ring.owners(node), config.lanes
        names = config.memory_map.names
        self._owned = names.index("activations") if self._owners.size else None  # memory space with buffer tags
        self._time = time
        self._tenants = config.has("tenants")  # whether tenants have memory windows, which the node checks
        self._model = PortModel(config)
        self._ready: deque[tuple[Words, int]] = deque()  # responses, and the cycles of their completion
        self._waiting = 0  # number of responses that the node still has to send

    def send(self, packet: Words) -> None:
        """Serve a request packet, or forward it to the node."""
        if self._waiting or not self._serve(packet):
            self._transport.send(packet)
            self._waiting += 1

    def receive(self, timeout_cycles: int) -> Words:
        """Receive the next response packet; see :meth:`host.driver.transport.Transport.receive`."""
        if self._ready:
            response, cycle = self._ready.popleft()
            self._time.wait_for(cycle)
            return response
        response = self._transport.receive(timeout_cycles)
        self._waiting -= 1
        return response

    def close(self) -> None:
        """Close the underlying transport."""
        self._transport.close()

    def _serve(self, packet: Words) -> bool:
        """Queue the response to a request; return False if the node must serve it."""
        if packet.size < 2 or self._tenants:
            return False
        header = fields(_HEADER, int(packet[0]))
        serve = {Opcode.READ_MEMORY: self._read_memory, Opcode.WRITE_MEMORY: self._write_memory,
                 Opcode.READ_REGISTER: self._read_counters}.get(header["opcode"])
        served = serve(packet, header["count"]) if serve is not None and header["count"] else None
        if served is None:
            return False
        payload, cycle = served
        first = (payload.size << _HEADER["count"][0] | header["tag"] << _HEADER["tag"][0]
                 | (header["opcode"] | RESPONSE) << _HEADER["opcode"][0])
        response = np.concatenate([np.array([first, Status.OK], np.uint32), payload])
        self._time.words += packet.size + response.size
        self._ready.append((response, cycle))
        return True

    def _access(self, packet: Words, count: int, *, data: int) -> tuple[int, int] | None:
        """Return the memory space and address of an access with ``data`` words, or None if the packet size is wrong
        or the elements do not exist."""
        access = fields(_ACCESS, int(packet[1]))
        space, address = access["space"], access["address"]
        if packet.size != 2 + data or space >= len(self._memories) or address + count > self._memories[space].size:
            return None
        return space, address

    def _read_memory(self, packet: Words, count: int) -> tuple[Words, int] | None:
        if (access := self._access(packet, count, data=0)) is None:
            return None
        space, address = access
        elements = self._memories[space][address:address + count]
        payload = elements.copy() if elements.dtype == np.uint32 else elements.view(np.int16).astype(np.int32)
        return payload.view(np.uint32), self._model.read(self._time.now, address, count)

    def _write_memory(self, packet: Words, count: int) -> tuple[Words, int] | None:
        if (access := self._access(packet, count, data=count)) is None:
            return None
        space, address = access
        if space == self._owned:  # rows that the host has written have tag 0, for no buffer
            self._owners[address // self._lanes:-(-(address + count) // self._lanes)] = 0
        self._memories[space][address:address + count] = packet[2:]
        return np.array([count], np.uint32), self._model.write(self._time.now, count)

    def _read_counters(self, packet: Words, count: int) -> tuple[Words, int] | None:
        first = int(packet[1]) - COUNTERS[0].address
        if packet.size != 2 or not 0 <= first <= len(COUNTERS) - count:
            return None
        values = self._ring.counters(self._node)
        if values is None:
            return None
        return values[first:first + count], self._model.read_registers(self._time.now, count)
