"""Buffer tags for activation memory rows: they detect reads of rows overwritten by another buffer."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from hdl.features.compute.layer_list import OWNER_BITS
from hdl.guard import Guard, window_layout
from hdl.memory import written_signature

__all__ = ["RowOwners", "access_layout"]


def access_layout(rows):
    """Row of a read granted in this cycle, and the number of the buffer that the read expects."""
    return data.StructLayout({"valid": 1, "row": range(rows), "owner": OWNER_BITS})


class RowOwners(wiring.Component):
    """Store the number of the buffer that wrote each row, and check the buffer number of each read.

    Number 0 stands for any buffer: a row tagged 0 may be read for any buffer, and a read with number 0 is not
    checked. All rows are tagged 0 when the FPGA is configured; a reset changes neither tags nor memory contents.

    A write of the engine is reported in the cycle when the memory takes it, and tags its row in the next cycle,
    when the memory writes. A row written by the host is tagged 0. A read is reported in the cycle
    when the memory grants it; its comparison ends :attr:`latency` cycles later, one cycle after its elements arrive.
    Nothing waits for the comparison, so a node with buffer tags takes the same number of cycles as one without.

    Parameters
    ----------
    rows : int
        Number of rows in the memory; at least 2.
    lanes : int, optional
        Number of elements in a row, for a memory with a guard. A read then gives a row relative to the tenant's
        window, and rows outside the window are not checked.

    Members
    -------
    window : In(window_layout(rows * lanes)), with ``lanes``
    written : In(written_signature(rows))
        Row that the memory writes in this cycle.
    write : In(1)
        The memory takes a write of the engine.
    owner : In(OWNER_BITS)
        Buffer number of this write.
    read : In(access_layout(rows))
        A read of the engine. The memory writes a different row in that cycle, see :class:`~hdl.memory.LanedMemory`.
    dead : Out(1)
        Since the last reset, a row of a different buffer has been read.
    row : Out(range(rows))
        Lowest row of a different buffer that has been read.
    """

    #: Cycles from a read to ``dead``.
    latency = 3

    def __init__(self, *, rows, lanes=None):
        if isinstance(rows, bool) or not isinstance(rows, int) or rows < 2:
            raise ValueError(f"Row count must be an integer of at least 2, not {rows!r}")
        self._rows, self._lanes = rows, lanes
        super().__init__({
            **({} if lanes is None else {"window": In(window_layout(rows * lanes))}),
            "written": In(written_signature(rows)),
            "write": In(1),
            "owner": In(OWNER_BITS),
            "read": In(access_layout(rows)),
            "dead": Out(1),
            "row": Out(range(rows)),
        })

    def elaborate(self, platform):
        m = Module()
        # A row is never read while being written; the output after a cycle without a read is not used.
        m.submodules.memory = memory = Memory(
            shape=OWNER_BITS, depth=self._rows, init=[], attrs={"no_rw_check": 1})
        stamp, look = memory.write_port(), memory.read_port(transparent_for=())
        # A write accepted before a reset still sets the tag of its row.
        took, owner = Signal(reset_less=True), Signal(OWNER_BITS, reset_less=True)
        m.d.sync += [took.eq(self.write), owner.eq(self.owner)]
        m.d.comb += [
            stamp.en.eq(self.written.valid), stamp.addr.eq(self.written.row), stamp.data.eq(Mux(took, owner, 0)),
            look.addr.eq(self.read.row),
        ]
        read = self.read
        if self._lanes is not None:
            m.submodules.guard = guard = Guard(rows=self._rows, lanes=self._lanes)
            read = Signal(access_layout(self._rows))
            m.d.comb += [
                guard.window.eq(self.window), guard.row.eq(self.read.row), look.addr.eq(guard.place),
                read.eq(self.read), read.valid.eq(self.read.valid & guard.allowed),
            ]

        # Buffer numbers have an extra register after the memory, as elements do.
        asked, compared = Signal(access_layout(self._rows)), Signal(access_layout(self._rows))
        tag = Signal(OWNER_BITS, reset_less=True)
        m.d.sync += [asked.eq(read), compared.eq(asked), tag.eq(look.data)]
        wrong = Signal()
        m.d.comb += wrong.eq(compared.valid & (compared.owner != 0) & (tag != 0) & (compared.owner != tag))
        with m.If(wrong):
            m.d.sync += self.dead.eq(1)
            with m.If(~self.dead | (compared.row < self.row)):
                m.d.sync += self.row.eq(compared.row)
        return m
