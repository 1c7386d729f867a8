"""Targets of the mutation run: for each file of hdl/ its units, and its tests in the order in which they run.

The order decides the cost: tests that kill most mutants in the shortest time come first, then the rest of the file.
The units are small and together use every line of the file: a mutant that elaborates to the same gateware in all of
them does not count.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

from hdl.features.streaming.feature import ServerConfig, ServerMemories
from tests.mutation import control_units


@dataclasses.dataclass(frozen=True)
class Target:
    """Target: a file of hdl/ with its units and tests.

    Members
    -------
    file : str
        Path from the root of the tree.
    units : callable
        Function that returns components of the file by name, and imports the modules that it needs.
    tests : tuple of str
        Files of tests.
    first : dict
        Beginnings of the names of the tests that come first if a unit has changed, by the unit's name.
    rest : bool
        Run all other tests of the files as well.
    cost : int
        Divisor of the number of mutants, for files whose tests are expensive.
    """

    file: str
    units: Callable[[], dict[str, Any]]
    tests: tuple[str, ...]
    first: dict[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    rest: bool = True
    cost: int = 1


def _packetizer() -> dict[str, Any]:
    from hdl.ring.packetizer import Packetizer

    return {"packetizer": Packetizer()}


def _depacketizer() -> dict[str, Any]:
    from hdl.compression.registry import CODECS
    from hdl.ring.depacketizer import Depacketizer

    def unit(*names: str) -> Depacketizer:
        return Depacketizer(codecs=[CODECS[name] for name in ("raw", "zero_value", *names)])

    return {"depacketizer": Depacketizer(), "coded": unit("mx9"), "table": unit("table32"),
            "second": unit("mx9", "table32")}


def _link() -> dict[str, Any]:
    from hdl.ring.link import LinkReceiver, LinkTransmitter

    return {"receiver": LinkReceiver(segments=3, packet_words=13),
            "transmitter": LinkTransmitter(segments=3, egress_words=13)}


def _switch() -> dict[str, Any]:
    from hdl.features.grid.switch import LinkSwitch
    from hdl.ring.link import LinkSignature

    return {"switch": LinkSwitch(signature=LinkSignature())}


def _switched_link() -> dict[str, Any]:
    from hdl.config import Credits, NodeConfig
    from hdl.features.grid.feature import Grid
    from hdl.features.grid.switched_link import SwitchedLink
    from hdl.features.replay.feature import Replay

    config = NodeConfig(segment=32, topology=Grid(), link=Credits(ingress=2))
    return {"link": SwitchedLink(config=config),
            "replay": SwitchedLink(config=config.replace(link=Replay(ingress=2)))}


def _replay() -> dict[str, Any]:
    from hdl.features.replay.keepalive import KeepAlive
    from hdl.features.replay.line import Listener, Speaker
    from hdl.features.replay.receiver import ReplayReceiver
    from hdl.features.replay.signals import SignalRelay
    from hdl.features.replay.transmitter import ReplayTransmitter
    from hdl.features.replay.window import Window

    return {"transmitter": ReplayTransmitter(segments=3, egress_words=268),
            "two": ReplayTransmitter(segments=3, egress_words=268, ports=2),
            "receiver": ReplayReceiver(segments=3, packet_words=70),
            "window": Window(rows=8, window=3), "speaker": Speaker(), "listener": Listener(),
            "relay": SignalRelay(queues=2), "keepalive": KeepAlive()}


def _schedule() -> dict[str, Any]:
    from hdl.ring.order import Planner, SequenceGenerator

    return {"planner": Planner(elements=4096, segment=64), "sequence": SequenceGenerator(elements=4096, segment=64)}


def _control() -> dict[str, Any]:
    from hdl.ring.control import CollectiveControl

    return {"control": CollectiveControl(), "restorable": CollectiveControl(settable=True),
            "cut": CollectiveControl(cuttable=True)}


def _nodes() -> dict[str, Any]:
    """Nodes of the ring tests that are quickest to build: the default, and one with codecs of both kinds."""
    from hdl.config import Credits, Memories, NodeConfig, Optimizer, Weights

    config = NodeConfig(memories=Memories(gradient=1024, weight=1024, state=1024, planes=1))
    return {"plain": config.replace(lanes=1, segment=32, optimizer=Optimizer(dsps=1), link=Credits(ingress=2)),
            "coded": config.replace(weights=Weights(codec="mx9"), gradients="mx9")}


def _collective() -> dict[str, Any]:
    from hdl.ring.collective import CollectiveEngine

    return {name: CollectiveEngine(config=config) for name, config in _nodes().items()}


def _sequencer() -> dict[str, Any]:
    from hdl.ring.sequencer import Sequencer

    return {name: Sequencer(config=config) for name, config in _nodes().items()}


def _datapath() -> dict[str, Any]:
    from hdl.ring.datapath import Datapath

    return {name: Datapath(config=config) for name, config in _nodes().items()}


def _codebook() -> dict[str, Any]:
    from hdl.ring.parts.codebook import CodebookLoader

    return {f"loader{lanes}": CodebookLoader(words=32, lanes=lanes) for lanes in (1, 4)}


def _stand_in() -> dict[str, Any]:
    from hdl.config import Memories, NodeConfig
    from hdl.features.compute_stub.feature import ComputeStub
    from hdl.features.compute_stub.stand_in import StandIn

    return {f"stand_in{lanes}": StandIn(config=NodeConfig(
        lanes=lanes, memories=Memories(gradient=512), stub=ComputeStub()))
            for lanes in (1, 4)}


def _zero_value() -> dict[str, Any]:
    from hdl.compression.zero_value.adder import Adder
    from hdl.compression.zero_value.decoder import Decoder
    from hdl.compression.zero_value.encoder import Encoder

    return {"encoder": Encoder(lanes=4), "encoder1": Encoder(lanes=1), "decoder": Decoder(lanes=2),
            "decoder8": Decoder(lanes=8), "adder": Adder()}


def _compute() -> dict[str, Any]:
    from hdl.features.compute.product import MatrixProduct

    return {"narrow": MatrixProduct(rows=1, columns=4, dsps=1, blocks=32),
            "square": MatrixProduct(rows=2, columns=2, blocks=4)}


def _vector() -> dict[str, Any]:
    from hdl.features.compute.vector import VectorUnit

    return {"wide": VectorUnit(lanes=4, memory_rows=4096),
            "narrow": VectorUnit(lanes=2, memory_rows=4096, units=2, columns=8, dsps=1, interval=4)}


def _lists() -> dict[str, Any]:
    from hdl.features.compute.list_runner import ListRunner

    return {f"lists{lanes}": ListRunner(
                words=(256, 192, 1024), lanes=lanes, rows=rows, blocks=32, centroids=centroids, owner_bits=owner_bits)
            for lanes, rows, centroids, owner_bits in ((2, 2, 0, 0), (4, 4, 16, 8), (8, 1, 0, 0))}


def _centroid_layer() -> dict[str, Any]:
    from hdl.features.codebook_layers.centroid_layer import CentroidLayer

    return {"four": CentroidLayer(lanes=4, memory_rows=2048),
            "two": CentroidLayer(lanes=2, centroids=4, dsps=1, memory_rows=2048)}


def _memory_access() -> dict[str, Any]:
    from hdl.features.compute.layer_list import OWNER_BITS
    from hdl.features.compute.memory_access import MemoryAccess

    return {"access": MemoryAccess(rows=(8, 2, 32), lanes=2, owner_bits=OWNER_BITS)}


def _guard() -> dict[str, Any]:
    from hdl.guard import Guard
    from hdl.memory import LanedMemory

    return {"guard": Guard(rows=64, lanes=2),
            "memory": LanedMemory(rows=64, lanes=2, readers=3, writers=3, owners=((0, 1), (1, 0)))}


def _memory() -> dict[str, Any]:
    from hdl.memory import LanedMemory

    memory = {"rows": 64, "lanes": 2, "readers": 3, "writers": 3}
    return {"memory": LanedMemory(**memory, watched=True, throttled=True),
            "guarded": LanedMemory(**memory, watched=True, owners=((0, 1), (1, 0)))}


def _far_guard() -> dict[str, Any]:
    from hdl.features.far.guard import FarGuard

    return {"guard": FarGuard(rows=128, lanes=2, outstanding=5)}


def _far_memories() -> dict[str, Any]:
    from hdl.features.far.memories import FarMemories

    config = ServerConfig(lanes=2, memories=ServerMemories(gradient=32, weight=128, state=64, far=256))
    ports = {"readers": {"weights": (0, 1), "state_0": (0,), "state_1": (0,)},
             "writers": {"weights": 2, "state_0": 1, "state_1": 1}}
    return {"memories": FarMemories(config=config, **ports), "guarded": FarMemories(
        config=config, **ports, owners={"weights": ((0, 1), (1, 0)), "state_0": ((0,), (0,)),
                                        "state_1": ((1,), (1,))})}


def _row_owners() -> dict[str, Any]:
    from hdl.features.compute.row_owners import RowOwners

    return {"owners": RowOwners(rows=16), "guarded": RowOwners(rows=64, lanes=2)}


def _gemm() -> dict[str, Any]:
    from hdl.features.compute.gemm import Gemm
    from hdl.features.compute.row_walk import RowWalk

    return {"narrow": Gemm(rows=1, lanes=4, dsps=1, blocks=32, memory_rows=64, scale_mask=True),
            "square": Gemm(rows=2, lanes=2, blocks=4, memory_rows=64),
            "walk": RowWalk(rows=512, most=16, lanes=4, tag=2)}


def _scale_mask() -> dict[str, Any]:
    from hdl.features.compute.scale_mask import ScaleMask

    return {"narrow": ScaleMask(rows=2, lanes=4, dsps=1), "wide": ScaleMask(rows=4, lanes=8)}


def _burst() -> dict[str, Any]:
    from hdl.optimizer.burst import StreamedOptimizer
    from hdl.optimizer.fixed_point import INT16
    from hdl.optimizer.rules import Rule

    return {"parts": StreamedOptimizer(workers=2, lanes=4, depth=64, update_lanes=2, rules=tuple(Rule)),
            "ports": StreamedOptimizer(workers=4, lanes=2, depth=8, update_lanes=1, broadcasts=4, rules=tuple(Rule)),
            "slow": StreamedOptimizer(workers=2, lanes=1, depth=16, update_interval=2, rules=tuple(Rule)),
            "fixed": StreamedOptimizer(workers=2, lanes=2, depth=16, format=INT16, rules=(Rule.SGD, Rule.MOMENTUM))}


def _gradient_buffer() -> dict[str, Any]:
    from hdl.optimizer.gradient_buffer import GradientBuffer

    return {"slices": GradientBuffer(lanes=4, read_lanes=2, depth=8),
            "whole": GradientBuffer(lanes=4, depth=12, banks=3)}


def _reducer() -> dict[str, Any]:
    from hdl.optimizer.reducer import Reducer

    return {f"reducer{workers}": Reducer(workers=workers) for workers in (1, 6, 7)}


def _generator() -> dict[str, Any]:
    from hdl.masking.generator import MaskGenerator

    return {f"generator{lanes}": MaskGenerator(lanes=lanes, index_bits=8) for lanes in (1, 2, 8)}


def _multiplexer() -> dict[str, Any]:
    from hdl.masking.multiplexer import MaskMultiplexer

    return {f"multiplexer{lanes}": MaskMultiplexer(lanes=lanes, width=8) for lanes in (1, 4)}


_CODING = "tests/hdl/compression"
_RING, _CONTROL, _OPTIMIZER, _MASKING = (f"tests/hdl/{area}" for area in ("ring", "control", "optimizer", "masking"))
_PROGRAMS = "tests/features/programs"

# Whole rings take 10 to 30 CPU seconds to build: a ring of small nodes comes first, then the most sensitive tests.
_RINGS = (f"{_RING}/test_collective.py", "tests/host/driver/test_ring.py",
          "tests/host/driver/test_gradient_codecs.py", "tests/pairs/test_pairs.py")
_OF_RINGS = {
    "plain": ("test_values[small]", "test_has_nobody", "test_counts_of_units", "test_weights_alone[3]",
              "test_one_node_differs", "test_wrong_block", "test_findings", "test_damaged_word[40]",
              "test_queued_behind_damage[616]", "test_values_words_and_counts[33-1]", "test_at_any_time",
              "test_quiesce_of_any_size[1]"),
    "coded": ("test_every_operation[3-mx9]", "test_units")}

#: Files of the datapath's parts that both nodes of the ring tests have between them.
_PARTS = ("coded_weights", "compressed_sum", "decoded_sum", "masters", "raw_weights", "residual", "update",
          "weight_transfer", "write_back")

#: The most different shapes of the tests, each with the stall patterns that find most.
_BURST_FIRST = {
"fixed": ("test_lockstep[16-0-mixed]", "test_lockstep[16-1-mixed]", "test_latencies[16]"),
"parts": ("test_latencies[1]", "test_not_finite", "test_fills_of_other", "test_isolated_burst[1-3]",
          "test_steady_bursts[1-3]", "test_lockstep[1-3-", "test_dead_port", "test_slow_ports", "test_reset",
          "test_settings", "test_lockstep[8-1-mixed]", "test_lockstep[9-0-mixed]"),
"ports": ("test_lockstep[3-2-mixed]", "test_lockstep[3-1-geometric]"),
"slow": ("test_latencies[10]", "test_isolated_burst[10-3]", "test_steady_bursts[10-3]",
         "test_lockstep[10-2-mixed]")}

_ALL = (
    Target("hdl/ring/packetizer.py", _packetizer, (f"{_RING}/test_packetizer.py", f"{_RING}/test_handshakes.py"), {
        "packetizer": ("test_packetizer[none]", "test_packetizer_timing", "test_packetizer[")}),
    Target("hdl/ring/depacketizer.py", _depacketizer, (
        f"{_RING}/test_depacketizer.py", f"{_RING}/test_handshakes.py"), {
        "depacketizer": ("test_depacketizer_timing", "test_depacketizer[none]", "test_damage[none",
                         "test_depacketizer["),
        "coded": ("test_depacketizer_of_weights[none-mx9]", "test_depacketizer_of_weights[geometric-mx9]"),
        "table": ("test_depacketizer_of_weights[none-table32]", "test_depacketizer_of_weights[geometric-table32]"),
        "second": ("test_depacketizer_of_gradients[table32]", "test_depacketizer_of_gradients[raw]")}),
    Target("hdl/ring/link.py", _link, (f"{_RING}/test_link.py",), {
        "receiver": ("test_receiver_timing", "test_receiver[none-none]", "test_receiver[geometric"),
        "transmitter": ("test_transmitter[none]", "test_transmitter_timing")}),
    Target("hdl/features/grid/switch.py", _switch, ("tests/features/grid/test_switch.py",), {
        "switch": ("test_lockstep[",)}),
    Target("hdl/features/grid/switched_link.py", _switched_link, (
        "tests/features/grid/test_switched_link.py",)),
    *(Target(f"hdl/features/replay/{name}.py", _replay, tuple(
        f"tests/features/replay/test_{one}.py" for one in tests))
      for name, tests in (
          ("check", ("check", "receiver", "transmitter")), ("line", ("line", "receiver", "transmitter")),
          ("window", ("window", "transmitter")), ("transmitter", ("transmitter",)),
          ("receiver", ("receiver", "receiver_proof")), ("signals", ("signals",)), ("keepalive", ("keepalive",)))),
    Target("hdl/ring/order.py", _schedule, (f"{_RING}/test_order.py",)),
    Target("hdl/ring/control.py", _control, (f"{_RING}/test_control.py",), {"control": ("test_control",)}),
    Target("hdl/ring/collective.py", _collective, _RINGS, _OF_RINGS, rest=False, cost=10),
    Target("hdl/ring/sequencer.py", _sequencer, (f"{_RING}/test_sequencer.py", *_RINGS), {
        unit: ("test_part_brings_a_sequence[none]", "test_part_brings_a_sequence[geometric]", *tests)
        for unit, tests in _OF_RINGS.items()}, rest=False, cost=10),
    *(Target(f"hdl/ring/{name}.py", _datapath, _RINGS, _OF_RINGS, rest=False, cost=10)
      for name in ("datapath", "sequences", "parts/part", *(f"parts/{part}" for part in _PARTS))),
    Target("hdl/ring/parts/codebook.py", _codebook, (f"{_RING}/parts/test_codebook.py",)),
    Target("hdl/control/command_checker.py", control_units.command_checker, (
        f"{_CONTROL}/test_command_checker.py", f"{_PROGRAMS}/test_command_queue_programs.py"), {
        "two": ("test_programs[none",),
        "master": ("test_checker[0-Rule.SGD",),
        "checker": ("test_checker[1-Rule.MOMENTUM", "test_checker[2-Rule.ADAM-1")}),
    *(Target(f"hdl/control/{name}.py", control_units.command_queue,
             (*tests, f"{_PROGRAMS}/test_command_queue_programs.py", f"{_CONTROL}/test_command_queue.py"),
             {"queue": (*first, "test_queue[none-freeze", "test_queue[geometric"),
              "two": (*first, "test_programs[none")})
      for name, tests, first in (
          ("command_queue", (), ()), ("command_loader", (), ()),
          ("command_control", (f"{_CONTROL}/test_command_control.py",),
           ("test_model[1.0", "test_control_of_a_queue")),
          ("pushed_commands", (f"{_CONTROL}/test_pushed_commands.py",), ("test_pushed_commands",)))),
    *(Target(file, control_units.immediate, (f"{_PROGRAMS}/test_latched_settings.py", "tests/hdl/test_engines.py"))
      for file in ("hdl/control/immediate.py", "hdl/features/programs/latched_settings.py")),
    Target("hdl/control/event_queue.py", control_units.event_queue, (f"{_CONTROL}/test_event_queue.py",)),
    Target("hdl/features/programs/program_memory.py", control_units.program_memory, (
        f"{_PROGRAMS}/test_program_memory.py",)),
    Target("hdl/control/sequencer.py", control_units.sequencer_of_a_program, (f"{_CONTROL}/test_sequencer.py",)),
    *(Target(f"hdl/features/replay/{name}.py", control_units.control_words, (
        f"tests/features/replay/test_{name}.py",))
      for name in ("signals", "keepalive", "control_hub")),
    Target("hdl/control/remote_after.py", control_units.control_words, (f"{_CONTROL}/test_remote_after.py",)),
    Target("hdl/features/programs/region_versions.py", control_units.versions, (
        f"{_PROGRAMS}/test_region_versions.py",)),
    Target("hdl/control/rejections.py", control_units.versions, (f"{_CONTROL}/test_rejections.py",)),
    Target("hdl/control/scoreboard.py", control_units.scoreboard, (f"{_CONTROL}/test_scoreboard.py",)),
    Target("hdl/control/trace.py", control_units.trace, (f"{_CONTROL}/test_trace.py",)),
    Target("hdl/control/host_port.py", control_units.host_port, (
        f"{_CONTROL}/test_host_port.py", "tests/features/tenants/test_host_port_tenants.py",
        f"{_CONTROL}/test_host_port_order.py")),
    Target("hdl/control/register_file.py", control_units.registers, (f"{_CONTROL}/test_registers.py",)),
    Target("hdl/control/local_runner.py", control_units.runner, (f"{_CONTROL}/test_local_runner.py",)),
    *(Target(f"hdl/compression/zero_value/{name}.py", _zero_value, (f"{_CODING}/zero_value/test_{name}.py",), first)
      for name, first in {
        "encoder": {"encoder": ("test_encoder_lockstep[4-",), "encoder1": ("test_encoder_lockstep[1-",)},
        "decoder": {"decoder": ("test_decoder_latency[2]", "test_decoder_short_streams[2]",
                                "test_decoder_lockstep[2-", "test_decoder_cut_streams[2-"),
                    "decoder8": ("test_decoder_latency[8]", "test_decoder_lockstep[8-")},
        "adder": {"adder": ("test_adder_known", "test_adder_unequal", "test_adder_latency", "test_adder_is_dense",
                            "test_adder_never_hangs", "test_adder_")}}.items()),
    *(Target(f"hdl/optimizer/{name}.py", _burst, (f"{_OPTIMIZER}/test_burst.py",), _BURST_FIRST, rest=False)
      for name in ("burst", "burst_controller", "row_collector")),
    Target("hdl/optimizer/gradient_buffer.py", _gradient_buffer, (f"{_OPTIMIZER}/test_gradient_buffer.py",)),
    Target("hdl/optimizer/reducer.py", _reducer, (f"{_OPTIMIZER}/test_reducer.py",)),
    *(Target(f"hdl/features/compute/{name}.py", _compute, (f"tests/features/compute/test_{name}.py",))
      for name in ("multiply_accumulate", "array", "panel", "loop_nest", "product")),
    *(Target(f"hdl/features/compute/{name}.py", _vector, (f"tests/features/compute/test_{name}.py",))
      for name in ("vector", "vector_lane", "program_lane", "program_sequencer", "row_loader", "vector_walk")),
    *(Target(f"hdl/features/compute/{name}.py", _lists, (f"tests/features/compute/{tests}.py",))
      for name, tests in (("instruction_checker", "test_instruction_checker"),
                          ("instruction_reader", "test_list_runner"), ("list_runner", "test_list_runner"))),
    Target("hdl/features/codebook_layers/centroid_instruction.py", _lists, (
        "tests/features/compute/test_instruction_checker.py",)),
    Target("hdl/features/codebook_layers/centroid_layer.py", _centroid_layer, (
        "tests/features/codebook_layers/test_centroid_layer.py",), cost=3),
    Target("hdl/features/compute/scale_mask.py", _scale_mask, ("tests/features/compute/test_scale_mask.py",)),
    Target("hdl/features/compute/memory_access.py", _memory_access, (
        "tests/features/compute/test_memory_access.py",)),
    Target("hdl/guard.py", _guard, ("tests/hdl/test_guard.py",)),
    Target("hdl/memory.py", _memory, ("tests/hdl/test_memory.py", "tests/hdl/test_guard.py",
                                      "tests/hdl/test_throttled_units.py")),
    Target("hdl/features/far/guard.py", _far_guard, ("tests/features/far/test_guard.py",)),
    Target("hdl/features/far/memories.py", _far_memories, (
        "tests/features/far/test_memories.py", "tests/features/far/test_memories_proof.py"), {
            "guarded": ("test_guarded_memories",), "memories": ("test_every_cycle[2",)}),
    *(Target(f"hdl/features/tenants/{name}.py", getattr(control_units, name), (
        f"tests/features/tenants/test_{name}.py",)) for name in ("windows", "command_watch")),
    Target("hdl/control/requester.py", control_units.requester, (f"{_CONTROL}/test_requester.py",)),
    Target("hdl/features/compute/row_owners.py", _row_owners, ("tests/features/compute/test_row_owners.py",)),
    Target("hdl/features/compute_stub/stand_in.py", _stand_in, ("tests/features/compute_stub/test_stand_in.py",)),
    *(Target(f"hdl/features/compute/{name}.py", _gemm, (f"tests/features/compute/test_{name}.py",), cost=3)
      for name in ("row_walk", "row_fetch", "gemm")),
    *(Target(f"hdl/features/compute/{name}.py", _gemm, (
        f"tests/features/compute/test_{name}.py", "tests/features/compute/test_gemm.py"), cost=3)
      for name in ("operand_fetch", "initial_fetch", "drain")),
    *(Target(f"hdl/masking/{part}.py", _generator, (f"{_MASKING}/test_generator.py",), {
        name: (f"test_lockstep[{lanes}-geometric-geometric]", f"test_lockstep[{lanes}-none-none]",
               f"test_kinds[{lanes}]", f"test_reset_in_a_job[4-{lanes}]", f"test_every_bound[{lanes}-")
        for lanes, name in ((2, "generator2"), (8, "generator8"))}) for part in ("generator", "comparator")),
    Target("hdl/masking/multiplexer.py", _multiplexer, (f"{_MASKING}/test_multiplexer.py",), {
        "multiplexer4": ("test_lockstep[4-8-geometric-geometric]", "test_cocotb[4-32-none]")}),
)

TARGETS = {target.file: target for target in _ALL}
