# amaranth: UnusedElaboratable=no
"""Streams of elements and of groups without zeros, for tests of the encoder, adder and decoder."""

import functools

import numpy as np

from hdl.compression.zero_value.adder import Adder
from hdl.compression.zero_value.decoder import Decoder
from hdl.compression.zero_value.encoder import Encoder
from hdl.group import GROUP
from hdl.streams.stream import beat_layout, word_layout
from sim.golden import floating
from sim.golden import zero_value as model
from sim.payload import unpack
from sim.verilated.vectors import Feed, Unit
from tests.hdl.compression.packets import as_beats, as_rows
from tests.hdl.compression.packets import words as as_words
from tests.words import bits_of

LANES = (1, 2, 4, 8)

DENSITIES = (0, 0.02, 0.1, 0.3, 0.7, 0.97, 1)


@functools.cache
def unit_of(kind, lanes=None):
    return Unit(kind() if lanes is None else kind(lanes=lanes))


def random_elements(generator, count, density):
    """Draw canonical gradients: any bits, except -0.0 and non-canonical NaNs."""
    elements = floating.add(generator.integers(0, 1 << 32, count, dtype=np.uint32), 0)
    elements[generator.random(count) >= density] = 0
    return elements


def random_vectors(generator, total):
    """Draw vectors of various lengths, with densities that vary within and between vectors."""
    vectors = []
    while sum(map(len, vectors)) < total:
        pieces = [random_elements(generator, int(generator.integers(1, 80)), generator.choice(DENSITIES))
                  for _ in range(generator.integers(1, 6))]
        vectors.append(np.concatenate(pieces))
    return vectors


def vectors_of(density):
    """Draw vectors with one density, or with groups of all densities if ``density`` is ``mixed``."""
    generators = map(np.random.default_rng, range(20))
    if density != "mixed":
        return [random_elements(generator, 320, density) for generator in generators]
    return [np.concatenate([random_elements(generator, GROUP, generator.choice(DENSITIES)) for _ in range(100)])
            for generator in generators]


def taken_of(trace, layout, name="o"):
    """Transferred payloads of a stream, and the cycles of the transfers."""
    when = np.flatnonzero(trace[f"{name}__valid"] & trace[f"{name}__ready"])
    return unpack(layout, trace[f"{name}__payload"][when]), when


def run_encoder(lanes, vectors, *, seed=1, spare=100):
    """Run an encoder without stalls; return its words, ``last`` flags and cycles."""
    rows, keep, last = as_rows(vectors, lanes, np.random.default_rng(seed))
    words = np.concatenate([model.encode(vector) for vector in vectors])
    unit = unit_of(Encoder, lanes)
    unit.reset()
    trace = unit.lockstep(sources={"i": Feed(as_beats(rows, keep, last))}, sinks={"o": True},
                          cycles=model.code_cycles(words, lanes) + spare, seed=seed)
    payload, when = taken_of(trace, word_layout())
    return payload["data"], payload["last"], when


def run_decoder(lanes, streams, *, seed=1, spare=100):
    unit = unit_of(Decoder, lanes)
    unit.reset()
    bound = model.code_cycles(np.concatenate(streams), lanes)
    trace = unit.lockstep(sources={"i": Feed(as_words(streams))}, sinks={"o": True}, cycles=bound + spare, seed=seed)
    payload, when = taken_of(trace, beat_layout(lanes))
    return payload["elements"].reshape(-1), payload["last"], when


def run_adder(a, b, *, stall=None, seed=1):
    """Run an adder for the length of the stall patterns; return words, ``last`` flags, cycles and the trace."""
    unit = unit_of(Adder)
    unit.reset()
    if stall is None:
        stall = np.ones((3, sum(len(x) + len(y) for x, y in zip(a, b, strict=True)) + 100), bool)
    trace = unit.lockstep(sources={"a": Feed(as_words(a), stall[0]), "b": Feed(as_words(b), stall[1])},
                          sinks={"o": stall[2]}, seed=seed)
    payload, when = taken_of(trace, word_layout())
    return payload["data"], payload["last"], when, trace

KNOWN_A = bits_of([0, 5, 0, -3, 0, 0, 7, 0])

KNOWN_B = bits_of([0, -5, 2, 4, 0, 0, 1, 0])


ONE = np.array([0b11, 0x3F80_0000, 0x4000_0000], np.uint32)

TWO = np.array([0b11, 0x3F80_0000, 0x4000_0000, 0b1, 0x4040_0000], np.uint32)

EMPTY = np.array([0], np.uint32)

DOUBLED = [0b11, 0x4000_0000, 0x4080_0000]

VECTORS = [KNOWN_A, np.zeros(32, np.uint32), np.arange(100, dtype=np.uint32)]
