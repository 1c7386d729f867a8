"""The feature for nodes that several tenants share (docs/tenants.md)."""

from host.feature import Feature

__all__ = ["FEATURE", "TenantsFeature"]


class TenantsFeature(Feature):
    """Host part of the tenants feature. It only gives the reason why golden nodes do not support tenants."""

    not_golden = "Tenants", "its nodes have no windows"


FEATURE = TenantsFeature()
