"""Units of hdl/control for the mutation run: small ones that use every line of their files."""

from typing import Any


def command_queue() -> dict[str, Any]:
    from hdl.config import Memories, NodeConfig, SingleRing
    from hdl.control.command_queue import CommandQueue
    from hdl.engines import operations
    from hdl.features.programs.feature import Programs

    config = NodeConfig(topology=SingleRing(max_nodes=12), memories=Memories(gradient=320, weight=256, state=96))
    two = config.replace(programs=Programs(depth=16))
    return {**{name: CommandQueue(config=config, operations=operations(config), depth=depth)
               for name, depth in (("queue", 3), ("short", 1))},
            "two": CommandQueue(config=two, operations=operations(two))}


def event_queue() -> dict[str, Any]:
    from hdl.control.event_queue import EventQueue

    return {"events": EventQueue(queues=2, depth=3)}


def immediate() -> dict[str, Any]:
    from hdl.control.immediate import ImmediateRunner
    from hdl.features.programs.latched_settings import LatchedSettings

    return {"immediate": ImmediateRunner(), "latched": LatchedSettings()}


def program_memory() -> dict[str, Any]:
    from hdl.features.programs.program_memory import ProgramMemory

    return {"programs": ProgramMemory(queues=2, depth=5)}


def sequencer_of_a_program() -> dict[str, Any]:
    from hdl.control.sequencer import Sequencer

    return {"sequencer": Sequencer(depth=5)}


def scoreboard() -> dict[str, Any]:
    from hdl.control.scoreboard import Scoreboard

    return {"scoreboard": Scoreboard(queues=2), "three": Scoreboard(queues=3)}


def control_words() -> dict[str, Any]:
    from hdl.control.remote_after import RemoteAfter
    from hdl.features.replay.control_hub import ControlHub
    from hdl.features.replay.control_word import ControlType
    from hdl.features.replay.keepalive import KeepAlive
    from hdl.features.replay.signals import SignalRelay

    takes = [(ControlType.SIGNAL,), (ControlType.KEEPALIVE,), (ControlType.LAP, ControlType.RECORD),
             (ControlType.COLLECT, ControlType.GRANT), (ControlType.SYNC,), (ControlType.PLACE,),
             (ControlType.READY, ControlType.CLOSE)]
    return {"relay": SignalRelay(queues=2), "keepalive": KeepAlive(), "remote": RemoteAfter(queues=2),
            **{f"hub{tenants}": ControlHub(takes=takes, tenants=tenants)
               for tenants in (False, True)}}


def versions() -> dict[str, Any]:
    from hdl.control.rejections import Rejections
    from hdl.features.programs.region_versions import RegionVersions

    return {"versions": RegionVersions(regions=5), "rejections": Rejections(queues=2)}


def trace() -> dict[str, Any]:
    from hdl.control.trace import Trace

    return {f"trace{lanes}": Trace(queues=2, lanes=lanes) for lanes in (1, 2, 8)}


def windows() -> dict[str, Any]:
    from hdl.config import Memories, NodeConfig
    from hdl.features.compute.feature import Compute
    from hdl.features.programs.feature import Programs
    from hdl.features.replay.feature import Replay
    from hdl.features.tenants.feature import Tenants
    from hdl.features.tenants.windows import WindowTable

    config = NodeConfig(memories=Memories(gradient=160, weight=64, state=32, planes=1), features=(Tenants(),))
    far = config.replace(programs=Programs(move_queue=True), compute=Compute(rows=1, activations=32, far=224))
    return {"windows": WindowTable(config=far),
            "windows_signals": WindowTable(config=config.replace(link=Replay(), programs=Programs()))}


def requester() -> dict[str, Any]:
    from hdl.config import Memories, NodeConfig
    from hdl.control.requester import Requester
    from hdl.features.programs.feature import Programs
    from hdl.features.streaming.feature import ServerConfig, ServerMemories
    from hdl.features.tenants.feature import Tenants

    memories, features = {"gradient": 160, "weight": 64}, (Tenants(),)
    server = ServerConfig(memories=ServerMemories(planes=0, far=256, **memories), features=features)
    config = NodeConfig(memories=Memories(**memories), programs=Programs(), features=features)
    return {"requester": Requester(config=config), "server": Requester(config=server)}


def command_watch() -> dict[str, Any]:
    from hdl.features.tenants.command_watch import BudgetClock, CommandWatch

    return {"watch": CommandWatch(), "gated": CommandWatch(gated=True), "clock": BudgetClock()}


def command_checker() -> dict[str, Any]:
    from hdl.config import Memories, NodeConfig, SingleRing, Weights
    from hdl.control.command_checker import CommandChecker
    from hdl.engines import operations
    from hdl.features.compute.feature import Compute
    from hdl.features.programs.feature import Programs
    from hdl.features.quantization.feature import Quantization

    config = NodeConfig(topology=SingleRing(max_nodes=12), memories=Memories(gradient=320, weight=256, state=96))
    local = config.replace(compute=Compute(rows=1, activations=192), features=(Quantization(),))
    configs = {"checker": local, "master": config.replace(weights=Weights(codec="mx9"))}
    two = config.replace(programs=Programs())
    return {**{name: CommandChecker(config=each, operations=operations(each)) for name, each in configs.items()},
            "two": CommandChecker(config=two, operations=operations(two), queues=2)}


def host_port() -> dict[str, Any]:
    from hdl.config import Memories, NodeConfig
    from hdl.control.host_port import HostPort
    from hdl.features.programs.feature import Programs
    from hdl.features.tenants.feature import Tenants

    config = NodeConfig(lanes=2, memories=Memories(gradient=320, weight=64, state=32))
    return {"port": HostPort(config=config),
            "two": HostPort(config=config.replace(programs=Programs(depth=3))),
            "tenants": HostPort(config=config.replace(programs=Programs(banks=2), features=(Tenants(),)))}


def registers() -> dict[str, Any]:
    from hdl.config import Memories, NodeConfig
    from hdl.control.register_file import RegisterFile
    from hdl.features.programs.feature import Programs

    config = NodeConfig(lanes=8, segment=64, memories=Memories(gradient=320, weight=64, state=32))
    return {"registers": RegisterFile(config=config),
            "two": RegisterFile(config=config.replace(programs=Programs()))}


def runner() -> dict[str, Any]:
    from hdl.control.local_runner import CommandRunner
    from hdl.control.protocol import EventStatus

    return {"runner": CommandRunner(failure=EventStatus.BAD_MASK, most=4)}
