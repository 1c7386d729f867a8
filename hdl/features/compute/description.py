"""Description of the compute engine, which runs LAYERS."""

from hdl.control.engine import EngineDescription, Extent, OperationDescription, Reach
from hdl.control.protocol import Operation
from hdl.control.source import WEIGHT_VERSION, Setting, SettingField
from hdl.features.compute.engine import ComputeEngine

__all__ = ["describe"]


def describe(config):
    """Return the engine's :class:`~hdl.control.engine.EngineDescription`.

    LAYERS reads its list at ``weight_base`` in the activation memory; the command's length is the number of examples.
    """
    return EngineDescription(
        name="compute",
        priority=5,
        make=lambda: ComputeEngine(config=config),
        operations=(OperationDescription(code=Operation.LAYERS, queue=0, least=1, extents=(
            Extent(base="weight_base", memory="activations", reach=Reach.START),)),),
        reads={"gradients": ("gradient_read",), "weights": ("weight_read",), "activations": ("activation_read",)},
        writes={"gradients": ("gradient_write",), "activations": ("activation_write",)},
        watches={"activations": "activation_written"} if config.compute.buffer_tags else {},
        inputs={
            "link_reset": Setting("link_reset"), "weight_version": WEIGHT_VERSION,
            **({"throttle": SettingField("THROTTLE_COMPUTE", "engine")} if config.has("throttles") else {}),
            **_window(config),
        },
    )


def _window(config):
    """Input for the memory window of the executing tenant, in nodes with tenants and buffer tags."""
    if not (config.has("tenants") and config.compute.buffer_tags):
        return {}
    from hdl.features.tenants.sources import Window

    return {"window": Window("activations")}
