"""Collective engine, which runs one command at a time on the ring and aborts cleanly on errors."""

import functools
import operator

from amaranth.hdl import Cat, Module, Mux, ResetInserter, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.compression.registry import CODECS, FETCH_FORMATS, RAW
from hdl.control.protocol import EventStatus, Operation, command_layout, event_layout
from hdl.optimizer.rules import settings_layout
from hdl.ring.control import CollectiveControl
from hdl.ring.datapath import Datapath
from hdl.ring.depacketizer import Depacketizer
from hdl.ring.extension import CollectiveUnits, extensions, link_class
from hdl.ring.header import PacketType
from hdl.ring.order import Planner
from hdl.ring.packetizer import Packetizer
from hdl.ring.parts.part import extends, memory_ports
from hdl.ring.parts.registry import parts
from hdl.ring.ports import port_members
from hdl.ring.sequences import PlannedCommand
from hdl.ring.setup import longest_vector, paths, setup_layout
from hdl.ring.topology import predecessor, sizes, successor
from hdl.streams.stream import SkidBuffer, connect_stream, word_layout

__all__ = ["CollectiveEngine", "counts_layout"]


def counts_layout(config):
    """Layout of the counters' per-cycle increments for a configuration, keyed by register name."""
    counts = {
        "words_sent": 1,
        "words_received": 2,
        "packets_sent": 1,
        "packets_received": 2,
        "compressed_words": 1,
        "elements_encoded": 5,
        "compressed_adds": 1,
        "positions_added": 1,
        "encodes": 2,
        "decodes": 1,
        "optimizer_bursts": 1,
        "scatter_reduce_cycles": 1,
        "command_cycles": 1,
        "stall_no_credit": 1,
        "stall_ingress_empty": 1,
        "stall_encoder": 1,
        "stall_optimizer": 1,
        "stall_memory": 1,
        "packets_refused": 1,
    }
    for extension in extensions(config):
        if taken := counts.keys() & extension.counts().keys():
            raise ValueError(f"Counter must have one source in the collective engine, not two: {', '.join(taken)}")
        counts.update(extension.counts())
    return data.StructLayout(counts)


class CollectiveEngine(wiring.Component):
    """Run collective operations between a node's memories and its ring.

    Each command is planned (:class:`~hdl.ring.order.Planner`), run by the :class:`~hdl.ring.datapath.Datapath`, and
    reported by one event (:class:`~hdl.ring.control.CollectiveControl`). The settings are sampled when the command is
    accepted, so that they never change while it runs.

    Packets carry the number of their collective, so that a node rejects packets of any other collective. A
    collective with the same number as the previous one ends with ``REPEATED``, since packets of the two could be
    confused. The previous number is cleared while ``link_reset`` is held.

    An unexpected packet, an abort by a peer, ``timeout`` cycles without progress on the ring, or ``link_reset`` ends
    the command early. The engine then resets the datapath, ends the packet in progress so that no node considers it
    complete, sends one ABORT to its successor, and drops all words until its predecessor's ABORT has arrived. After
    that, no packet of this epoch is left on the ring, all credits have been returned, and the next command, in a new
    epoch, starts on a clean ring. The engine waits for the predecessor's ABORT for at most ``timeout`` cycles.

    PUSH, for layer streaming, is a chain: the vector is summed as one block, which starts at the successor of
    ``root`` (a server) and passes from worker to worker to the server's optimizer. There is no all-gather.

    With ``root_reduce``, a FUSED_UPDATE or ALL_REDUCE also moves the vector as one block: the sum passes along a
    chain to ``root``, which may be any node, and the root's result continues from node to node. The all-gather of a
    segment follows :data:`~hdl.ring.order.LAG` segments after its sum, and the link from the root carries no sums.

    With two ports, SWITCH sets the use of each port if the links are idle, and otherwise ends with ``BUSY``; a
    command runs on the ring given by its field ``port``. A packet is accepted only when it is expected, since the
    next packet may belong to the other ring. An ABORT that arrives after all packets of a command therefore stays in
    the link until the command has to be aborted.

    On a server, the far memory may stop responding. A memory access therefore counts as progress, like a word on the
    ring, and commands can time out even on a ring of one node.

    Parameters
    ----------
    config : NodeConfig
    """

    def __init__(self, *, config):
        self._config = config
        super().__init__(
            {
                # Commands that have already been checked by :class:`~hdl.control.command_checker.CommandChecker`.
                "command": In(stream.Signature(command_layout())),
                # One event per command. After a timeout, its detail is the packets sent (low half) and received.
                "event": Out(stream.Signature(event_layout())),
                # Scalar settings of the optimizer.
                "settings": In(settings_layout()),
                # Whether a word of state holds two elements.
                "packed_state": In(1),
                # Number of cycles without a word on the ring after which a command is aborted.
                "timeout": In(32),
                # While high, links drop all words and restore their credits.
                "link_reset": In(1),
                # Number of commands that have changed weights since reset.
                "weight_version": Out(32),
                # Counter increments in each cycle.
                "count": Out(counts_layout(config)),
                # Latency in cycles of a word to the successor, as measured by the link; zero without replay.
                "link_delay": Out(32),
                # Ports that features add.
                **{name: member for extension in extensions(config)
                   for name, member in extension.members().items()},
                # Whether the datapath is in reset, so that outstanding reads of slow memories are abandoned.
                **({"abandons": Out(1)} if config.is_server else {}),
                # Links from the predecessor and to the successor at each port.
                **port_members(config, config.topology.ports),
                # Memory ports, in the same arrays as on the datapath.
                **memory_ports(config, parts(config)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        config, nodes_max = self._config, self._config.topology.max_nodes
        added = extensions(config)
        options = {name: value for extension in added for name, value in extension.control.items()}
        m.submodules.control = control = CollectiveControl(**options)
        planner = Planner(elements=longest_vector(config), segment=config.segment, nodes_max=nodes_max)
        m.submodules.planner = ResetInserter(~control.planning)(planner)
        datapath = Datapath(config=config)
        m.submodules.datapath = ResetInserter(~control.active)(datapath)
        m.submodules.packetizer = packetizer = Packetizer()
        # A broadcast sends weights unchanged or, if workers support broadcast formats, in one of these formats.
        formats = FETCH_FORMATS if config.role.broadcast_formats and not config.is_server else ()
        expected_codecs = dict.fromkeys((RAW, config.gradients, config.weights.codec, *formats))
        m.submodules.depacketizer = depacketizer = Depacketizer(
            codecs=[CODECS[name] for name in expected_codecs], segment=config.segment,
            extended=extends(parts(config)), tenants=config.has("tenants"))
        m.submodules.link = link = link_class(config)(config=config)
        command = Signal(command_layout())
        setup = Signal(setup_layout(config))
        units = CollectiveUnits(engine=self, control=control, link=link, packetizer=packetizer,
                                depacketizer=depacketizer, datapath=datapath, command=command, setup=setup,
                                abort_header=packetizer.abort_header, words_reset=self.link_reset)
        signs = [sign for extension in added if (sign := extension.make(m, units)) is not None]
        alive = functools.reduce(operator.or_, signs) if signs else 0

        connect_stream(m, datapath.header, packetizer.header)
        connect_stream(m, datapath.egress, packetizer.payload)
        m.d.comb += packetizer.extra.eq(datapath.extra)
        connect_stream(m, packetizer.o, link.i)
        connect_stream(m, datapath.expected, depacketizer.expected)
        connect_stream(m, depacketizer.payload, datapath.ingress)
        # The depacketizer's ready signal arrives late, and much of the receiver depends on it.
        arriving = link.o
        if not getattr(link, "buffered", False):
            m.submodules.arriving = buffer = ResetInserter(self.link_reset)(SkidBuffer(shape=word_layout()))
            connect_stream(m, link.o, buffer.i)
            arriving = buffer.o
        connect_stream(m, arriving, depacketizer.i)
        for name in port_members(config, config.topology.ports):
            wiring.connect(m, node=wiring.flipped(getattr(self, name)), link=getattr(link, name))
        for name in memory_ports(config, parts(config)):
            for inner, outer in zip(getattr(datapath, name), getattr(self, name), strict=True):
                wiring.connect(m, flow=inner, memory=wiring.flipped(outer))

        last_rank = command.size - 1
        has_gather, has_scatter = Signal(), Signal()
        is_broadcast = Signal()
        steps = Signal(sizes(nodes_max))  # number of steps of a node in a complete phase
        # Broadcasts and chains move the vector as one block. A chain updates the weights only at its end.
        whole, gathered, updated = is_broadcast, setup.fused, ~setup.sum
        if config.role.root_reduce:
            whole = is_broadcast | setup.root_reduce
        if config.role.streams:
            whole, gathered, updated = (
                is_broadcast | setup.chain, setup.fused & ~setup.chain, updated & (~setup.chain | setup.fused))
        m.d.comb += [
            has_scatter.eq(setup.fused | setup.sum | setup.chain if config.role.streams else setup.fused | setup.sum),
            has_gather.eq(gathered | (setup.sum if config.adds_integers else setup.gather)
                          | (command.operation == Operation.ALL_GATHER)),
            is_broadcast.eq(command.operation == Operation.BROADCAST),
            steps.eq(last_rank),
            datapath.setup.eq(setup),
            datapath.start.eq(control.launch),
            planner.start.eq(control.plan),
            planner.length.eq(command.length),
            planner.size.eq(Mux(whole, 1, command.size)),
            planner.rank.eq(Mux(whole, 0, command.rank)),
            planner.block_offset.eq(Mux(whole, 0, command.block_offset)),
            planner.stride.eq(command.stride),
        ]

        # All inputs of a command are sampled when it is accepted.
        offer = self.command.payload
        latest = Signal.like(offer.collective)
        known = Signal()  # a collective has run since the link reset
        repeated = Signal()
        immediate = (Operation.QUIESCE, *(code for extension in added for code in extension.immediate()))
        with m.If(self.command.valid & self.command.ready & ~_among(offer.operation, immediate)):
            m.d.sync += [known.eq(1), latest.eq(offer.collective), repeated.eq(known & (offer.collective == latest))]
        with m.If(self.link_reset):
            m.d.sync += known.eq(0)
        connect_stream(m, self.command, control.command)
        connect_stream(m, control.event, self.event)
        updating = (Operation.FUSED_UPDATE, Operation.PUSH)
        if config.has_chains:
            if config.role.streams:
                units.chained, kind = offer.operation == Operation.PUSH, setup.chain
            else:
                owned = (Operation.FUSED_UPDATE, Operation.ALL_REDUCE)
                units.chained = offer.root_reduce & _among(offer.operation, owned) & (offer.size != 1)
                kind = setup.root_reduce
            with m.If(self.command.ready):
                m.d.sync += [
                    kind.eq(units.chained),
                    setup.opens.eq(~units.chained | (predecessor(offer.rank, offer.size) == offer.root)),
                    setup.closes.eq(~units.chained | (offer.rank == offer.root)),
                ]
        with m.If(self.command.ready):
            m.d.sync += [
                command.eq(offer),
                setup.fused.eq(_among(offer.operation, updating) if config.is_server
                               else offer.operation == Operation.FUSED_UPDATE),
                setup.sum.eq(
                    (offer.operation == Operation.ALL_REDUCE) | (offer.operation == Operation.REDUCE_SCATTER)
                ),
                setup.coded.eq(_among(offer.operation, (Operation.FUSED_UPDATE, Operation.ALL_GATHER))),
                setup.gather.eq(offer.operation == Operation.ALL_REDUCE),
                setup.alone.eq(offer.size == 1),
                setup.rank.eq(offer.rank),
                setup.predecessor.eq(predecessor(offer.rank, offer.size)),
                setup.successor.eq(successor(offer.rank, offer.size)),
                setup.epoch.eq(offer.epoch),
                setup.collective.eq(offer.collective),
                setup.gradient_row.eq(offer.gradient_base // config.lanes),
                setup.weight_row.eq(offer.weight_base // config.lanes),
                setup.state_row.eq(offer.state_base // config.lanes),
                setup.settings.eq(self.settings),
                setup.packed_state.eq(self.packed_state),
            ]
            for extension in added:
                extension.take(m, units, offer)

        # The blocks that this node sends, receives, encodes and owns, and their start addresses.
        is_root = command.rank == command.root
        gathers, scatters = (Mux(has, steps, 0) for has in (has_gather, has_scatter))
        sends = receives = scatters
        passes_on, is_passed = setup.successor != command.root, is_broadcast
        passes, sums, updates = gathers, command.size, setup.fused
        if config.role.streams:
            sends, receives = (Mux(setup.chain, takes_part, scatters) for takes_part in (~is_root, ~setup.opens))
        if config.role.root_reduce:  # a phase has at most one step per node
            lone = setup.root_reduce
            sends, receives = (Mux(lone, takes_part, scatters) for takes_part in (~is_root, ~setup.opens))
            passes, gathers = (Mux(lone, takes_part, gathers) for takes_part in (passes_on, ~is_root))
            sums, updates, is_passed = Mux(lone, 1, sums), setup.fused & (~lone | is_root), is_broadcast | lone
        gives = has_gather & ~has_scatter
        if not config.weights.has_master:  # a single node sends no weights, but passes them through a codec
            gives &= ~setup.alone
        planned = PlannedCommand(
            setup=setup, size=command.size, rank=command.rank, previous=planner.previous, own=planner.own,
            following=planner.following, sends=sends, receives=receives, passes=passes, gathers=gathers, sums=sums,
            updates=updates, gives=gives, is_broadcast=is_broadcast, is_root=is_root, passes_on=passes_on)

        # Planned paths are copied in every planning cycle; the last copy is the valid one.
        leaving, coming = Signal(4), Signal(4)  # number of incomplete packets in the datapath
        packet_leaves = packetizer.o.valid & packetizer.o.ready & packetizer.o.payload.last
        word_taken = arriving.valid & arriving.ready
        m.d.sync += [
            leaving.eq(leaving + (datapath.header.valid & datapath.header.ready) - packet_leaves),
            coming.eq(coming + (datapath.expected.valid & datapath.expected.ready) - depacketizer.done),
        ]
        with m.If(control.planning):
            m.d.sync += [
                setup.plan.eq(planner.plan),
                setup.pitch.eq(planner.plan.pitch),
                setup.relay.eq(is_passed & ~is_root),
                setup.pass_on.eq(is_passed & planned.passes_on),
            ]
            if config.role.interleaved:
                # If sums are decoded, the last sums of a reduce-scatter are scheduled in place of the all-gather.
                m.d.sync += setup.both.eq(has_scatter & (has_gather if config.adds_compressed else 1))
            for name, make in paths(config).items():
                path = make(planned)
                m.d.sync += [setup[name].steps.eq(path.steps), setup[name].first.eq(path.first)]
            m.d.sync += [leaving.eq(0), coming.eq(0)]

        moves, alone = link.sent.word | word_taken | alive, setup.alone
        if config.is_server:  # the server's far memory may stop responding, even in a ring with one node
            m.d.comb += self.abandons.eq(~control.active)
            moves |= Cat(port.valid & port.ready for name in memory_ports(config, parts(config))
                         for port in getattr(datapath, name)).any()
            alone = 0
        pulses, fault, running = datapath.pulses, control.fault, control.running
        abort_header = packetizer.abort_header
        m.d.comb += [
            control.timeout.eq(self.timeout),
            control.link_reset.eq(self.link_reset),
            self.weight_version.eq(control.weight_version),
            control.kind.immediate.eq(_among(command.operation, immediate)),
            control.kind.repeated.eq(repeated),
            control.kind.alone.eq(alone),
            control.kind.updates.eq(updated),
            control.planned.eq(planner.done),
            control.finished.eq(~datapath.busy & (leaving == 0) & (coming == 0)),
            fault.found.eq(depacketizer.error | link.overrun | pulses.malformed | pulses.wrong_sum),
            fault.status.eq(Mux(depacketizer.error, depacketizer.code,
                                Mux(pulses.wrong_sum, EventStatus.WRONG_SUM, EventStatus.OVERRUN))),
            fault.detail.eq(Mux(depacketizer.error, depacketizer.detail,
                                Mux(pulses.wrong_sum, pulses.wrong_sum_detail, control.packets))),
            control.moved.eq(moves),
            control.packet_sent.eq(link.sent.packet),
            control.packet_received.eq(word_taken & arriving.payload.last),
            control.egress_stalled.eq(packetizer.stalled),
            control.local_nan.eq(pulses.local_nan),
            control.not_finite.eq(pulses.not_finite),
            control.abort_sent.eq(packetizer.aborted),
            control.abort_received.eq(depacketizer.abort_seen),
            abort_header.type.eq(PacketType.ABORT),
            abort_header.source.eq(setup.rank),
            abort_header.destination.eq(setup.successor),
            abort_header.epoch.eq(setup.epoch),
            abort_header.collective.eq(setup.collective),
            packetizer.may_start.eq(link.may_start),
            packetizer.give_up.eq(control.give_up),
            packetizer.clear.eq(self.link_reset | control.stranded),
            depacketizer.epoch.eq(setup.epoch),
            depacketizer.active.eq(running),
            depacketizer.drain.eq(control.drain),
            depacketizer.clear.eq(self.link_reset),
            link.reset_link.eq(self.link_reset),
            self.link_delay.eq(link.delay),
        ]
        m.d.comb += [
            self.count.words_sent.eq(link.sent.word),
            self.count.packets_sent.eq(link.sent.packet),
            self.count.words_received.eq(link.received.word),
            self.count.packets_received.eq(link.received.packet),
            self.count.scatter_reduce_cycles.eq(running & pulses.scatter_reduce),
            self.count.command_cycles.eq(control.busy),
            self.count.stall_no_credit.eq(running & packetizer.stalled),
            self.count.stall_ingress_empty.eq(running & depacketizer.starved),
            self.count.packets_refused.eq(running & depacketizer.error),
        ]
        m.d.comb += [self.count[name].eq(pulses[name]) for name in pulses.shape().members
                     if name in self.count.shape().members]
        for extension in added:
            extension.connect(m, units)
        return m


def _among(operation, operations):
    """Return whether an operation is one of several operations."""
    return Cat(operation == code for code in operations).any()
