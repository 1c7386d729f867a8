"""Memories of a node: rows of ``lanes`` elements, with one read and one write per cycle."""

import functools
import operator

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from hdl.group import GROUP
from hdl.guard import Guard, window_layout
from hdl.streams.stream import check_lanes

__all__ = ["READ_LATENCY", "LanedMemory", "accesses_layout", "chosen", "job_layout", "read_signature", "take_turns",
           "write_signature", "written_signature"]

#: Latency in cycles from the grant of a read to its elements.
READ_LATENCY = 2


def read_signature(rows, lanes):
    """Reader's side of a read port: a row is requested with ``valid`` and granted with ``ready``. Its elements appear
    on ``elements``, while ``response`` is high, :data:`READ_LATENCY` cycles after the grant. A memory with delayed
    responses (:class:`~hdl.features.far.memories.FarMemories`) takes at least as long and responds in order."""
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
    """Writer's side of a write port: the kept elements of a row are taken when ``valid`` and ``ready`` are high."""
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
    """Report of a write for observers: the row that is written in this cycle. No read of this row is granted then."""
    return wiring.Signature({"valid": Out(1), "row": Out(range(rows))})


def accesses_layout(rows):
    """Layout of the accesses to the block memory in a cycle: whether a row is read and whether one is written, the
    row numbers, and flags for accesses by the host."""
    return data.StructLayout({
        "reads": 1, "read_row": range(rows), "read_by_host": 1,
        "writes": 1, "written_row": range(rows), "written_by_host": 1})


def job_layout(rows, elements):
    """Layout of a range of rows to read or write: its first row and its number of elements, 1 to ``elements``."""
    return data.StructLayout({"row": range(rows), "count": range(elements + 1)})


class LanedMemory(wiring.Component):
    """Memory of rows of ``lanes`` 32-bit elements, with one read and one write per cycle.

    Read ports are served round-robin, and write ports in order of priority, port 0 first; all other ports wait. A
    read granted in the cycle when a write to its row is accepted returns the old elements. In the next cycle, a read
    of that row waits; it then returns the new elements. ``ready`` of a write port depends combinationally on
    ``valid`` of the other write ports; ``ready`` of a read port depends on ``valid`` and ``row`` of all read ports.

    Parameters
    ----------
    rows : int
        Number of rows; at least 2.
    lanes : int
        Number of elements in a row: 1, 2, 4 or 8.
    readers, writers : int
        Number of ports of each kind; at least 1.
    watched : bool
        Whether the memory reports each row that is written.
    throttled : bool
        Whether ports are served only while ``enable`` is high.
    owners : pair of tuples of int, optional
        Command queue that each read port and each write port serves; the last port of each kind is the host's and has
        no queue. With ``owners``, the memory is guarded: a :class:`~hdl.guard.Guard` follows the arbiter of the
        read ports, and another one the arbiter of the write ports; the host's rows are not translated. A row
        outside the window reads as zeros and is not written. If only one of a read and a write is by the host, the
        read waits for a write to any row at the same position in a group of 32 elements.

    Members
    -------
    read : array of In(read_signature(rows, lanes))
    write : array of In(write_signature(rows, lanes))
    written : Out(written_signature(rows))
        Present if ``watched``: valid one cycle after a write with a kept element was accepted. If the memory is
        guarded, the row is a row of the memory, in the window or written by the host.
    enable : In(1)
        Present if ``throttled``; all ``ready`` depend combinationally on it.
    window : In(window_layout(rows * lanes))
        Present if guarded. An access is compared with the window in the cycle after the grant.
    strays : Out(queues)
        Present if guarded: queues with a command that accessed a row outside the window in the previous cycle;
        depends combinationally on ``window``.
    """

    def __init__(self, *, rows, lanes, readers, writers, watched=False, throttled=False, owners=None):
        for name, value, least in (("Row", rows, 2), ("Reader", readers, 1), ("Writer", writers, 1)):
            if not isinstance(value, int) or value < least:
                raise ValueError(f"{name} count must be an integer of at least {least}, not {value!r}")
        check_lanes(lanes)
        self._rows = rows
        self._lanes = lanes
        self._watched = watched
        self._throttled = throttled
        self._owners = owners
        if owners is not None:
            #: Accesses to the block memory, for formal specifications.
            self.accesses = Signal(accesses_layout(rows))
        super().__init__(
            {
                "read": In(read_signature(rows, lanes)).array(readers),
                "write": In(write_signature(rows, lanes)).array(writers),
                **({"written": Out(written_signature(rows))} if watched else {}),
                **({"enable": In(1, init=1)} if throttled else {}),
                **({"window": In(window_layout(rows * lanes)), "strays": Out(1 + max((*owners[0], *owners[1], 0)))}
                   if owners is not None else {}),
            }
        )

    def elaborate(self, platform):
        m = Module()
        # `_read_turns` ensures that no row is read while it is being written.
        m.submodules.memory = memory = Memory(
            shape=32 * self._lanes, depth=self._rows, init=[], attrs={"no_rw_check": 1}
        )
        if self._owners is not None:
            self._elaborate_guards(m, memory)
            return m
        read = memory.read_port(transparent_for=())
        write = memory.write_port(granularity=32)
        self._elaborate_write(m, write)
        self._elaborate_read(m, read, write)
        return m

    def _elaborate_guards(self, m, memory):
        """Elaborate the reads and writes of a guarded memory.

        The granted row is registered before the addition and the comparison, which keeps both off the arbitration
        path. The block memory is read one cycle later than in a memory without guards, and its own output register
        holds the elements; rejected reads reset this register, and so return zeros. Writes are also one cycle later.
        """
        rows, queues = self._rows, range(len(self.strays))
        write = memory.write_port(granularity=32)
        read = memory.read_port(domain="comb")  # a port of the block memory, including the register after it
        elements = Signal(32 * self._lanes, reset_less=True)
        read_row, read_by_host = Signal(range(rows)), Signal()
        written_row, written_by_host, keep = Signal(range(rows)), Signal(), Signal(self._lanes)
        data_in = Signal.like(write.data, reset_less=True)
        inside, address = self._guard(m, "read", read_row, read_by_host)
        writes_inside, written_address = self._guard(m, "write", written_row, written_by_host)

        # The host's rows are not relative to a window's base. A host read waits for an engine's write to a row at the
        # same position in its group, and vice versa, so that no addition precedes the arbitration.
        low, by_host = exact_log2(GROUP // self._lanes), [0] * (len(self.read) - 1) + [1]
        waits = [(port.row[:low] == written_row[:low]) & keep.any()
                 & ((port.row[low:] == written_row[low:]) | (written_by_host ^ its))
                 for port, its in zip(self.read, by_host, strict=True)]
        granted = self._read_turns(m, elements, waits)
        taken = self._write_turns(m)
        *engines, _ = self.write
        asks = Cat(port.valid for port in engines)
        m.d.sync += [
            read_row.eq(chosen(granted, [port.row for port in self.read])), read_by_host.eq(granted[-1]),
            elements.eq(Mux(inside, read.data, 0)),
            written_row.eq(_first(self.write, "row")), written_by_host.eq(~asks.any()),
            keep.eq(Mux(taken, _first(self.write, "keep"), 0)), data_in.eq(_first(self.write, "elements")),
            write.addr.eq(written_address), write.data.eq(data_in), write.en.eq(Mux(writes_inside, keep, 0)),
            self.accesses.written_by_host.eq(written_by_host),
        ]
        m.d.comb += [
            read.addr.eq(address),
            self.accesses.reads.eq(inside), self.accesses.read_row.eq(address),
            self.accesses.read_by_host.eq(read_by_host),
            self.accesses.writes.eq(write.en.any()), self.accesses.written_row.eq(write.addr),
        ]
        if self._watched:
            m.d.comb += [self.written.valid.eq(keep.any() & writes_inside), self.written.row.eq(written_address)]

        won = [port.valid & ~asks[:n].any() & taken for n, port in enumerate(engines)]
        reads_of, writes_of = self._owners
        for queue in queues:
            read_here, written_here = Signal(name=f"read_by_{queue}"), Signal(name=f"written_by_{queue}")
            for here, marks, owners in ((read_here, granted[:-1], reads_of), (written_here, won, writes_of)):
                its = Cat(mark for mark, owner in zip(marks, owners, strict=True) if owner == queue)
                m.d.sync += here.eq(its.any())
            m.d.comb += self.strays[queue].eq((read_here & ~inside) | (written_here & ~writes_inside))

    def _guard(self, m, kind, row, by_host):
        """Guard a row for an engine, or for the host, which may access the whole memory; return whether access is
        allowed, and the row of the memory."""
        m.submodules[f"{kind}_guard"] = guard = Guard(rows=self._rows, lanes=self._lanes)
        m.d.comb += [guard.window.eq(self.window), guard.row.eq(row), guard.whole.eq(by_host)]
        return guard.allowed, guard.place

    def _elaborate_read(self, m, read, write):
        elements = Signal(32 * self._lanes)
        m.d.sync += elements.eq(read.data)
        granted = self._read_turns(m, elements, [(port.row == write.addr) & write.en.any() for port in self.read])
        m.d.comb += [
            read.en.eq(granted.any()),
            read.addr.eq(chosen(granted, [port.row for port in self.read])),
        ]

    def _read_turns(self, m, elements, waits):
        """Serve the read ports round-robin from the register ``elements``; return the granted port, one-hot.

        The result of reading a block memory row during a write to it is undefined, so a reader ``waits`` while its
        row is being written.
        """
        count = len(self.read)
        asking = Signal(count)
        for n, port in enumerate(self.read):
            asks = port.valid & ~waits[n]
            m.d.comb += asking[n].eq(asks & self.enable if self._throttled else asks)
        granted, served = take_turns(m, asking)
        for n, port in enumerate(self.read):
            fetched = Signal(name=f"read_fetched_{n}")
            m.d.comb += [port.ready.eq(granted[n]), port.elements.eq(elements)]
            m.d.sync += [fetched.eq(granted[n]), port.response.eq(fetched)]
            with m.If(granted[n]):
                m.d.sync += served.eq(n)
        return granted

    def _elaborate_write(self, m, write):
        """Accept a row in one cycle and write it in the next, from a register that holds its row number."""
        taken = self._write_turns(m)
        # If no port is valid, the row does not matter, so the last port is selected without testing its ``valid``.
        m.d.sync += [
            write.addr.eq(_first(self.write, "row")),
            write.data.eq(_first(self.write, "elements")),
            write.en.eq(Mux(taken, _first(self.write, "keep"), 0)),
        ]
        if self._watched:
            m.d.comb += [self.written.valid.eq(write.en.any()), self.written.row.eq(write.addr)]

    def _write_turns(self, m):
        """Serve the write ports in order of priority; return whether a write is taken."""
        taken = ~self.enable if self._throttled else Const(0)
        for port in self.write:
            m.d.comb += port.ready.eq(~taken)
            taken = taken | port.valid
        return taken & self.enable if self._throttled else taken


def _first(ports, name):
    """Return a member of the first valid port, or of the last port if no port is valid."""
    value = Value.cast(getattr(ports[len(ports) - 1], name))
    for n in reversed(range(len(ports) - 1)):
        value = Mux(ports[n].valid, Value.cast(getattr(ports[n], name)), value)
    return value


def take_turns(m, asking):
    """Arbitrate round-robin between the bits of ``asking``. Returns a one-hot mask of the bit to serve next, and a
    signal to which the caller must assign the index of the bit served last. The next bit has the highest priority."""
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
    """Return the value whose mark is set, or zero if no mark is set."""
    return functools.reduce(operator.or_, (Mux(mark, value, 0) for mark, value in zip(marks, values, strict=True)))
