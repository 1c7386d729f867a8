"""The COMPUTE operation, which simulates the duration of a computation; see docs/compute/stub.md."""

import dataclasses
from collections.abc import Iterator

from hdl.feature import Feature
from hdl.section import Flag, Section, option

__all__ = ["FEATURE", "ComputeStub", "ComputeStubFeature"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ComputeStub(Section):
    """The COMPUTE operation, which only simulates the duration of a computation.

    Parameters
    ----------
    quorum : bool
        Whether the node has quorum updates, which do not wait for all nodes: docs/ring/quorum.md.
    """

    quorum: bool = option(False, Flag())

    def needs(self) -> Iterator[str]:
        yield from super().needs()
        if self.quorum:
            yield "quorum"


class ComputeStubFeature(Feature):
    """Feature that adds the COMPUTE operation to a node."""

    def engines(self, config):
        from hdl.features.compute_stub import description
        return (description.describe(config),)


FEATURE = ComputeStubFeature()
