"""Several hosts on one simulated ring, each in a thread of its own: simulated time passes while all of them wait."""

import threading
from typing import TYPE_CHECKING

from host.driver.words import Words
from host.transports.session import LATENCY

if TYPE_CHECKING:
    from sim.verilated.ring import VerilatedRing

__all__ = ["SharedTime", "SharedTransport"]


class SharedTime:
    """Time of a simulation that several hosts wait for.

    A host that works stops the others, so the cycle in which its next request comes does not depend on how fast it
    is, nor on the order of threads.

    Parameters
    ----------
    hosts : int
        Hosts that have not ended.
    """

    def __init__(self, ring: "VerilatedRing", hosts: int) -> None:
        self._ring = ring
        self._hosts = hosts
        self._waiting = 0
        self._passed = 0  # times that all have waited
        self._condition = threading.Condition()

    def _pass(self) -> None:
        """Let time pass if all hosts wait."""
        if self._hosts and self._waiting == self._hosts:
            self._ring.run(LATENCY)
            self._waiting = 0
            self._passed += 1
            self._condition.notify_all()

    def leave(self) -> None:
        """End a host, for which no other waits any more."""
        with self._condition:
            self._hosts -= 1
            self._pass()

    def send(self, node: int, packet: Words) -> None:
        """Queue a request packet of a node."""
        with self._condition:
            self._ring.send(node, packet)

    def receive(self, node: int, timeout_cycles: int) -> Words:
        """The node's next response packet, when it is there.

        Raises
        ------
        TimeoutError
            None came within so many cycles.
        """
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


class SharedTransport:
    """The way to a node of a simulated ring, whose other nodes other hosts have.

    Parameters
    ----------
    node : int
        Number of the node.
    """

    def __init__(self, time: SharedTime, node: int) -> None:
        self._time, self._node = time, node

    def send(self, packet: Words) -> None:
        """Queue one request packet, which the node takes as simulated time passes."""
        self._time.send(self._node, packet)

    def receive(self, timeout_cycles: int) -> Words:
        """The node's next response packet; see :meth:`SharedTime.receive`."""
        return self._time.receive(self._node, timeout_cycles)

    def close(self) -> None:
        """Do nothing: the ring belongs to all hosts."""
