# amaranth: UnusedElaboratable=no
import dataclasses
import json
from fractions import Fraction

import pytest

from hdl.node import Node
from host.labs.estimate import lab as report
from host.labs.estimate.experiment import Bench, check_delay, compare, rates_of, ratios, throttle
from host.labs.estimate.machine import EXECUTION, TARGETS, Machine, Opened, SlowPortNode, opened
from host.labs.estimate.program import Case, compute_cycles, prepare
from tests.host.rings import CONFIGS, library
from tests.refusals import refuses

NODE = CONFIGS["engines"]
FAST, SLOW = Machine(name="fast", node=NODE), Machine(name="slow link", node=NODE, link=Fraction(1, 2), latency=64)
CASES = [Case(length=256, overlapped=overlapped, examples=4) for overlapped in (False, True)]


@pytest.fixture(autouse=True)
def one_library(monkeypatch):
    """Make all machines of the estimate lab share the nodes of a single library."""
    monkeypatch.setattr("host.labs.estimate.machine.built", lambda chosen, announce=None: library(chosen.node))


def durations(step):
    """Return the cycles of each COMPUTE command. If nodes take different times, the longest one counts."""
    def of(trace):
        begun, cycles = {}, []
        for record in trace:
            if record.queue == 0 and record.end:
                cycles.append(record.time - begun[record.tag])
            elif record.queue == 0:
                begun[record.tag] = record.time
        return cycles

    return [max(ends) for ends in zip(*map(of, step.run()[1].traces), strict=True)]


def test_targets(tmp_path):
    """Estimate a slow and long link with a simulation of fast nodes, and fast nodes with a simulation of a slow
    link."""
    stages = []
    with opened(FAST) as machine:
        rows = compare(Bench(machine), SLOW, CASES, announce=stages.append)
        assert all(row.alpha == 1 for row in rows)
    near = dataclasses.replace(SLOW, latency=16)
    with opened(near) as machine:
        rows += compare(Bench(machine), FAST, CASES)
        assert all(row.alpha == 0.5 for row in rows[2:])
    assert stages[0] == "slow link: build and run"
    for row in rows:
        assert abs(row.error(row.estimate)) <= report.limit("targets", row), row
        assert row.better, row
    # format that `make estimate` writes
    everything, overview = report.tables("targets", rows)
    assert len(everything.rows) == len(rows)
    assert overview.headings == ["target", "alpha", "256", "256, overlap", "plain", "single"]
    assert [cells[:2] for cells in overview.cells] == [["slow link", "1"], ["fast", "0.5"]]
    assert overview.cells[0][2] == f"{100 * rows[0].error(rows[0].estimate):+.2f}"
    assert report.summary("targets", rows).startswith("4 of 4 programs are within their bars")
    figures = json.loads(json.dumps(report.describe({"targets": rows, "ratios": []})))
    assert [entry["truth"] for entry in figures["targets"]] == [row.truth for row in rows]
    report.draw({"targets": rows, "ratios": []}, tmp_path / "estimate.png")
    assert (tmp_path / "estimate.png").stat().st_size > 10_000


def test_order_of_rows():
    """The figures in a row do not depend on earlier measurements on the same machine."""
    own = dict.fromkeys(("link", "memory", "compute", "optimizer", "host"), Fraction(1))
    stand_in = Case(length=256, overlapped=True, macs=8)
    rows = [(CASES[0], {**own, "link": Fraction(2, 3)}), (stand_in, {**own, "host": Fraction(1, 2)}),
            (stand_in, {**own, "compute": Fraction(3, 7)})]

    def measure(order):
        results = {}
        with opened(FAST) as machine:
            bench = Bench(machine)
            for number in order:
                case, target = rows[number]
                results[number] = bench.row("target", case, own, target, delay=48, truth=1.0)
        return [results[number] for number in range(len(rows))]

    assert measure([0, 1, 2]) == measure([2, 0, 1])


def test_ratios():
    """If segments are very short, there are gaps between the packets of a node that cannot be modelled by a lower
    rate."""
    with opened(FAST) as machine:
        row, = ratios(Bench(machine), [Case(length=256, overlapped=False)], [(8, 12)])
    assert (row.target, row.alpha) == ("8 to 12 MACs", float(Fraction(8, 12)))
    assert abs(row.error(row.estimate)) < 0.04 < abs(row.error(row.plain))


def test_delay_leaves_compute_alone():
    """If links are delayed or throttled, steps become slower, but the COMPUTE commands in them do not."""
    case = Case(length=256, overlapped=True, macs=8)
    with opened(FAST) as machine:
        results = []
        for registers, delay in (({}, 0), ({}, 200), ({"link": 1 << 14}, 0)):
            step = prepare(machine, case)
            throttle(machine, registers, delay=delay)
            results.append((durations(step), step.measure()))
    cycles, steps = zip(*results, strict=True)
    assert cycles[0] == cycles[1] == cycles[2]
    assert steps[0].cycles + 200 < steps[1].cycles
    assert steps[0].cycles < steps[2].cycles
    assert len({step.weights for step in steps}) == 1


def test_compute_cycles():
    """Without other memory traffic, modelled cycles of COMPUTE match the cycles that the nodes count."""
    case = CASES[0]
    with opened(FAST) as machine:
        step = prepare(machine, case)
        machine.ring.counters.clear()
        cycles = durations(step)
        counted = machine.ring.counters.read()[0]
        assert 0 <= sum(cycles) - compute_cycles(FAST, case) < 8 * len(cycles)
    assert counted["GEMM_CYCLES"] + counted["VECTOR_CYCLES"] < compute_cycles(FAST, case)


def test_refused():
    """Target machines that cannot be run or estimated are rejected before anything is built."""
    far = dataclasses.replace(FAST, name="far", latency=272)
    refuses("Latency of far must be 16 to 271 cycles, which links can be delayed to, not 272", check_delay, FAST, far)
    for name, options, case, message in (
            ("one queue", {"programs": None, "features": ()}, CASES[0],
             "must have two queues to run programs, not 1"),
            ("no engine", {"compute": None}, CASES[0], "must have a compute engine to run K = 256, serial"),
            ("no stand-in", {"stub": None}, Case(length=256, overlapped=False, macs=8),
             "must have the stand-in"),
            ("little", {"memories": {"weight": 128}}, CASES[0], "must have room for 256 gradients and 256 weights"),
            ("stateless", {"memories": {"state": 128}}, CASES[0], "must have room for 160 elements of state"),
            ("short", {"compute": {"activations": 64}}, CASES[0], "cannot run K = 256, serial: ")):
        target = Machine(name=name, node=NODE.replace(**options))
        with pytest.raises(ValueError, match=rf"{name}.* {message}|^{name} {message}"):
            rates_of(FAST, target, [case])
    plain = Machine(name="plain", node=NODE.replace(features=()))
    refuses("Nodes of plain must have throttles to estimate", Bench, Opened(plain, None))
    refuses("Cycles of a word must be an integer of at least 2, not 1", SlowPortNode, NODE, cycles=1)
    assert list(SlowPortNode(NODE, cycles=2).signature.members) == list(Node(NODE).signature.members)


def test_named():
    """`make estimate` has ten targets with distinct names; alpha is above one for some and below one for others."""
    assert len({target.name for target in TARGETS}) == len(TARGETS) == 10
    case = Case(length=256, overlapped=False)
    alphas = [min(own[name] / target_rates[name] for name in own)
              for target in TARGETS for own, target_rates in rates_of(EXECUTION, target, [case])]
    assert min(alphas) < 1 < max(alphas)
