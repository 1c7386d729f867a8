"""The collective engine: runs one command after the other on the ring, or gives it up in good order."""

from amaranth.hdl import Cat, Module, Mux, ResetInserter, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.compression.codecs import GRADIENT_CODECS, WEIGHT_CODECS
from hdl.control.protocol import EventStatus, Operation, command_layout, event_layout
from hdl.memory import read_signature, write_signature
from hdl.optimizer.rules import settings_layout
from hdl.ring.dataflow import Dataflow, codebook_ports
from hdl.ring.director import longest_vector, setup_layout
from hdl.ring.link import LinkReceiver, LinkSignature, LinkTransmitter
from hdl.ring.packet import Codec, Depacketizer, Packetizer, PacketType, packet_words
from hdl.ring.schedule import Planner
from hdl.stream import SkidBuffer, connect_stream, word_layout

__all__ = ["CollectiveEngine", "counts_layout"]


def counts_layout():
    """What the engine adds to the counters in a cycle, by the names of the registers."""
    return data.StructLayout(
        {
            "words_sent": 1,
            "words_received": 1,
            "packets_sent": 1,
            "packets_received": 1,
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
    )


class CollectiveEngine(wiring.Component):
    """Runs collective operations between the memories of a node and its ring.

    A command is planned (:class:`~hdl.ring.schedule.Planner`), run by the :class:`~hdl.ring.dataflow.Dataflow`, and
    reported by one event. The settings are sampled when the command is taken, so that a change never lands inside
    one.

    A packet that does not belong, a peer that has given up, a ring that stands still for ``timeout`` cycles or a held
    ``link_reset`` ends the command early. The engine then resets the datapath, ends the packet that it is sending so
    that nobody takes it for whole, sends one ABORT to its successor, and drops what comes in until its predecessor's
    ABORT has arrived: after that nothing of this epoch is left on the ring, all credits are back, and the next
    command, of a new epoch, finds it clean. It waits for that ABORT no longer than ``timeout`` cycles.

    Parameters
    ----------
    config : NodeConfig

    Members
    -------
    command : In(stream of command_layout())
        Checked beforehand, see :class:`~hdl.control.command_queue.CommandChecker`.
    event : Out(stream of event_layout())
        One for each command. The detail of a time-out is the number of packets sent (low half) and received.
    settings : In(settings_layout())
    packed_state : In(1)
        A word of state holds two elements.
    timeout : In(32)
    link_reset : In(1)
        While held, links forget what they hold and all credits are given back.
    weight_version : Out(32)
        Commands that have changed weights since reset.
    count : Out(counts_layout())
    ring_i : In(LinkSignature())
    ring_o : Out(LinkSignature())
    gradient_read, gradient_write, weight_read, weight_write, state_read, state_write : memory ports
    master_read, master_write, codebook_read, residual_read, residual_write : memory ports
        As those of :class:`~hdl.ring.dataflow.Dataflow`.
    """

    def __init__(self, *, config):
        self._config = config
        lanes, planes = config.lanes, config.state_planes
        gradient_rows = config.gradient_words // lanes
        weight_rows = config.weight_words // lanes
        state_rows = config.state_words // lanes
        super().__init__(
            {
                "command": In(stream.Signature(command_layout())),
                "event": Out(stream.Signature(event_layout())),
                "settings": In(settings_layout()),
                "packed_state": In(1),
                "timeout": In(32),
                "link_reset": In(1),
                "weight_version": Out(32),
                "count": Out(counts_layout()),
                "ring_i": In(LinkSignature()),
                "ring_o": Out(LinkSignature()),
                "gradient_read": Out(read_signature(gradient_rows, lanes)).array(2 + config.adds_compressed),
                "gradient_write": Out(write_signature(gradient_rows, lanes)),
                "weight_read": Out(read_signature(weight_rows, lanes)),
                "weight_write": Out(write_signature(weight_rows, lanes)).array(2 - config.has_master),
                "state_read": Out(read_signature(state_rows, lanes)).array(planes),
                "state_write": Out(write_signature(state_rows, lanes)).array(planes),
                "master_read": Out(read_signature(state_rows, lanes)).array(config.has_master),
                "master_write": Out(write_signature(state_rows, lanes)).array(config.has_master),
                **codebook_ports(config),
                "residual_read": Out(read_signature(gradient_rows, lanes)).array(config.has_residual),
                "residual_write": Out(write_signature(gradient_rows, lanes)).array(config.has_residual),
            }
        )

    def elaborate(self, platform):
        m = Module()
        config = self._config
        idle = Signal()  # the datapath is held in reset, unless a command runs
        longest_packet = packet_words(config.segment)

        m.submodules.planner = planner = Planner(elements=longest_vector(config), segment=config.segment)
        dataflow = Dataflow(config=config)
        m.submodules.dataflow = ResetInserter(idle)(dataflow)
        m.submodules.packetizer = packetizer = Packetizer()
        second = None
        if config.has_residual:  # what has none is either raw or of zero-value compression
            second = Codec[config.gradient_codec.upper()], GRADIENT_CODECS[config.gradient_codec]
        m.submodules.depacketizer = depacketizer = Depacketizer(
            codec=WEIGHT_CODECS[config.weight_codec], second=second
        )
        m.submodules.transmitter = transmitter = LinkTransmitter(
            segments=config.ingress_segments, egress_words=longest_packet
        )
        m.submodules.receiver = receiver = LinkReceiver(segments=config.ingress_segments, packet_words=longest_packet)

        connect_stream(m, dataflow.header, packetizer.header)
        connect_stream(m, dataflow.egress, packetizer.payload)
        connect_stream(m, packetizer.o, transmitter.i)
        connect_stream(m, dataflow.expected, depacketizer.expected)
        connect_stream(m, depacketizer.payload, dataflow.ingress)
        # What the depacketizer takes is known late, and much follows from it in the receiver.
        m.submodules.arriving = arriving = ResetInserter(self.link_reset)(SkidBuffer(shape=word_layout()))
        connect_stream(m, receiver.o, arriving.i)
        connect_stream(m, arriving.o, depacketizer.i)
        wiring.connect(m, link=wiring.flipped(self.ring_o), transmitter=transmitter.ring_o)
        wiring.connect(m, link=wiring.flipped(self.ring_i), receiver=receiver.ring_i)
        for name in ("gradient_write", "weight_read"):
            wiring.connect(m, flow=getattr(dataflow, name), memory=wiring.flipped(getattr(self, name)))
        for name in (
            "gradient_read", "weight_write", "state_read", "state_write", "master_read", "master_write",
            *codebook_ports(config), "residual_read", "residual_write",
        ):
            for inner, outer in zip(getattr(dataflow, name), getattr(self, name), strict=True):
                wiring.connect(m, flow=inner, memory=wiring.flipped(outer))

        command = Signal(command_layout())
        setup = Signal(setup_layout(config))
        event = self.event.payload
        last_rank = command.size - 1
        has_gather = Signal()
        has_scatter = Signal()
        is_broadcast = Signal()
        steps = Signal(range(17))  # of a node that takes part in a whole phase
        m.d.comb += [
            has_scatter.eq(setup.fused | setup.sum),
            has_gather.eq(setup.fused | setup.gather | (command.operation == Operation.ALL_GATHER)),
            is_broadcast.eq(command.operation == Operation.BROADCAST),
            steps.eq(last_rank),
            dataflow.setup.eq(setup),
            planner.length.eq(command.length),
            # A broadcast moves the whole vector as one block.
            planner.size.eq(Mux(is_broadcast, 1, command.size)),
            planner.rank.eq(Mux(is_broadcast, 0, command.rank)),
        ]

        def prepare():
            """Sample all that the command depends on."""
            given = self.command.payload
            m.d.sync += [
                command.eq(given),
                setup.fused.eq(given.operation == Operation.FUSED_UPDATE),
                setup.sum.eq(
                    (given.operation == Operation.ALL_REDUCE) | (given.operation == Operation.REDUCE_SCATTER)
                ),
                setup.gather.eq(given.operation == Operation.ALL_REDUCE),
                setup.alone.eq(given.size == 1),
                setup.rank.eq(given.rank),
                setup.predecessor.eq(Mux(given.rank == 0, given.size - 1, given.rank - 1)),
                setup.successor.eq(Mux(given.rank == given.size - 1, 0, given.rank + 1)),
                setup.epoch.eq(given.epoch),
                setup.iteration.eq(given.iteration),
                setup.gradient_row.eq(given.gradient_base // config.lanes),
                setup.weight_row.eq(given.weight_base // config.lanes),
                setup.state_row.eq(given.state_base // config.lanes),
                setup.settings.eq(self.settings),
                setup.packed_state.eq(self.packed_state),
                event.tag.eq(given.tag),
                event.status.eq(EventStatus.OK),
                event.flags.eq(0),
                event.detail.eq(0),
                event.cycles.eq(0),
            ]

        def tour(target, steps, block, start):
            m.d.sync += [target.steps.eq(steps), target.block.eq(block), target.start.eq(start)]

        def assign_tours():
            """Which blocks this node sends, receives, encodes and owns, and where they begin."""
            alone, rank = setup.alone, command.rank
            m.d.sync += setup.plan.eq(planner.plan)
            scatters = Mux(has_scatter, steps, 0)
            tour(setup.egress_scatter, scatters, rank, planner.own)
            tour(setup.ingress_scatter, Mux(alone & setup.sum, 1, scatters), setup.predecessor, planner.previous)
            tour(setup.encode_scatter, Mux(setup.sum, command.size, scatters), rank, planner.own)
            tour(setup.own_scatter, setup.fused, setup.successor, planner.following)
            if config.has_master:  # the own block, and then those that are gathered
                tour(setup.landing_gather, Mux(setup.fused, command.size, 0), setup.successor, planner.following)
            with m.If(is_broadcast):
                sends = setup.successor != command.root
                is_root = rank == command.root
                m.d.sync += [setup.relay.eq(~is_root), setup.pass_on.eq(sends)]
                tour(setup.egress_gather, sends, 0, 0)
                tour(setup.ingress_gather, ~is_root, 0, 0)
                tour(setup.own_gather, is_root & ~alone, 0, 0)
            with m.Else():
                gathers = Mux(has_gather, steps, 0)
                m.d.sync += [setup.relay.eq(0), setup.pass_on.eq(0)]
                tour(setup.egress_gather, gathers, setup.successor, planner.following)
                tour(setup.ingress_gather, gathers, rank, planner.own)
                gives = has_gather & ~has_scatter & ~alone
                tour(setup.own_gather, gives, setup.successor, planner.following)

        # Packets that the datapath has handed out and that are not through yet.
        leaving, coming = Signal(4), Signal(4)
        running = Signal()
        finished = Signal()
        waited = Signal(32)  # cycles since a word last moved on the ring
        sent, arrived = Signal(16), Signal(16)
        aborted, abort_seen = Signal(), Signal()
        stranded = Signal()  # the ABORT cannot leave, or the predecessor's does not come
        packet_leaves = packetizer.o.valid & packetizer.o.ready & packetizer.o.payload.last
        word_taken = arriving.o.valid & arriving.o.ready
        m.d.comb += finished.eq(~dataflow.busy & (leaving == 0) & (coming == 0))
        m.d.sync += [
            leaving.eq(leaving + (dataflow.header.valid & dataflow.header.ready) - packet_leaves),
            coming.eq(coming + (dataflow.expected.valid & dataflow.expected.ready) - depacketizer.done),
            sent.eq(sent + (self.ring_o.valid & self.ring_o.last)),
            arrived.eq(arrived + (word_taken & arriving.o.payload.last)),
            waited.eq(Mux(self.ring_o.valid | word_taken, 0, waited + 1)),
        ]

        abort_header = packetizer.abort_header
        m.d.comb += [
            abort_header.type.eq(PacketType.ABORT),
            abort_header.source.eq(setup.rank),
            abort_header.destination.eq(setup.successor),
            abort_header.epoch.eq(setup.epoch),
            abort_header.iteration.eq(setup.iteration),
            packetizer.may_start.eq(transmitter.may_start),
            depacketizer.epoch.eq(setup.epoch),
            depacketizer.active.eq(running),
            transmitter.reset_link.eq(self.link_reset),
            receiver.reset_link.eq(self.link_reset),
            packetizer.clear.eq(self.link_reset | stranded),
            depacketizer.clear.eq(self.link_reset),
        ]

        def give_up(status, detail):
            m.d.sync += [event.status.eq(status), event.detail.eq(detail), waited.eq(0)]
            m.next = "Abort"

        timed_out = Signal()
        m.d.comb += timed_out.eq((waited >= self.timeout) & ~setup.alone)
        counts = Cat(sent, arrived)
        with m.If(dataflow.pulses.local_nan):
            m.d.sync += event.flags[0].eq(1)
        with m.If(dataflow.pulses.not_finite):
            m.d.sync += event.flags[1].eq(1)
        with m.If(depacketizer.abort_seen):
            m.d.sync += abort_seen.eq(1)
        with m.FSM() as fsm:
            with m.State("Idle"):
                m.d.comb += self.command.ready.eq(1)
                prepare()
                with m.If(self.command.valid):
                    m.next = "Plan"

            with m.State("Plan"):
                m.d.comb += planner.start.eq(1)
                m.next = "Deal"
                with m.If(self.link_reset):
                    m.d.sync += event.status.eq(EventStatus.LINK_RESET)
                    m.next = "Report"
                with m.Elif(command.operation == Operation.QUIESCE):
                    m.next = "Report"

            with m.State("Deal"):
                assign_tours()
                m.d.sync += [leaving.eq(0), coming.eq(0), sent.eq(0), arrived.eq(0), waited.eq(0)]
                m.d.sync += [aborted.eq(0), abort_seen.eq(0)]
                with m.If(planner.done):
                    m.next = "Launch"

            with m.State("Launch"):
                m.d.comb += dataflow.start.eq(1)
                m.next = "Settle"

            with m.State("Settle"):
                m.next = "Run"

            with m.State("Run"):
                m.d.comb += running.eq(1)
                with m.If(depacketizer.error):
                    give_up(depacketizer.code, depacketizer.detail)
                with m.Elif(receiver.overrun | dataflow.pulses.malformed):
                    give_up(EventStatus.OVERRUN, counts)
                with m.Elif(self.link_reset):
                    give_up(EventStatus.LINK_RESET, counts)
                with m.Elif(timed_out):
                    give_up(
                        Mux(packetizer.stalled, EventStatus.EGRESS_TIMEOUT, EventStatus.INGRESS_TIMEOUT), counts
                    )
                with m.Elif(finished):
                    with m.If(~setup.sum):
                        m.d.sync += self.weight_version.eq(self.weight_version + 1)
                    m.next = "Report"

            with m.State("Abort"):
                m.d.comb += [packetizer.give_up.eq(~aborted), depacketizer.drain.eq(~abort_seen)]
                with m.If(packetizer.aborted):
                    m.d.sync += aborted.eq(1)
                m.d.sync += waited.eq(waited + 1)
                with m.If((aborted & abort_seen) | self.link_reset):
                    m.next = "Report"
                with m.Elif(waited >= self.timeout):
                    m.d.comb += stranded.eq(1)
                    m.next = "Report"

            with m.State("Report"):
                m.d.comb += [self.event.valid.eq(1), event.weight_version.eq(self.weight_version)]
                with m.If(self.event.ready):
                    m.next = "Idle"

        m.d.comb += idle.eq(~(fsm.ongoing("Launch") | fsm.ongoing("Settle") | fsm.ongoing("Run")))
        busy = ~fsm.ongoing("Idle") & ~fsm.ongoing("Report")
        with m.If(busy):
            m.d.sync += event.cycles.eq(event.cycles + 1)

        pulses = dataflow.pulses
        m.d.comb += [
            self.count.words_sent.eq(self.ring_o.valid),
            self.count.packets_sent.eq(self.ring_o.valid & self.ring_o.last),
            self.count.words_received.eq(self.ring_i.valid),
            self.count.packets_received.eq(self.ring_i.valid & self.ring_i.last),
            self.count.scatter_reduce_cycles.eq(running & pulses.scatter_reduce),
            self.count.command_cycles.eq(busy),
            self.count.stall_no_credit.eq(running & packetizer.stalled),
            self.count.stall_ingress_empty.eq(running & depacketizer.starved),
            self.count.packets_refused.eq(running & depacketizer.error),
        ]
        for name in (
            "compressed_words",
            "elements_encoded",
            "compressed_adds",
            "positions_added",
            "encodes",
            "decodes",
            "optimizer_bursts",
            "stall_encoder",
            "stall_optimizer",
            "stall_memory",
        ):
            m.d.comb += self.count[name].eq(pulses[name])
        return m
