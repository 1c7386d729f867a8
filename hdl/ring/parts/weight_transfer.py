"""Part that transfers weights without an update: broadcasts are uncoded, all-gathers use the weight codec.

Only nodes with a weight codec have this part; other nodes have :mod:`hdl.ring.parts.raw_weights` instead.
"""

from amaranth.hdl import Module
from amaranth.lib import stream
from amaranth.lib.wiring import In, Out

from hdl.compression.registry import RAW
from hdl.ring.parts.conditions import has_plain_weights, is_not_update, is_weights, moves_weights
from hdl.ring.parts.pace import reader_options
from hdl.ring.parts.part import Channel, Input, Output, Part, PartDescription, job
from hdl.ring.sequences import OWN
from hdl.row_transfer import RowReader
from hdl.streams.rows import RowAssembler, RowSerializer
from hdl.streams.stream import SkidBuffer, beat_layout, connect_stream, word_layout

__all__ = ["WeightTransfer", "describe"]


def describe(config):
    """Return the part's :class:`~hdl.ring.parts.part.PartDescription`, or None for weights without a codec."""
    if config.weights.codec == RAW:
        return None
    return PartDescription(
        name="weights",
        component=WeightTransfer,
        # Reads of weights to be gathered or broadcast.
        instructions=(job(config, "weight_job", OWN, "weights", when=is_not_update),),
        reads={"weights": 1},
        inputs=(Input("gathered", Channel.INGRESS, packets=is_weights, during=has_plain_weights),),
        outputs=(
            Output("write_back", Channel.WRITE_BACK, during=moves_weights),
            Output("own", Channel.OWN, during=moves_weights),
            Output("stored", Channel.STORED),
        ),
    )


class WeightTransfer(Part):
    """Send weights from memory to the ring or the codec, and receive raw weights from the ring."""

    def __init__(self, *, config, description):
        words = stream.Signature(word_layout())
        super().__init__(config, description, {
            # Weights from the ring.
            "gathered": In(words),
            # Weights from the ring as rows for the weight memory.
            "write_back": Out(stream.Signature(beat_layout(config.lanes))),
            # Weights of the root node, to be broadcast.
            "own": Out(words),
            # Weights of the node's own block, to be encoded.
            "stored": Out(stream.Signature(beat_layout(config.lanes))),
        })

    def elaborate(self, platform):
        m = Module()
        config, lanes = self._config, self._config.lanes
        m.submodules.reader = reader = RowReader(
            rows=config.memories.weight // lanes, lanes=lanes, elements=config.segment, strided=True,
            **reader_options(config, "weights"))
        m.submodules.assembler = assembler = RowAssembler(lanes=lanes)
        m.submodules.serializer = serializer = RowSerializer(lanes=lanes)
        m.submodules.own_words = own = SkidBuffer(shape=word_layout())
        connect_stream(m, self.weight_job, reader.job)
        connect_stream(m, self.gathered, assembler.i)
        connect_stream(m, assembler.o, self.write_back)
        with m.If(self.setup.coded):
            connect_stream(m, reader.o, self.stored)
        with m.Else():
            connect_stream(m, reader.o, serializer.i)
        connect_stream(m, serializer.o, own.i)
        connect_stream(m, own.o, self.own)
        self._connect_read(m, reader, "weights")
        return m
