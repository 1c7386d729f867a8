"""Description of the mask engine, which executes MASK and SPARSIFY."""

from hdl.control.engine import EngineDescription, Extent, OperationDescription, Reach
from hdl.control.protocol import Operation
from hdl.control.source import WEIGHT_VERSION, Setting
from hdl.masking.engine import MaskEngine

__all__ = ["describe"]


def describe(config):
    """Return the mask engine's :class:`~hdl.control.engine.EngineDescription`, or None without masking.

    MASK reads its job list at ``weight_base`` and the words of external masks at ``state_base``, both in the weight
    memory; SPARSIFY stores its errors at ``weight_base``.
    """
    gradients = Extent(base="gradient_base", memory="gradients")
    operations = []
    if config.masking:
        operations.append(OperationDescription(code=Operation.MASK, queue=0, extents=(
            gradients,
            Extent(base="weight_base", memory="weights", reach=Reach.START),
            Extent(base="state_base", memory="weights", reach=Reach.START))))
    if config.sparsify:
        operations.append(OperationDescription(code=Operation.SPARSIFY, queue=0, extents=(
            gradients, Extent(base="weight_base", memory="weights"))))
    if not operations:
        return None
    return EngineDescription(
        name="masking",
        priority=2,
        make=lambda: MaskEngine(config=config),
        operations=tuple(operations),
        reads={"gradients": ("gradient_read",), "weights": ("weight_read",)},
        writes={"gradients": ("gradient_write",), "weights": ("weight_write",)},
        inputs={"alternative": Setting("mask_alternative"), "threshold": Setting("mask_threshold"),
                "link_reset": Setting("link_reset"), "weight_version": WEIGHT_VERSION},
    )
