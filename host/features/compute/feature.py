"""Nodes that compute: docs/compute.md."""

from typing import TYPE_CHECKING

from host.feature import Feature

if TYPE_CHECKING:
    from hdl.config import Configuration, NodeConfig
    from host.driver.protocols import TrainingRing
    from host.driver.ring import Ring
    from host.features.compute.golden import GoldenCompute
    from host.features.compute.list_compute import ListCompute
    from host.training.executions import Differentiator
    from host.training.record import TrainingConfig
    from host.training.workloads import Workload
    from host.transports.golden.nodes import GoldenNodes

__all__ = ["FEATURE", "ComputeFeature"]


class ComputeFeature(Feature):
    """Layer instruction lists, and training that uses them."""

    def part(self, ring: "Ring") -> "ListCompute":
        from host.features.compute.list_compute import ListCompute

        return ListCompute(ring.devices, ring.memory, ring.commands, ring.planned)

    def golden(self, nodes: "GoldenNodes") -> "GoldenCompute":
        from host.features.compute.golden import GoldenCompute

        return GoldenCompute(nodes)

    def check_run(self, node: "Configuration", workload: "Workload", config: "TrainingConfig", *, nodes: int) -> None:
        from host.features.compute.engine import check_engine

        check_engine(node, workload, config, nodes=nodes)

    def training_node(self, node: "Configuration", workload: "Workload", config: "TrainingConfig", *,
                      nodes: int) -> "NodeConfig":
        from host.features.compute.engine import engine_node

        return engine_node(node, workload, config, nodes=nodes)

    def differentiator(self, ring: "TrainingRing", workload: "Workload",
                       config: "TrainingConfig") -> "Differentiator | None":
        from host.features.compute.engine import differentiator_of

        return differentiator_of(ring, workload, config)


FEATURE = ComputeFeature()
