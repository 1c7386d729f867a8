"""Cycle-accurate golden model of a queue, and sources and output registers for models of other units.

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
        Cycles of each beat's acceptance and departure, for beats that do so within the run.
    i_valid, i_ready, o_valid, level : array
        The handshakes, and the beats in the queue, per cycle.
    offered : array of int
        Per cycle with ``o_valid``, the index of the beat on offer; elsewhere -1.
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
    """Handshakes of a unit, cycle by cycle.

    Members
    -------
    i_valid, i_ready, o_valid : array of bool
    offered : array of int
        Per cycle with ``o_valid``, the index of the beat on offer; elsewhere -1.
    """

    i_valid: npt.NDArray[np.bool_]
    i_ready: npt.NDArray[np.bool_]
    o_valid: npt.NDArray[np.bool_]
    offered: npt.NDArray[np.int64]


def first_from(pattern: npt.ArrayLike) -> list[int]:
    """First cycle with the pattern set, from each cycle on, or else the end."""
    flags = np.asarray(pattern, np.bool_)
    end = len(flags)
    cycles = np.where(flags, np.arange(end), end)
    return [*np.minimum.accumulate(cycles[::-1])[::-1].tolist(), end]


class Feed:
    """A source of beats: it offers the next beat in the first willing cycle after the last was accepted.

    Members
    -------
    end : int
        Cycles of the run.
    valid, ready : array of bool
        Handshake per cycle; :meth:`accept` sets ``ready``.
    offered : int
        Cycle from which on the next beat is on offer.
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
        """Accept the next beat in a unit that is ready from cycle ``free`` on, and return the cycle."""
        accepted = min(max(self.offered, free), self.end)
        self.ready[free:accepted + 1] = True
        self.take(accepted)
        return accepted

    def take(self, cycle: int) -> None:
        """Accept the beat on offer in a cycle."""
        if cycle < self.end:
            self.valid[cycle + 1:] = False
            self._left -= 1
            self.offered = self._offer(cycle + 1)


class Output:
    """Output register: cycles when it takes its beats, and when they depart.

    Members
    -------
    end : int
        Cycles of the run.
    departed : int
        Cycle of the latest beat's departure.
    offered : array of int
        Per cycle, the index of the beat on offer; -1 without one.
    """

    def __init__(self, ready: npt.ArrayLike) -> None:
        self._ready = first_from(ready)
        self.end = len(self._ready) - 1
        self.departed = 0
        self._count = 0
        self.offered = np.full(self.end, -1, np.int64)

    def load(self, cycle: int) -> int:
        """Take a beat in a cycle, or as soon as the last one departs, and return that cycle."""
        loaded = max(cycle, self.departed)
        self.departed = self._ready[min(loaded + 1, self.end)]
        self.offered[loaded + 1:self.departed + 1] = self._count
        self._count += 1
        return loaded


class Stages:
    """Stages that move together when the output, the last of them, is free.

    Members
    -------
    end : int
        Cycles of the run.
    offered : array of int
        Per cycle, the index of the beat on offer; -1 without one.
    moves : array of bool
        Per cycle, whether the stages move.
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
        """The first cycle from ``cycle`` on that moves the stages."""
        for offered, departed in self._stalls:
            if offered <= cycle:
                cycle = max(cycle, departed)
        return cycle

    def earliest(self, cycle: int) -> int:
        """The first cycle from ``cycle`` on that lets a beat enter the first stage."""
        return self.move(max(cycle, self._entered + 1))

    def enter(self, cycle: int) -> list[int]:
        """Enter a beat from ``cycle`` on; return the cycles of its entry into each stage."""
        cycles = [self.earliest(cycle)]
        self._entered = cycles[0]
        for _ in range(self._count - 1):
            cycles.append(self.move(cycles[-1] + 1))
        offered = min(cycles[-1] + 1, self.end)
        departed = self._ready[offered]
        self.offered[offered:departed + 1] = self._beats
        self.moves[offered:departed] = False
        self._beats += 1
        # No earlier offer can hold a beat that enters later.
        self._stalls = [*self._stalls[-self._count:], (offered, departed)]
        return cycles


def queue(*, depth: int, latency: int, beats: int, willing: np.ndarray, ready: np.ndarray) -> QueueCycles:
    """Cycles of a queue that begins empty.

    The source offers beat k in the first willing cycle after beat k-1 was accepted; it is accepted in the first cycle
    from there on that is later than the departure of beat k - depth, or not earlier with a depth of 1. It is offered
    ``latency`` cycles later, or after the departure of beat k-1, and departs in the first ready cycle.

    Parameters
    ----------
    depth, latency : int
        Depth and latency of the queue.
    beats : int
        Number of beats of the source.
    willing, ready : array of bool
        Per cycle, whether the source begins an offer, and whether the sink is ready; of the same length.
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
    # Before a cycle's rising edge, a beat that moves in this cycle has not moved yet.
    now = np.arange(cycles)
    level = np.searchsorted(accepted, now) - np.searchsorted(departed, now)
    i_ready = level < depth if depth > 1 else (level < depth) | ready
    return QueueCycles(accepted, departed, i_valid, i_ready, o_valid, level, offered)
