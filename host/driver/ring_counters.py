"""Counters of the nodes of a ring, and the words that its links have not delivered."""

from collections.abc import Sequence

from hdl.ring.topology import RingTopology
from host.driver.devices import Devices
from host.driver.protocols import Counters

__all__ = ["RingCounters"]

#: Counts of words that a node has sent and received.
Moved = tuple[int, int]


class RingCounters(Counters):
    """Counters of all nodes."""

    def __init__(self, devices: Devices):
        self._devices = devices
        self._topology = RingTopology(len(devices))
        self._lost = [0] * len(devices)  # words missing after each link when the ring was last in order

    def read(self) -> list[dict[str, int]]:
        return self._devices.ask(lambda rank, device: device.submit_counters())

    def clear(self) -> None:
        self._devices.write_register("CONTROL", 2)
        self._lost = [0] * len(self._devices)

    def moved(self) -> list[Moved]:
        """Counts of words that each node has sent and received."""
        return [(counters["WORDS_SENT"], counters["WORDS_RECEIVED"]) for counters in self.read()]

    def mark(self) -> None:
        """Take the words that are missing now as lost in an earlier failure."""
        self._lost = self._differences(self.moved())

    def missing(self, moved: Sequence[Moved]) -> list[int]:
        """Words missing after each link since the ring was last in order; negative if words have come late."""
        return [(now - then + (1 << 31)) % (1 << 32) - (1 << 31)
                for now, then in zip(self._differences(moved), self._lost, strict=True)]

    def _differences(self, moved: Sequence[Moved]) -> list[int]:
        """Words that each link has taken and not delivered, modulo 2**32."""
        return [(moved[start][0] - moved[end][1]) % (1 << 32) for start, end in self._topology.links]
