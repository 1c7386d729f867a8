"""Description of the compute stub, the engine that runs COMPUTE."""

from hdl.control.engine import EngineDescription, Extent, OperationDescription
from hdl.control.protocol import Operation
from hdl.control.source import WEIGHT_VERSION, Setting, SettingField
from hdl.features.compute_stub.compute_model import ComputeModel

__all__ = ["describe"]


def describe(config):
    """Return the stub's :class:`~hdl.control.engine.EngineDescription`.

    COMPUTE reads staged gradients at ``state_base``, and writes them to ``gradient_base``, both in gradient memory.
    """
    return EngineDescription(
        name="compute_stub",
        priority=4,
        make=lambda: ComputeModel(config=config),
        operations=(OperationDescription(code=Operation.COMPUTE, queue=0, extents=(
            Extent(base="gradient_base", memory="gradients"), Extent(base="state_base", memory="gradients"))),),
        reads={"gradients": ("gradient_read",)},
        writes={"gradients": ("gradient_write",)},
        inputs={"link_reset": Setting("link_reset"), "weight_version": WEIGHT_VERSION,
                **({"throttle": SettingField("THROTTLE_COMPUTE", "engine")} if config.has("throttles") else {})},
    )
