"""Signal sources for tenants: the current tenant, its memory windows and the end of its budget."""

import dataclasses

from hdl.control.source import Source
from hdl.control.tenancy import windowed

__all__ = ["Cut", "Tenant", "Window"]


@dataclasses.dataclass(frozen=True)
class _OfTenants(Source):
    """Base class of the signal sources that exist only in nodes with tenants."""

    def check(self, config, what):
        if not config.has("tenants"):
            raise ValueError(f"{what} needs a node with tenants")


@dataclasses.dataclass(frozen=True)
class Tenant(_OfTenants):
    """Signal source for the tenant whose commands the node executes."""

    def signal(self, units, engine):
        return units.tenancy.tenant


@dataclasses.dataclass(frozen=True)
class Cut(_OfTenants):
    """Signal source that indicates whether the engine's command has exceeded its budget."""

    def signal(self, units, engine):
        return units.cuts[units.queue_of(engine)]


@dataclasses.dataclass(frozen=True)
class Window(_OfTenants):
    """Signal source for the current tenant's window in the memory space ``name``."""

    name: str

    def check(self, config, what):
        super().check(config, what)
        names = [space.name for space in windowed(config)]
        if self.name not in names:
            raise ValueError(f"{what} must be the window of one of {', '.join(names)}, not {self.name!r}")

    def signal(self, units, engine):
        return units.tenancy.windows[self.name]
