"""Magnitude mask with error feedback, which sends large sums and stores small ones for the next step."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.floating.add import FloatAdder
from hdl.masking.mask import MAX_LANES
from hdl.masking.multiplexer import MaskMultiplexer
from hdl.streams.delay import DelayLine
from hdl.streams.stream import Queue, beat_layout, check_lanes, connect_stream

__all__ = ["MagnitudeMask"]


class MagnitudeMask(wiring.Component):
    """Add gradients to the errors of earlier steps, and split the sums by magnitude.

    Each lane has a binary32 sum, rounded to nearest even. Its magnitude is its bit pattern without the sign, read as
    an integer: if this is at least the magnitude of ``threshold``, ``kept`` is the sum and ``dropped`` is +0.0;
    otherwise ``kept`` is +0.0 and ``dropped`` is the sum. Infinities therefore rank above all numbers, and NaNs,
    which are canonical, above infinities; a threshold of zero keeps all sums, including -0.0.

    Beats are taken in pairs, the n-th beat of ``gradients`` with the n-th of ``errors``. Both should have the same
    framing: ``keep`` and ``last`` of the results come from the gradients, and are ignored in the errors. Packets of
    different lengths cause neither a hang nor an error: the rest of the longer packet is paired with the packet that
    follows the shorter one. Elements with a clear keep bit are computed too, but not counted as replaced.

    If both queues are empty, the results of a pair are offered :attr:`latency` cycles after it was taken; throughput
    is one beat per cycle. The arithmetic has no handshake: a pair is taken when both result queues, of :attr:`depth`
    beats each, have a free slot, so either output can stall for :attr:`depth` beats independently of the other.
    ``gradients.ready`` depends combinationally on ``errors.valid``, and ``errors.ready`` on ``gradients.valid``; all
    other outputs are registers or depend only on registers.

    Parameters
    ----------
    lanes : int
        Number of elements in a beat: 1, 2, 4, 8 or 16.

    Members
    -------
    threshold : In(32)
        Smallest magnitude to keep, as a binary32 number; its sign is ignored. It is compared
        :attr:`threshold_latency` cycles after a pair is taken, so it must be stable until the last result.
    gradients, errors : In(stream of beat_layout(lanes))
    kept, dropped : Out(stream of beat_layout(lanes))
    replaced : Out(range(lanes + 1))
        Number of elements dropped from the pair that was taken ``latency - 1`` cycles ago, which is one cycle before
        it can be offered; 0 if no pair was taken.
    """

    threshold_latency = FloatAdder.latency
    latency = threshold_latency + 1 + MaskMultiplexer.latency + 1
    #: Capacity of each queue in beats: enough for the beats in flight at full rate, rounded up to fill LUT memory.
    depth = 17

    def __init__(self, *, lanes):
        check_lanes(lanes, most=MAX_LANES)
        self._lanes = lanes
        beats = stream.Signature(beat_layout(lanes))
        super().__init__({
            "threshold": In(32),
            "gradients": In(beats),
            "errors": In(beats),
            "kept": Out(beats),
            "dropped": Out(beats),
            "replaced": Out(range(lanes + 1)),
        })

    @property
    def lanes(self):
        return self._lanes

    def elaborate(self, platform):
        m = Module()
        lanes = self._lanes
        room = Signal(2)  # each queue has a free slot
        taken = Signal()
        m.d.comb += [
            self.gradients.ready.eq(self.errors.valid & room.all()),
            self.errors.ready.eq(self.gradients.valid & room.all()),
            taken.eq(self.gradients.valid & self.errors.valid & room.all()),
        ]

        # `valid` must be defined from reset on, so it uses flip-flops with a reset instead of a delay line.
        valid = taken
        for cycle in range(self.threshold_latency + 1):
            following = Signal(name=f"valid_{cycle + 1}")
            m.d.sync += following.eq(valid)
            valid = following
        framing = data.StructLayout({"keep": lanes, "last": 1})
        m.submodules.framing = frame = DelayLine(shape=framing, cycles=self.threshold_latency + 1)
        m.d.comb += [frame.i.keep.eq(self.gradients.payload.keep), frame.i.last.eq(self.gradients.payload.last)]

        sums = Signal(data.ArrayLayout(32, lanes), reset_less=True)
        large = Signal(lanes, reset_less=True)
        for lane in range(lanes):
            m.submodules[f"adder_{lane}"] = adder = FloatAdder()
            m.d.comb += [
                adder.a.eq(self.gradients.payload.elements[lane]),
                adder.b.eq(self.errors.payload.elements[lane]),
            ]
            m.d.sync += [sums[lane].eq(adder.o), large[lane].eq(adder.o[:-1] >= self.threshold[:-1])]
        small = Signal(lanes)
        m.d.comb += small.eq(frame.o.keep & ~large)
        m.d.sync += self.replaced.eq(Mux(valid, sum(small), 0))

        for index, (name, mask, sink) in enumerate((("kept", large, self.kept), ("dropped", ~large, self.dropped))):
            m.submodules[name] = multiplexer = MaskMultiplexer(lanes=lanes)
            m.submodules[f"{name}_queue"] = queue = Queue(shape=beat_layout(lanes), depth=self.depth)
            connect_stream(m, queue.o, sink)
            m.d.comb += [
                queue.i.valid.eq(multiplexer.o.valid),
                queue.i.payload.eq(multiplexer.o.payload),
                multiplexer.o.ready.eq(1),  # the row's slot in the queue has been reserved
                multiplexer.i.valid.eq(valid),
                multiplexer.i.payload.elements.eq(sums),
                multiplexer.i.payload.mask.eq(mask),
                multiplexer.i.payload.keep.eq(frame.o.keep),
                multiplexer.i.payload.last.eq(frame.o.last),
            ]
            # Each pair reserves a slot in both queues when it is accepted.
            places = Signal(range(self.depth + 1), init=self.depth, name=f"{name}_places")
            m.d.comb += room[index].eq(places != 0)
            m.d.sync += places.eq(places - taken + (sink.valid & sink.ready))
        return m
