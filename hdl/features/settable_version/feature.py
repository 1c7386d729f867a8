"""A count of updates that can be written, see docs/migration.md."""

import dataclasses

from hdl.feature import Feature
from hdl.section import Section

__all__ = ["FEATURE", "SettableVersion", "SettableVersionFeature"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SettableVersion(Section):
    """Register WEIGHT_VERSION can be written, so that a run that began on other nodes continues their count of
    updates, see docs/migration.md."""


class SettableVersionFeature(Feature):
    """Feature that makes register WEIGHT_VERSION writable."""

    def collective(self, config):
        from hdl.features.settable_version.collective import SettableVersionExtension

        return SettableVersionExtension(config)


FEATURE = SettableVersionFeature()
