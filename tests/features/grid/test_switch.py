# amaranth: UnusedElaboratable=no
"""Compare the switch between ports and links with its model in every cycle: hdl/features/grid/switch.py."""

import numpy as np
import pytest
from amaranth.hdl import Assert, Assume, Cat, Module, ResetSignal, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hdl.features.grid.switch import LinkSwitch, switch_layout
from hdl.ring.link import LinkSignature
from hdl.ring.topology import Source
from sim import formal
from sim.verilated.vectors import Unit
from tests.features.grid import switch_model as golden
from tests.proofs import refuted
from tests.refusals import refuses

CYCLES = 6000


class WiderSignature(wiring.Signature):
    """A link that has extra wires in both directions."""

    def __init__(self):
        super().__init__({"valid": Out(1), "data": Out(32), "last": Out(1), "kind": Out(1), "check": Out(8),
                          "line": In(1), "room": In(3)})


SIGNATURES = {"credits": LinkSignature(), "wider": WiderSignature()}


def split(signature):
    """Return the names of the forward wires and of the return wires."""
    members = signature.members.items()
    return ([name for name, member in members if member.flow == Out],
            [name for name, member in members if member.flow == In])


def widths(signature):
    return {name: member.shape for name, member in signature.members.items()}


@pytest.mark.parametrize(("signature", "kind", "message"), [
    (3, TypeError, "Signature must be a Signature, not 3"),
    (wiring.Signature({"data": Out(8)}), ValueError,
     "Signature must have a wire valid that leads out, not Signature({'data': Out(8)})"),
    (wiring.Signature({"valid": In(1)}), ValueError,
     "Signature must have a wire valid that leads out, not Signature({'valid': In(1)})"),
])
def test_parameters(signature, kind, message):
    refuses(message, LinkSwitch, error=kind, signature=signature)


def random_rows(generator, signature, *, hold):
    """Drive random inputs in every cycle, with random settings that change every ``hold`` cycles."""
    forward, back = split(signature)
    bits = widths(signature)
    rows = {}

    def wires(prefix, names):
        for name in names:
            rows[f"{prefix}__{name}"] = generator.integers(0, 1 << bits[name], CYCLES, dtype=np.uint64)

    for port in range(2):
        wires(f"ring_i__{port}", forward)
        wires(f"ring_o__{port}", back)
        wires(f"receivers__{port}", back)
    wires("transmitter", forward)
    changes = -(-CYCLES // hold)
    settings = np.repeat(generator.integers(0, 1 << 6, changes), hold)[:CYCLES]
    rows["port"] = np.repeat(generator.integers(0, 2, changes), hold)[:CYCLES]
    rows["setting"] = settings
    return rows


def as_setting(value):
    return golden.Setting(sources=(int(value) & 3, int(value) >> 2 & 3),
                          listens=(bool(value >> 4 & 1), bool(value >> 5 & 1)))


@pytest.mark.parametrize("hold", [1, 40])
@pytest.mark.parametrize("kind", SIGNATURES)
def test_lockstep(kind, hold):
    """All wires match the model in every cycle, even for meaningless settings."""
    signature = SIGNATURES[kind]
    forward, back = split(signature)
    generator = np.random.default_rng(hold)
    rows = random_rows(generator, signature, hold=hold)
    outputs = Unit(LinkSwitch(signature=signature), name=f"LinkSwitch_{kind}").run(rows)
    model = golden.LinkSwitch(len(forward), len(back))
    expected = {name: np.zeros(CYCLES, np.uint64) for name in outputs}

    def at(prefix, names, cycle):
        return tuple(int(rows[f"{prefix}__{name}"][cycle]) for name in names)

    def put(prefix, names, cycle, wires):
        for name, value in zip(names, wires, strict=True):
            expected[f"{prefix}__{name}"][cycle] = value

    for cycle in range(CYCLES):
        setting, port = as_setting(rows["setting"][cycle]), int(rows["port"][cycle])
        words = [at(f"ring_i__{number}", forward, cycle) for number in range(2)]
        answers = [at(f"ring_o__{number}", back, cycle) for number in range(2)]
        for number in range(2):
            put(f"ring_o__{number}", forward, cycle, model.words[number])
            put(f"ring_i__{number}", back, cycle, model.answers[number])
            put(f"receivers__{number}", forward, cycle, model.received(setting, words)[number])
        put("transmitter", back, cycle, model.answered(setting, port, answers))
        expected["still"][cycle] = not any(word[0] for word in (*words, *model.words))
        model.tick(setting, port, words, answers, at("transmitter", forward, cycle),
                   [at(f"receivers__{number}", back, cycle) for number in range(2)])
    for name, values in expected.items():
        differing = np.flatnonzero(outputs[name].astype(np.uint64) != values)
        assert not len(differing), f"{name} in cycle {differing[0]}"


def pulse(setting, *, port=0, **wires):
    """Outputs of a switch if the given wires have the given values in cycle 3 and are 0 in all other cycles."""
    layout = switch_layout()
    value = layout.const(setting).as_value().value
    rows = {"setting": np.full(8, value), "port": np.full(8, port)}
    unit = Unit(LinkSwitch(signature=LinkSignature()), name="LinkSwitch_credits")
    for signal in unit.inputs:
        rows.setdefault(signal.name, np.zeros(8, np.uint64))
    for name, value in wires.items():
        rows[name] = np.where(np.arange(8) == 3, value, 0).astype(np.uint64)
    return unit.run(rows)


def high(values):
    return np.flatnonzero(values).tolist()


@pytest.mark.parametrize("sink", [0, 1])
@pytest.mark.parametrize("source", [0, 1])
def test_bypass_takes_one_cycle(source, sink):
    """A bypass forwards words and returns credits in one cycle; the receiver and transmitter see neither."""
    setting = {"sources": [Source.OFF, Source.OFF], "listens": 3}
    setting["sources"][sink] = (Source.BYPASS_0, Source.BYPASS_1)[source]
    outputs = pulse(setting, **{f"ring_i__{source}__valid": 1, f"ring_i__{source}__data": 99,
                                f"ring_i__{source}__last": 1, f"ring_o__{sink}__credit": 1})
    assert high(outputs[f"ring_o__{sink}__valid"]) == [4]
    assert outputs[f"ring_o__{sink}__data"][4] == 99
    assert high(outputs[f"ring_i__{source}__credit"]) == [4]
    assert high(outputs[f"ring_o__{1 - sink}__valid"]) == []
    assert high(outputs[f"receivers__{source}__valid"]) == []
    assert high(outputs["transmitter__credit"]) == []


@pytest.mark.parametrize("port", [0, 1])
def test_engine(port):
    """Words of the transmitter leave its port one cycle later; credits return immediately."""
    setting = {"sources": [Source.ENGINE, Source.ENGINE], "listens": 0}
    outputs = pulse(setting, port=port, transmitter__valid=1, transmitter__data=7, **{f"ring_o__{port}__credit": 1})
    assert high(outputs[f"ring_o__{port}__valid"]) == [4]
    assert high(outputs[f"ring_o__{1 - port}__valid"]) == []
    assert high(outputs["transmitter__credit"]) == [3]
    assert high(pulse(setting, port=port, **{f"ring_o__{1 - port}__credit": 1})["transmitter__credit"]) == []


def test_off():
    """Wires of a disabled port never change, nor do the return wires of a port without a listener."""
    generator = np.random.default_rng(4)
    for kind, signature in SIGNATURES.items():
        forward, back = split(signature)
        rows = random_rows(generator, signature, hold=CYCLES)
        rows["setting"][:] = switch_layout().const({"sources": [Source.OFF, Source.ENGINE], "listens": 1}
                                                   ).as_value().value
        rows["setting"][:100] = switch_layout().const({"sources": [Source.ENGINE, Source.BYPASS_1], "listens": 1}
                                                      ).as_value().value
        outputs = Unit(LinkSwitch(signature=signature), name=f"LinkSwitch_{kind}").run(rows)
        changes = {name: np.count_nonzero(np.diff(values[101:].astype(np.int64))) for name, values in outputs.items()}
        assert all(changes[f"ring_o__0__{name}"] == 0 for name in forward), kind
        assert all(changes[f"ring_i__1__{name}"] == 0 for name in back), kind
        assert all(changes[f"ring_i__0__{name}"] > 1000 for name in back), kind
        assert outputs["ring_o__0__valid"][101:].any() == 0


def wires_of(switch, *, flow, prefixes):
    """Return all wires of one direction in the members whose names start with one of the ``prefixes``."""
    return Cat(Value.cast(value) for path, member, value in switch.signature.flatten(switch)
               if member.flow == flow and path[0].startswith(prefixes))


class Parting(wiring.Component):
    """Specification of two switches that had equal inputs in earlier cycles but have arbitrary inputs in this cycle.

    Their outputs with the given names are equal, so these outputs do not depend combinationally on any input.
    """

    def __init__(self, signature, outputs):
        self._signature = signature
        self._outputs = outputs
        bits = len(wires_of(LinkSwitch(signature=signature), flow=In, prefixes=""))
        super().__init__({"first": In(bits), "second": In(bits)})

    def elaborate(self, platform):
        m = Module()
        agreed = Signal(init=1)
        m.d.comb += Assume(~ResetSignal())
        m.d.sync += agreed.eq(agreed & (self.first == self.second))
        outputs = []
        for name in ("first", "second"):
            m.submodules[f"{name}_switch"] = switch = LinkSwitch(signature=self._signature)
            m.d.comb += wires_of(switch, flow=In, prefixes="").eq(getattr(self, name))
            outputs.append(wires_of(switch, flow=Out, prefixes=self._outputs))
        m.d.comb += Assert(~agreed | (outputs[0] == outputs[1]))
        return m


@pytest.mark.parametrize("kind", SIGNATURES)
def test_no_combinational_way(kind):
    """Proof, for all settings, that no wire to another node depends combinationally on an input."""
    formal.prove(Parting(SIGNATURES[kind], ("ring_i", "ring_o")), depth=2)


def test_proof_finds_a_combinational_way():
    """The proof fails, as it should, for wires to the receivers, which depend combinationally on inputs."""
    refuted(Parting(LinkSignature(), ("ring_i", "ring_o", "receivers")), depth=2, mode="prove")
