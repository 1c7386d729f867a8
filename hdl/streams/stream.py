"""Stream library: payload layouts, a strict connection function, a skid buffer and a queue.

The rules of :mod:`amaranth.lib.stream` apply: ``valid`` never waits for ``ready``, and ``valid`` and ``payload`` are
stable until the beat is taken, in the cycle when both are high. Framing (``last``) is inside the payload.

Example
-------
A unit that receives link words and buffers them::

    class Unit(wiring.Component):
        i: In(stream.Signature(word_layout()))
        o: Out(stream.Signature(word_layout()))

        def elaborate(self, platform):
            m = Module()
            m.submodules.queue = queue = Queue(shape=word_layout(), depth=17)
            connect_stream(m, self.i, queue.i)
            connect_stream(m, queue.o, self.o)
            return m
"""

from amaranth.hdl import Cat, Const, Module, Mux, Shape, Signal, Value, unsigned
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

__all__ = ["Queue", "SkidBuffer", "beat_layout", "check_lanes", "connect_stream", "step_count", "word_layout"]


def word_layout():
    """Layout of words on links, in compressed streams and in host packets: 32 bits, and ``last``."""
    return data.StructLayout({"data": 32, "last": 1})


def beat_layout(lanes, width=32):
    """Payload layout of uncompressed streams: one row of elements.

    Lane 0 is the element with the lowest address. ``keep`` is contiguous from lane 0, and all ones except in the last
    beat; elements with a clear keep bit are ignored.

    Parameters
    ----------
    lanes : int
        Number of elements per beat; at least 1.
    width : int
        Width of an element in bits; at least 1.
    """
    if not isinstance(lanes, int) or lanes < 1:
        raise ValueError(f"Lane count must be a positive integer, not {lanes!r}")
    if not isinstance(width, int) or width < 1:
        raise ValueError(f"Element width must be a positive integer, not {width!r}")
    return data.StructLayout({"elements": data.ArrayLayout(unsigned(width), lanes), "keep": lanes, "last": 1})


def check_lanes(lanes, *, most=8):
    """Raise ValueError unless ``lanes`` is a power of two up to ``most`` (default: the maximum of memory rows)."""
    *powers, last = (1 << exponent for exponent in range(most.bit_length()))
    if not isinstance(lanes, int) or lanes not in (*powers, last):
        raise ValueError(f"Lane count must be {', '.join(map(str, powers))} or {last}, not {lanes!r}")


def connect_stream(m, source, sink):
    """Connect two streams with payloads of the same shape.

    :func:`amaranth.lib.wiring.connect` compares only widths, so it connects a word to a beat of the same width. This
    function requires equal shapes. Either side may be a port of a submodule or of the component itself, without
    flipping.

    Parameters
    ----------
    m : Module
        Module that drives the connection in its ``comb`` domain.
    source : stream interface
        Origin of the beats: a submodule's output, or the component's own input.
    sink : stream interface
        Destination of the beats: a submodule's input, or the component's own output.
    """
    offered, accepted = source.payload.shape(), sink.payload.shape()
    if offered != accepted:
        raise TypeError(f"Payload of the sink must be of the source's shape {offered!r}, not {accepted!r}")
    if isinstance(source.ready, Const) and not isinstance(sink.ready, Const):
        raise TypeError("Sink of a source that is never held must be always ready, not a sink with a ready signal")
    if isinstance(sink.valid, Const) and not isinstance(source.valid, Const):
        raise TypeError("Source of a sink that always takes must be always valid, not a source with a valid signal")
    m.d.comb += sink.payload.eq(source.payload)
    if not isinstance(sink.valid, Const):
        m.d.comb += sink.valid.eq(source.valid)
    if not isinstance(source.ready, Const):
        m.d.comb += source.ready.eq(sink.ready)


class SkidBuffer(wiring.Component):
    """Skid buffer that registers both directions of a stream.

    Latency is :attr:`latency` cycle, throughput one beat per cycle, capacity :attr:`depth` beats. Every output is a
    register: there is no path from ``o.ready`` to ``i.ready``, or from ``i`` to ``o``.

    Parameters
    ----------
    shape : ShapeLike
        Payload of the stream.

    Members
    -------
    i : In(stream of shape)
    o : Out(stream of shape)
    """

    latency = 1
    depth = 2

    def __init__(self, *, shape):
        self._shape = shape
        super().__init__({"i": In(stream.Signature(shape)), "o": Out(stream.Signature(shape))})

    @property
    def shape(self):
        return self._shape

    def elaborate(self, platform):
        m = Module()
        payload = _unreset(m, self.o)
        skid = Signal.like(self.i.payload, name="skid", reset_less=True)
        skid_valid = Signal()

        m.d.comb += self.i.ready.eq(~skid_valid)
        # The spare register copies its input for as long as it is free, so a single bit enables it.
        with m.If(self.i.ready):
            m.d.sync += skid.eq(self.i.payload)
        with m.If(self.o.ready | ~self.o.valid):
            m.d.sync += [
                self.o.valid.eq(self.i.valid | skid_valid),
                payload.eq(Mux(skid_valid, skid, self.i.payload)),
                skid_valid.eq(0),
            ]
        with m.Elif(self.i.valid):
            m.d.sync += skid_valid.eq(1)
        return m


class Queue(wiring.Component):
    """FIFO queue with a registered output.

    Throughput is one beat per cycle at any depth. Beat k can be accepted one cycle after beat k - depth has left. It
    is offered :attr:`latency` cycles after it is accepted, or one cycle after beat k - 1 has left if that is later.

    A depth of 1 is one register, and ``i.ready`` depends combinationally on ``o.ready``. At any other depth,
    ``i.ready`` depends only on registers. A depth of 2 is a :class:`SkidBuffer`; up to :attr:`DISTRIBUTED` beats in
    front of the output register are in LUT memory, and a deeper queue uses block memory, unless ``block`` is set.

    Parameters
    ----------
    shape : ShapeLike
        Payload of the stream.
    depth : int
        Capacity of the queue in beats, including its output register; at least 1. A multiple of 16 plus one makes the
        best use of LUT memory, and a power of two makes the best use of block memory.
    block : bool or None
        Whether to use block memory, which has a latency of 3 instead of 1 and needs a depth of at least 4; by default
        the depth decides.

    Members
    -------
    i : In(stream of shape)
    o : Out(stream of shape)
    level : Out(range(depth + 1))
        Number of beats in the queue.
    """

    DISTRIBUTED = 64

    def __init__(self, *, shape, depth, block=None):
        if not isinstance(depth, int) or depth < 1:
            raise ValueError(f"Queue depth must be a positive integer, not {depth!r}")
        if block not in (None, False, True):
            raise ValueError(f"Queue memory must be True, False or None, not {block!r}")
        if block and depth < 4:
            raise ValueError(f"Queue depth must be at least 4 in block memory, not {depth!r}")
        self._shape = shape
        self._depth = depth
        self._block = depth > self.DISTRIBUTED + 1 if block is None else block
        super().__init__({
            "i": In(stream.Signature(shape)),
            "o": Out(stream.Signature(shape)),
            "level": Out(range(depth + 1)),
        })

    @property
    def shape(self):
        return self._shape

    @property
    def depth(self):
        return self._depth

    @property
    def latency(self):
        return 3 if self._block else 1

    def elaborate(self, platform):
        if self._depth == 1:
            return self._elaborate_register()
        if self._depth == 2:
            return self._elaborate_skid()
        if self._block:
            return self._elaborate_block()
        return self._elaborate_distributed()

    def _elaborate_register(self):
        m = Module()
        payload = _unreset(m, self.o)
        m.d.comb += self.level.eq(self.o.valid)
        with m.If(self.o.ready | ~self.o.valid):
            m.d.comb += self.i.ready.eq(1)
            m.d.sync += [self.o.valid.eq(self.i.valid), payload.eq(self.i.payload)]
        return m

    def _elaborate_skid(self):
        m = Module()
        m.submodules.skid = skid = SkidBuffer(shape=self._shape)
        connect_stream(m, self.i, skid.i)
        connect_stream(m, skid.o, self.o)
        m.d.comb += self.level.eq(skid.o.valid + ~skid.i.ready)
        return m

    def _elaborate_distributed(self):
        m = Module()
        payload = _unreset(m, self.o)
        rows = self._depth - 1
        m.submodules.memory = memory = Memory(shape=self._shape, depth=rows, init=[])
        write = memory.write_port()
        read = memory.read_port(domain="comb")
        # `stored`: beats wait in the memory, so the output register is not empty. `free`: there is room for one
        # more beat. Both are registers, so that one bit selects the next value of every payload bit.
        stored = Signal()
        free = Signal(init=1)
        accept = Signal()
        load = Signal()
        enter = Signal()
        leave = Signal()
        w_next = Signal.like(write.addr)
        r_next = Signal.like(read.addr)
        m.d.comb += [
            self.i.ready.eq(free),
            accept.eq(self.i.valid & free),
            load.eq(self.o.ready | ~self.o.valid),
            enter.eq(accept & (stored | ~load)),
            leave.eq(load & stored),
            w_next.eq(_following(write.addr, rows)),
            r_next.eq(_following(read.addr, rows)),
            # A free row may be written with any data, since a beat is stored only if the address advances.
            write.data.eq(self.i.payload),
            write.en.eq(free),
        ]
        step_count(m, self.level, up=accept, down=self.o.valid & self.o.ready)
        with m.If(load):
            m.d.sync += [
                self.o.valid.eq(stored | accept),
                payload.eq(Mux(stored, read.data, self.i.payload)),
            ]
        with m.If(enter):
            m.d.sync += write.addr.eq(w_next)
        with m.If(leave):
            m.d.sync += read.addr.eq(r_next)
        with m.If(enter & ~leave):
            m.d.sync += [stored.eq(1), free.eq(w_next != read.addr)]
        with m.If(leave & ~enter):
            m.d.sync += [stored.eq(r_next != write.addr), free.eq(1)]
        return m

    def _memory(self, m):
        """Return the ports of the memory, which is 9-bit-wide block memory if this avoids an output multiplexer."""
        width = Shape.cast(self._shape).width
        step = 9 if 1024 < self._depth <= 2048 else width
        writes, reads = [], []
        for number, start in enumerate(range(0, width, step)):
            m.submodules[f"memory_{number}"] = memory = Memory(
                shape=min(step, width - start), depth=self._depth, init=[], attrs={"no_rw_check": 1})
            writes.append(memory.write_port())
            reads.append(memory.read_port())
        return writes, reads

    def _elaborate_block(self):
        m = Module()
        payload = _unreset(m, self.o)
        # A row is never read while it is written: reads need an occupied row, writes a free row.
        writes, reads = self._memory(m)
        # A beat passes through three stages: the memory, its output latch, and the output register, since the
        # memory's clock-to-output delay leaves little of a cycle.
        waiting = Signal(range(self._depth + 1))
        fetched = Signal()
        accept = Signal()
        fetch = Signal()
        load = Signal()
        m.d.comb += [
            self.i.ready.eq(self.level != self._depth),
            accept.eq(self.i.valid & self.i.ready),
            load.eq(self.o.ready | ~self.o.valid),
            fetch.eq((waiting != 0) & (load | ~fetched)),
            Cat(write.data for write in writes).eq(self.i.payload),
        ]
        w_addr, r_addr = Signal(range(self._depth)), Signal(range(self._depth))
        for write, read in zip(writes, reads, strict=True):
            m.d.comb += [write.addr.eq(w_addr), write.en.eq(accept), read.addr.eq(r_addr), read.en.eq(fetch)]
        step_count(m, waiting, up=accept, down=fetch)
        step_count(m, self.level, up=accept, down=self.o.valid & self.o.ready)
        with m.If(accept):
            m.d.sync += w_addr.eq(_following(w_addr, self._depth))
        with m.If(fetch):
            m.d.sync += r_addr.eq(_following(r_addr, self._depth))
        with m.If(load | ~fetched):
            m.d.sync += fetched.eq(fetch)
        with m.If(load):
            m.d.sync += [self.o.valid.eq(fetched), Value.cast(payload).eq(Cat(read.data for read in reads))]
        return m


def step_count(m, level, *, up, down):
    """Count ``level`` up or down. ``down`` may arrive late in a cycle: it only selects whether the level changes."""
    with m.If(up ^ down):
        m.d.sync += level.eq(level + Cat(1, (~up).replicate(len(level) - 1)))


def _unreset(m, stream):
    """Return an output's payload register, which needs no reset, since the payload is meaningless without ``valid``.

    On an ECP5, eight adjacent flip-flops share at most two resets; without a reset, they can be placed anywhere.
    """
    payload = Signal(stream.payload.shape(), name="payload", reset_less=True)
    m.d.comb += stream.payload.eq(payload)
    return payload


def _following(address, rows):
    """Return the address of the next row in a memory with any number of rows."""
    if rows == 1 << len(address):
        return address + 1
    return Mux(address == rows - 1, 0, address + 1)
