"""Description of the engine of rounds: FOLD, and gates for COMPUTE and FUSED_UPDATE."""

from hdl.control.engine import EngineDescription, Extent, OperationDescription
from hdl.control.protocol import Operation
from hdl.rounds.engine import RoundEngine

__all__ = ["describe"]


def describe(config):
    """Return the engine's :class:`~hdl.control.engine.EngineDescription`, or None on a node without rounds.

    FOLD has slot 0 at ``gradient_base``; the other slot and the zeros lie behind it, by GRADIENT_STRIDE.
    """
    if not config.has_quorum:
        return None
    same = ("link_reset", "timeout", "deadline", "quorum", "weight_version",
            *(f"late_weights_{n}" for n in range(3)))
    return EngineDescription(
        name="rounds",
        make=lambda: RoundEngine(config=config),
        operations=(OperationDescription(code=Operation.FOLD, queue=1, extents=(
            Extent(base="gradient_base", memory="gradients"),)),),
        reads={"gradients": ("gradient_read",), "scales": ("scale_read",)},
        writes={"gradients": ("gradient_write",)},
        inputs={**{name: name for name in same}, "stride": "gradient_stride", "resumed": "resumed_set",
                "stopped": "programs.stopped", "gradient_scale": "latched.gradient_scale"},
        outputs={"latched.gradient_scale": "scale", "slot_0": "slot_0", "slot_1": "slot_1"},
        joins={"rounds": "words"},
        gates={0: "compute_gate", 1: "update_gate"},
    )
