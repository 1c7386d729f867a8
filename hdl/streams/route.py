"""Forks, which send beats to several sinks, and demultiplexers and multiplexers for packets with routes."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.streams.stream import word_layout

__all__ = ["Fork", "PacketDemux", "PacketMux"]


class Fork(wiring.Component):
    """Send each beat to every enabled output; each output accepts it at its own pace.

    Latency is 0 cycles. ``i.ready`` depends combinationally on every ``o.ready`` and on ``enable``, and the outputs'
    ``valid`` on ``i.valid`` and ``enable``.

    Parameters
    ----------
    shape : ShapeLike
        Payload of the stream.
    outputs : int
        Number of outputs; at least 1.

    Members
    -------
    enable : In(outputs)
        Outputs for the beat at ``i``; must be stable while the beat is offered. A beat without outputs is dropped.
    i : In(stream of shape)
    o : array of Out(stream of shape)
    """

    def __init__(self, *, shape, outputs):
        if not isinstance(outputs, int) or outputs < 1:
            raise ValueError(f"Output count must be a positive integer, not {outputs!r}")
        self._outputs = outputs
        super().__init__(
            {
                "enable": In(outputs),
                "i": In(stream.Signature(shape)),
                "o": Out(stream.Signature(shape)).array(outputs),
            }
        )

    def elaborate(self, platform):
        m = Module()
        served = Signal(self._outputs)  # outputs that have taken the offered beat
        serving = Signal(self._outputs)
        for n, port in enumerate(self.o):
            m.d.comb += [
                port.payload.eq(self.i.payload),
                port.valid.eq(self.i.valid & self.enable[n] & ~served[n]),
                serving[n].eq(~self.enable[n] | served[n] | port.ready),
            ]
        m.d.comb += self.i.ready.eq(serving.all())
        with m.If(self.i.valid):
            m.d.sync += served.eq(Mux(self.i.ready, 0, serving & self.enable))
        return m


class PacketDemux(wiring.Component):
    """Send each packet to the outputs selected by its route.

    Latency is 0 cycles. ``i.ready`` depends combinationally on ``o.ready`` and on ``route``.

    Parameters
    ----------
    outputs : int
        Number of outputs; at least 1.
    shape : Layout, optional
        Payload of the stream, with a field ``last``; by default ``word_layout()``.

    Members
    -------
    route : In(stream of outputs bits)
        Mask of the outputs for each packet, taken with the packet's last word.
    i : In(stream of shape)
    o : array of Out(stream of shape)
    """

    def __init__(self, *, outputs, shape=None):
        if not isinstance(outputs, int) or outputs < 1:
            raise ValueError(f"Output count must be a positive integer, not {outputs!r}")
        self._outputs = outputs
        self._shape = word_layout() if shape is None else shape
        super().__init__(
            {
                "route": In(stream.Signature(outputs)),
                "i": In(stream.Signature(self._shape)),
                "o": Out(stream.Signature(self._shape)).array(outputs),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.fork = fork = Fork(shape=self._shape, outputs=self._outputs)
        m.d.comb += [
            fork.enable.eq(self.route.payload),
            fork.i.payload.eq(self.i.payload),
            fork.i.valid.eq(self.i.valid & self.route.valid),
            self.i.ready.eq(fork.i.ready & self.route.valid),
            self.route.ready.eq(self.i.valid & self.i.ready & self.i.payload.last),
        ]
        for inner, port in zip(fork.o, self.o, strict=True):
            m.d.comb += [port.payload.eq(inner.payload), port.valid.eq(inner.valid), inner.ready.eq(port.ready)]
        return m


class PacketMux(wiring.Component):
    """Take each packet from the input selected by its route.

    Latency is 0 cycles. ``ready`` of the inputs depends combinationally on ``o.ready`` and on ``route``.

    Parameters
    ----------
    inputs : int
        Number of inputs; at least 2.
    shape : Layout, optional
        Payload of the stream, with a field ``last``; by default ``word_layout()``.

    Members
    -------
    route : In(stream of range(inputs))
        Input to take each packet from; consumed with the packet's last word.
    i : array of In(stream of shape)
    o : Out(stream of shape)
    """

    def __init__(self, *, inputs, shape=None):
        if not isinstance(inputs, int) or inputs < 2:
            raise ValueError(f"Input count must be an integer of at least 2, not {inputs!r}")
        shape = word_layout() if shape is None else shape
        super().__init__(
            {
                "route": In(stream.Signature(range(inputs))),
                "i": In(stream.Signature(shape)).array(inputs),
                "o": Out(stream.Signature(shape)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        for n, port in enumerate(self.i):
            with m.If(self.route.valid & (self.route.payload == n)):
                m.d.comb += [self.o.valid.eq(port.valid), port.ready.eq(self.o.ready)]
        # The payload matters only while it is valid, so the route's payload alone can select it.
        m.d.comb += self.o.payload.eq(_at(self.route.payload, [port.payload.as_value() for port in self.i]))
        m.d.comb += self.route.ready.eq(self.o.valid & self.o.ready & self.o.payload.last)
        return m


def _at(index, values):
    """Return the value at an index, or any of the values if the index is out of range."""
    while len(values) > 1:
        pairs = [values[start:start + 2] for start in range(0, len(values), 2)]
        values = [Mux(index[0], pair[-1], pair[0]) for pair in pairs]
        index = index[1:]
    value, = values
    return value
