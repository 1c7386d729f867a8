"""Every cycle of a queue, as a recurrence over beats; mirrors :mod:`hdl.stream`."""

import dataclasses

import numpy as np

__all__ = ["QueueCycles", "queue"]


@dataclasses.dataclass(frozen=True)
class QueueCycles:
    """What a queue does under given stalls.

    Members
    -------
    accepted, departed : array of int
        Cycle in which each beat is accepted, and departs, for those that do so within the run.
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


def _first_from(pattern: np.ndarray) -> np.ndarray:
    """Per cycle, the first cycle from there on in which ``pattern`` holds; its length where there is none."""
    cycles = len(pattern)
    where = np.where(pattern, np.arange(cycles), cycles)
    result = np.minimum.accumulate(where[::-1])[::-1]
    return np.append(result, cycles)


def queue(*, depth: int, latency: int, beats: int, willing: np.ndarray, ready: np.ndarray) -> QueueCycles:
    """Cycles of a queue that begins empty.

    The source offers beat k in the first willing cycle after beat k-1 was accepted; it is accepted in the first cycle
    from there on that is later than the departure of beat k - depth, or not earlier than it where depth is 1. It is
    offered ``latency`` cycles later, or after the departure of beat k-1, and departs in the first ready cycle.

    Parameters
    ----------
    depth, latency : int
        The queue's.
    beats : int
        Beats the source has.
    willing, ready : array of bool
        Per cycle, whether the source begins an offer, and whether the sink is ready; of the same length.
    """
    cycles = len(willing)
    first_willing, first_ready = _first_from(willing), _first_from(ready)
    slack = 0 if depth == 1 else 1
    i_valid, o_valid = np.zeros(cycles, bool), np.zeros(cycles, bool)
    offered = np.full(cycles, -1)
    accepts: list[int] = []
    departs: list[int] = []
    for beat in range(beats):
        valid = int(first_willing[accepts[-1] + 1 if accepts else 0])
        if valid == cycles:
            break
        accept = max(valid, departs[beat - depth] + slack if beat >= depth else 0)
        i_valid[valid:accept + 1] = True
        if accept >= cycles:
            break
        offer = min(max(accept + latency, departs[-1] + 1 if departs else 0), cycles)
        depart = int(first_ready[offer])
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
