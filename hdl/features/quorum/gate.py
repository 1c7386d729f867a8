"""Queue gates that delay commands of quorum rounds and set the addresses of their gradients."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from hdl.control.engine import gate_signature
from hdl.control.protocol import Operation
from hdl.features.quorum.layouts import work_layout
from hdl.memory import READ_LATENCY, read_signature
from hdl.memory_map import SCALE_WORDS

__all__ = ["ComputeGate", "UpdateGate"]


def _pass(m, gate, holds):
    """Connect both sides of a gate that blocks commands while ``holds`` is high."""
    m.d.comb += [
        gate.o.payload.eq(gate.i.payload),
        gate.o.valid.eq(gate.i.valid & ~holds),
        gate.i.ready.eq(gate.o.ready & ~holds),
    ]


class ComputeGate(wiring.Component):
    """Delay a COMPUTE with ``round`` until a slot is free for its gradient or its round is closed.

    The command then writes its gradient to this slot. A command of a closed round computes nothing: it passes with
    length and duration 0. The same applies while ``stopped`` is high or links are reset, since no node may be left
    to free a slot. Other commands pass combinationally.

    A COMPUTE that does not have to wait is offered at ``gate.o`` :attr:`latency` cycle after ``gate.i``.

    Parameters
    ----------
    elements : int
        Number of elements in the gradient memory.

    Members
    -------
    gate : Out(gate_signature())
    stride : In(32)
        Distance between slots.
    stopped : In(1)
    tag : Out(16), over, room, slot : In, begun, into, ended, good : Out
        Ports to the :class:`~hdl.features.quorum.state.QuorumState`.
    """

    latency = 1

    def __init__(self, *, elements):
        self._elements = elements
        super().__init__({
            "gate": Out(gate_signature()), "stride": In(32), "stopped": In(1),
            "tag": Out(16), "over": In(1), "room": In(1), "slot": In(1),
            "begun": Out(1), "into": Out(1), "ended": Out(1), "good": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        gate, command = self.gate, self.gate.i.payload
        base = Signal(range(self._elements))
        skips, of_round, runs, offers = Signal(), Signal(), Signal(), Signal()
        requested = Signal()
        m.d.comb += [
            of_round.eq(command["round"] & (command.operation == Operation.COMPUTE)),
            self.tag.eq(command.number),
            requested.eq(gate.i.valid & of_round),
            self.ended.eq(gate.ended & runs),
            self.good.eq(gate.good),
        ]
        _pass(m, gate, of_round & ~offers)
        with m.If(offers):
            m.d.comb += gate.o.payload.gradient_base.eq(base)
            with m.If(skips):
                m.d.comb += [gate.o.payload.length.eq(0), gate.o.payload.duration.eq(0)]
        with m.If(gate.ended):
            m.d.sync += runs.eq(0)
        with m.If(requested & offers & gate.o.ready):
            m.d.sync += [offers.eq(0), runs.eq(~skips)]
            m.d.comb += self.begun.eq(~skips)
        with m.Elif(requested & ~offers):
            m.d.sync += [
                skips.eq(self.over | self.stopped),
                offers.eq(self.over | self.stopped | self.room),
                # A different slot may become free before the command is taken.
                self.into.eq(self.slot),
                base.eq(command.gradient_base + Mux(self.slot, self.stride, 0)),
            ]
        return m


class UpdateGate(wiring.Component):
    """Delay a FUSED_UPDATE with ``round`` until its scale has been read, and set its gradient address.

    The gradient is the node's on-time gradient or, if there is none, its late gradient or the zeros after the slots.
    The index of the round selects the scale. Other commands pass combinationally.

    An update is offered at ``gate.o`` :attr:`latency` cycles after ``gate.i``, if the memory grants its read.

    Parameters
    ----------
    elements : int
        Number of elements in the gradient memory.
    lanes : int

    Members
    -------
    gate : Out(gate_signature())
    stride : In(32)
        Distance between slots.
    work : In(work_layout())
    scale_read : memory port
    given : In(32)
        Scale of updates without ``round``.
    scale : Out(32)
        Scale of the offered command.
    finished : Out(1)
        An update with ``round`` ended successfully.
    """

    latency = READ_LATENCY + 2

    def __init__(self, *, elements, lanes):
        self._elements = elements
        self._lanes = lanes
        super().__init__({
            "gate": Out(gate_signature()), "stride": In(32), "work": In(work_layout()),
            "scale_read": Out(read_signature(SCALE_WORDS // lanes, lanes)),
            "given": In(32), "scale": Out(32), "finished": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        gate, command, work, port = self.gate, self.gate.i.payload, self.work, self.scale_read
        lane_bits = exact_log2(self._lanes)
        base = Signal(range(self._elements))
        scale = Signal(32)
        of_round, offers, runs = Signal(), Signal(), Signal()
        of_late = Signal()
        m.d.comb += [
            of_round.eq(command["round"] & (command.operation == Operation.FUSED_UPDATE)),
            port.row.eq(work.index >> lane_bits),
            self.scale.eq(Mux(offers, scale, self.given)),
            self.finished.eq(gate.ended & gate.good & runs),
            of_late.eq(Mux(work.fresh, work.fresh_slot, work.late_slot)),
        ]
        _pass(m, gate, of_round & ~offers)
        with m.If(offers):
            m.d.comb += gate.o.payload.gradient_base.eq(base)
        lane = data.ArrayLayout(32, self._lanes)(port.elements)[work.index[:lane_bits]] if lane_bits else (
            port.elements[0])
        # The memory contains zeros after both slots.
        far = Cat(of_late & (work.fresh | work.late), ~(work.fresh | work.late))
        m.d.sync += base.eq(command.gradient_base + Mux(far[0], self.stride, 0) + Mux(far[1], self.stride << 1, 0))
        with m.If(gate.ended):
            m.d.sync += runs.eq(0)
        with m.FSM():
            with m.State("Idle"):
                with m.If(gate.i.valid & of_round):
                    m.next = "Read"

            with m.State("Read"):
                m.d.comb += port.valid.eq(1)
                with m.If(port.ready):
                    m.next = "Answer"

            with m.State("Answer"):
                m.d.sync += scale.eq(lane)
                with m.If(port.response):
                    m.next = "Offer"

            with m.State("Offer"):
                m.d.comb += offers.eq(1)
                with m.If(gate.o.ready):
                    m.d.sync += runs.eq(1)
                    m.next = "Idle"
        return m
