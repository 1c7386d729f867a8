"""Operand buffer that transposes blocks of a matrix between memory rows and the array."""

from amaranth.hdl import Cat, Module, Mux, Signal, unsigned
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from hdl.floating.format import FP32

__all__ = ["PanelBuffer", "fill_layout", "operand_layout", "read_layout"]


def fill_layout(lanes, blocks):
    """Payload for a memory row: column ``row`` of a block or, if ``transposed``, row ``row``.

    ``last`` ends the panel.
    """
    return data.StructLayout({
        "elements": data.ArrayLayout(unsigned(FP32.width), lanes), "block": range(blocks), "row": range(lanes),
        "transposed": 1, "last": 1})


def read_layout(lanes, blocks, width):
    """Request for ``width`` elements of column ``row`` of a block; ``last`` releases the panel.

    ``part`` selects these elements, and exists only if a column has more than one part.
    """
    part = {"part": range(lanes // width)} if width < lanes else {}
    return data.StructLayout({"block": range(blocks), "row": range(lanes), **part, "last": 1})


def operand_layout(width):
    """Operand payload: ``width`` adjacent elements of a column."""
    return data.StructLayout({"elements": data.ArrayLayout(unsigned(FP32.width), width)})


def _rotate(m, name, values, amount, bits):
    """Rotate values to higher lanes by an amount given by some bits of ``amount``.

    The value of lane n moves to lane n + ``amount``, modulo the number of lanes. With a register between two bits of
    the amount, each bit takes one LUT per bit of a value; without a register, both together take four.
    """
    for bit in bits:
        step = 1 << bit
        turned = [Signal(len(value), name=f"{name}_{step}_{lane}") for lane, value in enumerate(values)]
        m.d.comb += [turned[lane].eq(Mux(amount[bit], values[lane - step], values[lane]))
                     for lane in range(len(values))]
        values = turned
    return values


class PanelBuffer(wiring.Component):
    """Hold two panels of operands: one is filled with memory rows while columns of the other one are read.

    A panel consists of square blocks of ``lanes`` by ``lanes`` elements. A memory row is a column or a row of a
    block, written in one cycle in both cases; a read returns a column, or a part of it. A and B of a product may
    therefore each be stored in either order. Element (i, k) of a block is in bank (i + k) modulo ``lanes``, so that
    rows and columns are both spread over all banks.

    One row is accepted and one column read per cycle, also from panel to panel. Each panel is filled and then read: a
    fill ends with ``last``, and the panel can be read two cycles later, in any order and any number of times, until a
    read with ``last``. It can be filled again in the cycle after that. Elements not written keep their values.

    The operands of a read are offered :attr:`latency` cycles after it. The stages of reading move together when the
    output is free: ``read.ready`` depends combinationally on ``o.ready``. ``fill.ready`` is a function of registers.

    Parameters
    ----------
    lanes : int
        Elements of a memory row: 2, 4 or 8.
    width : int or None
        Elements of a read, a power of two up to ``lanes``; by default ``lanes``.
    blocks : int
        Blocks of a panel, a power of two, at least 2.

    Members
    -------
    fill : In(stream of fill_layout(lanes, blocks))
    read : In(stream of read_layout(lanes, blocks, width))
    o : Out(stream of operand_layout(width))
    """

    latency = 4

    def __init__(self, *, lanes, width=None, blocks=128):
        if not isinstance(lanes, int) or lanes not in (2, 4, 8):
            raise ValueError(f"Lane count must be 2, 4 or 8, not {lanes!r}")
        width = lanes if width is None else width
        if not isinstance(width, int) or width not in (1, 2, 4, 8) or width > lanes:
            raise ValueError(f"Width must be a power of two up to {lanes}, not {width!r}")
        if not isinstance(blocks, int) or blocks < 2 or blocks & (blocks - 1):
            raise ValueError(f"Block count must be a power of two of at least 2, not {blocks!r}")
        self._lanes = lanes
        self._width = width
        self._blocks = blocks
        super().__init__({
            "fill": In(stream.Signature(fill_layout(lanes, blocks))),
            "read": In(stream.Signature(read_layout(lanes, blocks, width))),
            "o": Out(stream.Signature(operand_layout(width))),
        })

    @property
    def lanes(self):
        """Number of elements in a memory row."""
        return self._lanes

    @property
    def width(self):
        """Number of elements in a read."""
        return self._width

    @property
    def blocks(self):
        """Number of blocks in a panel."""
        return self._blocks

    def elaborate(self, platform):
        m = Module()
        # A panel is never read while it is being filled.
        banks = [Memory(shape=FP32.width, depth=2 * self._blocks * self._lanes, init=[], attrs={"no_rw_check": 1})
                 for _ in range(self._lanes)]
        for number, bank in enumerate(banks):
            m.submodules[f"bank_{number}"] = bank
        full = [Signal(name=f"full_{half}") for half in range(2)]
        written = self._elaborate_fill(m, [bank.write_port() for bank in banks], full)
        released = self._elaborate_read(m, [bank.read_port(transparent_for=()) for bank in banks], full)
        for half, flag in enumerate(full):
            with m.If(written[half]):
                m.d.sync += flag.eq(1)
            with m.Elif(released[half]):
                m.d.sync += flag.eq(0)
        return m

    def _elaborate_fill(self, m, ports, full):
        """Rotate a row and write it one cycle later; return, for each half, whether its last row is written."""
        fill = self.fill.payload
        half = Signal()
        taken = Signal()
        m.d.comb += [
            self.fill.ready.eq(~Mux(half, full[1], full[0])),
            taken.eq(self.fill.valid & self.fill.ready),
        ]
        with m.If(taken & fill.last):
            m.d.sync += half.eq(~half)
        writing = Signal()
        ending = Signal(2)
        block = Signal(range(2 * self._blocks), reset_less=True)
        m.d.sync += [
            writing.eq(taken), block.eq(Cat(fill.block, half)),
            ending.eq(Mux(taken & fill.last, Cat(~half, half), 0)),
        ]
        turned = _rotate(m, "filled", [fill.elements[lane] for lane in range(self._lanes)], fill.row, [0])
        elements = [Signal(FP32.width, name=f"element_{number}", reset_less=True) for number in range(self._lanes)]
        row = Signal(range(self._lanes), reset_less=True)
        m.d.sync += [row.eq(fill.row), *(element.eq(value) for element, value in zip(elements, turned, strict=True))]
        turned = _rotate(m, "placed", elements, row, range(1, len(row)))
        for number, (port, value) in enumerate(zip(ports, turned, strict=True)):
            # Column of the element in this bank: the column of the row, or the element's own index in the row.
            column = Signal(range(self._lanes), name=f"column_{number}", reset_less=True)
            m.d.sync += column.eq(Mux(fill.transposed, number - fill.row, fill.row))
            m.d.comb += [port.en.eq(writing), port.addr.eq(Cat(column, block)), port.data.eq(value)]
        return ending

    def _elaborate_read(self, m, ports, full):
        """Read a column and rotate it back; return one bit per buffer half, set when the half is released."""
        asked = self.read.payload
        half = Signal()
        move = Signal()
        taken = Signal()
        released = Signal(2)
        m.d.comb += [
            move.eq(self.o.ready | ~self.o.valid),
            self.read.ready.eq(move & Mux(half, full[1], full[0])),
            taken.eq(self.read.valid & self.read.ready),
            released.eq(Mux(taken & asked.last, Cat(~half, half), 0)),
        ]
        with m.If(taken & asked.last):
            m.d.sync += half.eq(~half)

        # Bank of the first requested element.
        amount = asked.row
        if self._width < self._lanes:
            amount = (asked.row + asked.part * self._width)[:len(asked.row)]
        # Number of banks by which to rotate the elements back.
        amounts = [Signal(range(self._lanes), name=f"amount_{stage}", reset_less=True) for stage in range(3)]
        valid = [Signal(name=f"valid_{stage}") for stage in range(3)]
        fetched, turned = (
            [Signal(FP32.width, name=f"{name}_{number}", reset_less=True) for number in range(self._lanes)]
            for name in ("fetched", "turned"))
        for port in ports:
            m.d.comb += [port.en.eq(move), port.addr.eq(Cat(asked.row, asked.block, half))]
        half_back = _rotate(m, "half_back", fetched, amounts[1], [0])
        back = _rotate(m, "back", turned, amounts[2], range(1, len(amounts[2])))
        elements = Signal(self.o.payload.elements.shape(), name="elements", reset_less=True)
        m.d.comb += self.o.payload.elements.eq(elements)
        with m.If(move):
            m.d.sync += [
                Cat(*valid, self.o.valid).eq(Cat(taken, *valid)), amounts[0].eq(-amount),
                amounts[1].eq(amounts[0]), amounts[2].eq(amounts[1])]
            for number, port in enumerate(ports):
                m.d.sync += [fetched[number].eq(port.data), turned[number].eq(half_back[number])]
            m.d.sync += [elements[lane].eq(back[lane]) for lane in range(self._width)]
        return released
