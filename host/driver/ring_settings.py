"""Settings of the nodes of a ring: the optimizer's, and flags and strides for commands."""

from hdl.control.registers import register
from host.driver.devices import Devices
from host.driver.optimizer_settings import FixedSettings, Settings
from host.driver.protocols import SettingRegisters

__all__ = ["RingSettings"]


class RingSettings(SettingRegisters):
    """Registers of settings, with the same values on all nodes."""

    def __init__(self, devices: Devices):
        self._devices = devices
        self._known: dict[str, int | float] = {}

    @property
    def known(self) -> dict[str, int | float]:
        return dict(self._known)

    def forget(self) -> None:
        """Write all values the next time, whatever nodes hold."""
        self._known = {}

    def restore(self, settings: dict[str, int | float]) -> None:
        self.write_registers(settings)

    def write(self, settings: Settings | FixedSettings) -> None:
        self.write_registers(settings.registers())

    def write_registers(self, values: dict[str, int | float]) -> None:
        """Write the values of registers that differ from the known ones."""
        written = {**self._known, **values}
        # Text distinguishes -0.0 from 0.0.
        changed = [name for name in values if repr(self._known.get(name)) != repr(values[name])]
        self._known = {}  # unknown while writes are under way, and after one that fails
        pending = [device.submit_write_register(name, values[name]) for device in self._devices for name in changed]
        for one in pending:
            one.result()
        self._known = written

    def optimizer_field(self, name: str) -> int:
        """Field of register OPTIMIZER, as it was written last; 0 if it is unknown."""
        field = register("OPTIMIZER").field(name)
        return int(int(self._known.get("OPTIMIZER", 0)) >> field.bit & (1 << field.width) - 1)

    def set_flags(self, flags: int) -> None:
        self._devices.write_register("FLAGS", flags)

    def set_weight_stride(self, elements: int) -> None:
        self._devices.write_register("WEIGHT_STRIDE", elements)
