"""Description of the engine that moves activations to a far memory and back."""

from hdl.control.engine import FAR, EngineDescription, Extent, OperationDescription
from hdl.control.protocol import Operation
from hdl.far.mover import Mover

__all__ = ["describe"]


def describe(config):
    """Return the engine's :class:`~hdl.control.engine.EngineDescription`, or None on a node without far memory, and
    on a server, which has no activations to move.

    MOVE_OUT and MOVE_IN have their activations at ``weight_base``, and their place in the far memory at
    ``state_base``.
    """
    if config.compute is None or not config.far_words:
        return None
    extents = Extent(base="weight_base", memory="activations"), Extent(base="state_base", memory=FAR)
    return EngineDescription(
        name="mover",
        make=lambda: Mover(config=config),
        operations=tuple(OperationDescription(code=code, queue=2, extents=extents)
                         for code in (Operation.MOVE_OUT, Operation.MOVE_IN)),
        reads={"activations": ("activation_read",)},
        writes={"activations": ("activation_write",)},
        inputs={"link_reset": "link_reset", "timeout": "timeout", "weight_version": "weight_version"},
        links={"far": "far"},
    )
