# amaranth: UnusedElaboratable=no
# The constructor creates the arithmetic because its latencies are needed even without elaboration.
"""Optimizer that works in bursts: it takes gradients, and sends new weights to memory and to every worker."""

from amaranth.hdl import C, Cat, Module, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.floating.format import FP32
from hdl.optimizer.burst_controller import BurstController, command_layout, tag_layout
from hdl.optimizer.fixed_point import FixedFormat, FixedLane, FixedReducer
from hdl.optimizer.gradient_buffer import GradientBuffer
from hdl.optimizer.reducer import Reducer
from hdl.optimizer.row_collector import RowCollector
from hdl.optimizer.rules import Rule, UpdateLane, check_rules, planes_used
from hdl.optimizer.shared_lane import SharedLane
from hdl.streams.delay import DelayLine
from hdl.streams.stream import Queue, beat_layout, check_lanes, connect_stream, step_count
from hdl.throttle import RATE_BITS, Throttle

__all__ = ["StreamedOptimizer"]

_QUEUE_LATENCY = 3  # latency of block memory in cycles


class StreamedOptimizer(wiring.Component):
    """Sum gradients over workers, update weights and state, and output the new weights, in bursts.

    A command gives the number of elements in a burst and the workers that send gradients for it; the gradients of
    all other workers are +0.0. Each worker's gradients, the weights and the state are separate streams of packets
    that end with ``last``. They are buffered first, at any rate and even before their command; beats beyond the
    command's count are ignored. When all operands are complete, the burst runs: ``ceil(count / update_lanes)``
    beats, one every ``update_interval`` cycles, and every new weight goes to memory and to every broadcast port.
    Gradients are discarded as they are drained; no copy is kept.

    Timing
    ------
    If its operands are buffered, its command accepted and its queues empty, a burst of T beats takes exactly ``T +
    reducer_latency + update_latency`` cycles, from its first beat to its last row, inclusive. The first beat enters
    in the cycle after the last of these conditions is met. Bursts of ``depth`` elements follow each other every
    ``depth / update_lanes`` cycles, without gaps, as long as streams and queues keep pace. Both latencies depend on
    ``rules``, ``format`` and ``update_interval``, but not on the rule in use.

    With an ``update_interval`` of i, beats enter only in every i-th cycle, counted from reset, if all operands were
    available in the preceding cycle. So the first beat is 1 to i cycles later, the burst takes ``i * (T - 1) + 1 +
    reducer_latency + update_latency`` cycles from it, and bursts of ``depth`` elements follow each other every ``i *
    depth / update_lanes`` cycles.

    No ready signal passes through the arithmetic: a beat enters when a row has been reserved for it in every result
    queue. A stalled port delays only later beats, never beats in flight. Each queue holds a whole burst, so within a
    burst no port waits for another. All ``ready`` inputs and outputs connect to registers only.

    ``settings`` must hold the values for the commands, and be stable, from the cycle before a command's transfer
    until ``idle``. Planes that a rule does not use are neither awaited nor written.

    Parameters
    ----------
    workers : int
        Number of gradient streams, 1 to 8.
    lanes : int
        Number of elements per beat: 1, 2, 4 or 8.
    depth : int
        Maximum number of elements in a burst; a positive multiple of ``lanes``.
    update_lanes : int or None
        Number of update lanes, which is the number of elements that enter the arithmetic per cycle: 1, 2, 4 or 8, at
        most ``lanes`` (the default).
    update_interval : int
        Cycles per beat that enters the arithmetic: 1, 2, 4 or 8. With more than one cycle, operations share adders
        and multipliers (:class:`~hdl.optimizer.shared_lane.SharedLane`), and beats are as narrow as the arithmetic:
        ``update_lanes`` must be ``lanes``, and units with wider beats must split them (:mod:`~hdl.optimizer.slices`).
        Must be 1 in fixed point.
    broadcasts : int
        Number of ports that repeat the new weights; at least 1.
    rules : tuple of Rule or None
        Rules that a command may use, which determine the number of state planes. Default: all rules of the format.
    format : FloatFormat or FixedFormat
        Format of gradients, weights and state: FP32, or fixed point with SGD and momentum.
    dsps : int
        DSP blocks per floating-point multiplier: 4, 2 or 1.
    primitive : bool
        Whether the fixed-point multipliers are instances of the ECP5 block, which simulators do not support; see
        :class:`~hdl.optimizer.fixed_point.MultiplierBlock`.
    throttled : bool
        Whether beats enter only in ``rate`` of every 65,536 possible cycles (in all of them if ``rate`` is 0).

    Members
    -------
    command : In(stream of command_layout(workers, depth))
    settings : In(settings_layout() or fixed_settings_layout())
    gradients : In(stream of beat_layout(lanes, width)).array(workers)
    weights : In(stream of beat_layout(lanes, width))
    state : In(stream of beat_layout(lanes, width)).array(planes)
    weights_out : Out(stream of beat_layout(lanes, width))
    state_out : Out(stream of beat_layout(lanes, width)).array(planes)
    broadcast : Out(stream of beat_layout(lanes, width)).array(broadcasts)
    rate : In(16)
        Present if ``throttled``.
    nonfinite : Out(1)
        Pulse: a reduced gradient of a burst is infinite or not a number. It occurs no later than that burst's pulse
        of ``bursts``, and never in fixed point.
    bursts : Out(1)
        Pulse: the last new weights of a burst entered their queues.
    idle : Out(1)
        No command is held, and all results have been accepted.
    """

    def __init__(
        self, *, workers=2, lanes=4, depth=256, update_lanes=None, update_interval=1, broadcasts=1, rules=None,
        format=FP32, dsps=4, primitive=False, throttled=False
    ):
        if not isinstance(workers, int) or not 1 <= workers <= 8:
            raise ValueError(f"Worker count must be between 1 and 8, not {workers!r}")
        check_lanes(lanes)
        if update_lanes is None:
            update_lanes = lanes
        if update_lanes not in (1, 2, 4, 8) or update_lanes > lanes:
            raise ValueError(f"Update lane count must be 1, 2, 4 or 8 and at most {lanes}, not {update_lanes!r}")
        if not isinstance(depth, int) or depth < lanes or depth % lanes:
            raise ValueError(f"Depth must be a positive multiple of {lanes} lanes, not {depth!r}")
        if not isinstance(broadcasts, int) or broadcasts < 1:
            raise ValueError(f"Broadcast port count must be a positive integer, not {broadcasts!r}")
        if format != FP32 and not isinstance(format, FixedFormat):
            raise ValueError(f"Format must be FP32 or a FixedFormat, not {format!r}")
        if dsps not in (1, 2, 4):
            raise ValueError(f"DSP block count must be 4, 2 or 1, not {dsps!r}")
        fixed = isinstance(format, FixedFormat)
        if update_interval not in ((1,) if fixed else (1, 2, 4, 8)):
            possible = "1 in fixed point" if fixed else "1, 2, 4 or 8"
            raise ValueError(f"Update interval must be {possible}, not {update_interval!r}")
        if update_interval > 1 and update_lanes != lanes:
            raise ValueError(
                f"Update interval must be 1 with fewer update lanes than {lanes}, not {update_interval!r}")
        if rules is None:
            rules = (Rule.SGD, Rule.MOMENTUM) if fixed else tuple(Rule)
        check_rules(rules)
        self._workers = workers
        self._lanes = lanes
        self._depth = depth
        self._update_lanes = update_lanes
        self._broadcasts = broadcasts
        self._rules = rules
        self._width = format.width
        self._float = not fixed
        self._interval = update_interval
        self._throttled = throttled
        if fixed:
            self._reducers = [FixedReducer(workers=workers, format=format) for _ in range(update_lanes)]
            lane = {"format": format, "workers": workers, "rules": rules, "primitive": primitive}
            self._updates = [FixedLane(**lane) for _ in range(update_lanes)]
        elif update_interval > 1:
            self._reducers = []
            self._updates = [
                SharedLane(interval=update_interval, workers=workers, rules=rules, dsps=dsps)
                for _ in range(update_lanes)
            ]
        else:
            self._reducers = [Reducer(workers=workers) for _ in range(update_lanes)]
            self._updates = [UpdateLane(rules=rules, dsps=dsps) for _ in range(update_lanes)]
        self._row = beat_layout(lanes, self._width)
        beats = stream.Signature(self._row)
        super().__init__(
            {
                "command": In(stream.Signature(command_layout(workers, depth))),
                "settings": In(self._updates[0].settings.shape()),
                "gradients": In(beats).array(workers),
                "weights": In(beats),
                "state": In(beats).array(self.planes),
                "weights_out": Out(beats),
                "state_out": Out(beats).array(self.planes),
                "broadcast": Out(beats).array(broadcasts),
                "nonfinite": Out(1),
                "bursts": Out(1),
                "idle": Out(1),
                **({"rate": In(RATE_BITS)} if throttled else {}),
            }
        )

    @property
    def planes(self):
        """Number of state planes that the rules need."""
        return self._updates[0].planes

    @property
    def lane(self):
        """Arithmetic of one update lane, which determines the latencies of the optimizer."""
        return self._updates[0]

    @property
    def interval(self):
        """Number of cycles per beat that enters the arithmetic."""
        return self._interval

    @property
    def adder_latency(self):
        """Latency in cycles of one level of the reducer tree; defined only for an interval of 1."""
        return self._reducers[0].adder_latency

    @property
    def reducer_latency(self):
        """Latency in cycles from a beat's gradients to their sum."""
        return self._reducers[0].latency if self._interval == 1 else self.lane.reducer_latency

    @property
    def update_latency(self):
        """Latency in cycles from a beat's entry to its new weights, excluding :attr:`reducer_latency`."""
        return GradientBuffer.latency + self.lane.latency + _QUEUE_LATENCY

    @property
    def latency(self):
        """Latency in cycles from a beat's entry until its new weights are offered."""
        return self.reducer_latency + self.update_latency

    @property
    def queue_depth(self):
        """Capacity of each result queue in rows: at least a whole burst, and enough to keep the arithmetic busy."""
        rows_under_way = self.latency // (self._lanes // self._update_lanes * self._interval) + 2
        return max(self._depth // self._lanes, rows_under_way)

    def _banks(self, delay):
        """Return the number of banks for a buffer that is drained ``delay`` cycles after its burst begins."""
        beats = self._depth // self._update_lanes
        if self._interval == 1:
            return 2 + -(-delay // beats)
        # Filling a bank takes less time than its burst, and the remaining time covers most delays.
        return max(2, 1 + -(-(delay + beats + 2 - self._interval) // (beats * self._interval)))

    def elaborate(self, platform):
        m = Module()
        lanes, update_lanes, width = self._lanes, self._update_lanes, self._width
        # Delay a beat's other operands relative to its gradients, so that they meet the intermediate results.
        weight_delay = self.reducer_latency + self.lane.weight_offset
        state_delays = [self.reducer_latency + offset for offset in self.lane.state_offsets]

        m.submodules.control = control = BurstController(
            workers=self._workers, lanes=lanes, update_lanes=update_lanes, depth=self._depth,
            paced=self._interval > 1,
        )
        connect_stream(m, self.command, control.command)

        # One-hot count of cycles, modulo the interval, since the last cycle in which a beat could enter. The
        # controller has its own copy because the other registers have a large fan-out.
        phase, turn = Signal(self._interval, init=1), Signal(self._interval, init=1)
        if self._interval > 1:
            m.d.sync += [phase.eq(phase.rotate_left(1)), turn.eq(turn.rotate_left(1))]
        else:
            phase = turn = C(1, 1)

        # Delays in cycles from a beat's entry to its results.
        summed = GradientBuffer.latency + self.reducer_latency
        remembered = [summed + latency for latency in self.lane.state_latencies]
        updated = summed + self.lane.latency
        tags = self._delay_tags(m, control.beat, phase, {*state_delays, weight_delay, summed, *remembered, updated})

        # Settings are valid from one cycle before their command.
        used_planes = Signal(max(self.planes, 1))
        m.d.sync += used_planes.eq(planes_used(self.settings.rule, self.planes))

        def buffer(name, source, *, used, delay=0):
            """Buffer an operand stream that is output with the beat that entered ``delay`` cycles earlier."""
            m.submodules[name] = banks = GradientBuffer(
                lanes=lanes, read_lanes=update_lanes, depth=self._depth, banks=self._banks(delay), width=width
            )
            connect_stream(m, source, banks.i)
            m.d.comb += [
                banks.claim.eq(control.begin & used),
                banks.take.eq(tags[delay].valid & used),
                banks.finish.eq(tags[delay].last),
            ]
            return banks

        gradients = [
            buffer(f"gradients_{worker}", self.gradients[worker], used=control.active[worker])
            for worker in range(self._workers)
        ]
        state = [
            buffer(f"state_{plane}", self.state[plane], used=used_planes[plane], delay=state_delays[plane])
            for plane in range(self.planes)
        ]
        weights = buffer("weights", self.weights, used=1, delay=weight_delay)
        m.d.comb += [
            control.filled.eq(Cat(banks.filled for banks in gradients)),
            control.supplied.eq(weights.filled & (Cat(banks.filled for banks in state) | ~used_planes).all()),
        ]

        def collector(name, tag):
            m.submodules[name] = rows = RowCollector(lanes=lanes, update_lanes=update_lanes, width=width)
            m.d.comb += rows.tag.eq(tag)
            return rows

        new_weights = collector("new_weights", tags[updated])
        new_state = [collector(f"new_state_{plane}", tags[remembered[plane]]) for plane in range(self.planes)]
        nonfinite = Signal(update_lanes)
        for index, lane in enumerate(self._updates):
            if self._interval == 1:
                m.submodules[f"reducer_{index}"] = reducer = self._reducers[index]
                m.d.comb += lane.total.eq(reducer.o)
                operands = reducer.i
            else:
                m.d.comb += lane.phase.eq(phase.rotate_right(GradientBuffer.latency))
                operands = lane.gradients
            m.submodules[f"update_{index}"] = lane
            for worker in range(self._workers):
                m.d.comb += operands[worker].eq(gradients[worker].o[index])
            m.d.comb += [
                lane.settings.eq(self.settings),
                lane.weight.eq(weights.o[index]),
                new_weights.i[index].eq(lane.new_weight),
            ]
            for plane in range(self.planes):
                m.d.comb += [
                    lane.state[plane].eq(state[plane].o[index]),
                    new_state[plane].i[index].eq(lane.new_state[plane]),
                ]
            if self._float:
                m.d.comb += nonfinite[index].eq(data.View(FP32.layout, lane.total).exponent.all())
        m.d.sync += self.nonfinite.eq(tags[summed].valid & (nonfinite & tags[summed].keep).any())
        m.d.comb += self.bursts.eq(new_weights.valid & new_weights.row.last)

        rooms, empties = [], []

        def queue(name, rows, sink, *, used=1):
            """Queue rows for an output port. A beat that ends a row reserves a slot in the queue when it enters."""
            m.submodules[name] = results = Queue(shape=self._row, depth=self.queue_depth, block=True)
            connect_stream(m, results.o, sink)
            level = Signal(range(self.queue_depth + 1), name=f"{name}_level")  # number of rows stored or reserved
            room = Signal(init=1, name=f"{name}_room")
            reserved = control.beat.valid & control.beat.row_end & used
            taken = sink.valid & sink.ready
            m.d.comb += [results.i.valid.eq(rows.valid & used), results.i.payload.eq(rows.row)]
            step_count(m, level, up=reserved, down=taken)
            with m.If(reserved ^ taken):
                m.d.sync += room.eq(taken | (level != self.queue_depth - 1))
            rooms.append(room)
            empties.append(level == 0)

        queue("weights_queue", new_weights, self.weights_out)
        for plane in range(self.planes):
            queue(f"state_queue_{plane}", new_state[plane], self.state_out[plane], used=used_planes[plane])
        for port in range(self._broadcasts):
            queue(f"broadcast_queue_{port}", new_weights, self.broadcast[port])
        enable = C(1)
        if self._throttled:
            m.submodules.throttle = throttle = Throttle(paced=self._interval > 1)
            m.d.comb += throttle.rate.eq(self.rate)
            if self._interval > 1:
                m.d.comb += throttle.step.eq(turn[0])
            enable = throttle.enable
        m.d.comb += [
            control.room.eq(Cat(rooms).all() & enable),
            control.turn.eq(turn[0]),
            self.idle.eq(~control.waiting & Cat(empties).all()),
        ]
        return m

    def _delay_tags(self, m, beat, phase, ages):
        """Delay tags, so that for any number of cycles, the tag of the beat that entered that long ago is available.

        The valid bit must be defined after reset, so it uses flip-flops; the other fields use delay lines. Both
        advance when beats may enter. A tag is held for ``update_interval`` cycles but used in only one.
        """
        contents = tag_layout(self._lanes, self._update_lanes)
        valid, tag, age = beat.valid, beat, 0
        tags = {0: beat}
        for later in sorted(ages - {0}):
            steps = -(-later // self._interval)
            for step in range(age, steps):
                following = Signal(name=f"valid_{step + 1}")
                with m.If(phase[0]):
                    m.d.sync += following.eq(valid)
                valid = following
            if steps > age:
                m.submodules[f"tag_line_{later}"] = line = DelayLine(shape=contents, cycles=steps - age, paced=True)
                m.d.comb += [line.i.eq(tag), line.step.eq(phase[0])]
                tag, age = line.o, steps
            tags[later] = Signal(contents, name=f"tag_{later}")
            m.d.comb += [tags[later].eq(tag), tags[later].valid.eq(valid & phase[later % self._interval])]
        return tags
