"""Formats of FETCH: a server encodes the weights that it broadcasts, and workers decode them.

All block formats share one quantizer and one decoder. The ``format`` field of a BROADCAST selects a format, or none,
for the whole command. The server counts zeros and saturations in the elements of FETCH and in the sums of PUSH as
they pass through.
"""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.compression.registry import fetch_blocks
from hdl.features.mx.coding import Decoder, Encoder, flags_layout
from hdl.features.mx.packing import min_words
from hdl.features.streaming.tally import Tally
from hdl.ring.parts.conditions import has_blocks, is_weights
from hdl.ring.parts.part import Channel, Input, Instruction, Output, Part, PartDescription, taken
from hdl.ring.sequences import OWN
from hdl.streams.rows import RowAssembler
from hdl.streams.stream import beat_layout, connect_stream, word_layout

__all__ = ["Fetched", "Served", "describe"]


def _is_last(record, setup):
    return record.last


def _is_counted(record, setup):
    return setup.counted


def describe(config):
    """Return the part's :class:`~hdl.ring.parts.part.PartDescription`, or None if no formats are configured."""
    if not config.role.broadcast_formats:
        return None
    if not config.is_server:
        return PartDescription(
            name="fetch",
            component=Fetched,
            inputs=(Input("gathered", Channel.INGRESS, packets=is_weights, during=has_blocks),),
            outputs=(Output("write_back", Channel.WRITE_BACK, during=has_blocks),),
        )
    return PartDescription(
        name="fetch",
        component=Served,
        # Each counted segment has one instruction, because the command lasts until its counts are written.
        instructions=(Instruction("counted", OWN, 1, _is_last, when=_is_counted, awaited=True),),
        writes={"counts": 1},
        inputs=(Input("stored", Channel.STORED), Input("sums", Channel.SUMS)),
        outputs=(Output("coded", Channel.CODED), Output("finished", Channel.COUNTED_SUMS)),
    )


class Fetched(Part):
    """Part that decodes weights from the ring, for commands with encoded weights."""

    def __init__(self, *, config, description):
        super().__init__(config, description, {
            # Weights from the ring.
            "gathered": In(stream.Signature(word_layout())),
            # Decoded weights, in rows of the weight memory.
            "write_back": Out(stream.Signature(beat_layout(config.lanes))),
        })

    def elaborate(self, platform):
        m = Module()
        lanes, among = self._config.lanes, fetch_blocks()
        words = 1 << (min_words(among[-1], lanes) - 1).bit_length()
        m.submodules.assembler = assembler = RowAssembler(lanes=words)
        m.submodules.decoder = decoder = Decoder(codec=among[-1], lanes=lanes, words=words, among=among)
        m.d.comb += decoder.choice.eq(self.setup.format - 1)
        connect_stream(m, self.gathered, assembler.i)
        connect_stream(m, assembler.o, decoder.i)
        connect_stream(m, decoder.o, self.write_back)
        return m


class Served(Part):
    """Part that encodes weights for the ring or passes them through, and counts zeros and saturations in these
    weights and in sums of PUSH."""

    def __init__(self, *, config, description):
        rows = stream.Signature(beat_layout(config.lanes))
        super().__init__(config, description, {
            # Rows of weights from memory.
            "stored": In(rows),
            # Unchanged rows, or beats of coded words.
            "coded": Out(rows),
            # Sums, which pass through to the optimizer.
            "sums": In(rows),
            "finished": Out(rows),
        })

    def elaborate(self, platform):
        m = Module()
        config, setup, lanes, among = self._config, self.setup, self._config.lanes, fetch_blocks()
        m.submodules.encoder = encoder = Encoder(codec=among[-1], lanes=lanes, words=lanes, among=among)
        m.submodules.tally = tally = Tally(
            lanes=lanes, elements=max(config.memories.gradient, config.memories.weight))
        m.d.comb += encoder.choice.eq(setup.format - 1)
        with m.If(has_blocks(setup)):
            connect_stream(m, self.stored, encoder.i)
            connect_stream(m, encoder.o, self.coded)
        with m.Else():
            connect_stream(m, self.stored, self.coded)
        connect_stream(m, self.sums, self.finished)

        flags = Signal(flags_layout(lanes))  # flags of binary32 rows
        row = Signal(beat_layout(lanes))
        m.d.comb += row.eq(Mux(setup.chain, self.sums.payload, self.stored.payload))
        elements = [row.elements[lane] for lane in range(lanes)]
        m.d.sync += [
            flags.valid.eq(Mux(setup.chain, taken(self.sums), taken(self.stored))),
            flags.last.eq(row.last),
            flags.zeros.eq(Cat(~element[:31].any() for element in elements)),
            flags.saturations.eq(Cat(element[23:31].all() for element in elements)),
        ]
        m.d.comb += [
            tally.start.eq(self.start),
            tally.enable.eq(setup.counted),
            tally.entry.eq(setup.entry),
            tally.push.eq(setup.chain),
            tally.length.eq(setup.length),
            tally.flags.eq(Mux(has_blocks(setup), encoder.flags, flags)),
            self.counted.ready.eq(tally.written.valid),
            tally.written.ready.eq(self.counted.valid),
            self.counted_done.eq(taken(self.counted)),
        ]
        wiring.connect(m, tally=tally.port, memory=wiring.flipped(self.counts_write[0]))
        return m
