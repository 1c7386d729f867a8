# amaranth: UnusedElaboratable=no
# Queues are created in the constructor because their latencies are needed even without elaboration.
"""Prefetch of memory rows."""

from amaranth.hdl import Module, Mux, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.features.compute.access import place_shape, request_layout
from hdl.features.compute.row_sequence import tagged
from hdl.streams.stream import Queue

__all__ = ["RowFetch", "fetch_layout", "fetched_layout"]


def fetch_layout(rows, tag, owner_bits=0):
    """Layout of a fetch request: memory and row number, whether to ``read`` the row at all, and a tag."""
    return data.StructLayout({"place": place_shape(owner_bits), "row": range(rows), "read": 1, **tagged(tag)})


def fetched_layout(answer, tag):
    """Layout of a fetched row: tag and response; the response is zero if the row was not ``read``."""
    return data.StructLayout({"answer": answer, "read": 1, **tagged(tag)})


class RowFetch(wiring.Component):
    """Request memory rows in advance, and output the responses in order, each with the tag of its row.

    A row is accepted only if there is buffer space for its response, so responses never wait and the port can be
    shared. Throughput is a row per cycle if responses come within ``depth`` - 2 cycles. A row is requested in the
    cycle in which it is accepted; ``i.ready`` depends combinationally on ``request.ready``. Rows that pass without
    being read also take buffer space. ``o`` depends only on registers.

    Parameters
    ----------
    rows : int
        Number of rows of the largest memory.
    answer : ShapeLike
        Shape of the responses.
    tag : ShapeLike or None
        Shape of the tags.
    depth : int
        Capacity in rows.
    owner_bits : int
        Number of bits of a buffer number; 0 without buffer tags.

    Members
    -------
    i : In(stream of fetch_layout(rows, tag, owner_bits))
    request : Out(stream of request_layout(rows, owner_bits))
    response : In(stream of answer)
        Always ready.
    o : Out(stream of fetched_layout(answer, tag))
    """

    #: Latency in cycles from a response, or from accepting a row that needs no read, to the output.
    latency = 1

    def __init__(self, *, rows, answer, tag=None, depth=17, owner_bits=0):
        self._kept = data.StructLayout({"read": 1, **tagged(tag)})
        self._answers = Queue(shape=answer, depth=depth, block=False)
        self._tags = Queue(shape=self._kept, depth=depth, block=False)
        super().__init__({
            "i": In(stream.Signature(fetch_layout(rows, tag, owner_bits))),
            "request": Out(stream.Signature(request_layout(rows, owner_bits))),
            "response": In(stream.Signature(answer, always_ready=True)),
            "o": Out(stream.Signature(fetched_layout(answer, tag))),
        })

    def elaborate(self, platform):
        m = Module()
        m.submodules.tags = tags = self._tags
        m.submodules.answers = answers = self._answers
        asked = self.i.payload
        m.d.comb += [
            self.request.valid.eq(self.i.valid & asked.read & tags.i.ready),
            self.request.p.place.eq(asked.place), self.request.p.row.eq(asked.row),
            self.i.ready.eq(tags.i.ready & (~asked.read | self.request.ready)),
            tags.i.valid.eq(self.i.valid & (~asked.read | self.request.ready)),
            tags.i.p.read.eq(asked.read),
            answers.i.valid.eq(self.response.valid), answers.i.payload.eq(self.response.payload),
            self.o.valid.eq(tags.o.valid & (~tags.o.p.read | answers.o.valid)),
            Value.cast(self.o.p.answer).eq(Mux(tags.o.p.read, answers.o.payload, 0)), self.o.p.read.eq(tags.o.p.read),
            tags.o.ready.eq(self.o.ready & self.o.valid),
            answers.o.ready.eq(self.o.ready & tags.o.valid & tags.o.p.read),
        ]
        if "tag" in self._kept.members:
            m.d.comb += [tags.i.p.tag.eq(asked.tag), self.o.p.tag.eq(tags.o.p.tag)]
        return m
