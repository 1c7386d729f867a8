"""Several hosts on one simulated ring, in separate threads. Simulated time advances only while all hosts wait."""

import threading
from typing import TYPE_CHECKING

from host.driver.words import Words
from host.transports.session import LATENCY

if TYPE_CHECKING:
    from sim.verilated.ring import VerilatedRing

__all__ = ["SharedTime"]


class SharedTime:
    """Line for :class:`~host.driver.transport.NodeTransport` to a simulated ring with several hosts.

    Time stops for all hosts while any host is working, so the cycle of a host's next request does not depend on the
    host's speed or on thread scheduling.
    """

    def __init__(self, ring: "VerilatedRing", hosts: int) -> None:
        self._ring = ring
        self._hosts = hosts  # number of hosts that have not left
        self._waiting = 0
        self._passed = 0  # number of times the simulation has advanced
        self._condition = threading.Condition()

    def _pass(self) -> None:
        """Advance the simulation if every host is waiting."""
        if self._hosts and self._waiting == self._hosts:
            self._ring.run(LATENCY)
            self._waiting = 0
            self._passed += 1
            self._condition.notify_all()

    def leave(self) -> None:
        """Unregister a host, so that the remaining hosts no longer wait for it."""
        with self._condition:
            self._hosts -= 1
            self._pass()

    def send(self, node: int, packet: Words) -> None:
        """Queue a request packet for a node."""
        with self._condition:
            self._ring.send(node, packet)

    def receive(self, node: int, timeout_cycles: int) -> Words:
        """Receive the node's next response packet, or raise ``TimeoutError`` if none arrives in time."""
        with self._condition:
            last = self._ring.cycle + timeout_cycles
            while (packet := self._ring.receive(node)) is None:
                if self._ring.cycle >= last:
                    raise TimeoutError(f"no packet from node {node} of the simulated ring within {timeout_cycles} "
                                       f"cycles\n{self._ring.describe()}")
                passed = self._passed
                self._waiting += 1
                self._pass()
                while self._passed == passed:
                    self._condition.wait()
            return packet
