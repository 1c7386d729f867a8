"""Cycle-accurate golden models of the mask generator, mask source, mask circuit and magnitude mask."""

import dataclasses
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sim.golden import stream
from sim.golden.masking import Beats, Flags, Indices, Job


@dataclasses.dataclass(frozen=True)
class Trace:
    """Handshakes of the mask generator in each cycle."""

    jobs_valid: Flags
    jobs_ready: Flags
    o_valid: Flags
    offered: Indices


@dataclasses.dataclass(frozen=True)
class SourceTrace:
    """Handshakes of the mask source; ``i_ready`` is valid where ``i_valid`` is set, otherwise random."""

    i_valid: Flags
    i_ready: Flags
    words_valid: Flags
    words_ready: Flags
    o_valid: Flags
    offered: Indices


@dataclasses.dataclass(frozen=True)
class CircuitTrace:
    """Handshakes and pulses of the mask circuit in each cycle."""

    jobs_valid: Flags
    jobs_ready: Flags
    i_valid: Flags
    i_ready: Flags
    words_valid: Flags
    words_ready: Flags
    o_valid: Flags
    offered: Indices
    fetched: Flags
    masked: Indices
    error: Flags
    pairs: list[tuple[int, int]]


@dataclasses.dataclass(frozen=True)
class MagnitudeTrace:
    """Handshakes of the magnitude mask in each cycle."""

    gradients_valid: Flags
    gradients_ready: Flags
    errors_valid: Flags
    errors_ready: Flags
    kept_valid: Flags
    dropped_valid: Flags
    kept_offered: Indices
    dropped_offered: Indices
    taken: Indices


class _Walk:
    """Model of the mask generator's registers; the departure of a beat determines when the next beat is offered."""

    def __init__(self, jobs: Sequence[Job], lanes: int, willing: npt.ArrayLike) -> None:
        self.jobs = stream.Feed(len(jobs), willing)
        self._beats = [job.beats(lanes) for job in jobs]
        self._job = 0
        self._left = 0
        self._free = 0  # cycle in which the position register accepts the next job
        self._loads = [0, 0, 0, 0]  # cycles in which the previous beat entered each register and left the last one

    def offer(self) -> int:
        """First cycle in which the next beat is offered."""
        position = self._free
        while not self._left:
            position = self.jobs.accept(self._free)
            self._free = position + 1
            self._left = self._beats[self._job]
            self._job += 1
        self._left -= 1
        load = position
        for register in range(3):
            load = max(load + 1, self._loads[register + 1])
            self._loads[register] = load
        self._free = self._loads[0]
        return load + 1

    def depart(self, cycle: int) -> None:
        """Let the offered beat be accepted in the given cycle."""
        self._loads[3] = cycle

    def drain(self) -> None:
        """Accept the remaining jobs after the last beat; these jobs have no beats."""
        while self._job < len(self._beats):
            self._free = self.jobs.accept(self._free) + 1
            self._job += 1
        self.jobs.ready[self._free:] = True


def trace_generator(jobs: Sequence[Job], *, lanes: int, willing: npt.ArrayLike, ready: npt.ArrayLike) -> Trace:
    walk, output = _Walk(jobs, lanes, willing), stream.Output(ready)
    for _ in range(sum(job.beats(lanes) for job in jobs)):
        output.load(walk.offer() - 1)
        walk.depart(output.departed)
    walk.drain()
    return Trace(walk.jobs.valid, walk.jobs.ready, output.offered >= 0, output.offered)


def trace_source(beats: Beats, *, words: int, willing: npt.ArrayLike, words_willing: npt.ArrayLike,
                 ready: npt.ArrayLike) -> SourceTrace:
    feed, memory, output = stream.Feed(len(beats), willing), stream.Feed(words, words_willing), stream.Output(ready)
    for word in beats.word.tolist():
        free = max(feed.offered, output.departed)
        loaded = feed.accept(memory.accept(free) if word else output.departed)
        output.load(loaded)
    feed.ready[output.departed:] = True
    return SourceTrace(feed.valid, feed.ready, memory.valid, memory.ready, output.offered >= 0, output.offered)


def trace_circuit(jobs: Sequence[Job], last: npt.ArrayLike, *, lanes: int, words: int, masks: Beats,
                  willing: npt.ArrayLike, jobs_willing: npt.ArrayLike, words_willing: npt.ArrayLike,
                  ready: npt.ArrayLike) -> CircuitTrace:
    """Trace every cycle of a mask circuit, with or without valid data."""
    ends = np.asarray(last, np.bool_).tolist()
    walk, data = _Walk(jobs, lanes, jobs_willing), stream.Feed(len(ends), willing)
    memory, output = stream.Feed(words, words_willing), stream.Output(ready)
    end = output.end
    fetched, error = np.zeros(end + 2, np.bool_), np.zeros(end + 2, np.bool_)
    masked = np.zeros(end + 2, np.int64)
    replaced = (masks.keep & ~masks.mask).sum(axis=1)
    pairs: list[tuple[int, int]] = []
    taken = 0  # number of beats in the data stream
    sourced = [-1, -1]  # cycles in which the last two beats moved from the first skid buffer to the source
    queued = 0  # cycle in which the last beat moved from the source to the second buffer
    left = [-1, -1]  # cycles in which the last two beats left the second buffer
    before = -1  # cycles in which the last mask beat and the last data beat were accepted or discarded
    dropping = False
    for index in range(len(masks)):
        entered = max(walk.offer(), sourced[-2] + 1)
        walk.depart(entered)
        loaded = max(max(entered, sourced[-1]) + 1, queued)
        if masks.word[index]:
            loaded = memory.accept(loaded)
            fetched[min(loaded, end) + 1] = True
        sourced = [sourced[-1], loaded]
        queued = max(loaded + 1, left[-2] + 1)
        offered = max(queued, left[-1]) + 1
        if dropping:
            departed = before = max(offered, before + 1)
            dropping = not masks.last[index]
        else:
            departed = before = data.accept(max(offered, before + 1, output.departed))
            if before < end:
                pairs.append((index, taken))
                output.load(before)
                masked[before + 1] = replaced[index]
                early = ends[taken] and not masks.last[index]
                late = masks.last[index] and not ends[taken]
                error[before + 1] = early or late
                dropping = bool(early)
                taken += 1
                while late and before < end:
                    before = data.accept(before + 1)
                    if before < end:
                        late = not ends[taken]
                        taken += 1
        left = [left[-1], departed]
    walk.drain()
    return CircuitTrace(
        walk.jobs.valid, walk.jobs.ready, data.valid, data.ready, memory.valid, memory.ready, output.offered >= 0,
        output.offered, fetched[:end], masked[:end], error[:end], pairs)


def trace_magnitude(gradients: int, errors: int, *, latency: int, depth: int, willing: npt.ArrayLike,
                    errors_willing: npt.ArrayLike, ready: npt.ArrayLike, dropped_ready: npt.ArrayLike
                    ) -> MagnitudeTrace:
    """Trace every cycle of a magnitude mask.

    Pair k is accepted when both its beats are offered and pair k - depth has departed from both outputs. It is
    offered ``latency`` cycles later, or one cycle after the departure of the previous pair.
    """
    feeds = stream.Feed(gradients, willing), stream.Feed(errors, errors_willing)
    outputs = stream.Output(ready), stream.Output(dropped_ready)
    end = feeds[0].end
    count = min(gradients, errors)
    taken: list[int] = []
    departed: list[tuple[int, int]] = []
    blocked = np.zeros(end, np.bool_)  # cycles in which a queue is full
    for pair in range(count + 1):
        room = 0
        if pair >= depth:
            room = max(departed[pair - depth]) + 1
            blocked[taken[-1] + 1:room] = True
        cycle = max(room, *(feed.offered for feed in feeds))
        if pair == count or cycle >= end:
            break
        taken.append(cycle)
        for feed in feeds:
            feed.accept(cycle)
        for output in outputs:
            output.load(max(cycle + latency - 1, output.departed))
        departed.append((outputs[0].departed, outputs[1].departed))
    valid, kept, dropped = [feed.valid for feed in feeds], outputs[0].offered, outputs[1].offered
    return MagnitudeTrace(
        valid[0], valid[1] & ~blocked, valid[1], valid[0] & ~blocked, kept >= 0, dropped >= 0, kept, dropped,
        np.array(taken, np.int64))
