"""Targets of the mutation run: the units of each file in hdl/, and its tests in the order in which they run.

The order determines the cost: the tests that kill the most mutants in the shortest time run first, then the rest of
the file. The units are small and together use every line of the file: a mutant that elaborates to the same gateware
in all of them does not count.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

from tests.mutation.units import UNITS


@dataclasses.dataclass(frozen=True)
class Target:
    """A file of hdl/ in which mutants are made, with its units and tests."""

    file: str  # path relative to the root of the tree
    #: Function that imports the modules that it needs and returns a dictionary of components defined in the file.
    units: Callable[[], dict[str, Any]]
    tests: tuple[str, ...]  # test files
    #: For each unit, the prefixes of the names of tests to run first if the unit has changed.
    first: dict[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    rest: bool = True  # whether all other tests in these files run afterwards
    cost: int = 1  # divides the number of mutants if tests are expensive


_CODING = "tests/hdl/compression"
_RING, _CONTROL, _OPTIMIZER, _MASKING = (f"tests/hdl/{area}" for area in ("ring", "control", "optimizer", "masking"))
_PROGRAMS = "tests/features/programs"

# Whole rings take 10 to 30 CPU seconds to build, so small nodes come first, and then the most sensitive tests.
_RINGS = (f"{_RING}/test_collective.py", "tests/host/driver/test_ring.py",
          "tests/host/driver/test_gradient_codecs.py", "tests/pairs/test_pairs.py")
_OF_RINGS = {
    "plain": ("test_values[small]", "test_has_nobody", "test_counts_of_units", "test_weights_alone[3]",
              "test_one_node_differs", "test_wrong_block", "test_findings", "test_damaged_word[40]",
              "test_queued_behind_damage[616]", "test_values_words_and_counts[33-1]", "test_at_any_time",
              "test_quiesce_of_any_size[1]"),
    "coded": ("test_every_operation[3-mx9]", "test_units")}

#: Files of the parts of the datapath that are in the two nodes of the ring tests.
_PARTS = ("coded_weights", "compressed_sum", "decoded_sum", "master_weights", "raw_weights", "residual", "update",
          "weight_transfer", "write_back")

#: Test cases with very different shapes, each with the stall patterns that detect most mutants.
_BURST_FIRST = {
"fixed": ("test_lockstep[16-0-mixed]", "test_lockstep[16-1-mixed]", "test_latencies[16]"),
"parts": ("test_latencies[1]", "test_not_finite", "test_fills_of_other", "test_isolated_burst[1-3]",
          "test_steady_bursts[1-3]", "test_lockstep[1-3-", "test_dead_port", "test_slow_ports", "test_reset",
          "test_settings", "test_lockstep[8-1-mixed]", "test_lockstep[9-0-mixed]"),
"ports": ("test_lockstep[3-2-mixed]", "test_lockstep[3-1-geometric]"),
"slow": ("test_latencies[10]", "test_isolated_burst[10-3]", "test_steady_bursts[10-3]",
         "test_lockstep[10-2-mixed]")}

_ALL = (
    Target("hdl/ring/packetizer.py", UNITS["packetizer"], (
        f"{_RING}/test_packetizer.py", f"{_RING}/test_handshakes.py"), {
        "packetizer": ("test_packetizer[none-", "test_packetizer[")}),
    Target("hdl/ring/depacketizer.py", UNITS["depacketizer"], (
        f"{_RING}/test_depacketizer.py", f"{_RING}/test_handshakes.py"), {
        "depacketizer": ("test_depacketizer_timing", "test_depacketizer[none]", "test_damage[none",
                         "test_depacketizer["),
        "coded": ("test_depacketizer_of_weights[none-mx9]", "test_depacketizer_of_weights[geometric-mx9]"),
        "table": ("test_depacketizer_of_weights[none-table32]", "test_depacketizer_of_weights[geometric-table32]"),
        "second": ("test_depacketizer_of_gradients[table32]", "test_depacketizer_of_gradients[raw]")}),
    Target("hdl/ring/link.py", UNITS["link"], (f"{_RING}/test_link.py",), {
        "receiver": ("test_receiver_rate", "test_receiver[none-none", "test_receiver[geometric"),
        "transmitter": ("test_transmitter_rate", "test_transmitter[5-none", "test_transmitter[60-none")}),
    Target("hdl/features/grid/switch.py", UNITS["switch"], ("tests/features/grid/test_switch.py",), {
        "switch": ("test_lockstep[",)}),
    Target("hdl/features/grid/switched_link.py", UNITS["switched_link"], (
        "tests/features/grid/test_switched_link.py",)),
    *(Target(f"hdl/features/replay/{name}.py", UNITS["replay"], tuple(
        f"tests/features/replay/test_{test}.py" for test in tests))
      for name, tests in (
          ("check", ("check", "receiver", "transmitter")), ("line", ("line", "receiver", "transmitter")),
          ("window", ("window", "transmitter")), ("transmitter", ("transmitter",)),
          ("receiver", ("receiver", "receiver_proof")), ("signals", ("signals",)), ("keepalive", ("keepalive",)))),
    Target("hdl/ring/order.py", UNITS["schedule"], (f"{_RING}/test_order.py",)),
    Target("hdl/ring/control.py", UNITS["control"], (f"{_RING}/test_control.py",), {"control": ("test_control",)}),
    Target("hdl/ring/collective.py", UNITS["collective"], _RINGS, _OF_RINGS, rest=False, cost=10),
    Target("hdl/ring/sequencer.py", UNITS["sequencer"], (f"{_RING}/test_sequencer.py", *_RINGS), {
        unit: ("test_part_brings_a_sequence[none]", "test_part_brings_a_sequence[geometric]", *tests)
        for unit, tests in _OF_RINGS.items()}, rest=False, cost=10),
    *(Target(f"hdl/ring/{name}.py", UNITS["datapath"], _RINGS, _OF_RINGS, rest=False, cost=10)
      for name in ("datapath", "sequences", "parts/part", *(f"parts/{part}" for part in _PARTS))),
    Target("hdl/ring/parts/codebook.py", UNITS["codebook"], (f"{_RING}/parts/test_codebook.py",)),
    Target("hdl/control/command_checker.py", UNITS["command_checker"], (
        f"{_CONTROL}/test_command_checker.py", f"{_PROGRAMS}/test_command_queue_programs.py"), {
        "two": ("test_programs[none",),
        "master": ("test_checker[0-Rule.SGD",),
        "checker": ("test_checker[1-Rule.MOMENTUM", "test_checker[2-Rule.ADAM-1")}),
    *(Target(f"hdl/control/{name}.py", UNITS["command_queue"],
             (*tests, f"{_PROGRAMS}/test_command_queue_programs.py", f"{_CONTROL}/test_command_queue.py"),
             {"queue": (*first, "test_queue[none-freeze", "test_queue[geometric"),
              "two": (*first, "test_programs[none")})
      for name, tests, first in (
          ("command_queue", (), ()), ("command_loader", (), ()),
          ("command_control", (f"{_CONTROL}/test_command_control.py",),
           ("test_model[1.0", "test_control_of_a_queue")),
          ("pushed_commands", (f"{_CONTROL}/test_pushed_commands.py",), ("test_pushed_commands",)))),
    *(Target(file, UNITS["immediate"], (f"{_PROGRAMS}/test_latched_settings.py", "tests/hdl/test_engines.py"))
      for file in ("hdl/control/immediate.py", "hdl/features/programs/latched_settings.py")),
    Target("hdl/control/event_queue.py", UNITS["event_queue"], (f"{_CONTROL}/test_event_queue.py",)),
    Target("hdl/features/programs/program_memory.py", UNITS["program_memory"], (
        f"{_PROGRAMS}/test_program_memory.py",)),
    Target("hdl/control/sequencer.py", UNITS["program_sequencer"], (f"{_CONTROL}/test_sequencer.py",)),
    *(Target(f"hdl/features/replay/{name}.py", UNITS["control_words"], (
        f"tests/features/replay/test_{name}.py",))
      for name in ("signals", "keepalive", "control_hub")),
    Target("hdl/control/remote_after.py", UNITS["control_words"], (f"{_CONTROL}/test_remote_after.py",)),
    Target("hdl/features/programs/region_versions.py", UNITS["versions"], (
        f"{_PROGRAMS}/test_region_versions.py",)),
    Target("hdl/control/rejections.py", UNITS["versions"], (f"{_CONTROL}/test_rejections.py",)),
    Target("hdl/control/scoreboard.py", UNITS["scoreboard"], (f"{_CONTROL}/test_scoreboard.py",)),
    Target("hdl/control/trace.py", UNITS["trace"], (f"{_CONTROL}/test_trace.py",)),
    Target("hdl/control/host_port.py", UNITS["host_port"], (
        f"{_CONTROL}/test_host_port.py", "tests/features/tenants/test_host_port_tenants.py",
        f"{_CONTROL}/test_host_port_order.py")),
    Target("hdl/control/register_file.py", UNITS["registers"], (f"{_CONTROL}/test_registers.py",)),
    Target("hdl/control/local_runner.py", UNITS["runner"], (f"{_CONTROL}/test_local_runner.py",)),
    *(Target(f"hdl/compression/zero_value/{name}.py", UNITS["zero_value"], (
        f"{_CODING}/zero_value/test_{name}.py",), first)
      for name, first in {
        "encoder": {"encoder": ("test_lockstep[(4,)-",), "encoder1": ("test_lockstep[(1,)-",)},
        "decoder": {"decoder": ("test_decoder_latency[2]", "test_decoder_short_streams[2]",
                                "test_lockstep[(2,)-", "test_decoder_cut_streams[2-"),
                    "decoder8": ("test_decoder_latency[8]", "test_lockstep[(8,)-")},
        "adder": {"adder": ("test_adder_known", "test_adder_unequal", "test_adder_latency", "test_adder_is_dense",
                            "test_adder_never_hangs", "test_adder_")}}.items()),
    *(Target(f"hdl/optimizer/{name}.py", UNITS["burst"], (f"{_OPTIMIZER}/test_burst.py",), _BURST_FIRST, rest=False)
      for name in ("burst", "burst_controller", "row_collector")),
    Target("hdl/optimizer/gradient_buffer.py", UNITS["gradient_buffer"], (f"{_OPTIMIZER}/test_gradient_buffer.py",)),
    Target("hdl/optimizer/reducer.py", UNITS["reducer"], (f"{_OPTIMIZER}/test_reducer.py",)),
    *(Target(f"hdl/features/compute/{name}.py", UNITS["compute"], (f"tests/features/compute/test_{name}.py",))
      for name in ("multiply_accumulate", "array", "panel", "loop_nest", "product")),
    *(Target(f"hdl/features/compute/{name}.py", UNITS["vector"], (f"tests/features/compute/test_{name}.py",))
      for name in ("vector", "vector_lane", "program_lane", "program_sequencer", "row_loader", "vector_sequence")),
    *(Target(f"hdl/features/compute/{name}.py", UNITS["lists"], (f"tests/features/compute/{tests}.py",))
      for name, tests in (("instruction_checker", "test_instruction_checker"),
                          ("instruction_reader", "test_list_runner"), ("list_runner", "test_list_runner"))),
    Target("hdl/features/codebook_layers/centroid_instruction.py", UNITS["lists"], (
        "tests/features/compute/test_instruction_checker.py",)),
    Target("hdl/features/codebook_layers/centroid_layer.py", UNITS["centroid_layer"], (
        "tests/features/codebook_layers/test_centroid_layer.py",), cost=3),
    Target("hdl/features/compute/scale_mask.py", UNITS["scale_mask"], ("tests/features/compute/test_scale_mask.py",)),
    Target("hdl/features/compute/memory_access.py", UNITS["memory_access"], (
        "tests/features/compute/test_memory_access.py",)),
    Target("hdl/guard.py", UNITS["guard"], ("tests/hdl/test_guard.py",)),
    Target("hdl/memory.py", UNITS["memory"], ("tests/hdl/test_memory.py", "tests/hdl/test_guard.py")),
    Target("hdl/features/far/guard.py", UNITS["far_guard"], ("tests/features/far/test_guard.py",)),
    Target("hdl/features/far/memories.py", UNITS["far_memories"], (
        "tests/features/far/test_memories.py", "tests/features/far/test_memories_proof.py"), {
            "guarded": ("test_guarded_memories",), "memories": ("test_every_cycle[2",)}),
    *(Target(f"hdl/features/tenants/{name}.py", UNITS[name], (
        f"tests/features/tenants/test_{name}.py",)) for name in ("windows", "command_watch")),
    Target("hdl/control/requester.py", UNITS["requester"], (f"{_CONTROL}/test_requester.py",)),
    Target("hdl/features/compute/row_owners.py", UNITS["row_owners"], ("tests/features/compute/test_row_owners.py",)),
    Target("hdl/features/compute_stub/compute_model.py", UNITS["compute_model"], (
        "tests/features/compute_stub/test_compute_model.py",)),
    *(Target(f"hdl/features/compute/{name}.py", UNITS["gemm"], (f"tests/features/compute/test_{name}.py",), cost=3)
      for name in ("row_sequence", "row_fetch", "gemm")),
    *(Target(f"hdl/features/compute/{name}.py", UNITS["gemm"], (
        f"tests/features/compute/test_{name}.py", "tests/features/compute/test_gemm.py"), cost=3)
      for name in ("operand_fetch", "initial_fetch", "drain")),
    *(Target(f"hdl/masking/{part}.py", UNITS["generator"], (f"{_MASKING}/test_generator.py",), {
        name: (f"test_lockstep[{lanes}-geometric-geometric]", f"test_lockstep[{lanes}-none-none]",
               f"test_kinds[{lanes}]", f"test_reset_in_a_job[4-{lanes}]", f"test_every_bound[{lanes}-")
        for lanes, name in ((2, "generator2"), (8, "generator8"))}) for part in ("generator", "comparator")),
    Target("hdl/masking/multiplexer.py", UNITS["multiplexer"], (f"{_MASKING}/test_multiplexer.py",), {
        "multiplexer4": ("test_lockstep[4-8-geometric-geometric]", "test_cocotb[4-32-none]")}),
)

TARGETS = {target.file: target for target in _ALL}
