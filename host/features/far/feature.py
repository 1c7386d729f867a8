"""Support for nodes with a far memory; see docs/far.md."""

from typing import TYPE_CHECKING, Any

from host.feature import Feature

if TYPE_CHECKING:
    from hdl.config import Configuration, NodeConfig
    from host.driver.protocols import TrainingRing
    from host.features.far.training import FarTextComputer
    from host.training.record import TrainingConfig

__all__ = ["FEATURE", "FarFeature"]


class FarFeature(Feature):
    """Trains the text model with activation maps that are moved to far memory or recomputed."""

    def check_run(self, node: "Configuration", workload: Any, config: "TrainingConfig", *, nodes: int) -> None:
        from host.features.far.training import check_far_text

        check_far_text(node, workload, config, nodes=nodes)

    def training_node(self, node: "Configuration", workload: Any, config: "TrainingConfig", *,
                      nodes: int) -> "NodeConfig":
        from host.features.far.training import far_text_node

        return far_text_node(node, workload, config, nodes=nodes)

    def differentiator(self, ring: "TrainingRing", workload: Any,
                       config: "TrainingConfig") -> "FarTextComputer":
        from host.features.far.training import FarTextComputer, far_text_lists

        return FarTextComputer(ring, far_text_lists(
            workload, config, ring.config, ring.nodes, ring.config.compute.activations))


FEATURE = FarFeature()
