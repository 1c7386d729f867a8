"""Part for residuals, which stores the encoding errors of gradients and adds them to the next gradients."""

from amaranth.hdl import Module
from amaranth.lib import stream
from amaranth.lib.wiring import In, Out

from hdl.compression.feedback import PacketAdder
from hdl.ring.parts.decoded_sum import SUMS, is_encoded
from hdl.ring.parts.part import Channel, Input, Instruction, Output, Part, PartDescription, job
from hdl.row_transfer import RowReader, RowWriter
from hdl.streams.rows import SegmentBuffer
from hdl.streams.stream import beat_layout, connect_stream

__all__ = ["Residual", "describe"]


def describe(config):
    """Return the part's :class:`~hdl.ring.parts.part.PartDescription`, or None if encoding is exact."""
    if not config.has_residual:
        return None
    return PartDescription(
        name="residual",
        component=Residual,
        instructions=(
            # Reads and writes of residuals, at the addresses of the segment's gradients.
            job(config, "residual_job", SUMS, "residuals", when=is_encoded),
            job(config, "residual_write_job", SUMS, "residuals", when=is_encoded, awaited=True),
            # Whether the residual is added to a local gradient.
            Instruction("corrected", SUMS, 1, is_encoded),
        ),
        reads={"residuals": 1},
        writes={"residuals": 1},
        inputs=(Input("local", Channel.LOCAL), Input("errors", Channel.ERRORS)),
        outputs=(Output("addend", Channel.ADDEND),),
    )


class Residual(Part):
    """Add residuals to local gradients before a :class:`~hdl.ring.parts.decoded_sum.DecodedSum`, and replace the
    residuals with the encoding errors of the sums."""

    def __init__(self, *, config, description):
        rows = stream.Signature(beat_layout(config.lanes))
        super().__init__(config, description, {
            # Local gradients.
            "local": In(rows),
            # Local gradients with the residuals added.
            "addend": Out(rows),
            # Encoding errors of sums of local gradients.
            "errors": In(rows),
        })

    def elaborate(self, platform):
        m = Module()
        config = self._config
        lanes, segment = config.lanes, config.segment
        shape = {"rows": config.memories.gradient // lanes, "lanes": lanes, "elements": segment, "strided": True}
        m.submodules.reader = reader = RowReader(**shape)
        m.submodules.writer = writer = RowWriter(**shape)
        m.submodules.adder = adder = PacketAdder(lanes=lanes, choice=True)
        # Write only whole segments, so that a corrupt packet changes no residual.
        m.submodules.buffer = buffer = SegmentBuffer(lanes=lanes, depth=2 * segment // lanes)
        connect_stream(m, self.residual_job, reader.job)
        connect_stream(m, self.residual_write_job, writer.job)
        connect_stream(m, self.corrected, adder.paired)
        connect_stream(m, self.local, adder.a)
        connect_stream(m, reader.o, adder.b)
        connect_stream(m, adder.o, self.addend)
        connect_stream(m, self.errors, buffer.i)
        connect_stream(m, buffer.o, writer.i)
        m.d.comb += self.residual_write_job_done.eq(writer.done)
        self._connect_read(m, reader, "residuals")
        self._connect_write(m, writer, "residuals")
        return m
