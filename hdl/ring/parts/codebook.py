"""Loader that sends a codebook from memory to the weight encoder and decoder."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.memory import read_signature
from hdl.row_transfer import RowReader
from hdl.streams.rows import RowSerializer
from hdl.streams.stream import connect_stream, word_layout

__all__ = ["CodebookLoader"]


class CodebookLoader(wiring.Component):
    """Load a codebook once after reset, bounds first, then centroids.

    Parameters
    ----------
    words : int
        Number of words in the codebook: twice the number of centroids, with one fewer bound than centroids.
    lanes : int
        Number of elements in a row of the codebook memory.
    """

    def __init__(self, *, words, lanes):
        self._words = words
        self._lanes = lanes
        loads = stream.Signature(word_layout())
        super().__init__({
            # Starts the first read.
            "start": In(1),
            # Words for the encoder.
            "bounds": Out(loads),
            # Words for the decoder.
            "centroids": Out(loads),
            # Whether encoder and decoder have taken all words.
            "done": Out(1),
            # Port to the memory with the codebook.
            "port": Out(read_signature(words // lanes, lanes)),
        })

    def elaborate(self, platform):
        m = Module()
        lanes, words = self._lanes, self._words
        bounds, centroids = self.bounds, self.centroids
        m.submodules.reader = reader = RowReader(rows=words // lanes, lanes=lanes, elements=words // 2)
        m.submodules.serializer = serializer = RowSerializer(lanes=lanes)
        asked = Signal(2)  # whether the reads of bounds (bit 0) and centroids (bit 1) are requested
        passed = Signal(2)
        m.d.comb += [
            reader.job.valid.eq(Mux(asked[0], ~asked[1], self.start)),
            reader.job.payload.row.eq(Mux(asked[0], words // 2 // lanes, 0)),
            reader.job.payload.count.eq(Mux(asked[0], words // 2, words // 2 - 1)),
        ]
        with m.If(reader.job.valid & reader.job.ready):
            m.d.sync += asked.eq(Cat(1, asked[0]))
        connect_stream(m, reader.o, serializer.i)
        word = serializer.o
        with m.If(word.valid & word.ready & word.payload.last):
            m.d.sync += passed.eq(Cat(1, passed[0]))
        for sink, chosen in ((bounds, ~passed[0]), (centroids, passed[0])):
            m.d.comb += [sink.payload.eq(word.payload), sink.valid.eq(word.valid & chosen)]
        m.d.comb += [word.ready.eq(Mux(passed[0], centroids.ready, bounds.ready)), self.done.eq(passed[1])]
        wiring.connect(m, reader=reader.port, memory=wiring.flipped(self.port))
        return m
