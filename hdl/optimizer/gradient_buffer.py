"""Banked buffer for burst operands, in which a stream fills a bank and a burst drains it once."""

import functools
import operator

from amaranth.hdl import Array, Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from hdl.streams.stream import beat_layout, check_lanes, step_count

__all__ = ["GradientBuffer"]


class GradientBuffer(wiring.Component):
    """Ring of banks that each hold one burst's elements from one stream.

    A fill ends at the beat with ``last``; elements beyond the size of a bank are accepted and ignored. A filled bank
    is first claimed, when the burst that will drain it begins, and then drained by ``take``, one slice of
    ``read_lanes`` elements per cycle. A ``take`` with ``finish`` discards the bank, which can be filled again from
    the next cycle on. Elements missing from the fill read as +0.0.

    Gradients are claimed and taken in the same cycle, and two banks keep their stream and the burst busy in every
    cycle. Weights and state are taken ``delay`` cycles after the claim, when the arithmetic needs them, which takes
    ``2 + ceil(delay / (depth / read_lanes))`` banks instead of a delay line.

    Latency is :attr:`latency` cycles from ``take`` to ``o``; throughput is one beat per cycle in and one slice per
    cycle out. ``i.ready`` depends only on registers.

    Parameters
    ----------
    lanes : int
        Number of elements per beat of the fill: 1, 2, 4 or 8.
    depth : int
        Number of elements per bank; a positive multiple of ``lanes``.
    banks : int
        Number of banks; at least 2.
    read_lanes : int or None
        Number of elements per slice: 1, 2, 4 or 8, at most ``lanes``, which is the default.
    width : int
        Bits per element.

    Members
    -------
    i : In(stream of beat_layout(lanes, width))
    filled : Out(1)
        A filled bank is waiting to be claimed.
    claim : In(1)
        Claim the oldest unclaimed bank; only while ``filled``.
    take : In(1)
        Drain the next slice of the oldest bank; only while that bank is claimed, or in the cycle that claims it.
    finish : In(1)
        With ``take``: this is the burst's last slice.
    o : Out(ArrayLayout(width, read_lanes))
        The slice taken :attr:`latency` cycles ago, or zeros if no slice was taken.
    """

    latency = 3

    def __init__(self, *, lanes, depth, banks=2, read_lanes=None, width=32):
        check_lanes(lanes)
        if read_lanes is None:
            read_lanes = lanes
        if read_lanes not in (1, 2, 4, 8) or read_lanes > lanes:
            raise ValueError(f"Read lane count must be 1, 2, 4 or 8 and at most {lanes}, not {read_lanes!r}")
        if not isinstance(depth, int) or depth < lanes or depth % lanes:
            raise ValueError(f"Depth must be a positive multiple of {lanes} lanes, not {depth!r}")
        if not isinstance(banks, int) or banks < 2:
            raise ValueError(f"Bank count must be at least 2, not {banks!r}")
        self._lanes = lanes
        self._read_lanes = read_lanes
        self._rows = depth // lanes
        self._banks = banks
        self._width = width
        super().__init__(
            {
                "i": In(stream.Signature(beat_layout(lanes, width))),
                "filled": Out(1),
                "claim": In(1),
                "take": In(1),
                "finish": In(1),
                "o": Out(data.ArrayLayout(width, read_lanes)),
            }
        )

    @property
    def banks(self):
        return self._banks

    def elaborate(self, platform):
        m = Module()
        rows, banks, slices = self._rows, self._banks, self._lanes // self._read_lanes

        w_bank = Signal(range(banks))
        w_row = Signal(range(rows + 1))
        r_bank = Signal(range(banks))
        r_row = Signal(range(rows + 1))
        r_slice = Signal(range(max(slices, 2)))
        # The last filled row of each bank and the keep bits of its elements.
        final_rows = Array(Signal(range(max(rows, 2)), name=f"final_row_{bank}") for bank in range(banks))
        final_keeps = Array(Signal(self._lanes, name=f"final_keep_{bank}") for bank in range(banks))
        passed = Signal()  # the following slices are beyond the last filled row
        occupied = Signal(range(banks + 1))  # number of banks that are filled and not yet discarded
        unclaimed = Signal(range(banks + 1))

        # An address is the concatenation of bank and row, so no multiplier is needed for any depth. Each slice
        # of the rows is a separate memory, with an extra row of zeros: the memories that are not addressed read that
        # row, so that an OR gate can replace the multiplexer.
        row_bits = ceil_log2(rows)
        zeros = banks << row_bits
        slice_shape = data.ArrayLayout(self._width, self._read_lanes)
        writes, reads = [], []
        for part in range(slices):
            # A bank is never filled while it is drained, so a read never collides with a write to its address.
            m.submodules[f"memory_{part}"] = memory = Memory(
                shape=slice_shape, depth=zeros + (slices > 1), init=[], attrs={"no_rw_check": 1}
            )
            writes.append(memory.write_port())
            reads.append(memory.read_port(transparent_for=()))

        def following(bank):
            return Mux(bank == banks - 1, 0, bank + 1)

        free = Signal(init=1)
        accept = Signal()
        filling_ends = Signal()
        fits = Signal()
        m.d.comb += [
            self.i.ready.eq(free),
            accept.eq(self.i.valid & self.i.ready),
            filling_ends.eq(accept & self.i.payload.last),
            fits.eq(w_row != rows),
        ]
        for part, write in enumerate(writes):
            m.d.comb += [write.addr.eq(Cat(w_row[:row_bits], w_bank)), write.en.eq(accept & fits)]
            for lane in range(self._read_lanes):
                m.d.comb += write.data[lane].eq(self.i.payload.elements[part * self._read_lanes + lane])
        with m.If(filling_ends):
            m.d.sync += [
                final_rows[w_bank].eq(Mux(fits, w_row, rows - 1)),
                final_keeps[w_bank].eq(Mux(fits, self.i.payload.keep, ~0)),
                w_row.eq(0),
                w_bank.eq(following(w_bank)),
            ]
        with m.Elif(accept & fits):
            m.d.sync += w_row.eq(w_row + 1)

        discard = Signal()
        final = Signal()
        m.d.comb += [discard.eq(self.take & self.finish), final.eq(r_row == final_rows[r_bank])]
        for part, read in enumerate(reads):
            address = Cat(r_row[:row_bits], r_bank)
            m.d.comb += [
                read.addr.eq(address if slices == 1 else Mux(r_slice == part, address, zeros)),
                read.en.eq(self.take),
            ]
        with m.If(discard):
            m.d.sync += [r_slice.eq(0), r_row.eq(0), r_bank.eq(following(r_bank)), passed.eq(0)]
        with m.Elif(self.take):
            with m.If(r_slice == slices - 1):
                m.d.sync += [r_slice.eq(0), r_row.eq(r_row + 1), passed.eq(passed | final)]
            with m.Else():
                m.d.sync += r_slice.eq(r_slice + 1)
        step_count(m, occupied, up=filling_ends, down=discard)
        with m.If(filling_ends ^ discard):
            m.d.sync += free.eq(discard | (occupied != banks - 1))
        step_count(m, unclaimed, up=filling_ends, down=self.claim)
        with m.If(filling_ends ^ self.claim):
            m.d.sync += self.filled.eq(filling_ends | (unclaimed != 1))

        # The pipeline has one cycle for the memory and its slow output, one for the OR of the slices, and one
        # for the zeros of missing elements.
        present = Signal(self._read_lanes)
        present_slice = Signal(self._read_lanes)
        keep = final_keeps[r_bank].word_select(r_slice, self._read_lanes) if slices > 1 else final_keeps[r_bank]
        m.d.sync += [
            present.eq(Mux(self.take & ~passed, keep | (~final).replicate(self._read_lanes), 0)),
            present_slice.eq(present),
        ]
        for lane in range(self._read_lanes):
            element = Signal(self._width, name=f"element_{lane}", reset_less=True)
            m.d.sync += [
                element.eq(functools.reduce(operator.or_, (read.data[lane] for read in reads))),
                self.o[lane].eq(Mux(present_slice[lane], element, 0)),
            ]
        return m
