"""Feature that makes the counter of weight updates writable; see docs/migration.md."""

import dataclasses

from hdl.feature import Feature
from hdl.section import Section

__all__ = ["FEATURE", "SettableVersion", "SettableVersionFeature"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SettableVersion(Section):
    """Option that makes register WEIGHT_VERSION writable, so that a run moved from other nodes continues their
    update count; see docs/migration.md."""


class SettableVersionFeature(Feature):
    """Feature that makes register WEIGHT_VERSION writable."""

    def collective(self, config):
        from hdl.features.settable_version.collective import SettableVersionExtension

        return SettableVersionExtension(config)


FEATURE = SettableVersionFeature()
