"""Writes results into memory rows, in the form that the next layer reads."""

from amaranth.hdl import C, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.features.quantization.requantizer import result_layout
from hdl.memory import write_signature
from hdl.streams.stream import check_lanes

__all__ = ["ResultWriter", "target_layout"]


def target_layout(rows):
    """Layout of a layer's target: the first row of its results, and whether it is the final layer."""
    return data.StructLayout({"row": range(rows), "final": 1})


class ResultWriter(wiring.Component):
    """Write results to memory, four per element, or one per element if they are raw.

    Each sample starts in a new row; the rest of its last row is filled with zeros.

    Latency is :attr:`latency` cycle from the result that completes a row to the port; throughput is one result per
    cycle, with no bubble between samples or layers. ``i.ready`` depends combinationally on ``port.ready``.

    Parameters
    ----------
    rows, lanes : int
        Number of rows and lanes of the memory.

    Members
    -------
    samples : In(16)
        Number of samples, at least 1; must be held.
    layer : In(stream of target_layout(rows))
        ``layer.ready`` depends combinationally on ``i.valid`` and ``port.ready``.
    i : In(stream of result_layout())
        Results; each sample ends with ``last``.
    port : Out(write_signature(rows, lanes))
    written : Out(1)
        The last row of a sample is in memory in the next cycle.
    ended : Out(1)
        The sample reported by ``written`` is the last one of its layer.
    done : Out(1)
        The layer reported by ``ended`` is the final one.
    """

    latency = 1

    def __init__(self, *, rows, lanes):
        check_lanes(lanes)
        self._lanes = lanes
        super().__init__({
            "samples": In(16),
            "layer": In(stream.Signature(target_layout(rows))),
            "i": In(stream.Signature(result_layout())),
            "port": Out(write_signature(rows, lanes)),
            "written": Out(1),
            "ended": Out(1),
            "done": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        count = 4 * self._lanes
        result, port = self.i.payload, self.port
        left = Signal.like(self.samples)
        row = Signal.like(self.port.row)
        final = Signal()
        byte = Signal(range(count))  # byte position of the next result in its row
        element = byte[2:] if self._lanes > 1 else C(0, 1)
        final_element = element.all() if self._lanes > 1 else C(1, 1)
        staged, merged = Signal(data.ArrayLayout(8, count)), Signal(data.ArrayLayout(8, count))
        completes, taken, closes = Signal(), Signal(), Signal()
        # Whether the row at the port is the last one of its sample, of its layer and of the command.
        marks = Signal(data.StructLayout({"written": 1, "ended": 1, "done": 1}))
        granted = Signal()
        m.d.comb += [
            completes.eq(result.last | (final_element & (result.raw | byte[:2].all()))),
            self.i.ready.eq((left != 0) & (~completes | ~port.valid | port.ready)),
            taken.eq(self.i.valid & self.i.ready),
            closes.eq(taken & result.last & (left == 1)),
            self.layer.ready.eq((left == 0) | closes),
            port.keep.eq(~0),
            granted.eq(port.valid & port.ready),
            *(getattr(self, name).eq(granted & marks[name]) for name in ("written", "ended", "done")),
        ]
        for n in range(count):
            here = byte == n
            m.d.comb += merged[n].eq(Mux(
                result.raw & (element == n // 4), result.value.as_unsigned().word_select(n % 4, 8),
                Mux(here & ~result.raw, result.value[:8], staged[n])))
        with m.If(port.ready):
            m.d.sync += port.valid.eq(0)
        with m.If(taken):
            m.d.sync += [byte.eq(byte + Mux(result.raw, 4, 1)), staged.eq(merged)]
            with m.If(completes):
                m.d.sync += [
                    byte.eq(0), staged.eq(0), port.valid.eq(1), port.row.eq(row), port.elements.eq(merged),
                    row.eq(row + 1), marks.written.eq(result.last), marks.ended.eq(result.last & (left == 1)),
                    marks.done.eq(result.last & (left == 1) & final),
                ]
            with m.If(result.last):
                m.d.sync += left.eq(left - 1)
        with m.If(self.layer.valid & self.layer.ready):
            m.d.sync += [left.eq(self.samples), row.eq(self.layer.payload.row), final.eq(self.layer.payload.final)]
        return m
