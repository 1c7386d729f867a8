"""Golden model of the cycles of encoders and decoders of blocks, and of the words that each beat completes."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from sim.golden import stream
from sim.golden.features.mx.block_format import BlockFormat

_WORD = 32

# --- beats of words


def join(model: BlockFormat, counts: Sequence[int], lanes: int) -> list[list[tuple[int, int, bool]]]:
    """Words that a packer completes with each beat of each packet, by its count of blocks: from, to, and last."""
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
    """Beats of an unpacker for each packet, by its count of words: takes words, lacks some, and is the last."""
    packets = []
    for total in counts:
        beats: list[tuple[bool, bool, bool]] = []
        bits, taken, index = 0, 0, 0
        while not beats or not beats[-1][2]:
            final = index == model.block // lanes - 1
            bits += lanes * model.code_bits + (model.header_bits if index == 0 else 0)
            takes = bits > taken * _WORD and taken < total
            taken += words if takes else 0
            # The packet's end is seen when its last words have been taken.
            ended = taken >= total
            lacks = ended and bits > total * _WORD
            beats.append((takes, lacks, final and ended and bits + _WORD > total * _WORD))
            index = 0 if final else index + 1
        packets.append(beats)
    return packets


# --- cycles


class _Sink(Protocol):
    """Sink of an output register."""

    def take(self, offered: int) -> int:
        """Cycle in which a beat is taken, offered from the given cycle on."""


class Output:
    """An output register of the unit itself."""

    def __init__(self, ready: npt.ArrayLike) -> None:
        self._ready = stream.first_from(ready)
        self.end = len(self._ready) - 1
        self._count = 0
        self.offered = np.full(self.end, -1, np.int64)

    def take(self, offered: int) -> int:
        departed = self._ready[min(offered, self.end)]
        self.offered[offered:departed + 1] = self._count
        self._count += 1
        return departed


class _Join:
    """A packer: takes a beat when its output is free, and fills the output with the words that the beat completes."""

    def __init__(self, completes: Sequence[bool], output: Output) -> None:
        self._completes = iter(completes)
        self._output = output
        self.free = 0

    def take(self, offered: int) -> int:
        taken = max(offered, self.free)
        if next(self._completes) and taken < self._output.end:
            self.free = self._output.take(taken + 1)
        return taken


class _Open:
    """A dequantizer: stages that move together whenever the output is free."""

    def __init__(self, stages: int, output: Output) -> None:
        self._stages = stages
        self._output = output
        self.free = 0
        self._inside: list[int] = []  # steps that each beat has still to make
        self.end = output.end

    def step(self) -> int:
        """Move all stages, and return the cycle in which they move."""
        now = self.free
        self.free += 1
        self._inside = [left - 1 for left in self._inside]
        if self._inside and self._inside[0] == 0:
            self._inside.pop(0)
            self.free = self._output.take(now + 1)
        return now

    def take(self, offered: int) -> int:
        while self.free < min(offered, self.end):
            self.step()
        if self.free < self.end:
            self._inside.append(self._stages)
            return self.step()
        return self.end


def trace_quantizer(model: BlockFormat, last: npt.ArrayLike, *, lanes: int, latency: int, willing: npt.ArrayLike,
                    ready: npt.ArrayLike) -> stream.Trace:
    """Trace every cycle of a quantizer; see :func:`trace_encoder`."""
    output = Output(ready)
    return _trace_quantizer(model, last, lanes, latency, willing, output, output)


def trace_encoder(model: BlockFormat, last: npt.ArrayLike, *, lanes: int, latency: int, willing: npt.ArrayLike,
                  ready: npt.ArrayLike) -> stream.Trace:
    """Trace every cycle of an encoder."""
    output = Output(ready)
    ends = np.flatnonzero(np.asarray(last, np.bool_)) + 1
    blocks = -(-np.diff(ends, prepend=0) * lanes // model.block)
    completes = [stop > start for packet in join(model, blocks.tolist(), lanes) for start, stop, _ in packet]
    # Behind the last packet may be the beginning of one whose end is not given.
    completes += [False] * len(np.asarray(last))
    return _trace_quantizer(model, last, lanes, latency - 1, willing, _Join(completes, output), output)


def _trace_quantizer(model: BlockFormat, last: npt.ArrayLike, lanes: int, latency: int, willing: npt.ArrayLike,
                     sink: _Sink, output: Output) -> stream.Trace:
    ends = np.asarray(last, np.bool_).tolist()
    feed, end = stream.Feed(len(ends), willing), output.end
    ready = np.ones(end, np.bool_)
    beats = model.block // lanes
    steps = latency - 2 + beats  # from the step in which a beat enters to that in which it is offered
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
            ready[now] = not padding
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
            free = sink.take(now + 1)
            ready[now + 1:free] = False
        # While zeros enter, nothing else does.
        if padding:
            ready[now + 1:max(now + 1, free) + 1] = False
    return stream.Trace(feed.valid, ready, output.offered >= 0, output.offered)


def trace_decoder(model: BlockFormat, last: npt.ArrayLike, counts: Sequence[int], *, lanes: int, words: int,
                  latency: int, willing: npt.ArrayLike, ready: npt.ArrayLike) -> stream.Trace:
    """Trace every cycle of a decoder."""
    output = Output(ready)
    feed, end, sink = stream.Feed(len(np.asarray(last)), willing), output.end, _Open(latency - 1, output)
    i_ready = np.zeros(end, np.bool_)
    free, now = 0, -1
    for takes, _, _ in [beat for packet in split(model, counts, lanes, words) for beat in packet]:
        start = max(now + 1, free)
        now = max(start, feed.offered) if takes else start
        if now >= end:
            i_ready[start:] = takes
            break
        if takes:
            i_ready[start:now + 1] = True
            feed.take(now)
        free = sink.take(now + 1)
    else:
        i_ready[max(now + 1, free):] = True
    while sink.free < end:
        sink.step()
    return stream.Trace(feed.valid, i_ready, output.offered >= 0, output.offered)
