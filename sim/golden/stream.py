"""Cycle-accurate golden model of a queue, and helpers for models of other units.

Mirrors :mod:`hdl.streams.stream`.
"""

import dataclasses

import numpy as np
import numpy.typing as npt

__all__ = ["Feed", "Output", "QueueCycles", "Stages", "Trace", "first_from", "queue"]


@dataclasses.dataclass(frozen=True)
class QueueCycles:
    """Behaviour of a queue under given stalls.

    Members
    -------
    accepted, departed : array of int
        Cycle when each beat is accepted and when it departs, for beats that do so within the run.
    i_valid, i_ready, o_valid, level : array
        Handshakes and number of beats in the queue, for each cycle.
    offered : array of int
        Index of the beat offered in each cycle with ``o_valid``, otherwise -1.
    """

    accepted: np.ndarray
    departed: np.ndarray
    i_valid: np.ndarray
    i_ready: np.ndarray
    o_valid: np.ndarray
    level: np.ndarray
    offered: np.ndarray


@dataclasses.dataclass(frozen=True)
class Trace:
    """Handshakes of a unit in each cycle.

    Members
    -------
    i_valid, i_ready, o_valid : array of bool
    offered : array of int
        Index of the beat offered in each cycle with ``o_valid``, otherwise -1.
    """

    i_valid: npt.NDArray[np.bool_]
    i_ready: npt.NDArray[np.bool_]
    o_valid: npt.NDArray[np.bool_]
    offered: npt.NDArray[np.int64]


def first_from(pattern: npt.ArrayLike) -> list[int]:
    """For each cycle, the first cycle at or after it in which the pattern is set, or the pattern's length."""
    flags = np.asarray(pattern, np.bool_)
    end = len(flags)
    cycles = np.where(flags, np.arange(end), end)
    return [*np.minimum.accumulate(cycles[::-1])[::-1].tolist(), end]


class Feed:
    """Source that offers each beat in the first cycle allowed by ``willing`` after the previous beat was accepted.

    Members
    -------
    end : int
        Number of cycles in the run.
    valid, ready : array of bool
        Handshake per cycle; :meth:`accept` sets ``ready``.
    offered : int
        First cycle when the next beat is offered.
    """

    def __init__(self, count: int, willing: npt.ArrayLike) -> None:
        self._willing = first_from(willing)
        self.end = len(self._willing) - 1
        self._left = count
        self.valid, self.ready = np.zeros(self.end, np.bool_), np.zeros(self.end, np.bool_)
        self.offered = self._offer(0)

    def _offer(self, start: int) -> int:
        offered = self._willing[min(start, self.end)] if self._left else self.end
        self.valid[offered:] = True
        return offered

    def accept(self, free: int) -> int:
        """Accept the next beat in a unit that is ready from cycle ``free``, and return the cycle."""
        accepted = min(max(self.offered, free), self.end)
        self.ready[free:accepted + 1] = True
        self.take(accepted)
        return accepted

    def take(self, cycle: int) -> None:
        """Accept the offered beat in the given cycle."""
        if cycle < self.end:
            self.valid[cycle + 1:] = False
            self._left -= 1
            self.offered = self._offer(cycle + 1)


class Output:
    """Output register, with the cycles when its beats are loaded and when they depart.

    Members
    -------
    end : int
        Number of cycles in the run.
    departed : int
        Departure cycle of the latest beat.
    offered : array of int
        Index of the beat offered in each cycle, or -1.
    """

    def __init__(self, ready: npt.ArrayLike) -> None:
        self._ready = first_from(ready)
        self.end = len(self._ready) - 1
        self.departed = 0
        self._count = 0
        self.offered = np.full(self.end, -1, np.int64)

    def load(self, cycle: int) -> int:
        """Load a beat in ``cycle``, or as soon as the previous beat departs, and return the cycle."""
        loaded = max(cycle, self.departed)
        self.departed = self._ready[min(loaded + 1, self.end)]
        self.offered[loaded + 1:self.departed + 1] = self._count
        self._count += 1
        return loaded


class Stages:
    """Pipeline stages that advance together when the output, which is the last stage, is free.

    Members
    -------
    end : int
        Number of cycles in the run.
    offered : array of int
        Index of the beat offered in each cycle, or -1.
    moves : array of bool
        Whether the stages advance in each cycle.
    """

    def __init__(self, count: int, ready: npt.ArrayLike) -> None:
        self._ready = first_from(ready)
        self.end = len(self._ready) - 1
        self.offered = np.full(self.end, -1, np.int64)
        self.moves = np.ones(self.end, np.bool_)
        self._count = count
        self._entered = -1
        self._stalls: list[tuple[int, int]] = []
        self._beats = 0

    def move(self, cycle: int) -> int:
        """Return the first cycle from ``cycle`` on in which the stages advance."""
        for offered, departed in self._stalls:
            if offered <= cycle:
                cycle = max(cycle, departed)
        return cycle

    def earliest(self, cycle: int) -> int:
        """Return the first cycle from ``cycle`` on in which a beat can enter the first stage."""
        return self.move(max(cycle, self._entered + 1))

    def enter(self, cycle: int) -> list[int]:
        """Pass a beat into the pipeline, in ``cycle`` or later, and return the cycles when it enters each stage."""
        cycles = [self.earliest(cycle)]
        self._entered = cycles[0]
        for _ in range(self._count - 1):
            cycles.append(self.move(cycles[-1] + 1))
        offered = min(cycles[-1] + 1, self.end)
        departed = self._ready[offered]
        self.offered[offered:departed + 1] = self._beats
        self.moves[offered:departed] = False
        self._beats += 1
        # Earlier offers cannot delay a beat that enters later.
        self._stalls = [*self._stalls[-self._count:], (offered, departed)]
        return cycles


def queue(*, depth: int, latency: int, beats: int, willing: np.ndarray, ready: np.ndarray) -> QueueCycles:
    """Simulate a queue that is initially empty.

    The source offers beat k in the first willing cycle after beat k-1 was accepted. The queue accepts beat k in the
    first cycle from then on that is after the departure of beat k - depth (or, with a depth of 1, not before that
    departure). The queue offers beat k ``latency`` cycles later, but only after beat k-1 has departed, and the beat
    departs in the first ready cycle.

    Parameters
    ----------
    depth, latency : int
        Depth and latency of the queue.
    beats : int
        Number of beats that the source sends.
    willing, ready : array of bool
        For each cycle, whether the source begins an offer, and whether the sink is ready; both have the same length.
    """
    cycles = len(willing)
    first_willing, first_ready = first_from(willing), first_from(ready)
    slack = 0 if depth == 1 else 1
    i_valid, o_valid = np.zeros(cycles, bool), np.zeros(cycles, bool)
    offered = np.full(cycles, -1)
    accepts: list[int] = []
    departs: list[int] = []
    for beat in range(beats):
        valid = first_willing[accepts[-1] + 1 if accepts else 0]
        if valid == cycles:
            break
        accept = max(valid, departs[beat - depth] + slack if beat >= depth else 0)
        i_valid[valid:accept + 1] = True
        if accept >= cycles:
            break
        offer = min(max(accept + latency, departs[-1] + 1 if departs else 0), cycles)
        depart = first_ready[offer]
        o_valid[offer:depart + 1] = True
        offered[offer:depart + 1] = beat
        accepts.append(accept)
        departs.append(depart)
    accepted = np.array(accepts, dtype=np.int64)
    departed = np.array([depart for depart in departs if depart < cycles], dtype=np.int64)
    # Handshakes are sampled before the rising edge, when a beat that moves in this cycle has not moved yet.
    now = np.arange(cycles)
    level = np.searchsorted(accepted, now) - np.searchsorted(departed, now)
    i_ready = level < depth if depth > 1 else (level < depth) | ready
    return QueueCycles(accepted, departed, i_valid, i_ready, o_valid, level, offered)
