"""The masters: weights of the own block as the optimizer makes them, where all nodes compute with decoded ones, or
where a fused update must not read the weight memory."""

from amaranth.hdl import Module
from amaranth.lib import stream
from amaranth.lib.wiring import In, Out

from hdl.compression.registry import RAW
from hdl.ring.parts.pace import reader_options
from hdl.ring.parts.part import Given, Part, PartDescription, Socket, job
from hdl.ring.parts.update import in_block, updates
from hdl.ring.walks import OWN
from hdl.row_transfer import RowReader, RowWriter
from hdl.streams.route import Fork
from hdl.streams.stream import beat_layout, connect_stream

__all__ = ["Masters", "describe"]


def describe(config):
    """The part's :class:`~hdl.ring.parts.part.PartDescription`, or None in a node without masters."""
    if not config.weights.has_master:
        return None
    copies = (Given(name="copied", to=Socket.COPIED),) if config.weights.codec == RAW else ()
    where = OWN, "masters", lambda setup: setup.state_row
    return PartDescription(
        name="masters",
        make=lambda description: Masters(config=config, description=description),
        steps=(
            # Reads and writes of the optimizer, in place of those of weights.
            job(config, "master_job", *where, place=in_block(config), when=updates),
            job(config, "master_write_job", *where, place=in_block(config), when=updates, awaited=True),
        ),
        reads={"masters": 1},
        writes={"masters": 1},
        takes={Socket.UPDATED: "updated"},
        gives=(Given(name="weights", to=Socket.WEIGHTS, during=lambda setup: setup.fused), *copies),
    )


class Masters(Part):
    """Reads masters for the optimizer, and writes those that it made; raw weights get them, too."""

    def __init__(self, *, config, description):
        rows = stream.Signature(beat_layout(config.lanes))
        super().__init__(config, description, {
            # Masters for the optimizer.
            "weights": Out(rows),
            # Masters that the optimizer made.
            "updated": In(rows),
            # The same for the weight memory, where weights are raw.
            **({"copied": Out(rows)} if config.weights.codec == RAW else {}),
        })

    def elaborate(self, platform):
        m = Module()
        config, lanes = self._config, self._config.lanes
        shape = {"rows": config.memories.state // lanes, "lanes": lanes, "elements": config.segment}
        m.submodules.reader = reader = RowReader(**shape, **reader_options(config, "masters"))
        m.submodules.writer = writer = RowWriter(**shape)
        connect_stream(m, self.master_job, reader.job)
        connect_stream(m, self.master_write_job, writer.job)
        connect_stream(m, reader.o, self.weights)
        if self._config.weights.codec == RAW:
            m.submodules.fork = fork = Fork(shape=beat_layout(lanes), outputs=2)
            m.d.comb += fork.enable.eq(0b11)
            connect_stream(m, self.updated, fork.i)
            connect_stream(m, fork.o[0], writer.i)
            connect_stream(m, fork.o[1], self.copied)
        else:
            connect_stream(m, self.updated, writer.i)
        m.d.comb += self.master_write_job_done.eq(writer.done)
        self._connect_read(m, reader, "masters")
        self._connect_write(m, writer, "masters")
        return m
