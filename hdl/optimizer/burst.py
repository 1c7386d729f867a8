# amaranth: UnusedElaboratable=no
# The arithmetic is made in the constructor: its latencies are asked for even where nothing is elaborated.
"""Bursts: gradients in, new weights out to memory and to every worker, and the gradients gone."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from hdl.floating.format import FP32
from hdl.optimizer.gradient_buffer import GradientBuffer
from hdl.optimizer.reducer import Reducer
from hdl.optimizer.rules import RULES, UpdateLane, settings_layout
from hdl.stream import Queue, SkidBuffer, beat_layout, check_lanes, connect_stream

__all__ = ["BurstController", "RowCollector", "StreamedOptimizer", "command_layout", "tag_layout"]


def command_layout(workers, depth):
    """Payload of the command stream: the elements of one burst, 1 to ``depth``, and the workers that send some."""
    return data.StructLayout({"count": range(depth + 1), "active": workers})


def tag_layout(lanes, update_lanes):
    """What travels with one beat of a burst.

    ``keep`` are its elements, ``part`` its place in a row of ``lanes`` elements, ``row_end`` and ``last`` whether it
    ends that row and the burst.
    """
    return data.StructLayout(
        {"valid": 1, "keep": update_lanes, "part": range(lanes // update_lanes + 1), "row_end": 1, "last": 1}
    )


_QUEUE_LATENCY = 3  # of block memory
_PLANES = max(traits.planes for traits in RULES.values())


class BurstController(wiring.Component):
    """Decides, cycle by cycle, whether a beat of a burst enters the arithmetic.

    A burst begins once every operand of it is buffered, and its beats follow each other in consecutive cycles, save
    for those in which there is no ``room`` for a result. The next burst begins in the cycle after the last beat if
    its operands are there by then. Two commands are held; ``command.ready`` depends on registers alone, and a
    command counts from the cycle after it is taken.

    Parameters
    ----------
    workers, lanes, update_lanes, depth : int
        As for :class:`StreamedOptimizer`.

    Members
    -------
    command : In(stream of command_layout(workers, depth))
    filled : In(workers)
        Workers with a bank of gradients to claim.
    supplied : In(1)
        All other operands of a burst are buffered.
    room : In(1)
        Every queue of results has room for one more row.
    begin : Out(1)
        A burst begins: claim its operands.
    active : Out(workers)
        Its workers, in each of its beats.
    beat : Out(tag_layout(lanes, update_lanes))
        The beat which enters in this cycle, if any.
    waiting : Out(1)
        A command is held.
    """

    def __init__(self, *, workers, lanes, update_lanes, depth):
        self._lanes = lanes
        self._update_lanes = update_lanes
        self._command = command_layout(workers, depth)
        super().__init__(
            {
                "command": In(stream.Signature(self._command)),
                "filled": In(workers),
                "supplied": In(1),
                "room": In(1),
                "begin": Out(1),
                "active": Out(workers),
                "beat": Out(tag_layout(lanes, update_lanes)),
                "waiting": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.commands = commands = SkidBuffer(shape=self._command)
        connect_stream(m, wiring.flipped(self.command), commands.i)
        command = commands.o.payload

        lane_bits = exact_log2(self._update_lanes)
        parts = self._lanes // self._update_lanes
        final = Signal.like(command.count)  # the burst's last element
        index = Signal(len(final) - lane_bits)
        running = Signal()
        complete = Signal()
        m.d.comb += [
            final.eq(command.count - 1),
            complete.eq(self.supplied & (self.filled | ~command.active).all()),
            self.waiting.eq(commands.o.valid),
            self.active.eq(command.active),
            self.begin.eq(self.beat.valid & ~running),
            self.beat.valid.eq(commands.o.valid & (running | complete) & self.room),
            self.beat.last.eq(index == final[lane_bits:]),
            self.beat.part.eq(index & (parts - 1)),
            self.beat.row_end.eq(self.beat.last | (self.beat.part == parts - 1)),
            commands.o.ready.eq(self.beat.valid & self.beat.last),
        ]
        for lane in range(self._update_lanes):
            m.d.comb += self.beat.keep[lane].eq(~self.beat.last | (final[:lane_bits] >= lane))
        with m.If(self.beat.valid):
            m.d.sync += [running.eq(~self.beat.last), index.eq(Mux(self.beat.last, 0, index + 1))]
        return m


class RowCollector(wiring.Component):
    """Puts slices of a row together. The row is complete in the cycle of the slice which ends it.

    Parameters
    ----------
    lanes : int
        Elements in a row.
    update_lanes : int
        Elements in a slice.

    Members
    -------
    tag : In(tag_layout(lanes, update_lanes))
        Of the slice which is at ``i`` in this cycle.
    i : In(ArrayLayout(32, update_lanes))
    valid : Out(1)
        A row is complete.
    row : Out(beat_layout(lanes))
    """

    def __init__(self, *, lanes, update_lanes):
        self._lanes = lanes
        self._update_lanes = update_lanes
        super().__init__(
            {
                "tag": In(tag_layout(lanes, update_lanes)),
                "i": In(data.ArrayLayout(FP32.width, update_lanes)),
                "valid": Out(1),
                "row": Out(beat_layout(lanes)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        parts = self._lanes // self._update_lanes
        m.d.comb += [self.valid.eq(self.tag.valid & self.tag.row_end), self.row.last.eq(self.tag.last)]
        for part in range(parts):
            for lane in range(self._update_lanes):
                held = Signal(FP32.width, name=f"held_{part}_{lane}", reset_less=True)
                place = part * self._update_lanes + lane
                # The last part is never held: it always ends its row.
                if part < parts - 1:
                    with m.If(self.tag.valid & (self.tag.part == part)):
                        m.d.sync += held.eq(self.i[lane])
                m.d.comb += [
                    self.row.elements[place].eq(Mux(self.tag.part == part, self.i[lane], held)),
                    self.row.keep[place].eq(Mux(self.tag.part == part, self.tag.keep[lane], part < self.tag.part)),
                ]
        return m


class StreamedOptimizer(wiring.Component):
    """Sums the gradients of all workers, updates weights and state, and sends the new weights everywhere, in bursts.

    A command names the elements of a burst and the workers that send gradients for it; a worker that does not
    counts as +0.0. The gradients of each worker, the weights and the state of a burst are streams of their own,
    ended by ``last``. They are buffered first, at any pace and ahead of their command; beats beyond the command's
    count are ignored. When all are there the burst runs: ``ceil(count / update_lanes)`` beats, one per cycle, and
    every new weight leaves for memory and for every broadcast port. Gradients are discarded as they are drained; no
    copy is kept.

    Timing
    ------
    A burst of T beats that finds its operands buffered, its command taken and its queues empty takes exactly ``T +
    reducer_latency + update_latency`` cycles from its first beat to the cycle, included, in which its last row is
    offered. The first beat is in the cycle after the last of these came true. Bursts of ``depth`` elements follow
    each other every ``depth / update_lanes`` cycles, with no cycle between, as long as streams and queues keep
    pace.

    No ready runs through the arithmetic: a beat enters when every queue of results has a row reserved for it, and a
    port that stalls delays the beats to come, never those under way. Each queue holds a whole burst, so that no port
    has to wait for another within a burst. All ``ready`` inputs and outputs meet registers alone.

    ``settings`` must be stable, and hold what the commands mean, from a command's transfer until ``idle``. With a
    rule that uses fewer planes than there are, the other planes are neither awaited nor written.

    Parameters
    ----------
    workers : int
        Gradient streams, 1 to 8.
    lanes : int
        Elements in a beat: 1, 2, 4 or 8.
    depth : int
        Elements in the longest burst; a positive multiple of ``lanes``.
    update_lanes : int or None
        Elements that enter the arithmetic per cycle, and so adders and multipliers in parallel: 1, 2, 4 or 8, at most
        ``lanes``, which is the default.
    broadcasts : int
        Ports which repeat the new weights; at least 1.
    planes : int
        State planes; as many as the rule that uses most.
    dsps : int
        DSP blocks each multiplier may use: 4, 2 or 1.

    Members
    -------
    command : In(stream of command_layout(workers, depth))
    settings : In(settings_layout())
    gradients : In(stream of beat_layout(lanes)).array(workers)
    weights : In(stream of beat_layout(lanes))
    state : In(stream of beat_layout(lanes)).array(planes)
    weights_out : Out(stream of beat_layout(lanes))
    state_out : Out(stream of beat_layout(lanes)).array(planes)
    broadcast : Out(stream of beat_layout(lanes)).array(broadcasts)
    nonfinite : Out(1)
        Pulse: a reduced gradient of a burst is infinite or not a number. Not later than ``bursts`` of that burst.
    bursts : Out(1)
        Pulse: the last new weights of a burst entered their queues.
    idle : Out(1)
        No command is held, and all results have been taken.
    """

    def __init__(self, *, workers=2, lanes=4, depth=256, update_lanes=None, broadcasts=1, planes=1, dsps=4):
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
        if planes != _PLANES:
            raise ValueError(f"State plane count must be {_PLANES}, as many as the rules use, not {planes!r}")
        if dsps not in (1, 2, 4):
            raise ValueError(f"DSP block count must be 4, 2 or 1, not {dsps!r}")
        self._workers = workers
        self._lanes = lanes
        self._depth = depth
        self._update_lanes = update_lanes
        self._broadcasts = broadcasts
        self._planes = planes
        self._reducers = [Reducer(workers=workers) for _ in range(update_lanes)]
        self._updates = [UpdateLane(dsps=dsps) for _ in range(update_lanes)]
        beats = stream.Signature(beat_layout(lanes))
        super().__init__(
            {
                "command": In(stream.Signature(command_layout(workers, depth))),
                "settings": In(settings_layout()),
                "gradients": In(beats).array(workers),
                "weights": In(beats),
                "state": In(beats).array(planes),
                "weights_out": Out(beats),
                "state_out": Out(beats).array(planes),
                "broadcast": Out(beats).array(broadcasts),
                "nonfinite": Out(1),
                "bursts": Out(1),
                "idle": Out(1),
            }
        )

    @property
    def multiplier_latency(self):
        return self._updates[0].multiplier_latency

    @property
    def adder_latency(self):
        return self._updates[0].adder_latency

    @property
    def reducer_latency(self):
        """Cycles from a beat's gradients to their sum."""
        return self._reducers[0].latency

    @property
    def update_latency(self):
        """All other cycles from the entry of a beat to the offer of its new weights."""
        return GradientBuffer.latency + self._updates[0].latency + _QUEUE_LATENCY

    @property
    def latency(self):
        """Cycles from the entry of a beat to the offer of its new weights."""
        return self.reducer_latency + self.update_latency

    @property
    def queue_depth(self):
        """Rows that each queue of results holds: a whole burst, and no less than keeps the arithmetic busy."""
        rows_under_way = self.latency // (self._lanes // self._update_lanes) + 2
        return max(self._depth // self._lanes, rows_under_way)

    def _banks(self, delay):
        """Banks of a buffer that is drained so many cycles after its burst began."""
        return 2 + -(-delay // (self._depth // self._update_lanes))

    def elaborate(self, platform):
        m = Module()
        lanes, update_lanes = self._lanes, self._update_lanes
        # How long after a beat's gradients its state and its weights are taken, to meet what is computed by then.
        state_delay = self.reducer_latency
        weight_delay = self.reducer_latency + self._updates[0].weight_offset

        m.submodules.control = control = BurstController(
            workers=self._workers, lanes=lanes, update_lanes=update_lanes, depth=self._depth
        )
        connect_stream(m, self.command, control.command)

        # Tag n is of the beat that entered n cycles ago.
        tags = [control.beat]
        for age in range(self.latency - _QUEUE_LATENCY):
            tag = Signal(tag_layout(lanes, update_lanes), name=f"tag_{age + 1}")
            m.d.sync += tag.eq(tags[-1])
            tags.append(tag)
        summed = tags[GradientBuffer.latency + self.reducer_latency]
        remembered = tags[GradientBuffer.latency + self.reducer_latency + self._updates[0].state_latency]
        updated = tags[-1]

        planes_used = Signal(self._planes)
        with m.Switch(self.settings.rule):
            for rule, traits in RULES.items():
                with m.Case(rule):
                    m.d.comb += planes_used.eq((1 << traits.planes) - 1)

        def buffer(name, source, *, used, delay=0):
            """Buffer a stream of operands; they come out with the beat that entered ``delay`` cycles before them."""
            m.submodules[name] = banks = GradientBuffer(
                lanes=lanes, read_lanes=update_lanes, depth=self._depth, banks=self._banks(delay)
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
            buffer(f"state_{plane}", self.state[plane], used=planes_used[plane], delay=state_delay)
            for plane in range(self._planes)
        ]
        weights = buffer("weights", self.weights, used=1, delay=weight_delay)
        m.d.comb += [
            control.filled.eq(Cat(banks.filled for banks in gradients)),
            control.supplied.eq(weights.filled & (Cat(banks.filled for banks in state) | ~planes_used).all()),
        ]

        m.submodules.new_weights = new_weights = RowCollector(lanes=lanes, update_lanes=update_lanes)
        m.submodules.new_state = new_state = RowCollector(lanes=lanes, update_lanes=update_lanes)
        m.d.comb += [new_weights.tag.eq(updated), new_state.tag.eq(remembered)]
        nonfinite = Signal(update_lanes)
        for index in range(update_lanes):
            m.submodules[f"reducer_{index}"] = reducer = self._reducers[index]
            m.submodules[f"update_{index}"] = lane = self._updates[index]
            for worker in range(self._workers):
                m.d.comb += reducer.i[worker].eq(gradients[worker].o[index])
            m.d.comb += [
                lane.settings.eq(self.settings),
                lane.total.eq(reducer.o),
                lane.state.eq(state[0].o[index]),
                lane.weight.eq(weights.o[index]),
                new_state.i[index].eq(lane.new_state),
                new_weights.i[index].eq(lane.new_weight),
                nonfinite[index].eq(data.View(FP32.layout, reducer.o).exponent.all()),
            ]
        m.d.sync += self.nonfinite.eq(summed.valid & (nonfinite & summed.keep).any())
        m.d.comb += self.bursts.eq(updated.valid & updated.last)

        rooms, empties = [], []

        def queue(name, rows, sink, *, used=1):
            """Queue rows for a port. A beat that ends a row reserves its place when it enters."""
            m.submodules[name] = results = Queue(shape=beat_layout(lanes), depth=self.queue_depth, block=True)
            connect_stream(m, results.o, sink)
            places = Signal(range(self.queue_depth + 1), init=self.queue_depth, name=f"{name}_places")
            reserved = control.beat.valid & control.beat.row_end & used
            m.d.comb += [results.i.valid.eq(rows.valid & used), results.i.payload.eq(rows.row)]
            m.d.sync += places.eq(places - reserved + (sink.valid & sink.ready))
            rooms.append(places != 0)
            empties.append(places == self.queue_depth)

        queue("weights_queue", new_weights, self.weights_out)
        for plane in range(self._planes):
            queue(f"state_queue_{plane}", new_state, self.state_out[plane], used=planes_used[plane])
        for port in range(self._broadcasts):
            queue(f"broadcast_queue_{port}", new_weights, self.broadcast[port])
        m.d.comb += [
            control.room.eq(Cat(rooms).all()),
            self.idle.eq(~control.waiting & Cat(empties).all()),
        ]
        return m
