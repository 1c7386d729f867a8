"""A ring of nodes in Amaranth's own simulator: slow, but every signal of the gateware can be looked at by name.

Example
-------
::

    config = NodeConfig()
    ring = PysimRing(lambda: Node(config), nodes=2)
    devices = [Device(transport, config, name=f"node {n}") for n, transport in enumerate(ring.transports)]
"""

import itertools
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
from amaranth.hdl import Module
from amaranth.lib.wiring import Component
from amaranth.sim import Simulator

from hdl.ring.topology import RingTopology
from host.driver.words import Words

__all__ = ["PysimRing", "PysimTransport"]

_PERIOD = 1e-6
_STEP = 16


class PysimRing:
    """Nodes in a ring, simulated cycle by cycle. Link k leads from node k to its successor.

    A word on the wires of its sender in cycle t is on those of the receiver in cycle t + ``latency``, and a credit
    likewise.

    Parameters
    ----------
    node : callable
        Makes a node, with the ports of :class:`hdl.node.Node`. Called once for each.
    nodes : int
        Ring size, 1 to 16.
    latency : int
        Cycles that words and credits take from one node to the next; at least 1.

    Members
    -------
    nodes : int
    transports : tuple of PysimTransport
        The way to each node.
    cycle : int
        Cycles since reset.
    """

    def __init__(self, node: Callable[[], Component], *, nodes: int = 4, latency: int = 16) -> None:
        self._topology = RingTopology(nodes)
        if latency < 1:
            raise ValueError(f"Link latency must be at least 1 cycle, not {latency!r}")
        self.nodes = nodes
        self.cycle = 0
        self.transports = tuple(PysimTransport(self, n) for n in range(nodes))
        self._latency = latency
        self._requests: list[deque[tuple[int, bool]]] = [deque() for _ in range(nodes)]
        self._response: list[list[int]] = [[] for _ in range(nodes)]
        self._responses: list[deque[Words]] = [deque() for _ in range(nodes)]
        module = Module()
        self._ports: list[Any] = []
        for n in range(nodes):
            part = node()
            module.submodules[f"node_{n}"] = part
            self._ports.append(part)
        self._simulator = Simulator(module)
        self._simulator.add_clock(_PERIOD)
        self._simulator.add_testbench(self._drive, background=True)

    def send(self, node: int, words: Words) -> None:
        """Queue one packet for a node."""
        if words.ndim != 1 or not words.size:
            raise ValueError(f"Packet must be one sequence of at least one word, not of shape {words.shape!r}")
        values = words.tolist()
        self._requests[node].extend((value, n == len(values) - 1) for n, value in enumerate(values))

    def receive(self, node: int) -> Words | None:
        """The next packet from a node, or ``None`` where no whole one is there."""
        return self._responses[node].popleft() if self._responses[node] else None

    def run(self, cycles: int, *, until_packet_at: int | None = None) -> int:
        """Run for some cycles, or until there is a packet from a node; return how many cycles it took.

        Parameters
        ----------
        cycles : int
            Most cycles to run.
        until_packet_at : int or None
            Stop when this node has given a whole packet: at once if there is one, else after a multiple of 16 cycles.
        """
        start = self.cycle
        while self.cycle - start < cycles and not (until_packet_at is not None and self._responses[until_packet_at]):
            self.cycle += min(_STEP, start + cycles - self.cycle)
            self._simulator.run_until(self.cycle * _PERIOD)
        return self.cycle - start

    def describe(self) -> str:
        """Words that each node has not taken yet, and those that have come out of it."""
        return "\n".join([f"cycle {self.cycle}", *(
            f"node {n}: {len(self._requests[n])} words wait to go in, {len(self._responses[n])} whole packets and "
            f"{len(self._response[n])} words have come out" for n in range(self.nodes))])

    async def _drive(self, context: Any) -> None:
        """Drive the nodes, one turn per cycle: sample their outputs, then set their inputs for the next cycle."""
        sampled = []
        for port in self._ports:
            sampled += [port.host_i.ready, port.host_o.valid, port.host_o.payload.as_value(), port.ring_i.credit,
                        port.ring_o.valid, port.ring_o.data, port.ring_o.last]
            context.set(port.host_o.ready, 1)
        on_the_way = self._latency - 1
        words = [deque([(0, 0, 0)] * on_the_way) for _ in self._ports]
        credits = [deque([0] * on_the_way) for _ in self._ports]
        offered = [False] * self.nodes
        tick = context.tick().sample(*sampled)
        async for _, _, *values in tick:
            for n, port in enumerate(self._ports):
                following = self._ports[self._topology.successor(n)].ring_i
                taken, given, payload, credit, *word = itertools.islice(values, 7 * n, 7 * n + 7)
                if offered[n] and taken:
                    self._requests[n].popleft()
                if given:
                    self._response[n].append(payload & 0xFFFFFFFF)
                    if payload >> 32:
                        self._responses[n].append(np.array(self._response[n], np.uint32))
                        self._response[n].clear()
                offered[n] = bool(self._requests[n])
                context.set(port.host_i.valid, offered[n])
                if offered[n]:
                    data, last = self._requests[n][0]
                    context.set(port.host_i.payload.as_value(), data | last << 32)
                words[n].append(tuple(word))
                valid, data, end = words[n].popleft()
                context.set(following.valid, valid)
                context.set(following.data, data)
                context.set(following.last, end)
                credits[n].append(credit)
                context.set(self._ports[self._topology.predecessor(n)].ring_o.credit, credits[n].popleft())


class PysimTransport:
    """The way to one node of a :class:`PysimRing`. Time passes for the whole ring while one waits.

    Parameters
    ----------
    ring : PysimRing
    node : int
    """

    def __init__(self, ring: PysimRing, node: int) -> None:
        self._ring = ring
        self._node = node

    def send(self, packet: Words) -> None:
        """See :class:`~host.driver.transport.Transport`."""
        self._ring.send(self._node, packet)

    def receive(self, timeout_cycles: int) -> Words:
        """See :class:`~host.driver.transport.Transport`."""
        self._ring.run(timeout_cycles, until_packet_at=self._node)
        packet = self._ring.receive(self._node)
        if packet is None:
            raise TimeoutError(f"Node {self._node} gave no response within {timeout_cycles} cycles\n"
                               f"{self._ring.describe()}")
        return packet

    def close(self) -> None:
        """Do nothing: the ring goes with its last transport."""
