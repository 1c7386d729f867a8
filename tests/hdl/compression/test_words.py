# amaranth: UnusedElaboratable=no
"""Conversion of elements to link words and back, with every codec: hdl/compression/words.py."""

import numpy as np
import pytest

from hdl.compression.registry import CODECS
from hdl.compression.words import WordDecoder, WordEncoder
from sim.streams import STALLS
from sim.verilated.vectors import Feed
from tests.hdl.compression.packets import beats as rows
from tests.hdl.compression.packets import words
from tests.hdl.compression.units import decode, elements, encode, ready
from tests.refusals import refuses

#: Codecs of each kind with lane counts other than four; tests/hdl/compression/test_every_codec.py covers four
#: lanes.
CASES = [*((name, lanes) for name in ("bf16", "mx9", "mxfp4_e2m1") for lanes in (1, 8)), ("bf16", 2),
         ("mxfp8_e4m3", 8), ("raw", 1), ("table32", 1), ("table32", 8), ("centroid16", 2), ("centroid64", 8)]


@pytest.mark.parametrize("kind", [WordEncoder, WordDecoder])
def test_lanes(kind):
    refuses("Lane count must be 1, 2, 4 or 8, not 3", kind, lanes=3, codec=CODECS["mx9"])


@pytest.mark.parametrize(("name", "lanes"), CASES)
def test_words_and_elements(name, lanes):
    """Words and elements match the golden model packet by packet, even with stalls."""
    encode(name, lanes, "geometric", "geometric", seed=3)
    decode(name, lanes, "geometric", "geometric", seed=4)


@pytest.mark.parametrize("sink", STALLS)
@pytest.mark.parametrize("name", ["bf16", "mx9", "table32", "centroid16"])
def test_stalls(name, sink):
    for number, source in enumerate(STALLS):
        encode(name, 4, source, sink, seed=10 + number)
        decode(name, 4, source, sink, seed=20 + number)


@pytest.mark.parametrize("name", ["mx9", "mxfp8_e4m3", "bf16"])
def test_a_word_per_cycle(name):
    """With whole segments in succession, one word per cycle leaves the encoder and enters the decoder."""
    vectors = [elements(np.random.default_rng(seed), 256) for seed in range(4)]
    decoder, codec = ready(WordDecoder, name, 4)
    total = 4 * codec.max_words(256)
    encoded = words([codec.encode(packet) for packet in vectors])
    trace = decoder.lockstep(sources={"i": Feed(encoded)}, sinks={"o": True}, cycles=2 * total)
    when = np.flatnonzero(trace["i__valid"].astype(bool) & trace["i__ready"].astype(bool))
    assert len(when) == total
    assert when[-1] - when[0] <= total + 2
    encoder, _ = ready(WordEncoder, name, 4)
    trace = encoder.lockstep(sources={"i": Feed(rows(vectors, 4))}, sinks={"o": True}, cycles=2 * total + 100)
    when = np.flatnonzero(trace["o__valid"])
    assert len(when) == total
    assert when[-1] - when[0] <= total + 8
