"""Nodes with tenants: docs/tenants.md."""

from host.feature import Feature

__all__ = ["FEATURE", "TenantsFeature"]


class TenantsFeature(Feature):
    """Host side of the feature, which only explains why golden nodes do not support tenants."""

    not_golden = "Tenants", "its nodes have no windows"


FEATURE = TenantsFeature()
