"""Descriptions of the compute engine, LAYERS, and of the stand-in for one, COMPUTE."""

from hdl.compute.engine import ComputeEngine
from hdl.compute.stand_in import StandIn
from hdl.control.engine import EngineDescription, Extent, OperationDescription, Reach
from hdl.control.protocol import Operation
from hdl.node_features import Tenants, Throttles

__all__ = ["describe_layers", "describe_stand_in"]


def _throttle(config):
    """Input of an engine in a node with throttles."""
    return {"throttle": "throttle_compute.engine"} if config.has(Throttles) else {}


def describe_stand_in(config):
    """Return the stand-in's :class:`~hdl.control.engine.EngineDescription`, or None on a node without stand-in.

    COMPUTE has staged gradients at ``state_base``, and puts them to ``gradient_base``, both in the gradient memory.
    """
    if config.stub is None:
        return None
    return EngineDescription(
        name="stand_in",
        make=lambda: StandIn(config=config),
        operations=(OperationDescription(code=Operation.COMPUTE, queue=0, extents=(
            Extent(base="gradient_base", memory="gradients"), Extent(base="state_base", memory="gradients"))),),
        reads={"gradients": ("gradient_read",)},
        writes={"gradients": ("gradient_write",)},
        inputs={"link_reset": "link_reset", "weight_version": "weight_version", **_throttle(config)},
    )


def describe_layers(config):
    """Return the engine's :class:`~hdl.control.engine.EngineDescription`, or None on a node without compute engine.

    LAYERS has its list at ``weight_base`` in the activation memory; its length counts examples.
    """
    if config.compute is None:
        return None
    return EngineDescription(
        name="compute",
        make=lambda: ComputeEngine(config=config),
        operations=(OperationDescription(code=Operation.LAYERS, queue=0, least=1, extents=(
            Extent(base="weight_base", memory="activations", reach=Reach.START),)),),
        reads={"gradients": ("gradient_read",), "weights": ("weight_read",), "activations": ("activation_read",)},
        writes={"gradients": ("gradient_write",), "activations": ("activation_write",)},
        watches={"activations": "activation_written"} if config.compute.buffer_tags else {},
        inputs={"link_reset": "link_reset", "weight_version": "weight_version", **_throttle(config),
                **({"window": "windows.activations"} if config.compute.buffer_tags and config.has(Tenants) else {})},
    )
