"""Nodes with tenants: docs/tenants.md."""

from host.feature import Feature

__all__ = ["FEATURE", "TenantsFeature"]


class TenantsFeature(Feature):
    """Only the note about golden nodes."""

    not_golden = "Tenants", "its nodes have no windows"


FEATURE = TenantsFeature()
