# amaranth: UnusedElaboratable=no
# An index encoder is created here just to read its width, even without elaboration.
"""Search for the nearest centroids and encoding of their indices as packets."""

from amaranth.hdl import Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.features.codebook.format import Encoder
from hdl.features.codebook.nearest import NearestCentroid
from hdl.streams.stream import beat_layout, connect_stream, word_layout

__all__ = ["CentroidEncoder"]


class CentroidEncoder(wiring.Component):
    """Encode elements as packets of nearest-centroid indices; ties go to the lower centroid.

    Latency is the sum of the latencies of the search and of :class:`hdl.features.codebook.format.Encoder`; throughput
    is one beat per cycle. ``i.ready`` depends combinationally on ``o.ready``.

    Parameters
    ----------
    table : CentroidTable
        Table with ``loaded`` set.
    lanes : int
        Number of elements per beat: 1, 2, 4 or 8.

    Members
    -------
    load : In(stream of {data, last})
        Bounds between centroids; see :class:`~hdl.features.codebook.nearest.NearestCentroid`.
    i : In(stream of beat_layout(lanes))
    o : Out(stream of beat_layout(words))
    """

    def __init__(self, *, table, lanes):
        self._table = table
        self._lanes = lanes
        super().__init__({
            "load": In(stream.Signature(word_layout())),
            "i": In(stream.Signature(beat_layout(lanes))),
            "o": Out(stream.Signature(beat_layout(self.words))),
        })

    @property
    def words(self):
        """Words per beat of the output."""
        return Encoder(table=self._table, lanes=self._lanes).words

    def elaborate(self, platform):
        m = Module()
        m.submodules.nearest = nearest = NearestCentroid(centroids=self._table.centroids, lanes=self._lanes)
        m.submodules.encoder = encoder = Encoder(table=self._table, lanes=self._lanes)
        connect_stream(m, self.load, nearest.load)
        connect_stream(m, self.i, nearest.i)
        connect_stream(m, nearest.o, encoder.i)
        connect_stream(m, encoder.o, self.o)
        return m
