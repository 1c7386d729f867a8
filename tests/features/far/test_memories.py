# amaranth: UnusedElaboratable=no
"""Memories of a server in its far memory: every port matches the model in every cycle."""

import numpy as np
import pytest

from hdl.config import NodeConfig
from hdl.features.far.memories import FarMemories
from hdl.features.streaming.feature import ServerConfig, ServerMemories
from hdl.group import GROUP
from hdl.guard import window_layout
from sim.verilated.vectors import Unit
from tests.features.far import memories_model as golden
from tests.features.far.traffic import Traffic
from tests.refusals import refuses

#: For each number of lanes: the reader groups and the number of writers of each memory. With two lanes, two engines
#: use the weights.
PORTS = {
    2: ({"weights": (0, 1), "state_0": (0,), "state_1": (0,)}, {"weights": 2, "state_0": 1, "state_1": 1}),
    1: ({"weights": (0,)}, {"weights": 1}),
}

#: With two lanes: windows of guarded memories (base and size in groups), and the queue that owns each memory port.
WINDOWS = {"weights": (1, 2), "state_0": (0, 0), "state_1": (1, 1)}
OWNERS = {"weights": ((0, 1), (1, 0)), "state_0": ((0,), (0,)), "state_1": ((1,), (1,))}


def configuration(lanes):
    planes = {2: 2, 1: 0}[lanes]
    return ServerConfig(
        lanes=lanes,
        memories=ServerMemories(gradient=32, weight=64 * lanes, state=32 * lanes, planes=planes, far=256))


@pytest.fixture(scope="module", params=sorted(PORTS))
def bench(request):
    """Number of lanes, and the Verilated unit."""
    lanes = request.param
    readers, writers = PORTS[lanes]
    return lanes, Unit(FarMemories(config=configuration(lanes), readers=readers, writers=writers),
                       name=f"FarMemories{lanes}")


@pytest.fixture(scope="module")
def guarded():
    readers, writers = PORTS[2]
    return Unit(FarMemories(config=configuration(2), readers=readers, writers=writers, owners=OWNERS),
                name="GuardedFarMemories")


def model(lanes, windows=None):
    """Return the model, and the row counts of the memories at its read ports and at its write ports."""
    config, (readers, writers) = configuration(lanes), PORTS[lanes]
    rows = {name: config.memory_map[name].words // lanes for name in config.far_bases}
    guards = [] if windows is None else [
        {name: (GROUP // lanes * base, GROUP // lanes * size) for name, (base, size) in windows.items()}, OWNERS]
    return golden.FarMemories({name: base // lanes for name, base in config.far_bases.items()}, readers, writers,
                              *guards), (
        [rows[name] for name in rows for _ in range(len(readers[name]) + 1)],
        [rows[name] for name in rows for _ in range(writers[name] + 1)])


def names(lanes, kind):
    """Port names of the unit in the model's order."""
    readers, writers = PORTS[lanes]
    counts = {name: len(groups) for name, groups in readers.items()} if kind == "read" else writers
    return [f"{name}_{kind}__{n}" for name, count in counts.items() for n in range(count + 1)]


def compare(lanes, unit, cycles, where, windows=None):
    """Run the unit with the model's inputs and compare all outputs in every cycle."""
    driven, shown = zip(*cycles, strict=True)
    noise = np.random.default_rng(len(cycles)).integers(0, 1 << 32, len(cycles), dtype=np.uint64)

    def column(values):
        return np.array(values, np.uint64)

    inputs = {"far__ready": column([item.ready for item in driven]),
              "far__response": column([item.answer is not None for item in driven]),
              "link_reset": column([item.link_reset for item in driven]), "timeout": driven[0].timeout,
              "abandon": column([sum(bit << n for n, bit in enumerate(item.abandon)) for item in driven])}
    for lane in range(lanes):
        inputs[f"far__answer__{lane}"] = column([
            int(noise[n]) if item.answer is None else item.answer >> 32 * lane & 0xFFFFFFFF
            for n, item in enumerate(driven)])
    for kind in ("read", "write"):
        for number, name in enumerate(names(lanes, kind)):
            asked = [(item.reads if kind == "read" else item.writes)[number] for item in driven]
            inputs[f"{name}__valid"] = column([item is not None for item in asked])
            inputs[f"{name}__row"] = column([item.row if item else 0 for item in asked])
            if kind == "write":
                inputs[f"{name}__keep"] = column([item.keep if item else 0 for item in asked])
                inputs[f"{name}__elements"] = column([item.elements if item else 0 for item in asked])
    for name, (base, size) in (windows or {}).items():
        bits = window_layout(configuration(lanes).memory_map[name].words).const({"base": base, "size": size})
        inputs[f"{name}_window"] = bits.as_value().value
    unit.reset()
    trace = unit.run(inputs)

    def same(name, expected, when=None):
        wrong = trace[name] != column(expected)
        if when is not None:
            wrong &= np.array(when, bool)
        assert not wrong.any(), f"{where}: {name} in cycle {wrong.argmax()}"

    for number, name in enumerate(names(lanes, "read")):
        same(f"{name}__ready", [item.read_ready[number] for item in shown])
        same(f"{name}__response", [item.responses[number] for item in shown])
        same(f"{name}__elements", [item.elements for item in shown], [item.responses[number] for item in shown])
    for number, name in enumerate(names(lanes, "write")):
        same(f"{name}__ready", [item.write_ready[number] for item in shown])
    asked = [item.far is not None for item in shown]
    writes = [item.far is not None and item.far.elements is not None for item in shown]
    same("far__valid", asked)
    same("far__write", writes, asked)
    same("far__row", [item.far.row if item.far else 0 for item in shown], asked)
    same("far__keep", [item.far.keep if item.far else 0 for item in shown], writes)
    for lane in range(lanes):
        same(f"far__elements__{lane}", [(item.far.elements or 0) >> 32 * lane & 0xFFFFFFFF if item.far else 0
                                        for item in shown], writes)
    same("silent", [item.silent for item in shown])
    same("lost", [item.lost for item in shown])
    if windows is not None:
        same("strays", [item.strays for item in shown])


def test_constructor_errors():
    readers, writers = PORTS[2]
    with pytest.raises(ValueError, match=r"^Node must be a server, not NodeConfig\("):
        FarMemories(config=NodeConfig(), readers=readers, writers=writers)
    refuses("Readers must be of weights, state_0, state_1, not of weights",
            FarMemories, config=configuration(2), readers={"weights": (0,)}, writers=writers)
    refuses("Writers must be of weights, state_0, state_1, not of none",
            FarMemories, config=configuration(2), readers=readers, writers={})
    refuses("Groups of readers must be counted from 0, not [0, 2]",
            FarMemories, config=configuration(2), readers=readers | {"weights": (2,)}, writers=writers)


def random_traffic(lanes, unit, windows=None, *, seed, **options):
    """Run random traffic on the model and compare the unit with it in every cycle."""
    unit_model, rows = model(lanes, windows)
    traffic = Traffic(seed=seed, model=unit_model, rows=rows, lanes=lanes, **options).run(6000)
    compare(lanes, unit, traffic.cycles, f"seed {seed}", windows)
    assert min(traffic.counts[name] for name in ("given", "made up", "lost", "silences")) > 5, (
        f"seed {seed}: {traffic.counts}")
    return traffic


@pytest.mark.parametrize(("pattern", "latency", "rates"), [
    ("none", 1, (0.5, 0.3)), ("none", 90, (0.9, 0.1)), ("geometric", 16, (0.5, 0.3)), ("alternating", 40, (0.2, 0.2)),
    ("freeze", 16, (0.7, 0.7))])
def test_every_cycle(bench, pattern, latency, rates):
    lanes, unit = bench
    traffic = random_traffic(lanes, unit, seed=10 * latency + lanes, latency=latency, pattern=pattern, rates=rates)
    assert latency == 1 or traffic.counts["dropped"] > 20, traffic.counts


@pytest.mark.parametrize(("pattern", "latency", "rates"), [
    ("none", 1, (0.5, 0.3)), ("geometric", 40, (0.2, 0.2)), ("freeze", 16, (0.1, 0.1))])
def test_guarded_memories(guarded, pattern, latency, rates):
    """Reads outside a window return zeros, and writes outside it are ignored; the host's row numbers are absolute."""
    traffic = random_traffic(2, guarded, WINDOWS, seed=latency, latency=latency, pattern=pattern, rates=rates)
    assert traffic.counts["outside"] > 100, traffic.counts
    assert not traffic.counts["forgotten"]
    assert {shown.strays for _, shown in traffic.cycles} >= {0, 1, 2}


def idle(unit_model, **changes):
    """Inputs of an idle cycle, updated with ``changes``."""
    return golden.Inputs(**{
        "reads": [None] * len(unit_model.readers), "writes": [None] * len(unit_model.writers), "ready": True,
        "answer": None, "abandon": [False] * unit_model.groups, "link_reset": False, "timeout": 20} | changes)


def play(lanes, changes):
    """Run the model with one cycle for each item of ``changes``; return all inputs and outputs."""
    unit_model, _ = model(lanes)
    return [(inputs, unit_model.step(inputs)) for inputs in (idle(unit_model, **change) for change in changes)]


def read(lanes, number, row):
    """Inputs of the model that make one port read a row."""
    count = len(model(lanes)[0].readers)
    return {"reads": [golden.Request(row=row) if n == number else None for n in range(count)]}


def test_latency(bench):
    """A far memory answer, one cycle after its request, reaches the reader after the stated latency."""
    lanes, unit = bench
    cycles = play(lanes, [read(lanes, 0, 5), {}, {"answer": 77}, {}, {}])
    compare(lanes, unit, cycles, "latency")
    assert [outputs.far is not None for _, outputs in cycles] == [False, True, False, False, False]
    when = [outputs.responses[0] for _, outputs in cycles].index(True)
    assert when == 2 + FarMemories.latency - 1  # the far memory answers one cycle after the request
    assert cycles[when][1].elements == 77


def test_reset_drops_answers(bench):
    """After a reset, a reader receives the answer to its next read, but not to its earlier read."""
    lanes, unit = bench
    away = {"abandon": [True] * model(lanes)[0].groups}
    cycles = play(lanes, [
        read(lanes, 0, 5), {}, away, read(lanes, 0, 6), read(lanes, 0, 6), {"answer": 1} | read(lanes, 0, 6),
        read(lanes, 0, 6), {}, {"answer": 2}, {}])
    compare(lanes, unit, cycles, "reset")
    assert [outputs.read_ready[0] for _, outputs in cycles].count(True) == 2
    assert cycles[3][1].read_ready[0] is cycles[4][1].read_ready[0] is False
    assert [outputs.elements for _, outputs in cycles if outputs.responses[0]] == [2]


def test_silence(bench):
    """The host reads zeros after ``timeout`` silent cycles, then without waiting until the far memory responds."""
    lanes, unit = bench
    number = len(PORTS[lanes][0]["weights"])  # index of the host's port to the weights
    quiet = {"ready": False}
    cycles = play(lanes, [
        read(lanes, number, 5), *[quiet] * 30, quiet | read(lanes, number, 6), *[quiet] * 3, {}, {}, {"answer": 8},
        {}, read(lanes, number, 7), {}, {"answer": 9}, {}, {}])
    compare(lanes, unit, cycles, "silence")
    assert [outputs.elements for _, outputs in cycles if outputs.responses[number]] == [0, 0, 9]
    assert [outputs.lost for _, outputs in cycles].count(True) == 2


def test_forgets_when_links_are_reset(bench):
    """Rows that the far memory still owes are forgotten only if the links are reset while this memory is silent."""
    lanes, unit = bench
    away = {"abandon": [True] * model(lanes)[0].groups}
    quiet, reset = {"ready": False} | away, {"ready": False, "link_reset": True} | away
    cycles = play(lanes, [
        read(lanes, 0, 5), {}, reset, *[quiet] * 30, reset, {}, {}, read(lanes, 0, 6), {}, {"answer": 4}, {}])
    compare(lanes, unit, cycles, "forget")
    assert [outputs.elements for _, outputs in cycles if outputs.responses[0]] == [4]


def test_a_row_in_each_cycle(bench):
    """Together, all readers receive one row per cycle if nothing stalls them."""
    lanes, unit = bench
    unit_model, rows = model(lanes)
    traffic = Traffic(seed=1, model=unit_model, rows=rows, lanes=lanes, latency=1, pattern="none", rates=(1, 0),
                      resets=0).run(2000)
    compare(lanes, unit, traffic.cycles, "seed 1")
    assert sum(any(outputs.read_ready) for _, outputs in traffic.cycles) == 2000
