"""Part that writes rows from the ring back: sums to the gradient memory, weights to the weight memory."""

from amaranth.hdl import Module, Mux
from amaranth.lib import stream
from amaranth.lib.wiring import In

from hdl.group import GROUP
from hdl.memory import job_layout
from hdl.ring.parts.conditions import is_final, is_gather
from hdl.ring.parts.part import Channel, Input, Instruction, Part, PartDescription
from hdl.ring.sequences import INGRESS
from hdl.row_transfer import RowWriter
from hdl.streams.rows import SegmentBuffer
from hdl.streams.stream import beat_layout, connect_stream

__all__ = ["WriteBack", "describe"]


def describe(config, parts):
    """Return the :class:`~hdl.ring.parts.part.PartDescription`. Another part may change the order of write-backs."""
    order, = [part.write_back_order for part in parts if part.write_back_order is not None] or [None]
    shift = (GROUP // config.lanes).bit_length() - 1

    def writes_back(record, setup):
        """Return whether a packet is written back in ingress order: if it is gathered or becomes a final sum."""
        gathered = is_gather(record) if order is None else is_gather(record) & ~order.during(setup)
        return gathered | (is_final(record) & setup.sum)

    def segment(record, setup):
        return {"row": Mux(setup.sum, setup.gradient_row, setup.weight_row) + (record.place << shift),
                "count": record.length}

    return PartDescription(
        name="write_back",
        component=WriteBack,
        instructions=(
            Instruction("write_back_job", INGRESS, job_layout(_rows(config), config.segment), segment,
                        alternative=order, awaited=True, when=writes_back),
        ),
        writes={"gradients": 1, "weights": 1},
        inputs=(Input("i", Channel.WRITE_BACK),),
    )


def _rows(config):
    """Return the number of rows in the larger of the gradient and weight memories."""
    return max(config.memories.gradient, config.memories.weight) // config.lanes


class WriteBack(Part):
    """Write rows from the ring to the gradient memory if a command forms sums, else to the weight memory.

    Only whole segments are written, so that a corrupt packet does not change any memory.
    """

    def __init__(self, *, config, description):
        super().__init__(config, description, {
            # Rows of whole segments.
            "i": In(stream.Signature(beat_layout(config.lanes))),
        })

    def elaborate(self, platform):
        m = Module()
        config, setup = self._config, self.setup
        lanes, segment = config.lanes, config.segment
        m.submodules.buffer = buffer = SegmentBuffer(lanes=lanes, depth=2 * segment // lanes)
        m.submodules.writer = writer = RowWriter(rows=_rows(config), lanes=lanes, elements=segment, strided=True)
        self._connect_pitch(m, writer)
        connect_stream(m, self.i, buffer.i)
        connect_stream(m, buffer.o, writer.i)
        connect_stream(m, self.write_back_job, writer.job)
        m.d.comb += self.write_back_job_done.eq(writer.done)
        gradients, weights = self.gradients_write[0], self.weights_write[0]
        for port, enable in ((gradients, setup.sum), (weights, ~setup.sum)):
            m.d.comb += [
                port.valid.eq(writer.port.valid & enable),
                port.row.eq(writer.port.row),
                port.elements.eq(writer.port.elements),
                port.keep.eq(writer.port.keep),
            ]
        m.d.comb += writer.port.ready.eq(Mux(setup.sum, gradients.ready, weights.ready))
        return m
