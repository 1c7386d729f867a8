"""Description of the inference engine, which runs INFER."""

from hdl.control.engine import EngineDescription, Extent, OperationDescription, Reach
from hdl.control.protocol import Operation
from hdl.control.source import WEIGHT_VERSION, Setting
from hdl.features.quantization.engine import InferenceEngine

__all__ = ["describe"]


def describe(config):
    """Return the engine's :class:`~hdl.control.engine.EngineDescription`.

    The list of layers of INFER is at ``weight_base``; the command's length is a number of samples.
    """
    return EngineDescription(
        name="inference",
        priority=3,
        make=lambda: InferenceEngine(config=config),
        operations=(OperationDescription(code=Operation.INFER, queue=0, extents=(
            Extent(base="weight_base", memory="weights", reach=Reach.START),)),),
        reads={"gradients": ("gradient_read",), "weights": ("weight_read",)},
        writes={"gradients": ("gradient_write",)},
        inputs={"link_reset": Setting("link_reset"), "weight_version": WEIGHT_VERSION},
    )
