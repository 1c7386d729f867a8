"""Feature of two tenants that do not trust each other; see docs/tenants.md."""

import dataclasses

from hdl.feature import Feature
from hdl.section import Section

__all__ = ["FEATURE", "Tenants", "TenantsFeature"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tenants(Section):
    """Option for two mutually distrusting tenants, with memory windows and guards; see docs/tenants.md."""


class TenantsFeature(Feature):
    """Feature that limits commands to a tenant's memory windows and budget."""

    def collective(self, config):
        from hdl.features.tenants.collective import TenantsExtension

        return TenantsExtension(config)

    def around(self, config):
        from hdl.features.tenants.node import TenantsNode

        return TenantsNode(config)


FEATURE = TenantsFeature()
