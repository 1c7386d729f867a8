"""Golden model of the streamed optimizer: the values of every update, and the cycle of every transfer.

Values are ``uint32`` bit patterns of binary32 numbers; every operation rounds once, to nearest even, and every NaN is
the canonical one. From the sum s of the gradients and the weight w, with the names of :class:`Settings`:

- g = limit(gradient_scale * s), to -clip … clip; then, for all but ADAMW, and if weight_factor is not zero,
  g + weight_factor * w;
- SGD: d = g;
- MOMENTUM: m' = first_decay * m + first_gain * g; d = m', or with ``nesterov`` d = first_decay * m' + g;
- ADAM, ADAMW: m' = first_decay * m + first_gain * g; v' = second_decay * v + (second_gain * g) * g;
  d = m' / (sqrt(v') + epsilon);
- w' = w - learning_rate * d, where ADAMW has weight_factor * w in place of w.

The sum over workers is a balanced tree over their index: neighbours are added, an odd last one moves up as it is.

Cycles follow from recurrences over beats. In all of them a beat moves in the first cycle in which nothing holds it:

- an input's beat is accepted when its source offers it and its buffer has a bank which is not full;
- a burst's first beat enters when its command is at the head of the queue and all its operands are buffered;
- a beat enters one cycle after the one before, or later, when every queue of results can reserve a row for it, and
  only in a cycle that the interval divides;
- a bank is free, and a reserved row returned, one cycle after it was drained.

A cycle that never comes is :data:`NEVER`.
"""

import dataclasses
import enum
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from sim.golden.floating import CANONICAL_NAN, add, divide, multiply, square_root

__all__ = ["NEVER", "Arithmetic", "Burst", "Floats", "Model", "Rows", "Rule", "Scalars", "Settings", "Trace",
           "limit", "reduce", "update"]

Bits = npt.NDArray[np.uint32]

#: A cycle later than all others.
NEVER = 1 << 60

_SIGN = np.uint32(1 << 31)
_ONE = 0x3F80_0000
_INFINITY = 0x7F80_0000


class Rule(enum.IntEnum):
    """How a weight follows its gradient."""

    SGD = 0
    MOMENTUM = 1
    ADAM = 2
    ADAMW = 3

    @property
    def planes(self) -> int:
        """State planes that the rule reads and writes."""
        return {Rule.SGD: 0, Rule.MOMENTUM: 1}.get(self, 2)


@dataclasses.dataclass(frozen=True)
class Settings:
    """The scalars of an update, as bit patterns; :func:`update` alone also takes arrays of them.

    Those that the rule does not name are without effect. ``clip`` is not negative; infinity clips nothing.
    """

    rule: Rule
    gradient_scale: int | Bits
    learning_rate: int | Bits
    clip: int | Bits = _INFINITY
    weight_factor: int | Bits = 0
    first_decay: int | Bits = 0
    first_gain: int | Bits = _ONE
    second_decay: int | Bits = 0
    second_gain: int | Bits = 0
    epsilon: int | Bits = 0
    nesterov: bool | npt.NDArray[np.bool_] = False

    @property
    def planes(self) -> int:
        """State planes that the rule reads and writes."""
        return self.rule.planes


def limit(values: Bits, magnitude: int | Bits) -> Bits:
    """Values whose magnitude is larger become that magnitude, with their own sign; a NaN stays one.

    A sign of ``magnitude`` is ignored.
    """
    absolute, most = values & ~_SIGN, np.asarray(magnitude, dtype=np.uint32) & ~_SIGN
    limited = np.where(absolute > most, values & _SIGN | most, values)
    return np.where(absolute > _INFINITY, CANONICAL_NAN, limited).astype(np.uint32)


def reduce(gradients: npt.ArrayLike) -> Bits:
    """The sum over the first axis, in the order of the hardware's tree."""
    level: list[Bits] = list(np.asarray(gradients, dtype=np.uint32))
    while len(level) > 1:
        sums = [add(one, other) for one, other in zip(level[::2], level[1::2], strict=False)]
        level = sums + level[len(sums) * 2:]
    return level[0]


def update(total: Bits, weights: Bits, state: Sequence[Bits], settings: Settings) -> tuple[Bits, list[Bits]]:
    """New weights and new state. Planes that the rule does not use stay as they are."""
    rule, new_state = settings.rule, list(state)
    gradient = limit(multiply(settings.gradient_scale, total), settings.clip)
    decayed = multiply(settings.weight_factor, weights)
    if rule != Rule.ADAMW:
        without = (np.asarray(settings.weight_factor, dtype=np.uint32) & ~_SIGN) == 0
        gradient = np.where(without, gradient, add(gradient, decayed))
    step = gradient
    if rule != Rule.SGD:
        step = new_state[0] = add(multiply(settings.first_decay, state[0]), multiply(settings.first_gain, gradient))
    if rule == Rule.MOMENTUM:
        step = np.where(settings.nesterov, add(multiply(settings.first_decay, step), gradient), step)
    elif rule in (Rule.ADAM, Rule.ADAMW):
        square = multiply(multiply(settings.second_gain, gradient), gradient)
        new_state[1] = add(multiply(settings.second_decay, state[1]), square)
        step = divide(step, add(square_root(new_state[1]), settings.epsilon))
    start = decayed if rule == Rule.ADAMW else weights
    return add(start, multiply(settings.learning_rate, step) ^ _SIGN), new_state


class Scalars(Protocol):
    """Settings of any arithmetic."""

    @property
    def planes(self) -> int:
        """State planes that the rule reads and writes."""
        ...


class Arithmetic(Protocol):
    """Values of an update, in one number format, and the time it takes. Elements are bit patterns.

    Members
    -------
    planes : int
        State planes of the rules that there are.
    level : int
        Cycles of one level of the tree that sums gradients.
    weight : int
        Cycles from the sum to the weight that belongs to it.
    state, new_state : tuple of int
        Cycles from the sum to the state of each plane, and to the new one.
    latency : int
        Cycles from the sum to the new weight.
    """

    @property
    def planes(self) -> int: ...
    @property
    def weight(self) -> int: ...
    @property
    def state(self) -> tuple[int, ...]: ...
    @property
    def new_state(self) -> tuple[int, ...]: ...
    @property
    def latency(self) -> int: ...

    def summing(self, workers: int) -> int:
        """Cycles from gradients of so many workers to their sum."""
        ...

    def reduce(self, gradients: Bits) -> Bits:
        """Sums over the first axis, as wide as they are."""
        ...

    def finite(self, total: Bits) -> npt.NDArray[np.bool_]:
        """Which sums are numbers."""
        ...

    def update(self, total: Bits, weights: Bits, state: Sequence[Bits], settings: Any) -> tuple[Bits, list[Bits]]:
        """New weights and new state."""
        ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Floats:
    """Binary32 arithmetic of one set of rules.

    Parameters
    ----------
    rules : tuple of Rule
    adder, multiplier, limiter, root, divider : int
        Latencies, in cycles.
    """

    rules: tuple[Rule, ...] = tuple(Rule)
    adder: int = 7
    multiplier: int = 6
    limiter: int = 2
    root: int = 21
    divider: int = 23

    @property
    def planes(self) -> int:
        return max(rule.planes for rule in self.rules)

    @property
    def weight(self) -> int:
        return self.limiter  # its product with the weight factor is wanted as the limited gradient comes out

    @property
    def state(self) -> tuple[int, ...]:
        gradient = self.multiplier + self.limiter + self.adder
        return (gradient, gradient + self.multiplier + self.adder)[:self.planes]

    @property
    def new_state(self) -> tuple[int, ...]:
        return tuple(cycle + self.multiplier + self.adder for cycle in self.state)

    @property
    def latency(self) -> int:
        # One multiplication and addition for each of weight decay, both moments or momentum and its look ahead, and
        # the weight.
        passes = 4 if self.planes else 2
        adaptive = self.root + self.adder + self.divider if self.planes == 2 else 0
        return self.limiter + passes * (self.multiplier + self.adder) + adaptive

    def summing(self, workers: int) -> int:
        return self.adder * (workers - 1).bit_length()

    def reduce(self, gradients: Bits) -> Bits:
        return reduce(gradients)

    def finite(self, total: Bits) -> npt.NDArray[np.bool_]:
        return np.asarray((total >> np.uint32(23) & np.uint32(0xFF)) != 0xFF)

    def update(self, total: Bits, weights: Bits, state: Sequence[Bits],
               settings: Settings) -> tuple[Bits, list[Bits]]:
        return update(total, weights, state, settings)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SharedFloats(Floats):
    """Binary32 arithmetic whose operations share their units. When each runs is the timetable's to say.

    Parameters
    ----------
    sum_at, weight_at, latency_of_all : int
        Cycles from the gradients to their sum, to the weight that is taken, and to the new weight.
    state_at, new_state_at : tuple of int
        The same for the state of each plane.
    """

    sum_at: int
    weight_at: int
    state_at: tuple[int, ...]
    new_state_at: tuple[int, ...]
    latency_of_all: int

    @property
    def weight(self) -> int:
        return self.weight_at - self.sum_at

    @property
    def state(self) -> tuple[int, ...]:
        return tuple(cycle - self.sum_at for cycle in self.state_at)

    @property
    def new_state(self) -> tuple[int, ...]:
        return tuple(cycle - self.sum_at for cycle in self.new_state_at)

    @property
    def latency(self) -> int:
        return self.latency_of_all - self.sum_at

    def summing(self, workers: int) -> int:
        return self.sum_at


@dataclasses.dataclass(frozen=True)
class Burst:
    """One command: how many elements, and which workers send gradients (bit n: worker n)."""

    count: int
    active: int


@dataclasses.dataclass(frozen=True)
class Rows:
    """The beats of an output in order; elements whose keep bit is clear are unspecified."""

    elements: Bits
    keep: npt.NDArray[np.uint8]
    last: npt.NDArray[np.uint8]


@dataclasses.dataclass(frozen=True)
class Trace:
    """What every port does, cycle by cycle.

    Members
    -------
    signals : dict of arrays
        ``<stream>__ready`` of the inputs, ``<stream>__valid`` of inputs and outputs, ``bursts``, ``nonfinite`` and
        ``idle``.
    beat : dict of arrays
        Which beat each output offers in a cycle; -1 where it offers none.
    rows : dict of Rows
        The beats of each output.
    begins, ends : list of int
        Per burst, the cycles in which its first beat enters and in which its last new weights are offered.
    """

    signals: dict[str, npt.NDArray[np.uint8]]
    beat: dict[str, npt.NDArray[np.int64]]
    rows: dict[str, Rows]
    begins: list[int]
    ends: list[int]


class _Pattern:
    """The cycles in which one side of a stream is willing; none after the last that is given."""

    def __init__(self, willing: npt.NDArray[np.bool_] | None) -> None:
        self._next: list[int] | None = None
        if willing is not None:
            positions = np.where(willing, np.arange(len(willing)), NEVER)
            self._next = np.minimum.accumulate(positions[::-1])[::-1].tolist()

    def first(self, cycle: int) -> int:
        """The first willing cycle from the given one on."""
        if self._next is None or cycle >= NEVER:
            return cycle
        return self._next[cycle] if cycle < len(self._next) else NEVER


class _Source:
    """Offers beats one after another."""

    def __init__(self, pattern: _Pattern) -> None:
        self._pattern = pattern
        self.offers: list[int] = []
        self.accepts: list[int] = []

    def transfer(self, free: int) -> int:
        """The next beat, which is accepted from cycle ``free`` on."""
        before = self.accepts[-1] if self.accepts else -1
        offer = self._pattern.first(_later(before, 1))
        self.offers.append(offer)
        self.accepts.append(max(offer, free))
        return self.accepts[-1]


class _Buffer:
    """Banks of operands: when each fill is complete, given when earlier ones are discarded."""

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
        """Accept the next fill, as far as that can be known."""
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
        """The cycle from which the next bank can be claimed, and its elements, padded with zeros."""
        number = len(self.discards)
        if number == len(self.fills):
            return NEVER, np.zeros(self._depth, np.uint32)
        self.fill()
        elements = np.zeros(self._depth, np.uint32)
        given = self.fills[number][:self._depth]
        elements[:len(given)] = given
        return _later(self.completes[number], 1), elements

    def discard(self, cycle: int) -> None:
        """The last beat of the burst which claimed the oldest bank enters in this cycle."""
        if len(self.discards) < len(self.fills):
            self.discards.append(_later(cycle, self.delay))

    def finish(self) -> None:
        """Accept all further fills for which there is a bank."""
        while len(self.completes) < len(self.fills):
            self.fill()


class _Queue:
    """A queue of results, with a place reserved for each row before it is computed."""

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
        """The cycle from which a row can be reserved."""
        index = len(self.departs) - self._depth
        return _later(self.departs[index], 1) if index >= 0 else 0

    def push(self, entered: int, delay: int, row: tuple[Bits, int, int]) -> int:
        """Reserve a row, and let it arrive ``delay`` cycles later. Returns the cycle of its offer."""
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
    """In each cycle, how many of the spans ``first`` to ``last``, both included, are under way."""
    change = np.zeros(cycles + 1, np.int64)
    np.add.at(change, np.minimum(np.asarray(first, dtype=np.int64), cycles), 1)
    np.add.at(change, np.minimum(np.asarray(last, dtype=np.int64) + 1, cycles), -1)
    return np.cumsum(change[:cycles])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Model:
    """A streamed optimizer.

    Parameters
    ----------
    workers, lanes, depth, update_lanes, interval, broadcasts : int
        As of the gateware.
    arithmetic : Arithmetic
    """

    workers: int = 2
    lanes: int = 4
    depth: int = 256
    update_lanes: int = 4
    interval: int = 1
    broadcasts: int = 1
    arithmetic: Arithmetic = dataclasses.field(default_factory=Floats)

    #: Cycles from the address of an operand to the operand, and through an empty queue of results.
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
        """Banks of a stream whose elements are taken so many cycles after a burst has begun: with them fills keep up.

        With an interval of 1 a burst is no longer than its fill, so there is a bank for each that the delay spans and
        two more. Else a bank is discarded ``delay`` after the last beat of its burst, filled from the next cycle on,
        and full in the cycle before that burst begins which takes it next: as many bursts later as there are banks.
        """
        beats = self.depth // self.update_lanes
        burst = beats * self.interval
        if self.interval == 1:
            return 2 + -(-delay // burst)
        banks = 2
        while burst - self.interval + delay + 1 + beats > banks * burst:
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
        """Values and cycles of a sequence of bursts, from reset.

        Parameters
        ----------
        bursts : sequence of Burst
        settings : Settings
        fills : mapping
            Per operand stream, the elements of each of its fills, at least one in each.
        stalls : mapping
            Per stream, ``command`` among them, in which cycles its other side is willing; always, if left out. A
            source begins to offer its next beat in a willing cycle, a sink is ready in one.
        cycles : int
            How long to trace.
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
        # Cycles from the entry of a beat to its sum, its new state and its new weights.
        summed = self.READ + self.reducer_latency
        remembered = [summed + latency for latency in arithmetic.new_state]
        updated = summed + arithmetic.latency

        taken: list[int] = []  # the last beat of each burst, which takes its command
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
                entered = max(_later(entered, 1), earliest, *(queues[name].room for name in results))
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
