"""Quorum engine description: the operation APPLY_LATE, and gates for COMPUTE and FUSED_UPDATE."""

from hdl.control.engine import EngineDescription, Extent, OperationDescription
from hdl.control.protocol import Operation
from hdl.control.source import WEIGHT_VERSION, Latched, Setting, Status
from hdl.features.programs.sources import ProgramState
from hdl.features.quorum.engine import QuorumEngine

__all__ = ["describe"]


def describe(config):
    """Return the engine's :class:`~hdl.control.engine.EngineDescription`.

    APPLY_LATE's slot 0 is at ``gradient_base``. The other slot and the zeros follow at intervals of GRADIENT_STRIDE.
    """
    same = ("link_reset", "timeout", "deadline", "quorum", *(f"stale_weights_{n}" for n in range(3)))
    return EngineDescription(
        name="rounds",
        priority=1,
        make=lambda: QuorumEngine(config=config),
        operations=(OperationDescription(code=Operation.APPLY_LATE, queue=1, extents=(
            Extent(base="gradient_base", memory="gradients"),)),),
        reads={"gradients": ("gradient_read",), "scales": ("scale_read",)},
        writes={"gradients": ("gradient_write",)},
        inputs={**{name: Setting(name) for name in same}, "stride": Setting("gradient_stride"),
                "resumed": Setting("resumed_set"), "weight_version": WEIGHT_VERSION,
                "stopped": ProgramState("stopped"), "gradient_scale": Latched("gradient_scale")},
        outputs={Latched("gradient_scale"): "scale", Status("slot_0"): "slot_0", Status("slot_1"): "slot_1"},
        joins={"rounds": "words"},
        gates={0: "compute_gate", 1: "update_gate"},
    )
