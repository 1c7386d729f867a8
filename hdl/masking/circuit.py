"""Mask circuit, which replaces elements in a stream of matrices unless the mask keeps them."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import enum, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.masking.generator import MaskGenerator
from hdl.masking.mask import MAX_LANES, check_index_bits, job_layout
from hdl.masking.multiplexer import MaskMultiplexer
from hdl.masking.source import MaskSource
from hdl.streams.stream import SkidBuffer, beat_layout, check_lanes, connect_stream

__all__ = ["MaskCircuit"]


class _State(enum.Enum):
    JOIN = 0
    DROP_MASKS = 1
    DROP_DATA = 2


class MaskCircuit(wiring.Component):
    """Mask batches of matrices according to jobs, which give their shape and mask.

    A job's data is one packet: the rows of its matrices in order, each starting in a new beat, with ``last`` on the
    final beat. Output beats have the job's ``keep``. The ``keep`` of the data is ignored, as are elements beyond the
    end of a row, which are output as the alternative.

    The first beat of a job can leave :attr:`latency` cycles after the job was accepted, followed by one beat per
    cycle, even between jobs. A data beat waits for its mask, and is offered :attr:`data_latency` cycle after it was
    accepted. ``i.ready`` depends combinationally on ``o.ready``; ``jobs.ready`` and ``words.ready`` depend only on
    registers.

    If data ends too early or too late, ``error`` is raised one cycle after the beat that reveals it was accepted.
    Later jobs are not affected:

    - if ``last`` comes too early, its beat leaves with ``last``; the job's remaining mask beats are discarded, one
      per cycle, together with the remaining words of an external mask;
    - if ``last`` is missing, the beat at the job's end leaves with ``last``; data is discarded up to and including
      the next beat with ``last``.

    Each packet therefore belongs to one job whatever its length, and every output packet has exactly one ``last``.

    Parameters
    ----------
    lanes : int
        Number of elements per beat: 1, 2, 4, 8 or 16.
    width : int
        Width of an element in bits.
    index_bits : int
        Width of an index, 5 to 16: a matrix has at most 2 ** index_bits - 1 rows and columns.

    Members
    -------
    alternative : In(width)
        Replacement for elements that are not kept; sampled with each data beat.
    jobs : In(stream of job_layout(index_bits))
    i : In(stream of beat_layout(lanes, width))
    words : In(stream of 32)
        Bits of external masks; see :class:`hdl.masking.source.MaskSource`.
    o : Out(stream of beat_layout(lanes, width))
    fetched : Out(1)
        A word of an external mask was accepted in the previous cycle.
    masked : Out(range(lanes + 1))
        Number of elements replaced in the beat accepted in the last cycle; 0 if there was none.
    error : Out(1)
        The data beat accepted in the last cycle ended its packet too early, or failed to end it with the job.
    """

    data_latency = MaskMultiplexer.latency
    latency = MaskGenerator.latency + MaskSource.latency + 2 * SkidBuffer.latency + MaskMultiplexer.latency

    def __init__(self, *, lanes, width=32, index_bits=12):
        check_lanes(lanes, most=MAX_LANES)
        check_index_bits(index_bits)
        beat = beat_layout(lanes, width)
        self._lanes = lanes
        self._width = width
        self._index_bits = index_bits
        super().__init__({
            "alternative": In(width),
            "jobs": In(stream.Signature(job_layout(index_bits))),
            "i": In(stream.Signature(beat)),
            "words": In(stream.Signature(32)),
            "o": Out(stream.Signature(beat)),
            "fetched": Out(1),
            "masked": Out(range(lanes + 1)),
            "error": Out(1),
        })

    @property
    def lanes(self):
        return self._lanes

    @property
    def width(self):
        return self._width

    @property
    def index_bits(self):
        return self._index_bits

    def elaborate(self, platform):
        m = Module()
        m.submodules.generator = generator = MaskGenerator(lanes=self._lanes, index_bits=self._index_bits)
        m.submodules.source = source = MaskSource(lanes=self._lanes)
        # Skid buffers decouple the handshakes of jobs, words and data, so that their ready signals are independent.
        m.submodules.generated = generated = SkidBuffer(shape=generator.o.payload.shape())
        m.submodules.masks = masks = SkidBuffer(shape=source.o.payload.shape())
        m.submodules.multiplexer = multiplexer = MaskMultiplexer(lanes=self._lanes, width=self._width)
        connect_stream(m, self.jobs, generator.jobs)
        connect_stream(m, generator.o, generated.i)
        connect_stream(m, generated.o, source.i)
        connect_stream(m, self.words, source.words)
        connect_stream(m, source.o, masks.i)
        connect_stream(m, multiplexer.o, self.o)
        m.d.comb += multiplexer.alternative.eq(self.alternative)
        m.d.sync += self.fetched.eq(self.words.valid & self.words.ready)

        state = Signal(_State)
        mask = masks.o.payload
        joined = Signal()
        m.d.comb += [
            multiplexer.i.payload.elements.eq(self.i.payload.elements),
            multiplexer.i.payload.mask.eq(mask.mask),
            multiplexer.i.payload.keep.eq(mask.keep),
            multiplexer.i.payload.last.eq(mask.last | self.i.payload.last),
            joined.eq(multiplexer.i.valid & multiplexer.i.ready),
        ]
        replaced = mask.keep & ~mask.mask
        m.d.sync += [
            self.error.eq(joined & (mask.last ^ self.i.payload.last)),
            self.masked.eq(Mux(joined, sum(replaced), 0)),
        ]
        with m.Switch(state):
            with m.Case(_State.JOIN):
                m.d.comb += [
                    multiplexer.i.valid.eq(self.i.valid & masks.o.valid),
                    self.i.ready.eq(masks.o.valid & multiplexer.i.ready),
                    masks.o.ready.eq(self.i.valid & multiplexer.i.ready),
                ]
                with m.If(joined & ~mask.last & self.i.payload.last):
                    m.d.sync += state.eq(_State.DROP_MASKS)
                with m.If(joined & mask.last & ~self.i.payload.last):
                    m.d.sync += state.eq(_State.DROP_DATA)
            with m.Case(_State.DROP_MASKS):
                m.d.comb += masks.o.ready.eq(1)
                with m.If(masks.o.valid & mask.last):
                    m.d.sync += state.eq(_State.JOIN)
            with m.Case(_State.DROP_DATA):
                m.d.comb += self.i.ready.eq(1)
                with m.If(self.i.valid & self.i.payload.last):
                    m.d.sync += state.eq(_State.JOIN)
        return m
