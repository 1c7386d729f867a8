"""Two tenants that do not trust each other, see docs/tenants.md."""

import dataclasses

from hdl.feature import Feature
from hdl.section import Section

__all__ = ["FEATURE", "Tenants", "TenantsFeature"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tenants(Section):
    """Two tenants that do not trust each other, with windows on the memories and guards at their ports, see
    docs/tenants.md."""


class TenantsFeature(Feature):
    """Feature that restricts commands to a tenant's memory windows and budget."""

    def collective(self, config):
        from hdl.features.tenants.collective import TenantsExtension

        return TenantsExtension(config)

    def around(self, config):
        from hdl.features.tenants.node import TenantsNode

        return TenantsNode(config)


FEATURE = TenantsFeature()
