"""Raw weights: between the weight memory, the optimizer and the ring without a codec.

Where there are masters beside them, the optimizer has these in place of the weights that the memory holds.
"""

from amaranth.hdl import Module
from amaranth.lib import stream
from amaranth.lib.wiring import In, Out

from hdl.compression.registry import RAW
from hdl.ring.parts.pace import beat_lanes, reader_options
from hdl.ring.parts.part import Given, Part, PartDescription, Sink, Socket, job
from hdl.ring.parts.update import keeps_new, updates
from hdl.ring.parts.weight_transfer import is_transferred
from hdl.ring.walks import OWN
from hdl.row_transfer import RowReader, RowWriter
from hdl.streams.rows import RowAssembler, RowSerializer
from hdl.streams.stream import Queue, SkidBuffer, beat_layout, connect_stream, word_layout

__all__ = ["RawWeights", "describe"]


def describe(config):
    """The part's :class:`~hdl.ring.parts.part.PartDescription`, or None where weights go through a codec."""
    if config.weights.codec != RAW:
        return None
    where = OWN, "weights", lambda setup: setup.weight_row
    mastered, formats = config.weights.has_master, config.role.broadcast_formats
    serves = formats and config.is_server
    return PartDescription(
        name="weights",
        make=lambda description: RawWeights(config=config, description=description),
        steps=(
            # Reads of weights for the optimizer, or of weights to be gathered.
            job(config, "weight_job", *where, when=lambda at, setup: ~setup.fused if mastered else 1),
            # Writes of what the optimizer made.
            job(config, "weight_write_job", *where, when=updates, awaited=True),
        ),
        reads={"weights": 1},
        writes={"weights": 1},
        receives=(Sink(name="gathered", when=is_transferred,
                       during=(lambda setup: setup.format == 0) if formats else None),),
        takes={Socket.COPIED if mastered else Socket.UPDATED: "updated", Socket.BROADCAST: "broadcast",
               **({Socket.CODED: "coded"} if serves else {})},
        gives=(
            *((Given(name="stored", to=Socket.STORED),) if serves else ()),
            *(() if mastered else (Given(name="weights", to=Socket.WEIGHTS),)),
            Given(name="landing", to=Socket.LANDING, during=lambda setup: ~setup.sum),
            Given(name="own", to=Socket.OWN, during=lambda setup: ~setup.sum),
        ),
    )


class RawWeights(Part):
    """Reads weights for the optimizer and writes those that it made, and gives weights to the ring: from the
    optimizer in a fused update, else from memory."""

    def __init__(self, *, config, description):
        words = stream.Signature(word_layout())
        rows = stream.Signature(beat_layout(config.lanes))
        super().__init__(config, description, {
            # Weights from the ring.
            "gathered": In(words),
            # Weights for the optimizer, in a fused update without masters.
            **({} if config.weights.has_master else {"weights": Out(rows)}),
            # Weights that the optimizer made, for the memory.
            "updated": In(rows),
            # The same for the ring, in beats of the optimizer.
            "broadcast": In(stream.Signature(beat_layout(beat_lanes(config)))),
            # Weights of the root, for the codec of a server and behind it, where there are formats.
            **({"stored": Out(rows), "coded": In(rows)} if config.serves_formats else {}),
            # Weights from the ring that come to rest.
            "landing": Out(rows),
            # Weights of the own block, for the gather.
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
        # What the own block gives to the gather, which lags one segment behind.
        m.submodules.kept = kept = Queue(shape=beat_layout(narrow), depth=2 * segment // narrow, block=True)

        connect_stream(m, self.weight_job, reader.job)
        connect_stream(m, self.weight_write_job, writer.job)
        m.d.comb += self.weight_write_job_done.eq(writer.done)
        connect_stream(m, self.updated, writer.i)
        connect_stream(m, self.gathered, assembler.i)
        connect_stream(m, assembler.o, self.landing)
        connect_stream(m, serializer.o, own.i)
        connect_stream(m, own.o, self.own)
        with m.If(keeps_new(config, setup)):  # nobody to give new weights to
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
