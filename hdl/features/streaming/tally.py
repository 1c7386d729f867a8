"""Counters of a server for zeros and saturations in each command's elements, in a table that the host can read."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.features.mx.coding import flags_layout
from hdl.memory import write_signature
from hdl.memory_map import COUNT_WORDS

__all__ = ["ENTRIES", "Tally"]

#: Number of table entries; an entry has four words: zeros and saturations of FETCH, then zeros and saturations of
#: PUSH.
ENTRIES = COUNT_WORDS // 4


class Tally(wiring.Component):
    """Count the flags of a command's first ``length`` elements, and write the counts to a table entry.

    The command's half of the entry is cleared when the command begins, and the counts so far are written after each
    packet. Flags are counted in the cycle of their ``valid``; the write occurs at least :attr:`latency` cycle after
    the packet's last flags. A packet is reported at ``written`` once its counts have been written.

    Parameters
    ----------
    lanes : int
        Number of elements in a beat, and number of words in a table row: 2, 4 or 8.
    elements : int
        Maximum number of elements in a command.

    Members
    -------
    start : In(1)
        Start of a command; ``enable``, ``entry``, ``push`` and ``length`` must be held until its last packet is
        written.
    enable : In(1)
        Whether the command is counted.
    entry, push, length : In
        Entry to write; whether to use its second half; number of elements to count (the last packet may have more).
    flags : In(flags_layout(lanes))
    written : Out(stream of no bits)
        One beat per packet.
    port : Out(write_signature(COUNT_WORDS // lanes, lanes))
    """

    latency = 1

    def __init__(self, *, lanes, elements):
        self._lanes = lanes
        self._elements = elements
        super().__init__({
            "start": In(1),
            "enable": In(1),
            "entry": In(range(ENTRIES)),
            "push": In(1),
            "length": In(range(elements + 1)),
            "flags": In(flags_layout(lanes)),
            "written": Out(stream.Signature(0)),
            "port": Out(write_signature(COUNT_WORDS // lanes, lanes)),
        })

    def elaborate(self, platform):
        m = Module()
        lanes, flags, port = self._lanes, self.flags, self.port
        left = Signal(range(self._elements + 1))
        zeros, saturations = Signal.like(left), Signal.like(left)
        due = Signal()  # the entry must be written
        ended, whole = Signal(8), Signal(8)  # packets counted, and packets written

        begins = self.start & self.enable
        counts = flags.valid & self.enable
        ends = counts & flags.last
        taken = port.valid & port.ready
        kept = Cat(left > lane for lane in range(lanes))
        pair = Cat(self.push, self.entry)  # address in units of two words
        within = (lanes // 2 - 1).bit_length()
        m.d.comb += [
            port.valid.eq(due),
            port.row.eq(pair >> within),
            port.keep.eq(0b11 << (pair[:within] << 1) if within else 0b11),
            *(port.elements[lane].eq(saturations if lane % 2 else zeros) for lane in range(lanes)),
            self.written.valid.eq(whole != 0),
        ]
        m.d.sync += [
            due.eq((due & ~taken) | begins | ends),
            ended.eq(Mux(taken, 0, ended) + ends),
            whole.eq(whole + Mux(taken, ended, 0) - (self.written.valid & self.written.ready)),
        ]
        with m.If(begins):
            m.d.sync += [left.eq(self.length), zeros.eq(0), saturations.eq(0)]
        with m.Elif(counts):
            m.d.sync += [
                left.eq(Mux(kept.all(), left - lanes, 0)),
                zeros.eq(zeros + sum((flags.zeros & kept)[lane] for lane in range(lanes))),
                saturations.eq(saturations + sum((flags.saturations & kept)[lane] for lane in range(lanes))),
            ]
        return m
