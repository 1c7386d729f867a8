"""Cycle-accurate golden models of the centroid encoder and decoder."""

import functools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sim.golden import planes, stream
from sim.golden.features.codebook.centroid import CentroidTable
from tests.hdl.compression import plane_cycles


def trace_encoder(table: CentroidTable, counts: Sequence[int], *, lanes: int, table_willing: npt.ArrayLike,
                  willing: npt.ArrayLike, ready: npt.ArrayLike) -> plane_cycles.Trace:
    """Trace every cycle of an encoder; ``scan`` in the trace stands for the stream of table words."""
    beats = [-(-count // lanes) for count in counts]
    tables = stream.Feed(table.table_words * len(counts), table_willing)
    feed = stream.Feed(sum(beats), willing)
    words = planes.word_count(lanes, table.index_bits)
    packer = plane_cycles.Packer(words, ready)
    registers, eights = plane_cycles.Registers(feed, 0), plane_cycles.Eights(packer)
    sizes = plane_cycles.chunks(table.index_bits, 4 * words)
    per_eight = planes.PLANE // lanes
    free = taken = 0
    for count, data_beats in zip(counts, beats, strict=True):
        for _ in range(table.table_words):
            free = packer.take(tables.accept(packer.free(free)), 4) + 1
        total = -(-count // planes.GROUP) * planes.GROUP // lanes

        def leave(cycle: int, beat: int, total: int = total, opened: int = 0 if table.loaded else free) -> int:
            nonlocal taken
            if beat % per_eight != per_eight - 1:
                return cycle
            left, taken = eights.give(cycle, opened, sizes, held=table.index_bits > 4 * words, last=beat == total - 1)
            return left

        for beat in range(total):
            registers.beat(0, functools.partial(leave, beat=beat), real=beat < data_beats)
        free = taken + 1
    if not table.loaded:
        tables.accept(packer.free(free))
    feed.accept(registers.free)
    return plane_cycles.Trace(feed.valid, feed.ready, packer.output.offered >= 0, packer.output.offered, tables.valid,
                        tables.ready)


def trace_decoder(table: CentroidTable, packets: Sequence[npt.ArrayLike], *, lanes: int, willing: npt.ArrayLike,
                  ready: npt.ArrayLike) -> plane_cycles.Trace:
    """Trace every cycle of a decoder that receives valid packets."""
    decoding = plane_cycles.Decoding(planes.word_count(lanes, table.index_bits), packets, willing, ready)
    for packet in packets:
        for _ in range(table.table_words):
            decoding.take(4)
        decoding.codes(4 * (len(np.asarray(packet)) - table.table_words), table.index_bits, lanes,
                       tabled=not table.loaded)
    return decoding.trace
