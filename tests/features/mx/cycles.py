"""Cycle-accurate golden models of block encoders and decoders, and of the words completed by beats."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sim.golden import stream
from sim.golden.features.mx.block_format import BlockFormat

_WORD = 32


def join(model: BlockFormat, counts: Sequence[int], lanes: int) -> list[list[tuple[int, int, bool]]]:
    """For packets of ``counts`` blocks, list the words that each beat completes, as (start, stop, last)."""
    packets = []
    for blocks in counts:
        beats: list[tuple[int, int, bool]] = []
        done, bits = 0, 0
        for beat in range(blocks * (model.block // lanes)):
            bits += lanes * model.code_bits + (model.header_bits if beat % (model.block // lanes) == 0 else 0)
            last = beat == blocks * (model.block // lanes) - 1
            whole = -(-bits // _WORD) if last else bits // _WORD
            beats.append((done, whole, last))
            done = whole
        packets.append(beats)
    return packets


def split(model: BlockFormat, counts: Sequence[int], lanes: int, words: int) -> list[list[tuple[bool, bool, bool]]]:
    """List an unpacker's beats for packets of ``counts`` words, as (takes words, lacks words, is last)."""
    packets = []
    for total in counts:
        beats: list[tuple[bool, bool, bool]] = []
        bits, taken, index = 0, 0, 0
        while not beats or not beats[-1][2]:
            final = index == model.block // lanes - 1
            bits += lanes * model.code_bits + (model.header_bits if index == 0 else 0)
            takes = bits > taken * _WORD and taken < total
            taken += words if takes else 0
            # A packet ends once its last words have been accepted.
            ended = taken >= total
            lacks = ended and bits > total * _WORD
            beats.append((takes, lacks, final and ended and bits + _WORD > total * _WORD))
            index = 0 if final else index + 1
        packets.append(beats)
    return packets


def trace_encoder(model: BlockFormat, last: npt.ArrayLike, *, lanes: int, latency: int, willing: npt.ArrayLike,
                  ready: npt.ArrayLike) -> stream.Trace:
    """Trace every cycle of an encoder, which consists of a quantizer and a packer with an output register."""
    ends = np.asarray(last, np.bool_).tolist()
    feed, output = stream.Feed(len(ends), willing), stream.Output(ready)
    end, beats = output.end, model.block // lanes
    blocks = -(-np.diff(np.flatnonzero(ends) + 1, prepend=0) // beats)
    # The last complete packet may be followed by an incomplete one.
    completes = iter([stop > start for packet in join(model, blocks.tolist(), lanes) for start, stop, _ in packet]
                     + [False] * len(ends))
    i_ready = np.ones(end, np.bool_)
    steps = latency - 3 + beats  # number of stages between the input and the packer
    inside: list[int] = []
    taken, beat, free, now, padding = 0, 0, 0, -1, False
    while now < end:
        now = max(now + 1, free)
        if beat and not padding:
            now = max(now, feed.offered)
        if now >= end:
            break
        if padding or feed.offered <= now:
            final = beat == beats - 1
            i_ready[now] = not padding
            if not padding:
                feed.take(now)
                padding = ends[taken]
                taken += 1
            padding = padding and not final
            beat = 0 if final else beat + 1
            inside.append(steps + 1)
        inside = [left - 1 for left in inside]
        if inside and inside[0] == 0:
            inside.pop(0)
            free = max(now + 1, output.departed)
            if next(completes) and free < end:
                output.load(free)
            i_ready[now + 1:free] = False
        # No input is accepted while the block is padded with zeros.
        if padding:
            i_ready[now + 1:max(now + 1, free) + 1] = False
    return stream.Trace(feed.valid, i_ready, output.offered >= 0, output.offered)


def trace_decoder(model: BlockFormat, last: npt.ArrayLike, counts: Sequence[int], *, lanes: int, words: int,
                  latency: int, willing: npt.ArrayLike, ready: npt.ArrayLike) -> stream.Trace:
    """Trace every cycle of a decoder, which consists of an unpacker with a register and a dequantizer."""
    feed, stages = stream.Feed(len(np.asarray(last)), willing), stream.Stages(latency - 1, ready)
    free, now = 0, -1
    for takes, _, _ in [beat for packet in split(model, counts, lanes, words) for beat in packet]:
        start = max(now + 1, free)
        now = feed.accept(start) if takes else start
        if now >= feed.end:
            break
        free = stages.enter(now + 1)[0]
    else:
        feed.accept(max(now + 1, free))
    return stream.Trace(feed.valid, feed.ready, stages.offered >= 0, stages.offered)
