"""The landing of what comes to rest from the ring: sums in the gradient memory, weights in the weight memory."""

from amaranth.hdl import Module, Mux
from amaranth.lib import stream
from amaranth.lib.wiring import In

from hdl.group import GROUP
from hdl.memory import job_layout
from hdl.ring.parts.part import Part, PartDescription, Socket, Step
from hdl.ring.walks import INGRESS, is_gather
from hdl.row_transfer import RowWriter
from hdl.streams.rows import SegmentBuffer
from hdl.streams.stream import beat_layout, connect_stream

__all__ = ["Landing", "describe"]


def describe(config, others):
    """The part's :class:`~hdl.ring.parts.part.PartDescription`; what lands when follows from the other parts."""
    by, = [part.lands_by for part in others if part.lands_by is not None] or [None]
    conditions = [part.lands for part in others if part.lands is not None]

    def lands(at, setup):
        """Whether a packet comes to rest: if it is gathered, unless by another walk, or if another part says so."""
        chosen = is_gather(at) if by is None else is_gather(at) & ~by.chosen(setup)
        for condition in conditions:
            chosen |= condition(at, setup)
        return chosen

    shift = (GROUP // config.lanes).bit_length() - 1
    return PartDescription(
        name="landing",
        make=lambda description: Landing(config=config, description=description),
        steps=(
            Step(name="landing_job", walk=INGRESS, instead=by, awaited=True, when=lands,
                 shape=job_layout(_rows(config), config.segment),
                 payload=lambda at, setup: {
                     "row": Mux(setup.sum, setup.gradient_row, setup.weight_row) + (at.place << shift),
                     "count": at.length}),
        ),
        writes={"gradients": 1, "weights": 1},
        takes={Socket.LANDING: "i"},
    )


def _rows(config):
    """Rows of the larger of both memories."""
    return max(config.memories.gradient, config.memories.weight) // config.lanes


class Landing(Part):
    """Writes rows that come to rest to the gradient memory in a command that sums, else to the weight memory.

    Only whole segments are written, so that a corrupt packet changes no memory.
    """

    def __init__(self, *, config, description):
        super().__init__(config, description, {
            # Rows that come to rest, in segments.
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
        connect_stream(m, self.landing_job, writer.job)
        m.d.comb += self.landing_job_done.eq(writer.done)
        gradients, weights = self.gradients_write[0], self.weights_write[0]
        for port, chosen in ((gradients, setup.sum), (weights, ~setup.sum)):
            m.d.comb += [
                port.valid.eq(writer.port.valid & chosen),
                port.row.eq(writer.port.row),
                port.elements.eq(writer.port.elements),
                port.keep.eq(writer.port.keep),
            ]
        m.d.comb += writer.port.ready.eq(Mux(setup.sum, gradients.ready, weights.ready))
        return m
