"""A way round the host port of simulated nodes: their memories are read and written directly, and counters are read.

The bits are those that the port would carry, in the same order. The words and cycles of the port are computed
instead, so that no figure gets better by it. Settings, commands and events still go through the port.
"""

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

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
    """Time that the host ports of a ring's nodes would have taken for transfers that went round them.

    It is exact as long as the host waits for a node's answers before it asks the node for more than memory.

    Parameters
    ----------
    cycle : callable
        The simulation's cycle.
    grid : int
        Cycles at whose multiples a run of the simulation that waits for a packet ends.
    """

    def __init__(self, cycle: Callable[[], int] = lambda: 0, grid: int = 16) -> None:
        self._cycle, self._grid = cycle, grid
        self.cycles = 0  # cycles by which a simulation of the ports would have been longer
        self.words = 0  # words of requests and responses

    @property
    def now(self) -> int:
        """Cycle that a simulation of the ports would be in."""
        return self._cycle() + self.cycles

    def wait_for(self, cycle: int) -> None:
        """Let time pass until a run that waits for a packet, whose last word is given in ``cycle``, has ended."""
        self.cycles += max(0, (cycle // self._grid + 1) * self._grid - self.now)


class BackdoorTransport:
    """A transport to a node of a Verilated ring that serves accesses to memories and counters itself.

    What the node would refuse goes to the node, as does everything else.

    Parameters
    ----------
    transport : Transport
        The way through the node's port.
    ring : VerilatedRing
        Ring whose library knows the node's memories. A counter that it does not know is read through the port.
    time : PortTime
        Shared by all nodes of the ring.
    """

    def __init__(self, transport: Transport, ring: "VerilatedRing", node: int, config: Configuration,
                 time: PortTime) -> None:
        self._transport = transport
        self._ring, self._node = ring, node
        self._memories = [ring.memory(node, space) for space in range(ring.spaces[node])]
        self._owners, self._lanes = ring.owners(node), config.lanes
        names = config.memory_map.names
        self._owned = names.index("activations") if self._owners.size else None  # space whose rows have owners
        self._time = time
        self._tenants = config.has("tenants")  # whose windows the node knows
        self._model = PortModel(config)
        self._ready: deque[tuple[Words, int]] = deque()  # responses, and the cycles in which they would be complete
        self._waiting = 0  # responses to come from the node

    def send(self, packet: Words) -> None:
        """Serve a request to memory, or hand it on."""
        if self._waiting or not self._serve(packet):
            self._transport.send(packet)
            self._waiting += 1

    def receive(self, timeout_cycles: int) -> Words:
        """The next response packet; see :meth:`host.driver.transport.Transport.receive`."""
        if self._ready:
            response, cycle = self._ready.popleft()
            self._time.wait_for(cycle)
            return response
        response = self._transport.receive(timeout_cycles)
        self._waiting -= 1
        return response

    def close(self) -> None:
        """Close the way through the port."""
        self._transport.close()

    def _serve(self, packet: Words) -> bool:
        """Put the response to a request in order; False if it goes to the node."""
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

    def _elements(self, word: int, count: int) -> tuple[slice, npt.NDArray[Any] | None]:
        """Place of an access in a memory, and the memory; None if there are no such elements."""
        access = fields(_ACCESS, word)
        space, place = access["space"], slice(access["address"], access["address"] + count)
        if space >= len(self._memories) or place.stop > self._memories[space].size:
            return place, None
        return place, self._memories[space]

    def _read_memory(self, packet: Words, count: int) -> tuple[Words, int] | None:
        place, memory = self._elements(int(packet[1]), count)
        if memory is None or packet.size != 2:
            return None
        elements = memory[place]
        payload = elements.copy() if elements.dtype == np.uint32 else elements.view(np.int16).astype(np.int32)
        return payload.view(np.uint32), self._model.read(self._time.now, place.start, count)

    def _write_memory(self, packet: Words, count: int) -> tuple[Words, int] | None:
        place, memory = self._elements(int(packet[1]), count)
        if memory is None or packet.size != 2 + count:
            return None
        if fields(_ACCESS, int(packet[1]))["space"] == self._owned:  # what the host writes belongs to any buffer
            self._owners[place.start // self._lanes:-(-place.stop // self._lanes)] = 0
        memory[place] = packet[2:] if memory.dtype == np.uint32 else packet[2:].astype(memory.dtype)
        return np.array([count], np.uint32), self._model.write(self._time.now, count)

    def _read_counters(self, packet: Words, count: int) -> tuple[Words, int] | None:
        first = int(packet[1]) - COUNTERS[0].address
        if packet.size != 2 or not 0 <= first <= len(COUNTERS) - count:
            return None
        values = self._ring.counters(self._node)
        if values is None:
            return None
        return values[first:first + count], self._model.read_registers(self._time.now, count)
