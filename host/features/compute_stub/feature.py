"""Nodes with a compute stub: docs/compute/stub.md."""

from typing import TYPE_CHECKING

from host.feature import Feature

if TYPE_CHECKING:
    from host.features.compute_stub.golden import GoldenStub
    from host.transports.golden.nodes import GoldenNodes

__all__ = ["FEATURE", "ComputeStubFeature"]


class ComputeStubFeature(Feature):
    """Feature that models the cycles of the COMPUTE command on golden nodes."""

    def golden(self, nodes: "GoldenNodes") -> "GoldenStub":
        from host.features.compute_stub.golden import GoldenStub

        return GoldenStub(nodes)


FEATURE = ComputeStubFeature()
