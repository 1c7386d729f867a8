"""Nodes with tenants: docs/tenants.md."""

from host.feature import Feature

__all__ = ["FEATURE", "TenantsFeature"]


class TenantsFeature(Feature):
    """Nothing but what golden nodes lack."""

    not_golden = "Tenants", "its nodes have no windows"


FEATURE = TenantsFeature()
