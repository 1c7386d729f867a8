"""Integer layers of a quantised model; see docs/quantization/engine.md."""

import dataclasses

from hdl.feature import Feature
from hdl.section import Section

__all__ = ["FEATURE", "Quantization", "QuantizationFeature"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Quantization(Section):
    """The INFER operation, for integer layers of a quantised model; see docs/quantization/engine.md."""


class QuantizationFeature(Feature):
    """Feature that adds the INFER operation to a node."""

    def engines(self, config):
        from hdl.features.quantization import description
        return (description.describe(config),)


FEATURE = QuantizationFeature()
