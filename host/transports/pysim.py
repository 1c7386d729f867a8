"""Nodes and links in Amaranth's own simulator, which is slow but gives access to every signal by name.

Example
-------
::

    config = NodeConfig()
    ring = PysimRing(lambda: Node(config), nodes=2)
    devices = [Device(transport, config, name=f"node {n}") for n, transport in enumerate(ring.transports)]
"""

import itertools
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from amaranth.hdl import Module
from amaranth.lib.wiring import Component, In, Out
from amaranth.sim import Simulator

from hdl.ring.ports import ports_of
from hdl.ring.topology import RingTopology
from host.driver.words import Words
from sim.link_faults import RandomFaults, wires
from sim.verilated.links import End, check_wiring

__all__ = ["PysimRing", "PysimTransport"]

_PERIOD = 1e-6
_STEP = 16


class PysimRing:
    """Nodes in a ring or with other wiring, simulated cycle by cycle.

    A word that the sender drives in cycle t reaches the receiver in cycle t + ``latency``; the return wire has the
    same latency.

    Parameters
    ----------
    node : callable
        Function that creates a node, which must have the ports of :class:`hdl.node.Node`.
    nodes : int
        Number of nodes; 1 to 255 in a ring.
    latency : int
        Latency of each link in cycles, at least 1.
    wiring : sequence, optional
        Links, as for :class:`~sim.verilated.ring.VerilatedRing`; by default a ring.
    faults : RandomFaults, optional
        Random faults on all links, the same as on a Verilated ring.
    """

    def __init__(self, node: Callable[[], Component], *, nodes: int = 4, latency: int = 16,
                 wiring: Sequence[tuple[End, End]] | None = None, faults: RandomFaults | None = None) -> None:
        if wiring is None:
            wiring = [((source, 0), (target, 0)) for source, target in RingTopology(nodes).links]
        if latency < 1:
            raise ValueError(f"Link latency must be at least 1 cycle, not {latency!r}")
        self.nodes = nodes
        self.transports = tuple(PysimTransport(self, n) for n in range(nodes))  # one per node
        module = Module()
        self._ports: list[Any] = [node() for _ in range(nodes)]
        for n, part in enumerate(self._ports):
            module.submodules[f"node_{n}"] = part
        ports = [ports_of(part) for part in self._ports]
        check_wiring(wiring, nodes=nodes, ports=len(ports[0]))
        random = RandomFaults(rate=0) if faults is None else faults
        self._links = [_Link(index, ports[source][port][1], ports[target][other][0], latency, random)
                       for index, ((source, port), (target, other)) in enumerate(wiring)]
        self._begin()
        self._simulator = Simulator(module)
        self._simulator.add_clock(_PERIOD)
        self._simulator.add_testbench(self._drive, background=True)

    def _begin(self) -> None:
        self.cycle = 0  # cycles since reset
        self._requests: list[deque[tuple[int, bool]]] = [deque() for _ in range(self.nodes)]
        self._response: list[list[int]] = [[] for _ in range(self.nodes)]
        self._responses: list[deque[Words]] = [deque() for _ in range(self.nodes)]
        for link in self._links:
            link.begin()
        # Number of faults on each link so far, on words and on the return wire, keyed by the name of the wires.
        self.faults = [link.faults for link in self._links]

    def reset(self) -> None:
        """Return to the power-up state. This is much faster than creating a new simulation."""
        begun = self.cycle > 0
        self._begin()
        if begun:
            self._simulator.reset()

    def send(self, node: int, words: Words) -> None:
        """Queue one packet for a node."""
        if words.ndim != 1 or not words.size:
            raise ValueError(f"Packet must be one sequence of at least one word, not of shape {words.shape!r}")
        values = words.tolist()
        self._requests[node].extend((value, n == len(values) - 1) for n, value in enumerate(values))

    def receive(self, node: int) -> Words | None:
        """Return the next packet from a node, or None if no packet is complete."""
        return self._responses[node].popleft() if self._responses[node] else None

    def run(self, cycles: int, *, until_packet_at: int | None = None) -> int:
        """Run for at most ``cycles`` cycles; return how many cycles passed.

        The run ends early when a packet from node ``until_packet_at`` is complete, either immediately or after a
        multiple of 16 cycles.
        """
        start = self.cycle
        while self.cycle - start < cycles and not (until_packet_at is not None and self._responses[until_packet_at]):
            self.cycle += min(_STEP, start + cycles - self.cycle)
            self._simulator.run_until(self.cycle * _PERIOD)
        return self.cycle - start

    def describe(self) -> str:
        """Describe the words that each node has not accepted yet, and the packets and words that it has sent."""
        return "\n".join([f"cycle {self.cycle}", *(
            f"node {n}: {len(self._requests[n])} words wait to go in, {len(self._responses[n])} whole packets and "
            f"{len(self._response[n])} words have come out" for n in range(self.nodes))])

    async def _drive(self, context: Any) -> None:
        """Drive the nodes: in each cycle, sample their outputs, then set the inputs for the next cycle."""
        sampled = []
        for port in self._ports:
            sampled += [port.host_i.ready, port.host_o.valid, port.host_o.payload.as_value()]
            context.set(port.host_o.ready, 1)
        for link in self._links:
            sampled += link.sampled
        offered = [False] * self.nodes
        cycle = 0
        async for _, _, *values in context.tick().sample(*sampled):
            for n, port in enumerate(self._ports):
                taken, valid, payload = itertools.islice(values, 3 * n, 3 * n + 3)
                if offered[n] and taken:
                    self._requests[n].popleft()
                if valid:
                    self._response[n].append(payload & 0xFFFFFFFF)
                    if payload >> 32:
                        self._responses[n].append(np.array(self._response[n], np.uint32))
                        self._response[n].clear()
                offered[n] = bool(self._requests[n])
                context.set(port.host_i.valid, offered[n])
                if offered[n]:
                    data, last = self._requests[n][0]
                    context.set(port.host_i.payload.as_value(), data | last << 32)
            wires = iter(values[3 * self.nodes:])
            for link in self._links:
                link.carry(context, cycle, list(itertools.islice(wires, len(link.sampled))))
            cycle += 1


class _Link:
    """Wires between a port of one node and a port of another node, with the same latency in both directions."""

    def __init__(self, index: int, source: Any, target: Any, latency: int, faults: RandomFaults) -> None:
        self._index = index
        self._random = faults
        members = source.signature.members
        self._replay = "check" in members
        self._forward = [name for name, member in members.items() if member.flow == Out]
        back, = (name for name, member in members.items() if member.flow == In)
        self._names = wires(replay=self._replay)
        self.sampled = [*(getattr(source, name) for name in self._forward), getattr(target, back)]
        self._ends = [*(getattr(target, name) for name in self._forward), getattr(source, back)]
        self._latency = latency
        self.begin()

    def begin(self) -> None:
        """Start with no words on the link."""
        self._on_the_way = deque([[0] * len(self._ends)] * (self._latency - 1))
        self.faults: dict[str, int] = {}

    def carry(self, context: Any, cycle: int, values: list[int]) -> None:
        """Sample the values that one end drives in a cycle, and drive the other end for the next cycle."""
        number = self._random.wire(self._index, cycle, replay=self._replay)
        if number is not None:
            self._flip(self._names[number], values)
        self._on_the_way.append(values)
        for end, value in zip(self._ends, self._on_the_way.popleft(), strict=True):
            context.set(end, value)

    def _flip(self, wire: str, values: list[int]) -> None:
        name, _, bit = wire.partition("[")
        index = self._forward.index(name) if name in self._forward else -1
        if values[self._forward.index("valid")] or name == "valid" or index < 0:
            self.faults[wire] = self.faults.get(wire, 0) + 1
        values[index] ^= 1 << int(bit.removesuffix("]") or 0)


class PysimTransport:
    """Transport to one node of a :class:`PysimRing`. While it waits, the whole ring runs."""

    def __init__(self, ring: PysimRing, node: int) -> None:
        self._ring = ring
        self._node = node

    def send(self, packet: Words) -> None:
        """Queue one request packet."""
        self._ring.send(self._node, packet)

    def receive(self, timeout_cycles: int) -> Words:
        """Run the ring until a complete response packet arrives."""
        self._ring.run(timeout_cycles, until_packet_at=self._node)
        packet = self._ring.receive(self._node)
        if packet is None:
            raise TimeoutError(f"Node {self._node} gave no response within {timeout_cycles} cycles\n"
                               f"{self._ring.describe()}")
        return packet

    def close(self) -> None:
        """Do nothing; the ring is freed together with its last transport."""
