"""Nodes with tenants: docs/tenants.md."""

from host.feature import Feature

__all__ = ["FEATURE", "TenantsFeature"]


class TenantsFeature(Feature):
    """Adds only the reason why golden nodes do not support tenants."""

    not_golden = "Tenants", "its nodes have no windows"


FEATURE = TenantsFeature()
