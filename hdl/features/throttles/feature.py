"""Feature with registers that slow down links, memories, arithmetic and the host port; see docs/estimate.md."""

import dataclasses

from hdl.feature import Feature
from hdl.section import Section

__all__ = ["FEATURE", "Throttles", "ThrottlesFeature"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Throttles(Section):
    """Option for registers that slow down links, memories, arithmetic and the host port; see docs/estimate.md."""


class ThrottlesFeature(Feature):
    """Feature that adds throttles, which make units of a node work only in some cycles."""

    def pace(self, config):
        from hdl.features.throttles.pace import ThrottledPace

        return ThrottledPace(config)

    def collective(self, config):
        from hdl.features.throttles.collective import ThrottlesExtension

        return ThrottlesExtension(config)

    def around(self, config):
        from hdl.features.throttles.node import ThrottlesNode

        return ThrottlesNode(config)


FEATURE = ThrottlesFeature()
