# amaranth: UnusedElaboratable=no
"""Forks and packet routing: hdl/streams/route.py."""

import numpy as np
import pytest

from hdl.streams.route import Fork, PacketDemux, PacketMux
from hdl.streams.stream import word_layout
from sim.streams import stall_array
from sim.verilated.vectors import Feed, Unit, pack, unpack

PATTERNS = ["none", "geometric", "freeze", "alternating"]


def packets(seed, count=60):
    generator = np.random.default_rng(seed)
    lengths = generator.integers(1, 7, count)
    values = generator.integers(0, 1 << 32, lengths.sum(), dtype=np.uint32)
    last = np.zeros(len(values), dtype=bool)
    last[np.cumsum(lengths) - 1] = True
    return generator, lengths, values, last


def given(trace, port, layout=None):
    """Payloads taken at an output, and their cycles."""
    taken = np.flatnonzero(trace[f"{port}__valid"].astype(bool) & trace[f"{port}__ready"].astype(bool))
    return taken, unpack(layout or word_layout(), trace[f"{port}__payload"][taken])


@pytest.mark.parametrize("unit", [lambda n: Fork(shape=word_layout(), outputs=n), lambda n: PacketDemux(outputs=n)])
def test_outputs_must_be_positive(unit):
    with pytest.raises(ValueError, match=r"^Output count must be a positive integer, not 0$"):
        unit(0)


def test_mux_needs_inputs():
    with pytest.raises(ValueError, match=r"^Input count must be an integer of at least 2, not 1$"):
        PacketMux(inputs=1)


def test_fork_gives_each_beat_once_to_each_enabled_output():
    unit = Unit(Fork(shape=word_layout(), outputs=3))
    for seed, enable in enumerate([0b111, 0b101, 0b010, 0b000]):
        for number, pattern in enumerate(PATTERNS):
            _, _, values, last = packets(seed)
            cycles = 60000
            sinks = {f"o__{n}": stall_array(pattern, cycles, seed=10 * seed + n + number) for n in range(3)}
            unit.reset()
            trace = unit.lockstep(
                sources={"i": Feed(pack(word_layout(), {"data": values, "last": last}))},
                sinks=sinks,
                inputs={"enable": enable},
            )
            taken = np.flatnonzero(trace["i__valid"].astype(bool) & trace["i__ready"].astype(bool))
            assert len(taken) == len(values)
            for n in range(3):
                _, words = given(trace, f"o__{n}")
                expected = values if enable >> n & 1 else values[:0]
                assert (words["data"] == expected).all(), f"seed {seed}, {pattern}"
                assert len(words["data"]) == len(expected)
            if pattern == "none":
                assert taken[-1] == len(values) - 1  # one beat per cycle


@pytest.mark.parametrize("pattern", PATTERNS)
def test_demux_follows_the_routes(pattern):
    unit = Unit(PacketDemux(outputs=3))
    for seed in range(4):
        generator, lengths, values, last = packets(seed)
        routes = generator.integers(0, 8, len(lengths))
        cycles = 60000
        trace = unit.lockstep(
            sources={
                "i": Feed(pack(word_layout(), {"data": values, "last": last}),
                          willing=stall_array(pattern, cycles, seed=seed)),
                "route": Feed(routes.astype(np.uint8), willing=stall_array(pattern, cycles, seed=seed + 50)),
            },
            sinks={f"o__{n}": stall_array(pattern, cycles, seed=seed + 100 + n) for n in range(3)},
        )
        mask = np.repeat(routes, lengths)
        for n in range(3):
            _, words = given(trace, f"o__{n}")
            assert words["data"].tolist() == values[mask >> n & 1 == 1].tolist(), f"seed {seed}"
            assert words["last"].tolist() == last[mask >> n & 1 == 1].tolist(), f"seed {seed}"
        unit.reset()


@pytest.mark.parametrize("pattern", PATTERNS)
def test_mux_follows_the_routes(pattern):
    unit = Unit(PacketMux(inputs=3))
    for seed in range(4):
        generator, lengths, values, last = packets(seed)
        routes = generator.integers(0, 3, len(lengths))
        cycles = 60000
        origin = np.repeat(routes, lengths)
        trace = unit.lockstep(
            sources={
                "route": Feed(routes.astype(np.uint8), willing=stall_array(pattern, cycles, seed=seed + 50)),
                **{
                    f"i__{n}": Feed(
                        pack(word_layout(), {"data": values[origin == n], "last": last[origin == n]}),
                        willing=stall_array(pattern, cycles, seed=seed + n),
                    )
                    for n in range(3)
                },
            },
            sinks={"o": stall_array(pattern, cycles, seed=seed + 100)},
        )
        taken, words = given(trace, "o")
        assert words["data"].tolist() == values.tolist(), f"seed {seed}"
        assert words["last"].tolist() == last.tolist(), f"seed {seed}"
        if pattern == "none":
            assert taken[-1] == len(values) - 1
        unit.reset()
