"""Part for master weights: the optimizer's results for a node's own block, before encoding. A node has
them if all nodes compute with decoded weights, or if a fused update must not read the weight memory."""

from amaranth.hdl import Module
from amaranth.lib import stream
from amaranth.lib.wiring import In, Out

from hdl.compression.registry import RAW
from hdl.ring.parts.conditions import is_fused, is_update
from hdl.ring.parts.pace import reader_options
from hdl.ring.parts.part import Channel, Input, Output, Part, PartDescription, job
from hdl.ring.sequences import OWN
from hdl.row_transfer import RowReader, RowWriter
from hdl.streams.route import Fork
from hdl.streams.stream import beat_layout, connect_stream

__all__ = ["MasterWeights", "describe"]


def describe(config):
    """Return the part's :class:`~hdl.ring.parts.part.PartDescription`, or None for nodes without master weights."""
    if not config.weights.has_master:
        return None
    copies = (Output("copied", Channel.COPIED),) if config.weights.codec == RAW else ()
    return PartDescription(
        name="masters",
        component=MasterWeights,
        instructions=(
            # Reads and writes for the optimizer, which replace accesses to the weight memory.
            job(config, "master_job", OWN, "masters", when=is_update),
            job(config, "master_write_job", OWN, "masters", when=is_update, awaited=True),
        ),
        reads={"masters": 1},
        writes={"masters": 1},
        inputs=(Input("updated", Channel.UPDATED),),
        outputs=(Output("weights", Channel.WEIGHTS, during=is_fused), *copies),
    )


class MasterWeights(Part):
    """Read master weights for the optimizer, and store updated ones, which are also output if weights are raw."""

    def __init__(self, *, config, description):
        rows = stream.Signature(beat_layout(config.lanes))
        super().__init__(config, description, {
            # Master weights for the optimizer.
            "weights": Out(rows),
            # Master weights from the optimizer.
            "updated": In(rows),
            # Updated weights for the weight memory, if weights are raw.
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
