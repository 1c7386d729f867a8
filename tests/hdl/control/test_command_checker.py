# amaranth: UnusedElaboratable=no
"""The command checker, compared with a model: verdicts, order and latency."""

import random

import cocotb
import pytest
from amaranth.hdl import Assert, Assume, Module, ResetSignal, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In

from hdl.config import Peer, RootReduce, Weights
from hdl.control.command_checker import CommandChecker, verdict_layout
from hdl.control.protocol import EventStatus, Operation, command_layout
from hdl.engines import operations
from hdl.features.compute.feature import Compute
from hdl.features.compute_stub.feature import ComputeStub
from hdl.features.grid.feature import Grid
from hdl.features.quantization.feature import Quantization
from hdl.features.streaming.feature import Worker
from hdl.optimizer.rules import Rule
from hdl.streams.stream import connect_stream
from sim import formal, regression
from sim.streams import Monitor, Sink, Source, stalls, start
from tests.hdl.control.commands import CONFIG, random_command, verdict

CHECKED = 600
#: Number that fits into the register OPTIMIZER but is not an optimizer rule.
NO_RULE = 9


def config_of(parameters):
    """Configuration with all local operations (RootReduce if weights are raw), or a peer or worker without them."""
    planes, codec = parameters["planes"], parameters["weight_codec"]
    config = CONFIG.replace(memories={"planes": planes}, weights=Weights(codec=codec), masking=parameters["masking"],
                            sparsify=parameters["sparsify"])
    if not parameters["quantization"]:
        return config.replace(role=Worker() if codec == "raw" and planes == 1 else Peer())
    return config.replace(
        topology=Grid(max_nodes=CONFIG.topology.max_nodes), role=RootReduce() if codec == "raw" else Peer(),
        compute=Compute(rows=1, activations=192, far=224), stub=ComputeStub(), features=(Quantization(),))


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def finds_what_is_wrong(dut):
    p = regression.parameters()
    generator = random.Random(p["seed"])
    await start(dut)
    source = Source(dut, "i", command_layout(), stalls=stalls(p["stalls"], seed=1))
    sink = Sink(dut, "o", verdict_layout(), stalls=stalls(p["stalls"], seed=2))
    offered, taken = Monitor(dut, "i", command_layout()), Monitor(dut, "o", verdict_layout())
    packed, rule = p["packed"], next((rule for rule in Rule if rule.value == p["rule"]), p["rule"])
    config = config_of(p)
    dut.rule.value, dut.packed_state.value = p["rule"], packed
    commands = [random_command(generator, n) for n in range(CHECKED - 2)]
    slowest = {"rank": 0, "size": CONFIG.topology.max_nodes, "port": 0, "block_offset": 0, "stride": 2,
               "gradient_base": 0,
               "weight_base": 0, "state_base": 0, "length": 1, "root_reduce": 0}
    commands += [random_command(generator, n, operation=operation, **slowest)
                 for n, operation in enumerate((Operation.FUSED_UPDATE, Operation.ALL_REDUCE))]
    cocotb.start_soon(source.send(commands))
    seen = set()
    for n, (beat, command) in enumerate(zip(await sink.receive(CHECKED), commands, strict=True)):
        status, detail = verdict(command, config, rule, packed)
        assert (beat["status"], beat["detail"]) == (status, detail), f"command {n} of seed {p['seed']}: {command}"
        seen.add(status)
    refused = {EventStatus.BAD_RULE} if (p["planes"] < 2 and rule == Rule.ADAMW) or rule == NO_RULE else set()
    assert seen == refused | {EventStatus.OK, EventStatus.UNKNOWN_OPERATION, EventStatus.BAD_BASE,
                              EventStatus.BAD_LENGTH, EventStatus.BAD_RANK, EventStatus.BAD_STRIDE}
    assert offered.cycles == taken.cycles
    if p["stalls"] == "none":
        # A command is accepted in the cycle of its verdict; the next command follows in the next cycle. The check of
        # the state memory takes 8 cycles, as any check with a stride does; the check of an unused memory takes 1
        # cycle. If the rule is rejected, the slowest commands to check use only one memory.
        slowest = max(b - a for a, b in zip(taken.cycles, taken.cycles[1:], strict=False))
        saved = 7 + 7 if refused else 7 if rule == Rule.SGD and not config.weights.has_master else 0
        assert slowest == p["latency"] + 1 - saved


@pytest.mark.parametrize(("planes", "rule", "packed", "kind", "masking", "sparsify", "quantization",
                          "weight_codec"), [
    (2, Rule.SGD, 0, "none", True, True, True, "raw"), (1, Rule.MOMENTUM, 0, "none", False, True, False, "raw"),
    (2, Rule.ADAM, 1, "none", True, False, True, "raw"), (1, Rule.ADAMW, 0, "none", True, True, False, "raw"),
    (2, Rule.ADAMW, 0, "geometric", False, False, True, "raw"), (0, Rule.SGD, 0, "none", True, True, True, "mx9"),
    (2, Rule.ADAM, 1, "geometric", True, True, False, "bf16"),
    (2, NO_RULE, 0, "geometric", False, False, True, "raw")])
def test_checker(planes, rule, packed, kind, masking, sparsify, quantization, weight_codec):
    chosen = {"planes": planes, "masking": masking, "sparsify": sparsify, "quantization": quantization,
              "weight_codec": weight_codec}
    config = config_of(chosen)
    checker = CommandChecker(config=config, operations=operations(config))
    number = getattr(rule, "value", rule)
    regression.run(checker, module=__name__, testcase="finds_what_is_wrong", parameters={
        "rule": number, "packed": packed, "stalls": kind, "seed": 7 + number, "latency": checker.latency,
        **chosen})


class Decides(wiring.Component):
    """Specification: every command in a back-to-back series gets its verdict within the checker's latency."""

    i: In(stream.Signature(command_layout()))
    rule: In(Rule)
    packed_state: In(1)

    def elaborate(self, platform):
        m = Module()
        m.submodules.unit = unit = CommandChecker(config=CONFIG, operations=operations(CONFIG))
        connect_stream(m, self.i, unit.i)
        passed = Signal(range(unit.latency + 2))
        with m.If(self.i.valid & ~unit.o.valid):
            m.d.sync += passed.eq(passed + 1)
        with m.Else():
            m.d.sync += passed.eq(0)
        m.d.comb += [
            unit.rule.eq(self.rule), unit.packed_state.eq(self.packed_state), unit.o.ready.eq(1),
            Assume(~ResetSignal()), Assume(self.i.valid), Assume(formal.holds(m, "i", self.i)),
            Assert(passed <= unit.latency),
        ]
        return m


def test_checker_decides():
    """By induction, the latency bound holds after any sequence of commands if verdicts are accepted immediately."""
    formal.prove(Decides(), depth=CommandChecker(config=CONFIG, operations=operations(CONFIG)).latency + 3)
