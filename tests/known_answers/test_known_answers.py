# amaranth: UnusedElaboratable=no
"""Known answers: some runs on nodes that other tests use too, the smallest circuits, and random options."""

import copy
import json

import pytest
from amaranth.hdl import Module, Signal
from amaranth.lib import data, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from tests.known_answers import circuits, compute, netlist, runs


@pytest.mark.parametrize("name", ["sim", "text", "density", "icebreaker"])
def test_runs(name, tmp_path):
    """The weights, cycles, words and settings of a run equal the stored ones."""
    assert list(compute.differences(compute.kept()["runs"][name], compute.run(name, tmp_path))) == []


def test_circuit():
    assert compute.board("icebreaker") == compute.kept()["boards"]["icebreaker"]


def test_complete():
    """There is a stored answer for every run, board and random configuration, and no other answer."""
    kept = compute.kept()
    assert kept["runs"].keys() == runs.RUNS.keys()
    assert kept["boards"].keys() == circuits.board_nodes().keys()
    drawn = circuits.draw(circuits.COUNT)
    assert list(kept["configurations"]) == [json.dumps(options) for options in drawn]
    assert len({answer["netlist"] for answer in kept["configurations"].values()}) > 45


def test_draw():
    """Random configurations cover every option of nodes, and all of them are legal."""
    drawn = circuits.draw(circuits.COUNT)
    assert {name for options in drawn for name in options} >= set(circuits.VALUES)
    for options in drawn:
        circuits.node_config(options)


def test_differences():
    """Values that differ, are missing or are additional are reported with their paths."""
    kept = compute.kept()["runs"]["sim"]
    other = copy.deepcopy(kept)
    other["steps"]["cycles"][1] += 1
    other["cycles"].pop("all")
    other["more"] = 1
    assert list(compute.differences(kept, other)) == [
        f"cycles.all: None, kept {kept['cycles']['all']}",
        f"steps.cycles[1]: {kept['steps']['cycles'][1] + 1}, kept {kept['steps']['cycles'][1]}",
        "more: 1, kept None"]


class Example(wiring.Component):
    """Example unit: two sums of ``a`` (one registered), a multiplexer between them, and a two-word memory."""

    i: In(data.StructLayout({"a": 4, "b": 4, "choose": 1}))
    o: Out(4)
    word: Out(4)

    def __init__(self, *, turned=False, nested=False, **changes):
        self._turned, self._nested = turned, nested
        self._values = {"init": 0, "amount": 1, "of": "a", "choice": 1, "word": 3} | changes
        super().__init__()

    def elaborate(self, platform):
        m = Module()
        inner = m
        if self._nested:
            m.submodules.inner = inner = Module()
        values, i = self._values, self.i
        first, other = Signal(4, init=values["init"]), Signal(4)
        statements = {"sync": first.eq(i[values["of"]] + values["amount"]), "comb": other.eq(i.a - i.b)}
        for domain in sorted(statements, reverse=self._turned):
            m.d[domain] += statements[domain]
        with inner.If(i.choose == values["choice"]):
            inner.d.comb += self.o.eq(first)
        with inner.Else():
            inner.d.comb += self.o.eq(other)
        m.submodules.memory = memory = Memory(shape=4, depth=2, init=[0, values["word"]])
        write, read = memory.write_port(), memory.read_port()
        m.d.comb += [write.en.eq(i.choose), write.data.eq(i.b), write.addr.eq(i.a[0]), read.addr.eq(i.a[1]),
                     self.word.eq(read.data)]
        unused = Signal(4)
        m.d.sync += unused.eq(unused + i.b)
        return m


def test_netlist():
    """The digest of a circuit depends on everything that its outputs depend on, but not on order or hierarchy."""
    kept = netlist.digest(Example())
    assert netlist.digest(Example(turned=True)) == netlist.digest(Example(nested=True)) == kept
    changes = ({"init": 1}, {"amount": 2}, {"of": "b"}, {"choice": 0}, {"word": 2})
    digests = [netlist.digest(Example(**change))["netlist"] for change in changes]
    assert len({kept["netlist"], *digests}) == 1 + len(changes)
