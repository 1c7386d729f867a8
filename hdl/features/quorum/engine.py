"""Engine for quorum updates on a node: queue gates, gradients, rank 0's decision, and APPLY_LATE."""

from amaranth.hdl import Cat, Module, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.control.engine import gate_signature
from hdl.control.protocol import command_layout, event_layout
from hdl.features.quorum import layouts
from hdl.features.quorum.apply_late import ApplyLate
from hdl.features.quorum.closer import QuorumCloser
from hdl.features.quorum.gate import ComputeGate, UpdateGate
from hdl.features.quorum.state import QuorumState
from hdl.memory import read_signature, write_signature
from hdl.memory_map import SCALE_WORDS
from hdl.streams.stream import connect_stream

__all__ = ["QuorumEngine"]


class QuorumEngine(wiring.Component):
    """Run APPLY_LATE, and hold back commands that have ``round`` set until they may start.

    It connects :class:`~hdl.features.quorum.state.QuorumState`, :class:`~hdl.features.quorum.closer.QuorumCloser`,
    :class:`~hdl.features.quorum.apply_late.ApplyLate`, :class:`~hdl.features.quorum.gate.ComputeGate` and
    :class:`~hdl.features.quorum.gate.UpdateGate`; their own descriptions give the details. docs/ring/quorum.md states
    the rules.

    Parameters
    ----------
    config : NodeConfig
        Configuration with ``rounds``.

    Members
    -------
    command : In(stream of command_layout())
        APPLY_LATE, already checked by :class:`~hdl.control.command_checker.CommandChecker`.
    event : Out(stream of event_layout())
    compute_gate, update_gate : Out(gate_signature())
        Gates of the first and the second queue.
    words : Out(quorum_signature())
        Interface for control words.
    link_reset : In(1)
    stopped : In(1)
        The last run ended because a command failed.
    timeout, stride, deadline, weight_version : In(32)
    quorum : In(5)
    stale_weights_0 to stale_weights_2 : In(25)
    resumed : In(resumed_layout())
    gradient_scale : In(32)
        Scale of updates without ``round``.
    scale : Out(32)
        Scale of the update that is offered.
    slot_0, slot_1 : Out(slot_layout())
    count : Out(struct)
    gradient_read, gradient_write, scale_read : memory ports
    """

    def __init__(self, *, config):
        if not config.has_quorum:
            raise ValueError(f"Node must have rounds, not {config!r}")
        self._config = config
        rows, lanes = config.memories.gradient // config.lanes, config.lanes
        settings = ("timeout", "stride", "deadline", "weight_version", "gradient_scale")
        super().__init__({
            "command": In(stream.Signature(command_layout())),
            "event": Out(stream.Signature(event_layout())),
            "compute_gate": Out(gate_signature()),
            "update_gate": Out(gate_signature()),
            "words": Out(layouts.quorum_signature()),
            "link_reset": In(1),
            "stopped": In(1),
            **{name: In(32) for name in settings},
            "quorum": In(5),
            **{f"stale_weights_{n}": In(25) for n in range(3)},
            "resumed": In(layouts.resumed_layout()),
            "scale": Out(32),
            **{f"slot_{n}": Out(layouts.slot_layout()) for n in range(layouts.SLOTS)},
            "count": Out(data.StructLayout({**layouts.counts_layout().members, "command_cycles": 1,
                                            "stall_memory": 1})),
            "gradient_read": Out(read_signature(rows, lanes)),
            "gradient_write": Out(write_signature(rows, lanes)),
            "scale_read": Out(read_signature(SCALE_WORDS // lanes, lanes)),
        })

    def elaborate(self, platform):
        m = Module()
        config, words = self._config, self.words
        m.submodules.state = state = QuorumState()
        m.submodules.closer = closer = QuorumCloser()
        m.submodules.apply_late = apply_late = ApplyLate(config=config)
        m.submodules.compute = compute = ComputeGate(elements=config.memories.gradient)
        m.submodules.update = update = UpdateGate(elements=config.memories.gradient, lanes=config.lanes)
        connect_stream(m, self.command, apply_late.command)
        connect_stream(m, apply_late.event, self.event)
        wiring.connect(m, node=wiring.flipped(self.compute_gate), gate=compute.gate)
        wiring.connect(m, node=wiring.flipped(self.update_gate), gate=update.gate)
        wiring.connect(m, apply_late=apply_late.gradient_read, memory=wiring.flipped(self.gradient_read))
        wiring.connect(m, apply_late=apply_late.gradient_write, memory=wiring.flipped(self.gradient_write))
        wiring.connect(m, update=update.scale_read, memory=wiring.flipped(self.scale_read))
        connect_stream(m, state.ready, words.ready)
        connect_stream(m, words.heard, closer.heard)
        connect_stream(m, closer.close, words.close)

        weights = Signal(layouts.weights_layout())
        read, write = self.gradient_read, self.gradient_write
        m.d.comb += [
            weights.eq(Cat(getattr(self, f"stale_weights_{n}") for n in range(3))),
            state.weights.eq(weights), closer.weights.eq(weights),
            state.rank.eq(words.place.rank), state.closed.eq(words.closed), state.closing.eq(words.closing),
            state.resumed.eq(self.resumed), state.reset.eq(self.link_reset),
            *(getattr(self, f"slot_{n}").eq(state.slots[n]) for n in range(layouts.SLOTS)),

            compute.stride.eq(self.stride), compute.stopped.eq(self.stopped | self.link_reset),
            state.tag.eq(compute.tag), compute.over.eq(state.over), compute.room.eq(state.room),
            compute.slot.eq(state.slot), state.begun.eq(compute.begun), state.into.eq(compute.into),
            state.ended.eq(compute.ended),
            state.good.eq(compute.good),

            closer.waits.eq(apply_late.waits & (words.place.rank == 0)), closer.tag.eq(apply_late.tag),
            closer.quorum.eq(self.quorum), closer.deadline.eq(self.deadline), closer.reset.eq(self.link_reset),

            apply_late.link_reset.eq(self.link_reset), apply_late.alive.eq(words.alive),
            apply_late.timeout.eq(self.timeout),
            apply_late.stride.eq(self.stride), apply_late.weight_version.eq(self.weight_version),
            state.asked.eq(apply_late.tag), apply_late.known.eq(state.known), state.taken.eq(apply_late.taken),
            apply_late.work.eq(state.work),

            update.stride.eq(self.stride), update.work.eq(state.work), update.given.eq(self.gradient_scale),
            self.scale.eq(update.scale), state.finished.eq(update.finished),

            *(self.count[name].eq(state.count[name]) for name in layouts.counts_layout().members),
            self.count.command_cycles.eq(apply_late.busy),
            self.count.stall_memory.eq((read.valid & ~read.ready) | (write.valid & ~write.ready)),
        ]
        return m
