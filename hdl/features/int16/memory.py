"""Memories of the int16 node: one 16-bit element per cycle; the engine has priority over the host."""

from amaranth.hdl import Cat, ClockSignal, Const, Instance, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from hdl.control.protocol import access_layout
from hdl.streams.stream import word_layout

__all__ = ["WIDTH", "ElementMemory", "HostAccess", "port_signature"]

#: Bits per element.
WIDTH = 16

#: Number of elements of a single-port memory of an iCE40 UP.
_SPRAM_WORDS = 1 << 14


def port_signature(words):
    """User's side of a memory port, which accesses an element in each cycle with ``en`` and ``ready`` high.

    The element is written or read. A read element is on ``q`` from the next cycle to the cycle after the next access.
    """
    return wiring.Signature({
        "en": Out(1),
        "ready": In(1),
        "write": Out(1),
        "address": Out(range(words)),
        "data": Out(WIDTH),
        "q": In(WIDTH),
    })


class ElementMemory(wiring.Component):
    """Single-port memory shared by the engine and the host.

    The engine is always served immediately, the host only in the remaining cycles: ``host.ready`` depends
    combinationally on ``engine.en``. On an iCE40 UP this is one of the single-port memories, with unspecified initial
    content; elsewhere the initial content is zero.

    Parameters
    ----------
    words : int
        Number of elements, 2 to 16,384.

    Members
    -------
    engine, host : In(port_signature(words))
    """

    def __init__(self, *, words):
        if not isinstance(words, int) or not 2 <= words <= _SPRAM_WORDS:
            raise ValueError(f"Word count must be between 2 and {_SPRAM_WORDS}, not {words!r}")
        self._words = words
        super().__init__({"engine": In(port_signature(words)), "host": In(port_signature(words))})

    def elaborate(self, platform):
        m = Module()
        engine, host = self.engine, self.host
        en, write = Signal(), Signal()
        address = Signal.like(engine.address)
        data, q = Signal(WIDTH), Signal(WIDTH)
        m.d.comb += [
            engine.ready.eq(1),
            host.ready.eq(~engine.en),
            en.eq(engine.en | host.en),
            write.eq(Mux(engine.en, engine.write, host.write)),
            address.eq(Mux(engine.en, engine.address, host.address)),
            data.eq(Mux(engine.en, engine.data, host.data)),
            engine.q.eq(q),
            host.q.eq(q),
        ]
        if getattr(platform, "device", "") == "iCE40UP5K":
            m.submodules.memory = _spram(en=en, write=write, address=address, data=data, q=q)
        else:
            m.submodules.memory = memory = Memory(
                shape=WIDTH, depth=self._words, init=[], attrs={"no_rw_check": 1})
            read_port, write_port = memory.read_port(transparent_for=()), memory.write_port()
            m.d.comb += [
                read_port.en.eq(en & ~write), read_port.addr.eq(address), q.eq(read_port.data),
                write_port.en.eq(en & write), write_port.addr.eq(address), write_port.data.eq(data),
            ]
        return m


def _spram(*, en, write, address, data, q):
    return Instance(
        "SB_SPRAM256KA",
        i_CLOCK=ClockSignal(), i_ADDRESS=Cat(address, Const(0, 14 - len(address))), i_DATAIN=data,
        i_MASKWREN=Const(0b1111, 4), i_WREN=write, i_CHIPSELECT=en, i_STANDBY=Const(0, 1), i_SLEEP=Const(0, 1),
        i_POWEROFF=Const(1, 1),  # active low
        o_DATAOUT=q)


class HostAccess(wiring.Component):
    """Serve the host port's bursts from the memories, one element per word.

    A write stores the low half of each word; a read sign-extends each element. A write takes one cycle per word, a
    read :attr:`interval` cycles, and both take longer while the engine uses the memory.

    Reads continue until the next request: the host port takes exactly the number of words that it has requested.

    Parameters
    ----------
    words : tuple of int
        Number of elements of memories 0 and 1.

    Members
    -------
    read : In(signature of ``request``: Out(stream of access_layout()), ``data``: In(stream of word_layout()))
    write : In(signature of ``request``: Out(stream of access_layout()), ``data``: Out(stream of word_layout()))
        Ports to :class:`~hdl.control.host_port.HostPort`, which has checked spaces and ranges.
    memory_0, memory_1 : Out(port_signature)
    """

    interval = 3

    def __init__(self, *, words):
        self._words = words
        accesses = stream.Signature(access_layout())
        data = stream.Signature(word_layout())
        super().__init__({
            "read": In(wiring.Signature({"request": Out(accesses), "data": In(data)})),
            "write": In(wiring.Signature({"request": Out(accesses), "data": Out(data)})),
            **{f"memory_{n}": Out(port_signature(count)) for n, count in enumerate(words)},
        })

    def elaborate(self, platform):
        m = Module()
        address = Signal(range(max(self._words)))
        space = Signal()
        en, writing, ready = Signal(), Signal(), Signal()
        element = Signal(WIDTH)
        ports = self.memory_0, self.memory_1
        for n, port in enumerate(ports):
            m.d.comb += [
                port.en.eq(en & (space == n)),
                port.write.eq(writing),
                port.address.eq(address),
                port.data.eq(self.write.data.payload.data),
            ]
        m.d.comb += [
            ready.eq(Mux(space, ports[1].ready, ports[0].ready)),
            self.read.data.payload.data.eq(element.as_signed()),
        ]

        def listen():
            """Accept a request."""
            for access, following in ((self.read, "Read"), (self.write, "Write")):
                m.d.comb += access.request.ready.eq(1)
                with m.If(access.request.valid):
                    m.d.sync += [address.eq(access.request.payload.address), space.eq(access.request.payload.space)]
                    m.next = following

        with m.FSM():
            with m.State("Idle"):
                listen()

            with m.State("Write"):
                m.d.comb += [
                    writing.eq(1), en.eq(self.write.data.valid), self.write.data.ready.eq(ready),
                ]
                with m.If(en & ready):
                    m.d.sync += address.eq(address + 1)
                    with m.If(self.write.data.payload.last):
                        m.next = "Idle"

            with m.State("Read"):
                m.d.comb += en.eq(1)
                with m.If(ready):
                    m.d.sync += address.eq(address + 1)
                    m.next = "Fetch"

            with m.State("Fetch"):
                m.d.sync += element.eq(Mux(space, ports[1].q, ports[0].q))
                m.next = "Offer"

            with m.State("Offer"):
                m.d.comb += self.read.data.valid.eq(1)
                with m.If(self.read.data.ready):
                    m.next = "Read"
                listen()

        return m
