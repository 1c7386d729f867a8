"""Cycle-accurate golden models of the encoder and the decoder for lookup tables."""

import functools
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from sim.golden import planes, stream
from sim.golden.features.table.lookup_table import LookupTable
from tests.hdl.compression import plane_cycles

#: Number of cycles that an encoder takes after a reset to clear its record of seen exponents.
_CLEARING = 16

#: Number of encoder registers between the input register and the codes, without centroids.
_STAGES = 2


def _rows(table: Iterable[int]) -> list[int]:
    rows = [0] * 16
    for exponent in table:
        rows[exponent // 16] += 1
    return rows


def trace_encoder(table: LookupTable, packets: Sequence[npt.ArrayLike], *, lanes: int, scan_willing: npt.ArrayLike,
                  willing: npt.ArrayLike, ready: npt.ArrayLike, opened: int = _CLEARING) -> plane_cycles.Trace:
    beats = [-(-len(np.asarray(packet)) // lanes) for packet in packets]
    scan, feed = stream.Feed(sum(beats), scan_willing), stream.Feed(sum(beats), willing)
    words = planes.word_count(lanes, table.width)
    packer = plane_cycles.Packer(words, ready)
    codes = plane_cycles.Registers(feed, table.mantissa_bits if table.centroids else _STAGES)
    eights = plane_cycles.Eights(packer)
    idle = taken = 0  # first free cycle; cycle of the last accepted bytes
    per_eight = planes.PLANE // lanes
    for packet, count in zip(packets, beats, strict=True):
        for _ in range(count):
            opened = scan.accept(opened) + 1
        exponents = np.unique(table.exponents_of(packet))
        cycle = max(opened + 1, idle) + 2  # the first row of the table is available
        for row in _rows(exponents.tolist()):
            for _ in range(row):
                cycle = packer.take(cycle, 1) + 1
            cycle += row == 0
        opened = done = cycle
        cycle = packer.take(cycle, 1, align=not table.sent) + 1
        if table.sent:
            sizes = plane_cycles.chunks(table.mantissas * table.format.fraction_bits // 8, 4)
            for number, size in enumerate(sizes):
                cycle = packer.take(cycle, size, align=number == len(sizes) - 1) + 1
        sizes = plane_cycles.chunks(table.code_width(len(exponents)), 4 * words)
        total = -(-count * lanes // planes.GROUP) * planes.GROUP // lanes
        coded = cycle

        def leave(cycle: int, beat: int, total: int = total, sizes: list[int] = sizes, coded: int = coded) -> int:
            nonlocal taken
            if beat % per_eight != per_eight - 1:
                return cycle
            left, taken = eights.give(cycle, coded, sizes, held=table.width > 4 * words, last=beat == total - 1)
            return left

        for beat in range(total):
            codes.beat(done, functools.partial(leave, beat=beat), real=beat < count)
        cycle = taken + 1
        idle = cycle
    scan.accept(opened)
    return plane_cycles.Trace(feed.valid, feed.ready, packer.output.offered >= 0, packer.output.offered, scan.valid,
                        scan.ready)


def trace_decoder(table: LookupTable, packets: Sequence[npt.ArrayLike], *, lanes: int, willing: npt.ArrayLike,
                  ready: npt.ArrayLike) -> plane_cycles.Trace:
    """Trace every cycle of a decoder that receives valid packets."""
    words = planes.word_count(lanes, table.width)
    decoding = plane_cycles.Decoding(words, packets, willing, ready)
    for packet in packets:
        octets = np.asarray(packet, np.uint32).astype("<u4").view(np.uint8)
        exponents = 1
        while octets[exponents] > octets[exponents - 1]:
            exponents += 1
        for _ in range(exponents + 1):
            decoding.take(1)
        start = exponents + 1
        if table.sent:
            bits = table.format.fraction_bits
            for number in range(table.mantissas):
                decoding.take(-(-bits * (number + 1) // 8) - -(-bits * number // 8))
            start += bits * table.mantissas // 8
        decoding.take(0, align=True)
        decoding.codes(len(octets) - -(-start // 4) * 4, table.code_width(exponents), lanes)
    return decoding.trace
