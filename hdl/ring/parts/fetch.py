"""FETCH in several formats: a server encodes the weights that it broadcasts, and a worker decodes them.

One quantizer and one decoder serve all formats with blocks. Which one, if any, holds for a whole command: the field
``format`` of a BROADCAST. On the server, elements of FETCH and sums of PUSH are counted on their way.
"""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.compression.block.coding import Decoder, Encoder, flags_layout
from hdl.compression.block.packing import least_words
from hdl.compression.registry import fetch_blocks
from hdl.ring.parts.part import Given, Part, PartDescription, Sink, Socket, Step, taken
from hdl.ring.parts.tally import Tally
from hdl.ring.parts.weight_transfer import is_transferred
from hdl.ring.walks import OWN
from hdl.streams.rows import RowAssembler
from hdl.streams.stream import beat_layout, connect_stream, word_layout

__all__ = ["Fetched", "Served", "describe"]


def _is_coded(setup):
    """Whether weights are in blocks in this command."""
    return setup.format != 0


def describe(config):
    """The part's :class:`~hdl.ring.parts.part.PartDescription`, or None in a node without formats."""
    if not config.role.broadcast_formats:
        return None
    if not config.is_server:
        return PartDescription(
            name="fetch",
            make=lambda description: Fetched(config=config, description=description),
            receives=(Sink(name="gathered", when=is_transferred, during=_is_coded),),
            gives=(Given(name="landing", to=Socket.LANDING, during=_is_coded),),
        )
    return PartDescription(
        name="fetch",
        make=lambda description: Served(config=config, description=description),
        # Each segment that is counted: the command lasts until the table has it.
        steps=(Step(name="counted", walk=OWN, shape=1, payload=lambda at, setup: at.last, awaited=True,
                    when=lambda at, setup: setup.counted),),
        writes={"counts": 1},
        takes={Socket.STORED: "stored", Socket.FINISHED: "sums"},
        gives=(Given(name="coded", to=Socket.CODED), Given(name="finished", to=Socket.COUNTED)),
    )


class Fetched(Part):
    """Decodes weights from the ring, in the commands in which they are coded."""

    def __init__(self, *, config, description):
        super().__init__(config, description, {
            # Weights from the ring.
            "gathered": In(stream.Signature(word_layout())),
            # The same, as rows that come to rest.
            "landing": Out(stream.Signature(beat_layout(config.lanes))),
        })

    def elaborate(self, platform):
        m = Module()
        lanes, among = self._config.lanes, fetch_blocks()
        words = 1 << (least_words(among[-1], lanes) - 1).bit_length()
        m.submodules.assembler = assembler = RowAssembler(lanes=words)
        m.submodules.decoder = decoder = Decoder(codec=among[-1], lanes=lanes, words=words, among=among)
        m.d.comb += decoder.choice.eq(self.setup.format - 1)
        connect_stream(m, self.gathered, assembler.i)
        connect_stream(m, assembler.o, decoder.i)
        connect_stream(m, decoder.o, self.landing)
        return m


class Served(Part):
    """Encodes weights on their way to the ring, or leaves them as they are, and counts these and sums of PUSH."""

    def __init__(self, *, config, description):
        rows = stream.Signature(beat_layout(config.lanes))
        super().__init__(config, description, {
            # Rows of weights from memory.
            "stored": In(rows),
            # The same, or beats of words that they are coded in.
            "coded": Out(rows),
            # Sums, on their way to the optimizer.
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
        with m.If(_is_coded(setup)):
            connect_stream(m, self.stored, encoder.i)
            connect_stream(m, encoder.o, self.coded)
        with m.Else():
            connect_stream(m, self.stored, self.coded)
        connect_stream(m, self.sums, self.finished)

        flags = Signal(flags_layout(lanes))  # of rows of binary32
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
            tally.flags.eq(Mux(_is_coded(setup), encoder.flags, flags)),
            self.counted.ready.eq(tally.written.valid),
            tally.written.ready.eq(self.counted.valid),
            self.counted_done.eq(taken(self.counted)),
        ]
        wiring.connect(m, tally=tally.port, memory=wiring.flipped(self.counts_write[0]))
        return m
