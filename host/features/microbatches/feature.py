"""Nodes that sum the gradients of several microbatches each: docs/reproducible.md."""

from typing import TYPE_CHECKING, Any

from hdl.registry import section
from host.feature import Feature

if TYPE_CHECKING:
    from hdl.config import Configuration
    from host.driver.protocols import TrainingRing
    from host.driver.ring import Ring
    from host.features.microbatches.execution import MicrobatchExecution
    from host.features.microbatches.golden import GoldenMicrobatches
    from host.features.microbatches.ring_microbatches import RingMicrobatches
    from host.training.record import TrainingConfig
    from host.training.workloads import Workload
    from host.transports.golden.nodes import GoldenNodes

__all__ = ["FEATURE", "MicrobatchesFeature"]


class MicrobatchesFeature(Feature):
    """Feature for gradient sums that do not depend on the number of nodes."""

    def golden(self, nodes: "GoldenNodes") -> "GoldenMicrobatches":
        from host.features.microbatches.golden import GoldenMicrobatches

        return GoldenMicrobatches(nodes)

    def part(self, ring: "Ring") -> "RingMicrobatches":
        from host.features.microbatches.ring_microbatches import RingMicrobatches

        return RingMicrobatches(ring)

    def training_node(self, node: "Configuration", workload: "Workload", config: "TrainingConfig", *,
                      nodes: int) -> Any:
        return node if node.has("microbatches") else node.replace(
            features=(*node.features, section("Microbatches")()))

    def check_run(self, node: "Configuration", workload: "Workload", config: "TrainingConfig", *, nodes: int) -> None:
        from host.features.microbatches.limits import check_microbatches

        if config.microbatches is not None:
            check_microbatches(config.microbatches, workload, config, nodes=nodes)

    def execution(self, ring: "TrainingRing", workload: "Workload", config: "TrainingConfig") -> (
            "MicrobatchExecution"):
        from host.features.microbatches.execution import MicrobatchExecution

        self.check_run(ring.config, workload, config, nodes=ring.nodes)
        return MicrobatchExecution(ring, int(workload.parameters.size))


FEATURE = MicrobatchesFeature()
