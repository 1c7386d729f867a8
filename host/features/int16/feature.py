"""Feature for nodes with 16-bit integers; see docs/int16_node.md."""

from typing import TYPE_CHECKING, Any

from host.feature import Bits, Feature

if TYPE_CHECKING:
    from host.driver.protocols import VectorRing
    from host.driver.words import Vector
    from host.features.int16.elements import Int16Elements
    from host.features.int16.golden import GoldenIntegers, IntegerReference
    from host.features.int16.number_format import FixedPoint
    from host.training.optimizers import Optimizer
    from host.training.record import TrainingConfig
    from host.training.workloads import Workload
    from host.transports.golden.nodes import GoldenNodes

__all__ = ["FEATURE", "Int16Feature"]


class Int16Feature(Feature):
    """Feature with the element format, golden nodes and golden state for 16-bit integers."""

    def elements(self) -> "Int16Elements":
        from host.features.int16.elements import Int16Elements

        return Int16Elements()

    def golden(self, nodes: "GoldenNodes") -> "GoldenIntegers":
        from host.features.int16.golden import GoldenIntegers

        return GoldenIntegers(nodes)

    def number_format(self, optimizer: "Optimizer", count: int) -> "FixedPoint":
        from host.features.int16.number_format import FixedPoint, check_optimizer

        check_optimizer(optimizer)
        return FixedPoint.of(optimizer.learning_rate, count)

    def reference(self, ring: "VectorRing", plan: Any, weights: "Vector", planes: int,
                  centroids: Bits | None) -> "IntegerReference":
        from host.features.int16.golden import IntegerReference

        return IntegerReference(weights)

    def check_numbers(self, workload: "Workload", config: "TrainingConfig") -> None:
        from host.features.int16.number_format import check_optimizer
        from host.training.workloads import WorkloadName

        if workload.name is not WorkloadName.DIGITS:
            raise ValueError(f"Workload of int16 nodes must be digits, not {workload.name.value}")
        check_optimizer(config.optimizer)


FEATURE = Int16Feature()
