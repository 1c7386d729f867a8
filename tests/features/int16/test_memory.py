# amaranth: UnusedElaboratable=no
"""Memories of the int16 node and the host's access to them: hdl/features/int16/memory.py."""

import numpy as np
import pytest
from amaranth.hdl import Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.control.protocol import access_layout
from hdl.features.int16.memory import ElementMemory, HostAccess, port_signature
from hdl.streams.stream import connect_stream, word_layout
from sim.streams import stall_array
from sim.verilated.vectors import Feed, Unit, pack, unpack
from tests.refusals import refused_values

WORDS = 96, 40

test_errors = refused_values(ElementMemory, {}, "words", [1, 0, 16385, "96", None],
                             "Word count must be between 2 and 16384")


@pytest.mark.parametrize("busy", [0.0, 0.3, 1.0])
def test_the_engine_comes_first(busy):
    """Reads return their element in the next cycle; the host has access only while the engine is idle."""
    generator = np.random.default_rng(1)
    cycles, words = 20_000, WORDS[0]
    memory = Unit(ElementMemory(words=words))
    memory.reset()
    inputs = {}
    for name, rate in (("engine", busy), ("host", 0.7)):
        inputs |= {f"{name}__en": generator.random(cycles) < rate, f"{name}__write": generator.random(cycles) < 0.5,
                   f"{name}__address": generator.integers(0, words, cycles),
                   f"{name}__data": generator.integers(0, 1 << 16, cycles)}
    outputs = memory.run(inputs)
    held, expected = np.zeros(words, np.int64), None
    for cycle in range(cycles):
        if expected is not None:
            assert outputs["engine__q"][cycle] == outputs["host__q"][cycle] == expected
        engine = bool(inputs["engine__en"][cycle])
        assert outputs["engine__ready"][cycle] == 1
        assert outputs["host__ready"][cycle] == (not engine)
        user = "engine" if engine else "host"
        expected = None
        if inputs[f"{user}__en"][cycle]:
            address = inputs[f"{user}__address"][cycle]
            if inputs[f"{user}__write"][cycle]:
                held[address] = inputs[f"{user}__data"][cycle]
            else:
                expected = held[address]


class Served(wiring.Component):
    """Test unit: host access to two memories, the first of which an engine also uses."""

    requested: In(stream.Signature(access_layout()))
    writing: In(stream.Signature(access_layout()))
    given: In(stream.Signature(word_layout()))
    words: Out(stream.Signature(word_layout()))
    engine: In(port_signature(WORDS[0]))

    def elaborate(self, platform):
        m = Module()
        m.submodules.access = access = HostAccess(words=WORDS)
        connect_stream(m, self.requested, access.read.request)
        connect_stream(m, self.writing, access.write.request)
        connect_stream(m, self.given, access.write.data)
        connect_stream(m, access.read.data, self.words)
        for n, words in enumerate(WORDS):
            m.submodules[f"memory_{n}"] = memory = ElementMemory(words=words)
            wiring.connect(m, access=getattr(access, f"memory_{n}"), memory=memory.host)
            if n == 0:
                wiring.connect(m, memory=memory.engine, engine=wiring.flipped(self.engine))
        return m


@pytest.fixture(scope="module")
def served():
    return Unit(Served())


def accesses(*places):
    """Payloads of access requests, each specified by space, address and number of words."""
    spaces, addresses, counts = zip(*places, strict=True)
    return pack(access_layout(), {
        "address": np.array(addresses), "space": np.array(spaces), "count": np.array(counts)})


def fill(served, contents):
    """Write both memories through the host port, and check that this takes one cycle per word."""
    words = np.concatenate(contents)
    last = np.zeros(len(words), bool)
    last[[len(contents[0]) - 1, -1]] = True
    trace = served.lockstep(
        sources={"writing": Feed(accesses((0, 0, WORDS[0]), (1, 0, WORDS[1]))),
                 "given": Feed(pack(word_layout(), {"data": words, "last": last}))},
        sinks={"words": True}, cycles=sum(WORDS) + 8)
    taken = np.flatnonzero(trace["given__valid"].astype(bool) & trace["given__ready"].astype(bool))
    assert len(taken) == len(words)
    assert taken[WORDS[0] - 1] - taken[0] == WORDS[0] - 1
    assert taken[-1] - taken[WORDS[0]] == WORDS[1] - 1


@pytest.mark.parametrize("pattern", ["none", "geometric", "freeze", "alternating"])
@pytest.mark.parametrize("busy", [0.0, 0.4])
def test_bursts(served, pattern, busy):
    """The host reads back its words, truncated and sign-extended, while an engine occasionally uses a memory."""
    generator = np.random.default_rng(2)
    contents = [generator.integers(0, 1 << 32, size, dtype=np.uint32) for size in WORDS]
    served.reset()
    fill(served, contents)
    places = [(0, 5, 50), (1, 0, 39), (0, 95, 1), (1, 13, 20), (0, 0, 96)]
    cycles, gap = 10_000, 2000
    willing = np.zeros(cycles, bool)
    willing[5::gap] = True
    ready = stall_array(pattern, cycles, seed=4)
    trace = served.lockstep(
        sources={"requested": Feed(accesses(*places), willing=willing)}, sinks={"words": ready},
        inputs={"engine__en": generator.random(cycles) < busy, "engine__address": generator.integers(0, 96, cycles)})
    begun = np.flatnonzero(trace["requested__valid"].astype(bool) & trace["requested__ready"].astype(bool))
    assert len(begun) == len(places)
    taken = np.flatnonzero(trace["words__valid"].astype(bool) & trace["words__ready"].astype(bool))
    for (space, address, count), start in zip(places, begun, strict=True):
        moves = taken[taken > start][:count]
        assert moves[-1] < start + gap
        read = unpack(word_layout(), trace["words__payload"][moves])["data"]
        expected = contents[space][address:address + count].astype(np.int16).astype(np.int32).view(np.uint32)
        np.testing.assert_array_equal(read, expected)
        if pattern == "none" and (space == 1 or not busy):
            assert moves[0] == start + HostAccess.interval
            assert (np.diff(moves) == HostAccess.interval).all()
