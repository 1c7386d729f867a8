"""Serial link between a board and its host, with two wires that all nodes share."""

from amaranth.hdl import Array, Cat, Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.serial.endpoint import Endpoint, check_sizes
from hdl.serial.frame import FrameKind, FrameReceiver, FrameTransmitter, header_layout
from hdl.serial.uart import UartReceiver, UartTransmitter, check_rates
from hdl.streams.stream import connect_stream, word_layout

__all__ = ["COUNTERS", "SerialLink"]

COUNTERS = ("framing_errors", "crc_errors", "resyncs", "repeats", "gaps", "frames")
"""Counters of a board, 16 bits each and two per word, with the first in the low half of the first word."""


class SerialLink(wiring.Component):
    """Carry packets of up to 16 nodes over a pair of wires, tolerating lost, damaged or repeated bytes.

    Parameters
    ----------
    nodes : int
        Number of nodes, 1 to 16.
    clock, baud : int
        See :class:`~hdl.serial.uart.UartReceiver`.
    buffer_words, frame_words : int
        See :class:`~hdl.serial.endpoint.Endpoint`.

    Members
    -------
    rx : In(1)
        Wire from the host.
    tx : Out(1)
        Wire to the host.
    to_node_0, … : Out(stream of word_layout())
        Request packets for each node.
    from_node_0, … : In(stream of word_layout())
        Response packets from each node, one for each request.
    receiving, sending : Out(1)
        A byte is being received from the host or sent to it.
    busy : Out(1)
        A node has a request, or a frame is waiting to be sent.
    """

    def __init__(self, *, nodes=1, clock, baud, buffer_words=512, frame_words=64):
        check_rates(clock, baud)
        check_sizes(nodes, buffer_words, frame_words)
        self._nodes = nodes
        self._sizes = {"buffer_words": buffer_words, "frame_words": frame_words}
        self._uart = {"clock": clock, "baud": baud}
        words = stream.Signature(word_layout())
        super().__init__({
            "rx": In(1, init=1),
            "tx": Out(1, init=1),
            **{f"to_node_{n}": Out(words) for n in range(nodes)},
            **{f"from_node_{n}": In(words) for n in range(nodes)},
            "receiving": Out(1),
            "sending": Out(1),
            "busy": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        m.submodules.uart_receiver = uart_receiver = UartReceiver(**self._uart)
        m.submodules.uart_transmitter = uart_transmitter = UartTransmitter(**self._uart)
        m.submodules.receiver = receiver = FrameReceiver()
        m.submodules.transmitter = transmitter = FrameTransmitter()
        m.d.comb += [
            uart_receiver.rx.eq(self.rx),
            self.tx.eq(uart_transmitter.tx),
            receiver.value.eq(uart_receiver.value),
            receiver.received.eq(uart_receiver.received),
            receiver.broken.eq(uart_receiver.framing_error),
            self.receiving.eq(uart_receiver.received),
            self.sending.eq(uart_transmitter.busy),
        ]
        connect_stream(m, transmitter.o, uart_transmitter.i)

        endpoints = [Endpoint(number=n, nodes=self._nodes, **self._sizes) for n in range(self._nodes)]
        for n, endpoint in enumerate(endpoints):
            m.submodules[f"endpoint_{n}"] = endpoint
            connect_stream(m, endpoint.to_node, getattr(self, f"to_node_{n}"))
            connect_stream(m, getattr(self, f"from_node_{n}"), endpoint.from_node)
            m.d.comb += [
                getattr(endpoint, name).eq(getattr(receiver, name))
                for name in ("header", "started", "write", "good", "word", "index")
            ]

        # The endpoints send in round-robin order, with this unit's counters as the last source.
        answer = Signal()
        answer_header = Signal(header_layout())
        words = Signal(range(len(COUNTERS) // 2 + 1))
        counts = self._count(m, receiver, uart_receiver, endpoints)
        turn = Signal(range(len(endpoints) + 1))
        turns = len(endpoints) + 1
        sending = Signal()  # a frame of the selected unit is being sent
        m.d.comb += [
            answer_header.kind.eq(FrameKind.STATUS),
            answer_header.reply.eq(1),
            answer_header.length.eq(len(COUNTERS) // 2),
            transmitter.header.payload.eq(Array(
                [*(endpoint.o_header.as_value() for endpoint in endpoints), answer_header.as_value()])[turn]),
            transmitter.header.valid.eq(
                Array([*(endpoint.wanted for endpoint in endpoints), answer])[turn] & ~sending),
            transmitter.payload.payload.eq(
                Array([*(endpoint.o_payload.payload for endpoint in endpoints), Array(counts)[words]])[turn]),
            transmitter.payload.valid.eq(
                Array([*(endpoint.o_payload.valid for endpoint in endpoints), 1])[turn]),
        ]
        for n, endpoint in enumerate(endpoints):
            with m.If(turn == n):
                m.d.comb += [
                    endpoint.taken.eq(transmitter.header.valid & transmitter.header.ready),
                    endpoint.o_payload.ready.eq(transmitter.payload.ready),
                ]
        with m.If(transmitter.header.valid):
            with m.If(transmitter.header.ready):
                m.d.sync += sending.eq(1)
        with m.Elif(~sending | transmitter.done):
            m.d.sync += [sending.eq(0), words.eq(0), turn.eq(turn + 1)]
            with m.If(turn == turns - 1):
                m.d.sync += turn.eq(0)
        with m.If((turn == turns - 1) & transmitter.payload.valid & transmitter.payload.ready):
            m.d.sync += words.eq(words + 1)
        with m.If((turn == turns - 1) & transmitter.header.valid & transmitter.header.ready):
            m.d.sync += answer.eq(0)
        with m.If(receiver.good & (receiver.header.kind == FrameKind.STATUS)):
            m.d.sync += answer.eq(1)
        m.d.comb += self.busy.eq(
            Cat(endpoint.busy for endpoint in endpoints).any() | answer | sending | uart_transmitter.busy)
        return m

    @staticmethod
    def _count(m, receiver, uart_receiver, endpoints):
        """Count events and return the counters as words."""
        events = {
            "framing_errors": uart_receiver.framing_error,
            "crc_errors": receiver.bad_crc,
            "resyncs": receiver.resync,
            "repeats": Cat(endpoint.repeated for endpoint in endpoints).any(),
            "gaps": Cat(endpoint.gap for endpoint in endpoints).any(),
            "frames": receiver.good,
        }
        counters = []
        for name in COUNTERS:
            counter = Signal(16, name=name)
            m.d.sync += counter.eq(counter + events[name])
            counters.append(counter)
        return [Cat(low, high) for low, high in zip(counters[::2], counters[1::2], strict=True)]
