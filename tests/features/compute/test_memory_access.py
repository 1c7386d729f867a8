# amaranth: UnusedElaboratable=no
"""Compare memory access of the compute engine with a cycle-accurate model: hdl/features/compute/memory_access.py."""

import numpy as np
import pytest

from hdl.features.compute.access import request_layout, response_layout, write_layout
from hdl.features.compute.layer_list import OWNER_BITS
from hdl.features.compute.memory_access import MemoryAccess
from sim.payload import pack, unpack
from sim.streams import STALLS, stall_array
from sim.verilated.vectors import Feed
from tests.features.compute import memory_access_model as golden
from tests.features.compute.lists import units
from tests.refusals import refused

#: Number of rows of each memory, and number of lanes.
ROWS, LANES = (8, 2, 32), 2
CYCLES = 4_000


def _elements(number):
    """Elements in the response to request ``number``, or in write ``number``."""
    return [0x9E3779B1 * (LANES * number + lane + 1) & 0xFFFF_FFFF for lane in range(LANES)]


def _owner(number):
    """Buffer number of request or write ``number`` in this test."""
    return 37 * number % (1 << OWNER_BITS)


def _places(places):
    """Memory number of each access, with the buffer number in the upper bits."""
    return np.array([memory | _owner(number) << 2 for number, memory in enumerate(places)])


def _run(requests, writes, patterns, *, seed, cycles=CYCLES):
    """Run the unit alongside its model; return the cycles in which responses are transferred, and all outputs."""
    names = ("request", "response", "write", "read_0", "read_1", "read_2", "write_0", "write_2")
    willing = {name: stall_array(patterns.get(name, "none"), cycles, seed=seed + index)
               for index, name in enumerate(names)}
    model, outputs = golden.MemoryAccess(), []
    asked = []  # for each cycle, the number of the request that waits for its memory
    waiting, left = {"request": None, "write": None}, {"request": list(requests), "write": list(writes)}
    for cycle in range(cycles):
        now = model.outputs()
        for name, beats in left.items():
            if waiting[name] is None and beats and willing[name][cycle]:
                waiting[name] = beats.pop(0)
        outputs.append(now)
        asked.append(model.granted)
        model.step(golden.Inputs(
            request=waiting["request"], response_ready=willing["response"][cycle], write=waiting["write"],
            read_ready=tuple(bool(willing[f"read_{index}"][cycle]) for index in range(3)),
            write_ready=(bool(willing["write_0"][cycle]), bool(willing["write_2"][cycle]))))
        for name, taken in (("request", now.request_ready), ("write", now.write_ready)):
            if taken:
                waiting[name] = None

    feeds = {
        "access__request": Feed(pack(request_layout(max(ROWS), OWNER_BITS), {
            "place": _places(index for index, _ in requests), "row": np.array([row for _, row in requests])}),
            willing["request"]),
        "access__write": Feed(pack(write_layout(max(ROWS), LANES, OWNER_BITS), {
            "place": _places(index for index, _, _ in writes), "row": np.array([row for _, row, _ in writes]),
            "elements": np.array([_elements(number) for *_, number in writes]),
            "keep": np.array([number % 4 for *_, number in writes])}), willing["write"]),
    }
    inputs = {f"access__{name}__ready": willing[name] for name in names if name[-1].isdigit()}
    for index in range(3):
        answers = [now.answering is not None and now.answering[0] == index for now in outputs]
        inputs[f"access__read_{index}__response"] = np.array(answers)
        inputs[f"access__read_{index}__elements"] = np.array([
            _value(_elements(now.answering[1])) if answer else seed * cycle
            for cycle, (now, answer) in enumerate(zip(outputs, answers, strict=True))], np.uint64)
    unit = units()
    unit.reset()
    trace = unit.lockstep(sources=feeds, sinks={"access__response": willing["response"]}, inputs=inputs, seed=seed)
    note = f"{seed=}, {patterns}"

    def compare(port, expected):
        np.testing.assert_array_equal(trace[f"access__{port}"], np.array(expected), f"{port}, {note}")

    compare("request__ready", [now.request_ready for now in outputs])
    compare("write__ready", [now.write_ready for now in outputs])
    compare("settled", [now.settled for now in outputs])
    compare("response__valid", [now.response is not None for now in outputs])
    compare("waits", [(now.read is not None and not willing[f"read_{now.read[0]}"][cycle])
                      or (now.write is not None and not willing[f"write_{now.write[0]}"][cycle])
                      for cycle, now in enumerate(outputs)])
    for index in range(3):
        compare(f"read_{index}__valid", [now.read is not None and now.read[0] == index for now in outputs])
    for index in (0, 2):
        compare(f"write_{index}__valid", [now.write is not None and now.write[0] == index for now in outputs])
    answers = unpack(response_layout(LANES), trace["access__response__payload"])["elements"]
    for cycle, now in enumerate(outputs):
        if now.response is not None:
            assert answers[cycle].tolist() == _elements(now.response), note
        if now.read is not None:
            assert trace[f"access__read_{now.read[0]}__row"][cycle] == now.read[1], note
            assert trace["access__read_owner"][cycle] == _owner(asked[cycle]), note
        if now.write is not None:
            index, row, number = now.write
            port = f"access__write_{index}"
            assert trace["access__write_owner"][cycle] == _owner(number), note
            assert (trace[f"{port}__row"][cycle], trace[f"{port}__keep"][cycle]) == (row, number % 4), note
            assert trace[f"{port}__elements"][cycle] == _value(_elements(number)), note
    moved = np.flatnonzero(trace["access__response__valid"].astype(bool) & willing["response"])
    return moved, outputs


def _value(elements):
    return elements[0] | elements[1] << 32


def _requests(generator, count):
    """Draw runs of requests to the same memory, and writes, including writes to a read-only memory."""
    places = np.repeat(generator.integers(3, size=count), generator.integers(1, 12, size=count))[:count]
    requests = [(int(memory), int(generator.integers(ROWS[memory]))) for memory in places]
    writes = [(memory, int(generator.integers(ROWS[memory])), number)
              for number, memory in enumerate(generator.choice([0, 2, 2, 1], count).tolist())]
    return requests, writes


@pytest.mark.parametrize("patterns", [
    {}, {"request": "geometric", "write": "geometric"}, {"response": "freeze", "read_0": "geometric"},
    dict.fromkeys(("response", "read_0", "read_1", "read_2", "write_0", "write_2"), "geometric"),
    dict(zip(("request", "response", "write", "read_0", "read_1", "read_2", "write_0", "write_2"),
             STALLS[1:] * 3, strict=False)),
])
def test_every_cycle(patterns):
    seed = 11 + len(patterns)
    requests, writes = _requests(np.random.default_rng(seed), 350)
    moved, outputs = _run(requests, writes, patterns, seed=seed)
    assert outputs[-1].settled
    assert len(moved) == len(requests)


def test_latency_and_throughput():
    """Each memory delivers one row per cycle with the stated latency, and accepts one write per cycle."""
    requests, writes = _requests(np.random.default_rng(3), 200)
    moved, outputs = _run(requests, writes, {}, seed=3, cycles=230)
    assert moved.tolist() == list(range(MemoryAccess.latency, MemoryAccess.latency + 200))
    assert [now.write is not None for now in outputs[1:201]] == [memory != 1 for memory, _, _ in writes]


def test_reset():
    """A reset drops all responses in flight and all pending writes."""
    requests, writes = _requests(np.random.default_rng(4), 30)
    for cycles in (3, 4, 5, 9, 20):
        _run(requests, writes, {"response": "alternating", "write_0": "geometric"}, seed=cycles, cycles=cycles)
    moved, _ = _run(requests, writes, {}, seed=4, cycles=60)
    assert len(moved) == 30


test_constructor_errors = refused(MemoryAccess, {"rows": ROWS, "lanes": 4}, [
    ({"rows": (8, 8)}, "Rows must be 3 integers of at least 2, not (8, 8)"),
    ({"rows": (8, 1, 8)}, "Rows must be 3 integers of at least 2, not (8, 1, 8)"),
    ({"lanes": 3}, "Lane count must be 1, 2, 4 or 8, not 3"),
])
