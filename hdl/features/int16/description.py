"""Engine descriptions of the int16 node: its own engine and MASK."""

from hdl.control.engine import EngineDescription, Extent, OperationDescription, Reach
from hdl.control.protocol import EventStatus, Operation
from hdl.control.source import WEIGHT_VERSION, Setting
from hdl.features.int16.engine import Engine
from hdl.features.int16.masking import Masker
from hdl.optimizer.rules import Rule

__all__ = ["describe"]

_PORTS = {"gradients": ("gradients",), "weights": ("weights",)}


def describe(config):
    """Return the :class:`~hdl.control.engine.EngineDescription` of each engine of an int16 node.

    Instead of streams, the components have the ports of :func:`~hdl.features.int16.queue.engine_signature`, and one
    port for reads and writes per memory.
    """
    gradients = Extent(base="gradient_base", memory="gradients")
    weights = Extent(base="weight_base", memory="weights")

    def has_state(settings):
        return settings.rule != Rule.SGD, EventStatus.BAD_RULE, settings.rule

    operations = [
        OperationDescription(code=Operation.QUIESCE),
        OperationDescription(code=Operation.FUSED_UPDATE, extents=(gradients, weights), on_ring=True,
                             refused=has_state)]
    if config.sparsify:
        operations.append(OperationDescription(code=Operation.SPARSIFY, extents=(gradients, weights)))
    engine = EngineDescription(
        name="engine", make=lambda: Engine(config=config), operations=tuple(operations), reads=_PORTS, writes=_PORTS,
        inputs={"gradient_scale": Setting("gradient_scale"), "learning_rate": Setting("learning_rate"),
                "threshold": Setting("mask_threshold"), "link_reset": Setting("link_reset")},
        outputs={WEIGHT_VERSION: "weight_version"})
    if not config.masking:
        return (engine,)
    lists = tuple(Extent(base=base, memory="weights", reach=Reach.START) for base in ("weight_base", "state_base"))
    masker = EngineDescription(
        name="masker", make=lambda: Masker(config=config),
        operations=(OperationDescription(code=Operation.MASK, extents=(gradients, *lists)),), reads=_PORTS,
        writes=_PORTS, inputs={"alternative": Setting("mask_alternative")})
    return engine, masker
