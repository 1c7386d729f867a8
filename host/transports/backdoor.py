"""A way round the host port of simulated nodes: their memories are read and written directly.

The bits are those that the port would carry, in the same order. The words and cycles of the port are
computed instead, so that no figure gets better by it. Registers, commands and events still go through the port.
"""

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from hdl.config import NodeConfig
from hdl.control.protocol import RESPONSE, Opcode, Status, access_layout, header_layout
from host.driver.transport import Transport
from host.driver.words import Words, fields, places
from sim.golden.host_port import PortModel

if TYPE_CHECKING:
    from sim.verilated.ring import VerilatedRing

__all__ = ["BackdoorTransport", "PortTime"]

_HEADER, _ACCESS = places(header_layout()), places(access_layout())

#: A run of the simulation that waits for a packet ends at a multiple of so many cycles.
_GRID = 16


class PortTime:
    """Time that the host ports of a ring's nodes would have taken for transfers that went round them.

    It is exact as long as the host waits for a node's answers before it asks the node for more than memory.

    Parameters
    ----------
    cycle : callable
        The simulation's cycle.

    Members
    -------
    cycles : int
        Cycles by which a simulation of the ports would have been longer.
    words : int
        Words of requests and responses.
    """

    def __init__(self, cycle: Callable[[], int] = lambda: 0) -> None:
        self._cycle = cycle
        self.cycles = 0
        self.words = 0

    @property
    def now(self) -> int:
        """Cycle that a simulation of the ports would be in."""
        return self._cycle() + self.cycles

    def wait_for(self, cycle: int) -> None:
        """Let time pass until a run that waits for a packet, whose last word is given in ``cycle``, has ended."""
        self.cycles += max(0, (cycle // _GRID + 1) * _GRID - self.now)


class BackdoorTransport:
    """A transport to a node of a Verilated ring that serves accesses to memories itself.

    What the node would refuse goes to the node, as does everything else.

    Parameters
    ----------
    transport : Transport
        The way through the node's port.
    ring : VerilatedRing
        Ring whose library knows the node's memories.
    node : int
        Number of the node.
    config : NodeConfig
        Its parameters.
    time : PortTime
        Shared by all nodes of the ring.
    """

    def __init__(self, transport: Transport, ring: "VerilatedRing", node: int, config: NodeConfig,
                 time: PortTime) -> None:
        self._transport = transport
        self._memories = [ring.memory(node, space) for space in range(ring.memories)]
        self._time = time
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
        """Read or write memory, and put the response in order; False if the packet is none that may."""
        if packet.size < 2:
            return False
        header, access = fields(_HEADER, int(packet[0])), fields(_ACCESS, int(packet[1]))
        opcode, count = header["opcode"], header["count"]
        reads = opcode == Opcode.READ_MEMORY
        space, address = access["space"], access["address"]
        if (not reads and opcode != Opcode.WRITE_MEMORY) or packet.size != 2 + (0 if reads else count):
            return False
        if not count or space >= len(self._memories) or address + count > self._memories[space].size:
            return False
        elements = self._memories[space][address:address + count]
        if reads:
            payload = elements.copy() if elements.dtype == np.uint32 else elements.view(np.int16).astype(np.int32)
            cycle = self._model.read(self._time.now, address, count)
        else:
            elements[:] = packet[2:] if elements.dtype == np.uint32 else packet[2:].astype(elements.dtype)
            payload = np.array([count], np.uint32)
            cycle = self._model.write(self._time.now, count)
        first = (payload.size << _HEADER["count"][0] | header["tag"] << _HEADER["tag"][0]
                 | (opcode | RESPONSE) << _HEADER["opcode"][0])
        response = np.concatenate([np.array([first, Status.OK], np.uint32), payload.view(np.uint32)])
        self._time.words += packet.size + response.size
        self._ready.append((response, cycle))
        return True
