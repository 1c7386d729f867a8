"""Golden model of the streamed optimizer: the values in its bursts, and the cycle-accurate timing."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sim.golden.optimizer import Arithmetic, Bits, Floats, Scalars

__all__ = ["NEVER", "Burst", "Model", "Rows", "Trace"]

#: A cycle that never comes, later than any other.
NEVER = 1 << 60


@dataclasses.dataclass(frozen=True)
class Burst:
    """Burst command: number of elements, and mask of the workers that send gradients (bit n for worker n)."""

    count: int
    active: int


@dataclasses.dataclass(frozen=True)
class Rows:
    """Beats of an output in order; elements with a clear keep bit are unspecified."""

    elements: Bits
    keep: npt.NDArray[np.uint8]
    last: npt.NDArray[np.uint8]


@dataclasses.dataclass(frozen=True)
class Trace:
    """Trace of all ports in every cycle.

    Members
    -------
    signals : dict of arrays
        ``<stream>__ready`` of the inputs, ``<stream>__valid`` of inputs and outputs, ``bursts``, ``nonfinite`` and
        ``idle``.
    beat : dict of arrays
        Index of the beat that each output offers in each cycle, or -1.
    rows : dict of Rows
        The beats of each output.
    begins, ends : list of int
        For each burst, the cycle when its first beat enters, and the cycle when its last new weights are offered.
    """

    signals: dict[str, npt.NDArray[np.uint8]]
    beat: dict[str, npt.NDArray[np.int64]]
    rows: dict[str, Rows]
    begins: list[int]
    ends: list[int]


class _Pattern:
    """Cycles in which one side of a stream is willing to transfer; after the end of the pattern, it never is."""

    def __init__(self, willing: npt.NDArray[np.bool_] | None) -> None:
        self._next: list[int] | None = None
        if willing is not None:
            positions = np.where(willing, np.arange(len(willing)), NEVER)
            self._next = np.minimum.accumulate(positions[::-1])[::-1].tolist()

    def first(self, cycle: int) -> int:
        """First cycle at or after ``cycle`` in which the side is willing to transfer."""
        if self._next is None or cycle >= NEVER:
            return cycle
        return self._next[cycle] if cycle < len(self._next) else NEVER


class _Source:
    """Source of a stream, which offers one beat after another."""

    def __init__(self, pattern: _Pattern) -> None:
        self._pattern = pattern
        self.offers: list[int] = []
        self.accepts: list[int] = []

    def transfer(self, free: int) -> int:
        """Offer the next beat, which can be accepted from cycle ``free``; return the cycle of its transfer."""
        before = self.accepts[-1] if self.accepts else -1
        offer = self._pattern.first(_later(before, 1))
        self.offers.append(offer)
        self.accepts.append(max(offer, free))
        return self.accepts[-1]


class _Buffer:
    """Operand buffer with several banks. A fill waits for a free bank; its last accepted beat completes it."""

    def __init__(self, fills: Sequence[Bits], *, lanes: int, depth: int, banks: int, delay: int,
                 pattern: _Pattern) -> None:
        self.fills = fills
        self.banks = banks
        self.delay = delay
        self.source = _Source(pattern)
        self._lanes = lanes
        self._depth = depth
        self.completes: list[int] = []
        self.discards: list[int] = []

    def fill(self) -> None:
        """Accept the next fill in a free bank; its cycle is :data:`NEVER` if no discard has freed the bank so far."""
        number = len(self.completes)
        free = 0
        if number >= self.banks:
            freed_by = number - self.banks
            free = _later(self.discards[freed_by], 1) if freed_by < len(self.discards) else NEVER
        accept = 0
        for _ in range(-(-len(self.fills[number]) // self._lanes)):
            accept = self.source.transfer(free)
        self.completes.append(accept)

    def claim(self) -> tuple[int, Bits]:
        """Return the first cycle when a burst can use the next bank, and the bank's elements, padded with zeros."""
        number = len(self.discards)
        if number == len(self.fills):
            return NEVER, np.zeros(self._depth, np.uint32)
        self.fill()
        elements = np.zeros(self._depth, np.uint32)
        values = self.fills[number][:self._depth]
        elements[:len(values)] = values
        return _later(self.completes[number], 1), elements

    def discard(self, cycle: int) -> None:
        """Discard the oldest bank after the last beat of its burst has entered in ``cycle``."""
        if len(self.discards) < len(self.fills):
            self.discards.append(_later(cycle, self.delay))

    def finish(self) -> None:
        """Accept all remaining fills for which a bank is free."""
        while len(self.completes) < len(self.fills):
            self.fill()


class _Queue:
    """Result queue that reserves an entry for each row before the row is computed."""

    def __init__(self, *, depth: int, latency: int, pattern: _Pattern) -> None:
        self._depth = depth
        self._latency = latency
        self._pattern = pattern
        self.reserves: list[int] = []
        self.offers: list[int] = []
        self.departs: list[int] = []
        self.rows: list[tuple[Bits, int, int]] = []

    @property
    def room(self) -> int:
        """First cycle when a row of the result queue can be reserved."""
        index = len(self.departs) - self._depth
        return _later(self.departs[index], 1) if index >= 0 else 0

    def push(self, entered: int, delay: int, row: tuple[Bits, int, int]) -> int:
        """Reserve a row that arrives ``delay`` cycles later, and return the cycle when it is offered."""
        before = self.departs[-1] if self.departs else -1
        offer = max(_later(entered, delay + self._latency), _later(before, 1))
        self.reserves.append(entered)
        self.offers.append(offer)
        self.departs.append(self._pattern.first(offer))
        self.rows.append(row)
        return offer


def _later(cycle: int, by: int) -> int:
    return min(cycle + by, NEVER)


def _during(first: Sequence[int], last: Sequence[int], cycles: int) -> npt.NDArray[np.int64]:
    """Number of spans in progress in each cycle. A span lasts from its ``first`` to its ``last`` cycle, inclusive."""
    change = np.zeros(cycles + 1, np.int64)
    np.add.at(change, np.minimum(np.asarray(first, dtype=np.int64), cycles), 1)
    np.add.at(change, np.minimum(np.asarray(last, dtype=np.int64) + 1, cycles), -1)
    return np.cumsum(change[:cycles])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Model:
    """Model of a streamed optimizer.

    Parameters
    ----------
    workers, lanes, depth, update_lanes, interval, broadcasts : int
        Parameters of the gateware.
    arithmetic : Arithmetic
    """

    workers: int = 2
    lanes: int = 4
    depth: int = 256
    update_lanes: int = 4
    interval: int = 1
    broadcasts: int = 1
    arithmetic: Arithmetic = dataclasses.field(default_factory=Floats)

    #: Latency in cycles from an operand's address to the operand, and through an empty result queue.
    READ = 3
    QUEUE = 3

    @property
    def planes(self) -> int:
        return self.arithmetic.planes

    @property
    def reducer_latency(self) -> int:
        return self.arithmetic.summing(self.workers)

    @property
    def update_latency(self) -> int:
        return self.READ + self.arithmetic.latency + self.QUEUE

    @property
    def queue_depth(self) -> int:
        parts = self.lanes // self.update_lanes * self.interval
        return max(self.depth // self.lanes, (self.reducer_latency + self.update_latency) // parts + 2)

    def banks(self, delay: int) -> int:
        """Number of banks that a stream needs to keep up if it is read ``delay`` cycles after a burst begins.

        With an interval of 1, a burst takes no longer than filling a bank, so the stream needs two banks plus one
        for each burst that begins within the delay. With a longer interval, a bank is discarded ``delay`` cycles
        after the last beat of its burst, and the next fill starts one cycle later. The bank must be full two cycles
        before its next burst begins, which is ``banks`` bursts later.
        """
        beats = self.depth // self.update_lanes
        burst = beats * self.interval
        if self.interval == 1:
            return 2 + -(-delay // burst)
        banks = 2
        while burst - self.interval + delay + 2 + beats > banks * burst:
            banks += 1
        return banks

    def inputs(self) -> list[str]:
        """Names of the operand streams."""
        return [*(f"gradients__{n}" for n in range(self.workers)), "weights",
                *(f"state__{n}" for n in range(self.planes))]

    def outputs(self) -> list[str]:
        """Names of the result streams."""
        return ["weights_out", *(f"state_out__{n}" for n in range(self.planes)),
                *(f"broadcast__{n}" for n in range(self.broadcasts))]

    def run(self, bursts: Sequence[Burst], settings: Scalars, fills: Mapping[str, Sequence[Bits]], *,
            stalls: Mapping[str, npt.NDArray[np.bool_]], cycles: int) -> Trace:
        """Compute the values and cycles of a sequence of bursts, starting from reset.

        Parameters
        ----------
        bursts : sequence of Burst
        settings : Settings
        fills : mapping
            Elements of each fill, keyed by operand stream; fills must not be empty.
        stalls : mapping
            Cycles when a stream's other side is willing to transfer (by default all), keyed by stream, including
            ``command``. A source begins to offer its next beat, or a sink is ready, only in a willing cycle.
        cycles : int
            Number of cycles to trace.
        """
        arithmetic = self.arithmetic
        delays = {"weights": self.reducer_latency + arithmetic.weight}
        delays |= {f"state__{n}": self.reducer_latency + offset for n, offset in enumerate(arithmetic.state)}
        patterns = {name: _Pattern(stalls.get(name)) for name in ["command", *self.inputs(), *self.outputs()]}
        buffers = {}
        for name in self.inputs():
            delay = delays.get(name, 0)
            buffers[name] = _Buffer(fills.get(name, []), lanes=self.lanes, depth=self.depth, delay=delay,
                                    banks=self.banks(delay), pattern=patterns[name])
        queues = {name: _Queue(depth=self.queue_depth, latency=self.QUEUE, pattern=patterns[name])
                  for name in self.outputs()}
        commands = _Source(patterns["command"])
        # Latency in cycles from the entry of a beat to its sum, its new state and its new weights.
        summed = self.READ + self.reducer_latency
        remembered = [summed + latency for latency in arithmetic.new_state]
        updated = summed + arithmetic.latency

        taken: list[int] = []  # for each burst, the cycle when its last beat enters and its command is taken
        begins, ends, bursts_at, nonfinite_at = [], [], [], []
        for number, burst in enumerate(bursts):
            commands.transfer(_later(taken[number - 2], 1) if number >= 2 else 0)
            earliest = max(_later(commands.accepts[number], 1), _later(taken[-1], 1) if taken else 0)

            gradients = np.zeros((self.workers, self.depth), np.uint32)
            claimed = []
            for worker in range(self.workers):
                if burst.active >> worker & 1:
                    claimed.append(buffers[f"gradients__{worker}"])
                    ready, gradients[worker] = claimed[-1].claim()
                    earliest = max(earliest, ready)
            state = []
            for plane in range(settings.planes):
                claimed.append(buffers[f"state__{plane}"])
                ready, elements = claimed[-1].claim()
                state.append(elements)
                earliest = max(earliest, ready)
            claimed.append(buffers["weights"])
            ready, weights = claimed[-1].claim()
            earliest = max(earliest, ready)

            total = arithmetic.reduce(gradients)
            new_weights, new_state = arithmetic.update(total, weights, state, settings)
            results = {name: (updated, new_weights) for name in queues if not name.startswith("state_out")}
            results |= {f"state_out__{n}": (remembered[n], new_state[n]) for n in range(settings.planes)}
            finite = arithmetic.finite(total)

            entered = earliest - 1
            for start in range(0, burst.count, self.update_lanes):
                stop = min(start + self.update_lanes, burst.count)
                ready = max(earliest, *(queues[name].room for name in results))
                # With an interval above 1, the gateware decides one cycle earlier whether a beat enters.
                entered = max(_later(entered, 1), _later(ready, int(self.interval > 1)))
                entered = _later(entered, -entered % self.interval)
                if start == 0:
                    begins.append(entered)
                if not finite[start:stop].all():
                    nonfinite_at.append(_later(entered, summed + 1))
                if stop % self.lanes == 0 or stop == burst.count:
                    row = start // self.lanes * self.lanes
                    keep = (1 << stop - row) - 1
                    for name, (delay, values) in results.items():
                        last = int(stop == burst.count)
                        offer = queues[name].push(entered, delay, (values[row:row + self.lanes], keep, last))
                        if name == "weights_out" and last:
                            ends.append(offer)
            taken.append(entered)
            bursts_at.append(_later(entered, updated))
            for buffer in claimed:
                buffer.discard(entered)

        signals: dict[str, npt.NDArray[Any]] = {}
        beat: dict[str, npt.NDArray[np.int64]] = {}
        rows: dict[str, Rows] = {}
        for name, buffer in buffers.items():
            buffer.finish()
            signals[f"{name}__valid"] = _during(buffer.source.offers, buffer.source.accepts, cycles)
            discards = buffer.discards + [NEVER] * (len(buffer.completes) - len(buffer.discards))
            occupied = _during([_later(cycle, 1) for cycle in buffer.completes], discards, cycles)
            signals[f"{name}__ready"] = occupied != buffer.banks
        signals["command__valid"] = _during(commands.offers, commands.accepts, cycles)
        held = _during([_later(cycle, 1) for cycle in commands.accepts], taken, cycles)
        signals["command__ready"] = held < 2
        busy = held != 0
        for name, queue in queues.items():
            signals[f"{name}__valid"] = _during(queue.offers, queue.departs, cycles)
            under_way = _during(queue.offers, [NEVER] * len(queue.offers), cycles)
            beat[name] = np.where(signals[f"{name}__valid"] != 0, under_way - 1, -1)
            rows[name] = Rows(elements=np.array([row for row, _, _ in queue.rows], np.uint32),
                              keep=np.array([keep for _, keep, _ in queue.rows], np.uint8),
                              last=np.array([last for _, _, last in queue.rows], np.uint8))
            busy |= _during([_later(cycle, 1) for cycle in queue.reserves], queue.departs, cycles) != 0
        signals["idle"] = ~busy
        signals["bursts"] = _during(bursts_at, bursts_at, cycles)
        signals["nonfinite"] = _during(nonfinite_at, nonfinite_at, cycles)
        return Trace(signals={name: np.asarray(values, np.uint8) for name, values in signals.items()},
                     beat=beat, rows=rows, begins=begins, ends=ends)
