"""Quantized inference on nodes: docs/quantization."""

from typing import TYPE_CHECKING

from host.feature import Feature

if TYPE_CHECKING:
    from host.driver.ring import Ring
    from host.features.quantization.node_inference import NodeInference

__all__ = ["FEATURE", "QuantizationFeature"]


class QuantizationFeature(Feature):
    """Feature for inference with integer layers on the nodes."""

    not_golden = "Quantized inference", "its nodes infer nothing"

    def part(self, ring: "Ring") -> "NodeInference":
        from host.features.quantization.node_inference import NodeInference

        return NodeInference(ring.devices, ring.memory, ring.commands)


FEATURE = QuantizationFeature()
