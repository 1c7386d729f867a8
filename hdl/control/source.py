"""Sources of the inputs of engines, and uses of their outputs.

An :class:`~hdl.control.engine.EngineDescription` refers to them, and both are checked when a node is described. A
feature adds a source by defining a class. For example, the number of the running bank::

    @dataclasses.dataclass(frozen=True)
    class Bank(Source):
        def check(self, config, what):
            if not config.has_banks:
                raise ValueError(f"{what} needs a node with two banks of programs")

        def signal(self, units, engine):
            return units.queue.bank
"""

import abc
import dataclasses
from typing import Any

from hdl.control import registers
from hdl.control.registers import fields_of, register, settings_of, statuses_of

__all__ = ["LATCHED_SETTINGS", "WEIGHT_VERSION", "Checked", "Interface", "Latched", "Purpose", "Setting",
           "SettingField", "Source", "Status", "WeightVersion"]


@dataclasses.dataclass(frozen=True)
class Purpose:
    """Purpose of an output of an engine."""

    def check(self, config: Any, what: str) -> None:
        """Raise ``ValueError`` unless nodes of the configuration have the signal; its message starts with ``what``.
        """


@dataclasses.dataclass(frozen=True)
class Source(Purpose, abc.ABC):
    """A signal that engines can use as an input. An engine's output can replace it for all other engines."""

    @abc.abstractmethod
    def signal(self, units: Any, engine: Any) -> Any:
        """Signal for an engine's input, taken from a node's :class:`~hdl.node_extension.NodeUnits`."""


def _check_name(what: str, kind: str, name: str, names: Any) -> None:
    if name not in names:
        raise ValueError(f"{what} must be one of the {kind} {', '.join(names)}, not {name!r}")


@dataclasses.dataclass(frozen=True)
class Setting(Source):
    """A setting, identified by its port name on the register file."""

    name: str

    def check(self, config: Any, what: str) -> None:
        _check_name(what, "settings", self.name, settings_of(config))

    def signal(self, units: Any, engine: Any) -> Any:
        return getattr(units.registers, self.name)


@dataclasses.dataclass(frozen=True)
class SettingField(Source):
    """A field of a setting, identified by register name and field name."""

    setting: str
    name: str

    def check(self, config: Any, what: str) -> None:
        _check_name(what, "settings", self.setting.lower(), settings_of(config))
        _check_name(what, f"fields of {self.setting}", self.name,
                    [field.name for field in register(self.setting).fields])

    def signal(self, units: Any, engine: Any) -> Any:
        return fields_of(units.registers, self.setting)[self.name]


@dataclasses.dataclass(frozen=True)
class Latched(Source):
    """A setting used by updates: its value in :data:`LATCHED_SETTINGS` or, in a node without latched settings, its
    register."""

    name: str

    def check(self, config: Any, what: str) -> None:
        _check_name(what, "settings of updates", self.name, [name.lower() for name in registers.LATCHED])

    def signal(self, units: Any, engine: Any) -> Any:
        latched = units.outputs.get(LATCHED_SETTINGS)
        return getattr(units.registers, self.name) if latched is None else latched[self.name]


@dataclasses.dataclass(frozen=True)
class Checked(Source):
    """A setting, with the value that was used in checking the command."""

    name: str

    def check(self, config: Any, what: str) -> None:
        _check_name(what, "settings of checks", self.name, registers.checked_layout().members)

    def signal(self, units: Any, engine: Any) -> Any:
        return units.queue.checked[min(engine.queue or 0, units.queue.queues - 1)][self.name]


@dataclasses.dataclass(frozen=True)
class WeightVersion(Source):
    """Number of weight updates, or zero in a node without updates."""

    def signal(self, units: Any, engine: Any) -> Any:
        return units.weight_version


@dataclasses.dataclass(frozen=True)
class Status(Purpose):
    """A status, identified by its port name on the register file."""

    name: str

    def check(self, config: Any, what: str) -> None:
        _check_name(what, "statuses", self.name, statuses_of(config))


@dataclasses.dataclass(frozen=True)
class Interface(Purpose):
    """Interface to a feature's unit; the engine and the feature refer to the same instance."""

    name: str


WEIGHT_VERSION = WeightVersion()
LATCHED_SETTINGS = Interface("latched settings")
"""Struct of the settings that updates use."""
