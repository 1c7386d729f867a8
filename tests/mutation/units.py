"""Small units for mutation testing, which together use every line of the tested files. The module of a unit is
imported only when the unit is built, in the process that runs the mutant.
"""

import importlib
from typing import Any

from hdl.config import Credits, Memories, NodeConfig, Optimizer, SingleRing, Weights
from hdl.features.streaming.feature import ServerConfig, ServerMemories


def load(name: str) -> Any:
    """Import an object from the ``hdl`` package, given as "module:name"."""
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(f"hdl.{module}"), attribute)


def unit(name: str, **options: Any) -> Any:
    """Instantiate a component class from the ``hdl`` package, given as "module:name"."""
    return load(name)(**options)


def feature(name: str, **options: Any) -> Any:
    """Create a feature's configuration section, given as "feature:name"."""
    package, _, section = name.partition(":")
    return unit(f"features.{package}.feature:{section}", **options)


def _depacketizer(*names: str) -> Any:
    codecs = load("compression.registry:CODECS")
    return unit("ring.depacketizer:Depacketizer", codecs=[codecs[name] for name in ("raw", "zero_value", *names)])


def _nodes(name: str) -> dict[str, Any]:
    """Build a unit for two small nodes, without codecs and with codecs for weights and gradients."""
    config = NodeConfig(memories=Memories(gradient=1024, weight=1024, state=1024, planes=1))
    return {"plain": unit(name, config=config.replace(
                lanes=1, segment=32, optimizer=Optimizer(dsps=1), link=Credits(ingress=2))),
            "coded": unit(name, config=config.replace(weights=Weights(codec="mx9"), gradients="mx9"))}


def _burst(*rules: str, **options: Any) -> Any:
    every = load("optimizer.rules:Rule")
    return unit("optimizer.burst:StreamedOptimizer", rules=tuple(every[rule] for rule in rules) or tuple(every),
                **options)


def _node(**options: Any) -> NodeConfig:
    memories = Memories(gradient=320, weight=256, state=96)
    return NodeConfig(topology=SingleRing(max_nodes=12), memories=memories, **options)


def _of_operations(name: str, config: NodeConfig, **options: Any) -> Any:
    return unit(name, config=config, operations=load("engines:operations")(config), **options)


def _far_memories() -> dict[str, Any]:
    options = {"config": ServerConfig(lanes=2, memories=ServerMemories(gradient=32, weight=128, state=64, far=256)),
               "readers": {"weights": (0, 1), "state_0": (0,), "state_1": (0,)},
               "writers": {"weights": 2, "state_0": 1, "state_1": 1}}
    owners = {"weights": ((0, 1), (1, 0)), "state_0": ((0,), (0,)), "state_1": ((1,), (1,))}
    return {"memories": unit("features.far.memories:FarMemories", **options),
            "guarded": unit("features.far.memories:FarMemories", **options, owners=owners)}


def _control_words() -> dict[str, Any]:
    kinds = load("features.replay.control_word:ControlType")
    takes = [(kinds.SIGNAL,), (kinds.KEEPALIVE,), (kinds.LAP, kinds.RECORD), (kinds.COLLECT, kinds.GRANT),
             (kinds.SYNC,), (kinds.PLACE,), (kinds.READY, kinds.CLOSE)]
    return {"relay": unit("features.replay.signals:SignalRelay", queues=2),
            "keepalive": unit("features.replay.keepalive:KeepAlive"),
            "remote": unit("control.remote_after:RemoteAfter", queues=2),
            **{f"hub{tenants}": unit("features.replay.control_hub:ControlHub", takes=takes, tenants=tenants)
               for tenants in (False, True)}}


def _windows() -> dict[str, Any]:
    config = NodeConfig(memories=Memories(gradient=160, weight=64, state=32, planes=1),
                        features=(feature("tenants:Tenants"),))
    far = config.replace(programs=feature("programs:Programs", move_queue=True),
                         compute=feature("compute:Compute", rows=1, activations=32, far=224))
    signals = config.replace(link=feature("replay:Replay"), programs=feature("programs:Programs"))
    return {"windows": unit("features.tenants.windows:WindowTable", config=far),
            "windows_signals": unit("features.tenants.windows:WindowTable", config=signals)}


def _requester() -> dict[str, Any]:
    memories, features = {"gradient": 160, "weight": 64}, (feature("tenants:Tenants"),)
    config = NodeConfig(memories=Memories(**memories), programs=feature("programs:Programs"), features=features)
    server = ServerConfig(memories=ServerMemories(planes=0, far=256, **memories), features=features)
    return {"requester": unit("control.requester:Requester", config=config),
            "server": unit("control.requester:Requester", config=server)}


def _host_port() -> dict[str, Any]:
    config = NodeConfig(lanes=2, memories=Memories(gradient=320, weight=64, state=32))
    two = config.replace(programs=feature("programs:Programs", depth=3))
    tenants = config.replace(programs=feature("programs:Programs", banks=2), features=(feature("tenants:Tenants"),))
    return {name: unit("control.host_port:HostPort", config=config)
            for name, config in (("port", config), ("two", two), ("tenants", tenants))}


def _command_checker() -> dict[str, Any]:
    local = _node(compute=feature("compute:Compute", rows=1, activations=192),
                  features=(feature("quantization:Quantization"),))
    checker = "control.command_checker:CommandChecker"
    return {"checker": _of_operations(checker, local),
            "master": _of_operations(checker, _node(weights=Weights(codec="mx9"))),
            "two": _of_operations(checker, _node(programs=feature("programs:Programs")), queues=2)}


def _registers() -> dict[str, Any]:
    config = NodeConfig(lanes=8, segment=64, memories=Memories(gradient=320, weight=64, state=32))
    two = config.replace(programs=feature("programs:Programs"))
    return {"registers": unit("control.register_file:RegisterFile", config=config),
            "two": unit("control.register_file:RegisterFile", config=two)}


#: For each source file or group of files, the function that builds the units for its lines.
UNITS = {
    "packetizer": lambda: {"packetizer": unit("ring.packetizer:Packetizer")},
    "depacketizer": lambda: {
        "depacketizer": unit("ring.depacketizer:Depacketizer"), "coded": _depacketizer("mx9"),
        "table": _depacketizer("table32"), "second": _depacketizer("mx9", "table32")},
    "link": lambda: {"receiver": unit("ring.link:LinkReceiver", segments=3, packet_words=13),
                     "transmitter": unit("ring.link:LinkTransmitter", segments=3, egress_words=13)},
    "switch": lambda: {"switch": unit("features.grid.switch:LinkSwitch", signature=unit("ring.link:LinkSignature"))},
    "switched_link": lambda: {
        name: unit("features.grid.switched_link:SwitchedLink", config=NodeConfig(
            segment=32, topology=feature("grid:Grid"), link=link))
        for name, link in (("link", Credits(ingress=2)), ("replay", feature("replay:Replay", ingress=2)))},
    "replay": lambda: {
        "transmitter": unit("features.replay.transmitter:ReplayTransmitter", segments=3, egress_words=268),
        "two": unit("features.replay.transmitter:ReplayTransmitter", segments=3, egress_words=268, ports=2),
        "receiver": unit("features.replay.receiver:ReplayReceiver", segments=3, packet_words=70),
        "window": unit("features.replay.window:Window", rows=8, window=3),
        "speaker": unit("features.replay.line:Speaker"), "listener": unit("features.replay.line:Listener"),
        "relay": unit("features.replay.signals:SignalRelay", queues=2),
        "keepalive": unit("features.replay.keepalive:KeepAlive")},
    "schedule": lambda: {"planner": unit("ring.order:Planner", elements=4096, segment=64),
                         "sequence": unit("ring.order:SequenceGenerator", elements=4096, segment=64)},
    "control": lambda: {"control": unit("ring.control:CollectiveControl"),
                        "restorable": unit("ring.control:CollectiveControl", settable=True),
                        "cut": unit("ring.control:CollectiveControl", cuttable=True)},
    "collective": lambda: _nodes("ring.collective:CollectiveEngine"),
    "sequencer": lambda: _nodes("ring.sequencer:Sequencer"),
    "datapath": lambda: _nodes("ring.datapath:Datapath"),
    "codebook": lambda: {f"loader{lanes}": unit("ring.parts.codebook:CodebookLoader", words=32, lanes=lanes)
                         for lanes in (1, 4)},
    "compute_model": lambda: {
        f"compute_model{lanes}": unit("features.compute_stub.compute_model:ComputeModel", config=NodeConfig(
            lanes=lanes, memories=Memories(gradient=512), stub=feature("compute_stub:ComputeStub")))
        for lanes in (1, 4)},
    "zero_value": lambda: {
        "encoder": unit("compression.zero_value.encoder:Encoder", lanes=4),
        "encoder1": unit("compression.zero_value.encoder:Encoder", lanes=1),
        "decoder": unit("compression.zero_value.decoder:Decoder", lanes=2),
        "decoder8": unit("compression.zero_value.decoder:Decoder", lanes=8),
        "adder": unit("compression.zero_value.adder:Adder")},
    "compute": lambda: {
        "narrow": unit("features.compute.product:MatrixProduct", rows=1, columns=4, dsps=1, blocks=32),
        "square": unit("features.compute.product:MatrixProduct", rows=2, columns=2, blocks=4)},
    "vector": lambda: {
        "wide": unit("features.compute.vector:VectorUnit", lanes=4, memory_rows=4096),
        "narrow": unit("features.compute.vector:VectorUnit", lanes=2, memory_rows=4096, units=2, columns=8, dsps=1,
                       interval=4)},
    "lists": lambda: {
        f"lists{lanes}": unit("features.compute.list_runner:ListRunner", words=(256, 192, 1024), lanes=lanes,
                              rows=rows, blocks=32, centroids=centroids, owner_bits=owner_bits)
        for lanes, rows, centroids, owner_bits in ((2, 2, 0, 0), (4, 4, 16, 8), (8, 1, 0, 0))},
    "centroid_layer": lambda: {
        "four": unit("features.codebook_layers.centroid_layer:CentroidLayer", lanes=4, memory_rows=2048),
        "two": unit("features.codebook_layers.centroid_layer:CentroidLayer", lanes=2, centroids=4, dsps=1,
                    memory_rows=2048)},
    "memory_access": lambda: {"access": unit(
        "features.compute.memory_access:MemoryAccess", rows=(8, 2, 32), lanes=2,
        owner_bits=load("features.compute.layer_list:OWNER_BITS"))},
    "guard": lambda: {
        "guard": unit("guard:Guard", rows=64, lanes=2),
        "memory": unit("memory:LanedMemory", rows=64, lanes=2, readers=3, writers=3, owners=((0, 1), (1, 0)))},
    "memory": lambda: {
        "memory": unit("memory:LanedMemory", rows=64, lanes=2, readers=3, writers=3, watched=True, throttled=True),
        "guarded": unit("memory:LanedMemory", rows=64, lanes=2, readers=3, writers=3, watched=True,
                        owners=((0, 1), (1, 0)))},
    "far_guard": lambda: {"guard": unit("features.far.guard:FarGuard", rows=128, lanes=2, outstanding=5)},
    "far_memories": _far_memories,
    "row_owners": lambda: {"owners": unit("features.compute.row_owners:RowOwners", rows=16),
                           "guarded": unit("features.compute.row_owners:RowOwners", rows=64, lanes=2)},
    "gemm": lambda: {
        "narrow": unit("features.compute.gemm:Gemm", rows=1, lanes=4, dsps=1, blocks=32, memory_rows=64,
                       scale_mask=True),
        "square": unit("features.compute.gemm:Gemm", rows=2, lanes=2, blocks=4, memory_rows=64),
        "walk": unit("features.compute.row_sequence:RowSequence", rows=512, most=16, lanes=4, tag=2)},
    "scale_mask": lambda: {"narrow": unit("features.compute.scale_mask:ScaleMask", rows=2, lanes=4, dsps=1),
                           "wide": unit("features.compute.scale_mask:ScaleMask", rows=4, lanes=8)},
    "burst": lambda: {
        "parts": _burst(workers=2, lanes=4, depth=64, update_lanes=2),
        "ports": _burst(workers=4, lanes=2, depth=8, update_lanes=1, broadcasts=4),
        "slow": _burst(workers=2, lanes=1, depth=16, update_interval=2),
        "fixed": _burst("SGD", "MOMENTUM", workers=2, lanes=2, depth=16, format=load("optimizer.fixed_point:INT16"))},
    "gradient_buffer": lambda: {
        "slices": unit("optimizer.gradient_buffer:GradientBuffer", lanes=4, read_lanes=2, depth=8),
        "whole": unit("optimizer.gradient_buffer:GradientBuffer", lanes=4, depth=12, banks=3)},
    "reducer": lambda: {f"reducer{workers}": unit("optimizer.reducer:Reducer", workers=workers)
                        for workers in (1, 6, 7)},
    "generator": lambda: {f"generator{lanes}": unit("masking.generator:MaskGenerator", lanes=lanes, index_bits=8)
                          for lanes in (1, 2, 8)},
    "multiplexer": lambda: {f"multiplexer{lanes}": unit("masking.multiplexer:MaskMultiplexer", lanes=lanes, width=8)
                            for lanes in (1, 4)},
    "command_queue": lambda: {
        "queue": _of_operations("control.command_queue:CommandQueue", _node(), depth=3),
        "short": _of_operations("control.command_queue:CommandQueue", _node(), depth=1),
        "two": _of_operations("control.command_queue:CommandQueue", _node(
            programs=feature("programs:Programs", depth=16)))},
    "event_queue": lambda: {"events": unit("control.event_queue:EventQueue", queues=2, depth=3)},
    "immediate": lambda: {"immediate": unit("control.immediate:ImmediateRunner"),
                          "latched": unit("features.programs.latched_settings:LatchedSettings")},
    "program_memory": lambda: {"programs": unit(
        "features.programs.program_memory:ProgramMemory", queues=2, depth=5)},
    "program_sequencer": lambda: {"sequencer": unit("control.sequencer:Sequencer", depth=5)},
    "scoreboard": lambda: {"scoreboard": unit("control.scoreboard:Scoreboard", queues=2),
                           "three": unit("control.scoreboard:Scoreboard", queues=3)},
    "control_words": _control_words,
    "versions": lambda: {"versions": unit("features.programs.region_versions:RegionVersions", regions=5),
                         "rejections": unit("control.rejections:Rejections", queues=2)},
    "trace": lambda: {f"trace{lanes}": unit("control.trace:Trace", queues=2, lanes=lanes) for lanes in (1, 2, 8)},
    "windows": _windows,
    "requester": _requester,
    "command_watch": lambda: {"watch": unit("features.tenants.command_watch:CommandWatch"),
                              "gated": unit("features.tenants.command_watch:CommandWatch", gated=True),
                              "clock": unit("features.tenants.command_watch:BudgetClock")},
    "command_checker": _command_checker,
    "host_port": _host_port,
    "registers": _registers,
    "runner": lambda: {"runner": unit("control.local_runner:CommandRunner", most=4,
                                      failure=load("control.protocol:EventStatus").BAD_MASK)},
}
