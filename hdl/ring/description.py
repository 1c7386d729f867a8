"""Description of the collective engine, which executes QUIESCE and operations on the whole ring."""

import dataclasses

from hdl.compression.registry import FETCH_FORMATS
from hdl.control.engine import EngineDescription, Extent, OperationDescription, Reach
from hdl.control.protocol import EventStatus, Operation
from hdl.control.source import WEIGHT_VERSION, Checked, Latched, Setting, SettingField
from hdl.optimizer.rules import MAX_PLANES, has_rule, planes_used, settings_layout
from hdl.ring.collective import CollectiveEngine
from hdl.ring.extension import extensions
from hdl.ring.parts.part import memory_ports
from hdl.ring.parts.registry import parts
from hdl.ring.ports import port_members

__all__ = ["describe"]


def describe(config):
    """Return the :class:`~hdl.control.engine.EngineDescription` of the engine in this configuration."""
    gradients = Extent(base="gradient_base", memory="gradients")
    weights = Extent(base="weight_base", memory="weights")
    planes = {f"state_{plane}": plane for plane in range(config.memories.planes)}
    if config.weights.has_master:  # master weights have the same addresses as state, and are never packed
        state = (Extent(base="state_base", memory="masters", reach=Reach.BLOCK),)
    elif planes:
        state = (Extent(base="state_base", memory="state_0", reach=Reach.BLOCK, packs=True,
                        used=lambda settings: planes_used(settings.rule, MAX_PLANES).any()),)
    else:
        state = ()

    def lacks_planes(settings):
        return ~has_rule(settings.rule, config.memories.planes), EventStatus.BAD_RULE, settings.rule

    def lacks_format(command):
        """Return whether a format is undefined, or is a block format in a command with a root other than the
        server."""
        wrong_root = (command.root == command.rank) != config.is_server
        unknown = command.format >= len(FETCH_FORMATS)
        return unknown | ((command.format != 0) & wrong_root), EventStatus.BAD_FORMAT, command.format

    push = ()
    if config.role.streams:
        served = (weights, *(dataclasses.replace(extent, reach=Reach.DENSE) for extent in state))
        push = (OperationDescription(
            code=Operation.PUSH, on_ring=True, has_root=True, is_root=config.is_server, queue=1,
            extents=served if config.is_server else (gradients,),
            refused=lacks_planes if config.is_server else None),)
    added = extensions(config)
    scalars = [name for name in settings_layout().members if name not in ("rule", "nesterov")]
    return EngineDescription(
        name="engine",
        make=lambda: CollectiveEngine(config=config),
        operations=(
            OperationDescription(code=Operation.QUIESCE),
            OperationDescription(code=Operation.FUSED_UPDATE, extents=(gradients, weights, *state), on_ring=True,
                                 owned=config.role.root_reduce, refused=lacks_planes, queue=1),
            OperationDescription(code=Operation.ALL_REDUCE, extents=(gradients,), on_ring=True,
                                 owned=config.role.root_reduce, queue=1),
            OperationDescription(code=Operation.REDUCE_SCATTER, extents=(gradients,), on_ring=True, queue=1),
            OperationDescription(code=Operation.ALL_GATHER, extents=(weights,), on_ring=True, queue=1),
            OperationDescription(code=Operation.BROADCAST, extents=(weights,), on_ring=True, has_root=True,
                                 refused_fields=lacks_format if config.role.broadcast_formats else None, queue=1),
            *push,
            *(operation for extension in added for operation in extension.operations()),
        ),
        reads=_ports(config, "read"),
        writes=_ports(config, "write"),
        inputs={
            "settings.rule": Checked("rule"), "settings.nesterov": SettingField("OPTIMIZER", "nesterov"),
            **{f"settings.{name}": Latched(name) for name in scalars},
            "packed_state": Checked("packed_state"), **{name: Setting(name) for name in ("timeout", "link_reset")},
            **{name: source for extension in added for name, source in extension.inputs.items()}},
        outputs={WEIGHT_VERSION: "weight_version",
                 **{purpose: path for extension in added for purpose, path in extension.outputs.items()}},
        joins={name: path for extension in added for name, path in extension.joins.items()},
        links={name: name for name in port_members(config, config.topology.ports)},
        abandons="abandons" if config.is_server else None,
    )


def _ports(config, kind):
    """Return port names of one kind, keyed by memory."""
    members = memory_ports(config, parts(config))
    return {memory: (f"{memory}_{kind}",) for memory in config.memory_map.names if f"{memory}_{kind}" in members}
