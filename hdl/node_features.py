"""Features of a node that are there or not, and need no more of a configuration than their names."""

import dataclasses

from hdl.section import Section

__all__ = ["Quantization", "SettableVersion", "Tenants", "Throttles"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Quantization(Section):
    """The operation INFER, which runs the integer layers of a quantised model: docs/quantization/engine.md."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SettableVersion(Section):
    """Register WEIGHT_VERSION can be written, so that a run that began on other nodes continues their count of
    updates: docs/migration.md."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tenants(Section):
    """Two tenants that do not trust each other, with windows on the memories and guards at their ports:
    docs/tenants.md."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Throttles(Section):
    """Registers that slow links, memories, arithmetic and the host port: docs/estimate.md."""
