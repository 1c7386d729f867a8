"""Description of the engine that moves activations to and from a far memory."""

from hdl.control.engine import FAR, EngineDescription, Extent, OperationDescription
from hdl.control.protocol import Operation
from hdl.control.source import WEIGHT_VERSION, Setting
from hdl.features.far.mover import Mover

__all__ = ["describe"]


def describe(config):
    """Return the engine's :class:`~hdl.control.engine.EngineDescription`.

    MOVE_OUT and MOVE_IN take the address of the activations from ``weight_base``, and the address in the far memory
    from ``state_base``.
    """
    extents = Extent(base="weight_base", memory="activations"), Extent(base="state_base", memory=FAR)
    return EngineDescription(
        name="mover",
        priority=6,
        make=lambda: Mover(config=config),
        operations=tuple(OperationDescription(code=code, queue=2, extents=extents)
                         for code in (Operation.MOVE_OUT, Operation.MOVE_IN)),
        reads={"activations": ("activation_read",)},
        writes={"activations": ("activation_write",)},
        inputs={"link_reset": Setting("link_reset"), "timeout": Setting("timeout"), "weight_version": WEIGHT_VERSION},
        links={"far": "far"},
    )
