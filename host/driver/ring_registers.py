"""Registers of the nodes in a ring: command settings, counters, and words missing on links."""

from collections.abc import Sequence

from hdl.ring.topology import RingTopology
from host.driver.devices import Devices
from host.driver.optimizer_settings import FixedSettings, Settings
from host.driver.transport import results_of
from host.driver.words import field_values

__all__ = ["RingCounters", "RingSettings"]


class RingSettings:
    """Registers with settings, which have the same values on all nodes."""

    def __init__(self, devices: Devices):
        self._devices = devices
        self._known: dict[str, int | float] = {}

    @property
    def known(self) -> dict[str, int | float]:
        """Registers that this driver has written since the ring was last recovered, with their values."""
        return dict(self._known)

    def forget(self) -> None:
        """Treat all values as unknown, so that all are written the next time."""
        self._known = {}

    def write(self, settings: Settings | FixedSettings) -> None:
        """Set the optimizer for later commands. Values that the nodes already hold are not written again."""
        self.write_registers(settings.registers())

    def write_registers(self, values: dict[str, int | float]) -> None:
        """Write the registers with values that differ from their last known values."""
        written = {**self._known, **values}
        # Values are compared as texts, which distinguish -0.0 from 0.0.
        changed = [name for name in values if repr(self._known.get(name)) != repr(values[name])]
        self._known = {}  # values are unknown while writes are in progress, and after a failed write
        results_of([device.submit_write_register(name, values[name]) for device in self._devices for name in changed])
        self._known = written

    def optimizer_field(self, name: str) -> int:
        """Field of register OPTIMIZER as last written; 0 if it is unknown."""
        return field_values("OPTIMIZER", int(self._known.get("OPTIMIZER", 0)))[name]

    def set_flags(self, flags: int) -> None:
        """Set flags, a 16-bit mask, that commands of all nodes wait for."""
        self._devices.write_register("FLAGS", flags)

    def set_weight_stride(self, elements: int) -> None:
        """Set the offset of the weights in odd passes, for commands of a program with ``alternate``."""
        self._devices.write_register("WEIGHT_STRIDE", elements)


#: Numbers of words that a node has sent and received.
Moved = tuple[int, int]


class RingCounters:
    """Counters of all nodes of a ring."""

    def __init__(self, devices: Devices):
        self._devices = devices
        self._topology = RingTopology(len(devices))
        self._lost = [0] * len(devices)  # words that were missing after each link when the ring was last recovered

    def read(self) -> list[dict[str, int]]:
        """Read all counters of each node; golden nodes have no cycle counters."""
        return self._devices.ask(lambda rank, device: device.submit_counters())

    def clear(self) -> None:
        """Set all counters of all nodes to zero."""
        self._devices.write_register("CONTROL", 2)
        self._lost = [0] * len(self._devices)

    def moved(self) -> list[Moved]:
        """Read the numbers of words that each node has sent and received."""
        return [(counters["WORDS_SENT"], counters["WORDS_RECEIVED"]) for counters in self.read()]

    def mark(self) -> None:
        """Record the words that are missing now, so that later checks attribute them to an earlier failure."""
        self._lost = self._differences(self.moved())

    def missing(self, moved: Sequence[Moved]) -> list[int]:
        """Words missing after each link since the ring was last recovered; negative if words have arrived late."""
        return [(now - then + (1 << 31)) % (1 << 32) - (1 << 31)
                for now, then in zip(self._differences(moved), self._lost, strict=True)]

    def _differences(self, moved: Sequence[Moved]) -> list[int]:
        """Words that each link has accepted but not delivered, modulo 2**32."""
        return [(moved[start][0] - moved[end][1]) % (1 << 32) for start, end in self._topology.links]
