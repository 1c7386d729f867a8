"""Ring registers on all nodes: command settings, counters, and words missing on links."""

from collections.abc import Sequence

from hdl.ring.topology import RingTopology
from host.driver.devices import Devices
from host.driver.optimizer_settings import FixedSettings, Settings
from host.driver.transport import results_of
from host.driver.words import field_values

__all__ = ["RingCounters", "RingSettings"]


class RingSettings:
    """Registers that hold settings, most of which have the same value on all nodes."""

    def __init__(self, devices: Devices):
        self._devices = devices
        self._known: dict[str, int | float] = {}

    @property
    def known(self) -> dict[str, int | float]:
        """Registers that this driver has written since the ring was last recovered, with their values."""
        return dict(self._known)

    def forget(self) -> None:
        """Forget the last written values, so that the next write sends every register."""
        self._known = {}

    def write(self, settings: Settings | FixedSettings) -> None:
        """Set the optimizer for later commands; values that the nodes already hold are not written again."""
        self.write_registers(settings.registers())

    def write_registers(self, values: dict[str, int | float]) -> None:
        """Write the registers that differ from their last known values."""
        written = {**self._known, **values}
        # Compare values as text, which distinguishes -0.0 from 0.0.
        changed = [name for name in values if repr(self._known.get(name)) != repr(values[name])]
        self._known = {}  # after a failed write, the values in the nodes are unknown
        results_of([device.submit_write_register(name, values[name]) for device in self._devices for name in changed])
        self._known = written

    def write_each(self, name: str, values: Sequence[int]) -> None:
        """Write one register with a separate value for each node, in order of rank."""
        results_of([device.submit_write_register(name, value)
                    for device, value in zip(self._devices, values, strict=True)])

    def optimizer_field(self, name: str) -> int:
        """Last written value of a field of the OPTIMIZER register, or 0 if unknown."""
        return field_values("OPTIMIZER", int(self._known.get("OPTIMIZER", 0)))[name]

    def set_flags(self, flags: int) -> None:
        """Set flags, given as a 16-bit mask, on all nodes; commands can wait for them."""
        self._devices.write_register("FLAGS", flags)

    def set_weight_stride(self, elements: int) -> None:
        """Set the offset of the weights that a program's commands with ``alternate`` use in odd passes."""
        self._devices.write_register("WEIGHT_STRIDE", elements)


#: Number of words that a node has sent, and number received.
Moved = tuple[int, int]


class RingCounters:
    """Counters of all nodes of a ring."""

    def __init__(self, devices: Devices):
        self._devices = devices
        self._topology = RingTopology(len(devices))
        self._lost = [0] * len(devices)  # words missing after each link when the ring was last recovered

    def read(self) -> list[dict[str, int]]:
        """Read all counters of each node; golden nodes have no cycle counters."""
        return self._devices.ask(lambda rank, device: device.submit_counters())

    def clear(self) -> None:
        """Reset all counters of all nodes."""
        self._devices.write_register("CONTROL", 2)
        self._lost = [0] * len(self._devices)

    def moved(self) -> list[Moved]:
        """Read the number of words that each node has sent and received."""
        return [(counters["WORDS_SENT"], counters["WORDS_RECEIVED"]) for counters in self.read()]

    def mark(self) -> None:
        """Record the words missing now, so that later checks do not attribute them to a new failure."""
        self._lost = self._differences(self.moved())

    def missing(self, moved: Sequence[Moved]) -> list[int]:
        """Number of words missing after each link since the last recovery; negative if words arrived late."""
        return [(now - then + (1 << 31)) % (1 << 32) - (1 << 31)
                for now, then in zip(self._differences(moved), self._lost, strict=True)]

    def _differences(self, moved: Sequence[Moved]) -> list[int]:
        """Number of words that each link has accepted but not delivered, modulo 2**32."""
        return [(moved[start][0] - moved[end][1]) % (1 << 32) for start, end in self._topology.links]
