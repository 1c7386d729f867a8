"""Part for raw weights, which transfers weights between weight memory, optimizer and ring without a codec.

In a node with master weights, the optimizer uses the master weights instead of the weights in the weight memory.
"""

from amaranth.hdl import Module
from amaranth.lib import stream
from amaranth.lib.wiring import In, Out

from hdl.compression.registry import RAW
from hdl.ring.parts.conditions import always, has_words, is_not_update, is_update, is_weights, moves_weights
from hdl.ring.parts.pace import beat_lanes, reader_options
from hdl.ring.parts.part import Channel, Input, Output, Part, PartDescription, job
from hdl.ring.parts.update import keeps_updated
from hdl.ring.sequences import OWN
from hdl.row_transfer import RowReader, RowWriter
from hdl.streams.rows import RowAssembler, RowSerializer
from hdl.streams.stream import Queue, SkidBuffer, beat_layout, connect_stream, word_layout

__all__ = ["RawWeights", "describe"]


def describe(config):
    """Return the :class:`~hdl.ring.parts.part.PartDescription`, or None if weights have a codec."""
    if config.weights.codec != RAW:
        return None
    mastered, formats = config.weights.has_master, config.role.broadcast_formats
    serves = formats and config.is_server
    return PartDescription(
        name="weights",
        component=RawWeights,
        instructions=(
            # Reads of weights for the optimizer or for the all-gather.
            job(config, "weight_job", OWN, "weights", when=is_not_update if mastered else always),
            # Writes of updated weights.
            job(config, "weight_write_job", OWN, "weights", when=is_update, awaited=True),
        ),
        reads={"weights": 1},
        writes={"weights": 1},
        inputs=(
            Input("gathered", Channel.INGRESS, packets=is_weights, during=has_words if formats else None),
            Input("updated", Channel.COPIED if mastered else Channel.UPDATED),
            Input("broadcast", Channel.BROADCAST),
            *((Input("coded", Channel.CODED),) if serves else ()),
        ),
        outputs=(
            *((Output("stored", Channel.STORED),) if serves else ()),
            *(() if mastered else (Output("weights", Channel.WEIGHTS),)),
            Output("write_back", Channel.WRITE_BACK, during=moves_weights),
            Output("own", Channel.OWN, during=moves_weights),
        ),
    )


class RawWeights(Part):
    """Read weights for the optimizer, write updated weights, and send weights to the ring, either from the optimizer
    (in a fused update) or from memory."""

    def __init__(self, *, config, description):
        words = stream.Signature(word_layout())
        rows = stream.Signature(beat_layout(config.lanes))
        super().__init__(config, description, {
            # Weights from the ring.
            "gathered": In(words),
            # Weights for the optimizer in a fused update without master weights.
            **({} if config.weights.has_master else {"weights": Out(rows)}),
            # Weights from the optimizer, for the memory.
            "updated": In(rows),
            # Updated weights for the ring, in optimizer beats.
            "broadcast": In(stream.Signature(beat_layout(beat_lanes(config)))),
            # In a server that supports formats: weights of the root, before and after the codec.
            **({"stored": Out(rows), "coded": In(rows)} if config.serves_formats else {}),
            # Weights from the ring, to be stored in the weight memory.
            "write_back": Out(rows),
            # Weights of the node's own block, for the all-gather.
            "own": Out(words),
        })

    def elaborate(self, platform):
        m = Module()
        config, setup, narrow = self._config, self.setup, beat_lanes(self._config)
        lanes, segment = config.lanes, config.segment
        shape = {"rows": config.memories.weight // lanes, "lanes": lanes, "elements": segment, "strided": True}
        m.submodules.reader = reader = RowReader(**shape, **reader_options(config, "weights"))
        m.submodules.writer = writer = RowWriter(**shape)
        m.submodules.assembler = assembler = RowAssembler(lanes=lanes)
        m.submodules.serializer = serializer = RowSerializer(lanes=lanes)
        m.submodules.own_words = own = SkidBuffer(shape=word_layout())
        # Rows of the node's own block, kept for the all-gather, which follows one segment later.
        m.submodules.kept = kept = Queue(shape=beat_layout(narrow), depth=2 * segment // narrow, block=True)

        connect_stream(m, self.weight_job, reader.job)
        connect_stream(m, self.weight_write_job, writer.job)
        m.d.comb += self.weight_write_job_done.eq(writer.done)
        connect_stream(m, self.updated, writer.i)
        connect_stream(m, self.gathered, assembler.i)
        connect_stream(m, assembler.o, self.write_back)
        connect_stream(m, serializer.o, own.i)
        connect_stream(m, own.o, self.own)
        with m.If(keeps_updated(config, setup)):  # no other node needs the updated weights
            m.d.comb += self.broadcast.ready.eq(1)
        with m.Else():
            connect_stream(m, self.broadcast, kept.i)
        with m.If(setup.fused):
            if not config.weights.has_master:
                connect_stream(m, reader.o, self.weights)
            if narrow == lanes:
                connect_stream(m, kept.o, serializer.i)
        with m.Else():
            if config.serves_formats:
                connect_stream(m, reader.o, self.stored)
                connect_stream(m, self.coded, serializer.i)
            else:
                connect_stream(m, reader.o, serializer.i)
        if narrow < lanes:
            m.submodules.kept_serializer = kept_serializer = RowSerializer(lanes=narrow)
            connect_stream(m, kept.o, kept_serializer.i)
            with m.If(setup.fused):
                connect_stream(m, kept_serializer.o, own.i)
        self._connect_read(m, reader, "weights")
        self._connect_write(m, writer, "weights")
        return m
