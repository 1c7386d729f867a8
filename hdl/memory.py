"""The memories of a node: rows of ``lanes`` elements, one read and one write per cycle, shared by ports in turn."""

import functools
import operator

from amaranth.hdl import Const, Module, Mux, Signal, Value
from amaranth.lib import data, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from hdl.streams.stream import check_lanes

__all__ = ["READ_LATENCY", "LanedMemory", "chosen", "job_layout", "read_signature", "take_turns", "write_signature",
           "written_signature"]

#: Cycles from the grant of a read to its elements.
READ_LATENCY = 2


def read_signature(rows, lanes):
    """Reader's side of a read port: a row is requested with ``valid``, granted with ``ready``, and its elements are
    there :data:`READ_LATENCY` cycles after the grant, in ``elements`` while ``response`` is high. A memory that
    answers late (:class:`~hdl.far.memories.FarMemories`) does so that many cycles after the grant or later, in
    order."""
    return wiring.Signature(
        {
            "valid": Out(1),
            "ready": In(1),
            "row": Out(range(rows)),
            "response": In(1),
            "elements": In(data.ArrayLayout(32, lanes)),
        }
    )


def write_signature(rows, lanes):
    """Writer's side of a write port: the kept elements of a row, taken in the cycle of ``valid`` and ``ready``."""
    return wiring.Signature(
        {
            "valid": Out(1),
            "ready": In(1),
            "row": Out(range(rows)),
            "elements": Out(data.ArrayLayout(32, lanes)),
            "keep": Out(lanes),
        }
    )


def written_signature(rows):
    """Memory's side of what watches it: the row that is written in this cycle. No read of it is granted meanwhile."""
    return wiring.Signature({"valid": Out(1), "row": Out(range(rows))})


def job_layout(rows, elements):
    """Run of rows to read or write: its first row, and its number of elements, 1 to ``elements``."""
    return data.StructLayout({"row": range(rows), "count": range(elements + 1)})


class LanedMemory(wiring.Component):
    """Memory of rows of ``lanes`` 32-bit elements, with one read and one write per cycle.

    Read ports take turns. Write ports are served in order of priority, port 0 first. A port that loses waits. A read
    that is granted in the same cycle as a write of its row is taken returns the old elements; in the cycle after, a
    read of that row waits, and then returns the new ones. ``ready`` of a port depends combinationally on ``valid`` of
    the others of its kind, and on its own and on the rows of all if it reads.

    Parameters
    ----------
    rows : int
        Rows; at least 2.
    lanes : int
        Elements in a row: 1, 2, 4 or 8.
    readers, writers : int
        Ports of each kind; at least 1.
    watched : bool
        Whether it tells of each row that is written.
    throttled : bool
        Whether ports are served only in cycles of ``enable``.

    Members
    -------
    read : array of In(read_signature(rows, lanes))
    write : array of In(write_signature(rows, lanes))
    written : Out(written_signature(rows))
        There if it is ``watched``: valid in the cycle after a port was taken with an element to keep.
    enable : In(1)
        There if it is ``throttled``; all ``ready`` depend combinationally on it.
    """

    def __init__(self, *, rows, lanes, readers, writers, watched=False, throttled=False):
        for name, value, least in (("Row", rows, 2), ("Reader", readers, 1), ("Writer", writers, 1)):
            if not isinstance(value, int) or value < least:
                raise ValueError(f"{name} count must be an integer of at least {least}, not {value!r}")
        check_lanes(lanes)
        self._rows = rows
        self._lanes = lanes
        self._watched = watched
        self._throttled = throttled
        super().__init__(
            {
                "read": In(read_signature(rows, lanes)).array(readers),
                "write": In(write_signature(rows, lanes)).array(writers),
                **({"written": Out(written_signature(rows))} if watched else {}),
                **({"enable": In(1, init=1)} if throttled else {}),
            }
        )

    def elaborate(self, platform):
        m = Module()
        # A row is never read while it is written: see below.
        m.submodules.memory = memory = Memory(
            shape=32 * self._lanes, depth=self._rows, init=[], attrs={"no_rw_check": 1}
        )
        read = memory.read_port(transparent_for=())
        write = memory.write_port(granularity=32)
        self._elaborate_write(m, write)
        self._elaborate_read(m, read, write)
        return m

    def _elaborate_read(self, m, read, write):
        elements = Signal(32 * self._lanes)
        m.d.sync += elements.eq(read.data)
        count = len(self.read)
        # Block memory does not say what a read returns beside a write of the same row, so the reader waits for it.
        asking = Signal(count)
        for n, port in enumerate(self.read):
            asks = port.valid & ~((port.row == write.addr) & write.en.any())
            m.d.comb += asking[n].eq(asks & self.enable if self._throttled else asks)
        granted, served = take_turns(m, asking)
        for n, port in enumerate(self.read):
            fetched = Signal(name=f"read_fetched_{n}")
            m.d.comb += [port.ready.eq(granted[n]), port.elements.eq(elements)]
            m.d.sync += [fetched.eq(granted[n]), port.response.eq(fetched)]
            with m.If(granted[n]):
                m.d.sync += served.eq(n)
        m.d.comb += [
            read.en.eq(granted.any()),
            read.addr.eq(chosen(granted, [port.row for port in self.read])),
        ]

    def _elaborate_write(self, m, write):
        """Take a row in one cycle, and write it in the next: then a register says which row that is."""
        taken = ~self.enable if self._throttled else Const(0)
        for port in self.write:
            m.d.comb += port.ready.eq(~taken)
            taken = taken | port.valid
        if self._throttled:
            taken &= self.enable
        # Without a valid port it does not matter which row it is, so that the last one needs no mark.
        m.d.sync += [
            write.addr.eq(_first(self.write, "row")),
            write.data.eq(_first(self.write, "elements")),
            write.en.eq(Mux(taken, _first(self.write, "keep"), 0)),
        ]
        if self._watched:
            m.d.comb += [self.written.valid.eq(write.en.any()), self.written.row.eq(write.addr)]


def _first(ports, name):
    """Member of the first valid port, or else of the last one."""
    value = Value.cast(getattr(ports[len(ports) - 1], name))
    for n in reversed(range(len(ports) - 1)):
        value = Mux(ports[n].valid, Value.cast(getattr(ports[n], name)), value)
    return value


def take_turns(m, asking):
    """Return the mark of the bit of ``asking`` that has its turn, and the number of the one served last, which the
    caller sets: the bit after that comes first."""
    count = len(asking)
    served = Signal(range(max(count, 2)))
    granted = Signal(count)
    with m.Switch(served):
        for latest in range(count):
            with m.Case(latest):
                for n in reversed(range(latest + 1, latest + 1 + count)):
                    with m.If(asking[n % count]):
                        m.d.comb += granted.eq(1 << (n % count))
    return granted, served


def chosen(marks, values):
    """Return the marked value, or zeros if none is marked."""
    return functools.reduce(operator.or_, (Mux(mark, value, 0) for mark, value in zip(marks, values, strict=True)))
