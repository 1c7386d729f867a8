"""Operands from memory rows: read jobs for each sample, an input buffer, and output parameters."""

from amaranth.hdl import C, Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from hdl.features.quantization.layer_list import output_parameter_layout
from hdl.features.quantization.layer_reader import INPUT_ROWS, flags_layout
from hdl.memory import job_layout
from hdl.streams.stream import beat_layout, check_lanes

__all__ = ["InputBuffer", "ParameterUnpacker", "SampleJobs", "input_layout", "run_layout", "shape_layout"]


def run_layout(rows, elements):
    """Read job for a layer's first sample, and the number of rows from one sample to the next."""
    return data.StructLayout({"job": job_layout(rows, elements), "step": range(rows)})


class SampleJobs(wiring.Component):
    """Create the read jobs of a layer, one per sample.

    Latency is :attr:`latency` cycle from a layer to its first job; there are no bubbles between jobs or layers.
    ``layer.ready`` depends combinationally on ``job.ready`` and ``allow``.

    Parameters
    ----------
    rows, elements : int
        Number of rows of the reader's memory, and of elements in its largest job.

    Members
    -------
    samples : In(16)
        Number of samples, at least 1; must be held.
    allow : In(1)
        The next job may be offered; must stay high until it is accepted.
    layer : In(stream of run_layout(rows, elements))
    job : Out(stream of job_layout(rows, elements))
    """

    latency = 1

    def __init__(self, *, rows, elements):
        super().__init__({
            "samples": In(16),
            "allow": In(1),
            "layer": In(stream.Signature(run_layout(rows, elements))),
            "job": Out(stream.Signature(job_layout(rows, elements))),
        })

    def elaborate(self, platform):
        m = Module()
        left = Signal.like(self.samples)
        step = Signal.like(self.layer.payload.step)
        taken = Signal()
        m.d.comb += [
            self.job.valid.eq((left != 0) & self.allow),
            taken.eq(self.job.valid & self.job.ready),
            self.layer.ready.eq((left == 0) | (taken & (left == 1))),
        ]
        with m.If(self.layer.valid & self.layer.ready):
            m.d.sync += [left.eq(self.samples), self.job.payload.eq(self.layer.payload.job),
                         step.eq(self.layer.payload.step)]
        with m.Elif(taken):
            m.d.sync += [left.eq(left - 1), self.job.payload.row.eq(self.job.payload.row + step)]
        return m


def shape_layout(lanes):
    """Layout of a layer's shape: flags, last output, last input row, and number of input bytes in that row."""
    return data.StructLayout({
        "flags": flags_layout(), "last_output": 16, "last_row": range(INPUT_ROWS), "tail": 4 * lanes})


def input_layout(lanes):
    """Payload of the input stream to the multipliers: one memory row of inputs.

    ``odd`` is set on every other beat of an output, starting with the second one, ``last`` on the last beat of an
    output, and ``end`` on the last beat of a sample. Bytes after the inputs are zero.
    """
    return data.StructLayout({
        "inputs": data.ArrayLayout(8, 4 * lanes), "flags": flags_layout(), "odd": 1, "last": 1, "end": 1})


class InputBuffer(wiring.Component):
    """Double buffer that repeats a sample's inputs for each of its outputs while receiving the next sample.

    The first beat of a sample is offered :attr:`latency` cycles after its last row was accepted, if the layer was
    accepted before that; throughput is one beat per cycle, with no bubbles between outputs, samples or layers.
    ``i.ready`` depends only on registers, and ``layer.ready`` combinationally on ``o.ready``.

    Parameters
    ----------
    config : NodeConfig

    Members
    -------
    samples : In(16)
        Number of samples, at least 1; must be held.
    i : In(stream of beat_layout(lanes))
        Inputs, four per element; each sample ends with ``last``.
    layer : In(stream of shape_layout(lanes))
    o : Out(stream of input_layout(lanes))
    """

    latency = 3

    def __init__(self, *, config):
        self._lanes = config.lanes
        super().__init__({
            "samples": In(16),
            "i": In(stream.Signature(beat_layout(config.lanes))),
            "layer": In(stream.Signature(shape_layout(config.lanes))),
            "o": Out(stream.Signature(input_layout(config.lanes))),
        })

    def elaborate(self, platform):
        m = Module()
        lanes = self._lanes
        # No half of the memory is read while it is being written.
        m.submodules.memory = memory = Memory(
            shape=32 * lanes, depth=2 * INPUT_ROWS, init=[], attrs={"no_rw_check": 1})
        write, read = memory.write_port(), memory.read_port()
        full, filled, emptied = Signal(2), Signal(2), Signal(2)
        m.d.sync += full.eq((full | filled) & ~emptied)

        w_half, w_row = Signal(), Signal(range(INPUT_ROWS))
        m.d.comb += [
            self.i.ready.eq(~full.bit_select(w_half, 1)),
            write.addr.eq(Cat(w_row, w_half)),
            write.data.eq(self.i.payload.elements),
            write.en.eq(self.i.valid & self.i.ready),
        ]
        with m.If(write.en):
            m.d.sync += w_row.eq(w_row + 1)
            with m.If(self.i.payload.last):
                m.d.comb += filled.eq(Mux(w_half, 0b10, 0b01))
                m.d.sync += [w_row.eq(0), w_half.eq(~w_half)]

        layer = Signal(shape_layout(lanes))
        left = Signal.like(self.samples)
        r_half, r_row = Signal(), Signal(range(INPUT_ROWS))
        output = Signal.like(layer.last_output)
        at_last, at_end = Signal(), Signal()  # this row is the last one; this output is the last one
        fetched = Signal()
        loading, fetching = Signal(), Signal()
        last, end = Signal(), Signal()
        m.d.comb += [
            loading.eq(self.o.ready | ~self.o.valid),
            fetching.eq((left != 0) & full.bit_select(r_half, 1) & (loading | ~fetched)),
            read.addr.eq(Cat(r_row, r_half)),
            read.en.eq(fetching),
            last.eq(at_last),
            end.eq(at_last & at_end),
            self.layer.ready.eq((left == 0) | (fetching & end & (left == 1))),
        ]
        with m.If(fetching):
            following_row, following_output = Mux(last, 0, r_row + 1), Mux(end, 0, output + 1)
            m.d.sync += [r_row.eq(following_row), at_last.eq(following_row == layer.last_row)]
            with m.If(last):
                m.d.sync += [output.eq(following_output), at_end.eq(following_output == layer.last_output)]
            with m.If(end):
                m.d.comb += emptied.eq(Mux(r_half, 0b10, 0b01))
                m.d.sync += [left.eq(left - 1), r_half.eq(~r_half)]
        with m.If(self.layer.valid & self.layer.ready):
            shape = self.layer.payload
            m.d.sync += [
                left.eq(self.samples), layer.eq(shape), at_last.eq(shape.last_row == 0),
                at_end.eq(shape.last_output == 0),
            ]

        marks = Signal(data.StructLayout({"flags": flags_layout(), "odd": 1, "last": 1, "end": 1}))
        inside = Signal(4 * lanes)
        with m.If(loading | ~fetched):
            m.d.sync += fetched.eq(fetching)
        with m.If(fetching):
            m.d.sync += [
                marks.flags.eq(layer.flags), marks.odd.eq(r_row[0]), marks.last.eq(last), marks.end.eq(end),
                inside.eq(layer.tail | (~last).replicate(4 * lanes)),
            ]
        with m.If(loading):
            m.d.sync += [
                self.o.valid.eq(fetched),
                *(self.o.payload[name].eq(marks[name]) for name in ("flags", "odd", "last", "end")),
                *(self.o.payload.inputs[n].eq(Mux(inside[n], read.data[8 * n:8 * n + 8], 0))
                  for n in range(4 * lanes)),
            ]
        return m


class ParameterUnpacker(wiring.Component):
    """Unpack beats into output parameters, which are two elements each.

    Latency is :attr:`latency` cycle; throughput is one output per cycle, or one every other cycle with one lane.
    ``i.ready`` depends combinationally on ``o.ready``.

    Parameters
    ----------
    lanes : int
        Number of elements in a beat: 1, 2, 4 or 8.

    Members
    -------
    i : In(stream of beat_layout(lanes))
        Parameters; an even number of elements is kept.
    o : Out(stream of output_parameter_layout())
    """

    latency = 1

    def __init__(self, *, lanes):
        check_lanes(lanes)
        self._lanes = lanes
        super().__init__({
            "i": In(stream.Signature(beat_layout(lanes))),
            "o": Out(stream.Signature(output_parameter_layout())),
        })

    def elaborate(self, platform):
        m = Module()
        lanes, beat = self._lanes, self.i.payload
        if lanes == 1:
            low = Signal(32)
            second = Signal()
            m.d.comb += self.i.ready.eq(~second | self.o.ready | ~self.o.valid)
            with m.If(self.o.ready):
                m.d.sync += self.o.valid.eq(0)
            with m.If(self.i.valid & self.i.ready):
                m.d.sync += second.eq(~second)
                with m.If(second):
                    m.d.sync += [self.o.valid.eq(1), self.o.payload.eq(Cat(low, beat.elements[0]))]
                with m.Else():
                    m.d.sync += low.eq(beat.elements[0])
            return m

        records = lanes // 2
        elements = Signal(32 * lanes)
        keep = Signal(records)  # outputs still to be offered, lowest first
        emptied = Signal()
        m.d.comb += [
            self.o.valid.eq(keep[0]),
            self.o.payload.eq(elements[:64]),
            emptied.eq(~keep[0] | (self.o.ready & ~keep[1:].any())),
            self.i.ready.eq(emptied),
        ]
        with m.If(emptied):
            m.d.sync += [elements.eq(beat.elements),
                         keep.eq(Mux(self.i.valid, Cat(beat.keep[2 * n] for n in range(records)), 0))]
        with m.Elif(self.o.ready):
            m.d.sync += [elements.eq(Cat(elements[64:], C(0, 64))), keep.eq(keep >> 1)]
        return m
