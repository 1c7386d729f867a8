# amaranth: UnusedElaboratable=no
"""Encoder, decoder and adder of any codec, tested under stalls against the golden model.

A codec needs only its entries in both registries; if its gradients are added in coded form, its units are also listed
in :data:`CODED_SUMS`.
"""

import functools

import numpy as np

from hdl.compression.codec import Codebook
from hdl.compression.feedback import PacketAdder
from hdl.compression.registry import CODECS
from hdl.compression.words import WordDecoder, WordEncoder
from hdl.compression.zero_value.adder import Adder
from hdl.compression.zero_value.decoder import Decoder
from hdl.compression.zero_value.encoder import Encoder
from hdl.streams.stream import word_layout
from sim.golden import codecs as model
from sim.golden import floating
from sim.payload import unpack
from sim.streams import stall_array
from sim.verilated.vectors import Feed, Unit
from tests.hdl.compression.packets import beats as rows
from tests.hdl.compression.packets import taken as taken_packets
from tests.hdl.compression.packets import words
from tests.traces import taken

#: Units of each codec with ``sums_coded``: encoder, decoder and adder, of which the first two have a parameter
#: ``lanes``.
CODED_SUMS = {"zero_value": (Encoder, Decoder, Adder)}

_CYCLES = 20_000
_SPECIAL = np.array([0, 0x8000_0000, 0x7F80_0000, 0xFFC0_0001, 1, 0x7F7F_FFFF, 0x3F80_8000], np.uint32)


@functools.cache
def unit(kind, name, lanes):
    """The :class:`WordEncoder` or :class:`WordDecoder` of a codec, or the codec's own unit."""
    if name in CODED_SUMS:
        own = CODED_SUMS[name][0 if kind is WordEncoder else 1]
        return Unit(own(lanes=lanes))
    return Unit(kind(codec=CODECS[name], lanes=lanes))


@functools.cache
def _adder(name, lanes):
    return Unit(CODED_SUMS[name][2]() if name in CODED_SUMS else PacketAdder(lanes=lanes))


def elements(generator, count):
    """Draw random weights with few special numbers, since a single infinity or NaN makes a whole block NaN."""
    values = (0.1 * generator.standard_normal(count)).astype(np.float32).view(np.uint32)
    return np.where(generator.random(count) < 0.01, generator.choice(_SPECIAL, count), values).astype(np.uint32)


def packets(generator):
    """Return segments of every kind: full, partial, single-element, and with an odd number of groups."""
    counts = [256, 1, 31, 32, 33, 256, 2, 160, *generator.integers(1, 257, 8).tolist()]
    return [elements(generator, count) for count in counts]


def ready(kind, name, lanes):
    """Reset a unit and load its codebook, if any; return the unit and its codec."""
    coder, codec = unit(kind, name, lanes), model.CODECS[name]
    coder.reset()
    size = CODECS[name].centroids
    if size:
        generator = np.random.default_rng(lanes)
        if CODECS[name].codebook is Codebook.FRACTIONS:
            centroids = np.sort(generator.choice(1 << 23, size, replace=False)).astype(np.uint32)
        else:
            centroids = np.sort(0.1 * generator.standard_normal(size)).astype(np.float32).view(np.uint32)
        codec = codec.bind(centroids)
        load = codec.table.bounds(centroids) if kind is WordEncoder else centroids
        coder.lockstep(sources={"load": Feed(words([load]))}, sinks={"o": True}, cycles=size + 20)
    return coder, codec


def encode(name, lanes, source, sink, *, seed):
    """Check that packets of elements are encoded to the same words as in the model."""
    vectors = packets(np.random.default_rng(seed))
    encoder, codec = ready(WordEncoder, name, lanes)
    trace = encoder.lockstep(
        sources={"i": Feed(rows(vectors, lanes), stall_array(source, _CYCLES, seed=seed))},
        sinks={"o": stall_array(sink, _CYCLES, seed=seed + 1)}, seed=seed)
    _, payload = taken(trace, "o", word_layout())
    expected = unpack(word_layout(), words([codec.encode(packet) for packet in vectors]))
    assert payload["data"].tolist() == expected["data"].tolist(), f"{seed=}"
    assert payload["last"].tolist() == expected["last"].tolist(), f"{seed=}"


def decode(name, lanes, source, sink, *, seed):
    """Check that word packets are decoded to the model's elements, in whole blocks."""
    vectors = packets(np.random.default_rng(seed))
    decoder, codec = ready(WordDecoder, name, lanes)
    encoded = [codec.encode(packet) for packet in vectors]
    trace = decoder.lockstep(
        sources={"i": Feed(words(encoded), stall_array(source, _CYCLES, seed=seed))},
        sinks={"o": stall_array(sink, _CYCLES, seed=seed + 1)}, seed=seed)
    _compare_elements(trace, lanes, [codec.decode(packet) for packet in encoded], seed)


def add(name, lanes, source, sink, *, seed):
    """Check that received words plus a node's own gradients give the model's sums, in whole blocks or coded."""
    generator = np.random.default_rng(seed)
    own = packets(generator)
    arriving = [model.CODECS[name].encode(elements(generator, len(packet))) for packet in own]
    stalls = [stall_array(source, _CYCLES, seed=seed), stall_array(source, _CYCLES, seed=seed + 1)]
    codec, adder = model.CODECS[name], _adder(name, lanes)
    adder.reset()
    coded = name in CODED_SUMS
    decoded = [codec.decode(packet) for packet in arriving]
    inputs = (words(arriving), words([codec.encode(packet) for packet in own])) if coded else (
        rows(own, lanes), rows(decoded, lanes))
    trace = adder.lockstep(
        sources={port: Feed(beats, stall) for port, beats, stall in zip("ab", inputs, stalls, strict=True)},
        sinks={"o": stall_array(sink, _CYCLES, seed=seed + 2)}, seed=seed)
    sums = [floating.add(packet, other[:len(packet)]) for packet, other in zip(own, decoded, strict=True)]
    if coded:
        _, payload = taken(trace, "o", word_layout())
        expected = np.concatenate([codec.encode(packet) for packet in sums])
        assert payload["data"].tolist() == expected.tolist(), f"{seed=}"
    else:
        _compare_elements(trace, lanes, sums, seed)


def _compare_elements(trace, lanes, expected, seed):
    """Compare the packets in an output's beats with the expected packets."""
    whole, rest, _ = taken_packets(trace, lanes)
    assert not len(rest), f"{seed=}"
    assert [packet.tolist() for packet in whole] == [packet.tolist() for packet in expected], f"{seed=}"
