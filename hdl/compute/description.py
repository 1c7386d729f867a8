"""Description of the stand-in for a compute engine: COMPUTE."""

from hdl.compute.stand_in import StandIn
from hdl.control.engine import EngineDescription, Extent, OperationDescription
from hdl.control.protocol import Operation

__all__ = ["describe"]


def describe(config):
    """Return the engine's :class:`~hdl.control.engine.EngineDescription`, or None on a node without stand-in.

    COMPUTE has staged gradients at ``state_base``, and puts them to ``gradient_base``, both in the gradient memory.
    """
    if not config.stand_in:
        return None
    return EngineDescription(
        name="stand_in",
        make=lambda: StandIn(config=config),
        operations=(OperationDescription(code=Operation.COMPUTE, queue=0, extents=(
            Extent(base="gradient_base", memory="gradients"), Extent(base="state_base", memory="gradients"))),),
        reads={"gradients": ("gradient_read",)},
        writes={"gradients": ("gradient_write",)},
        inputs={"link_reset": "link_reset", "weight_version": "weight_version"},
    )
