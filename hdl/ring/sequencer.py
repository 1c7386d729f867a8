"""Who does what, segment by segment: the static order of a command, turned into headers, routes and jobs.

Walks follow the order of :mod:`hdl.ring.order`, one for each participant:

======== ====================================================================================
egress   heads each packet that is sent, and names the source of its payload
ingress  says which packet is expected next, and where its payload goes
encode   reads the local gradients that are compressed, or summed before they are
own      updates the own block with the optimizer; without one, reads what it gives away
landing  with a weight codec, decodes and writes new weights: the own segment, then what is gathered
======== ====================================================================================

What follows from a record goes into queues, so that a walk may be ahead of the data. An empty segment has no payload,
and so it leaves no trace beyond its header.
"""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, enum, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.compression.registry import CODECS, RAW
from hdl.group import GROUP
from hdl.memory import job_layout
from hdl.optimizer.burst_controller import command_layout as burst_layout
from hdl.optimizer.rules import planes_used, settings_layout
from hdl.ring.header import PacketType, expected_layout, header_layout
from hdl.ring.order import Phase, Walk, plan_layout, record_layout, tour_layout
from hdl.streams.route import Fork
from hdl.streams.stream import Queue, connect_stream

__all__ = [
    "Coded",
    "Decoded",
    "Landed",
    "Passed",
    "Received",
    "Restored",
    "Sent",
    "Sequencer",
    "Shared",
    "Summed",
    "longest_vector",
    "setup_layout",
]

#: Headers, routes and jobs that a walk may be ahead of the data.
_AHEAD = 5


class Sent(enum.IntEnum):
    """Where the payload of a packet to be sent comes from."""

    ENCODER = 0
    OWN = 1
    PASSED = 2


class Passed(enum.IntEnum):
    """Where a payload that is passed on comes from."""

    ADDER = 0
    INGRESS = 1


class Decoded(enum.IntEnum):
    """Where a compressed segment that is decoded comes from."""

    INGRESS = 0
    ADDER = 1
    ENCODER = 2


class Received(enum.IntEnum):
    """Where the payload of a packet goes."""

    ADDER = 0
    DECODER = 1
    ASSEMBLER = 2
    EGRESS = 3


class Summed(enum.IntEnum):
    """Where a compressed sum goes."""

    EGRESS = 0
    KEPT = 1
    DECODER = 2


class Coded(enum.IntEnum):
    """Where a sum that has gone through a codec goes."""

    EGRESS = 0
    KEPT = 1


class Shared(enum.IntEnum):
    """Where a segment that has been decoded by a codec goes."""

    ADDER = 0
    OPTIMIZER = 1
    LANDING = 2


class Landed(enum.IntEnum):
    """Where a sum that comes to rest comes from, decoded by a codec."""

    OWN = 0
    INGRESS = 1


class Restored(enum.IntEnum):
    """Where encoded weights that are to be decoded come from."""

    OWN = 0
    INGRESS = 1


def longest_vector(config):
    """Most elements in a command."""
    return max(config.gradient_words, config.weight_words)


def setup_layout(config):
    """What a command looks like to the datapath; holds as long as the command runs.

    ``fused``: the scatter-reduce ends in the optimizer, and new weights are gathered. ``sum``: it ends in the
    gradient memory, and ``gather``: sums are gathered after it. With neither ``fused`` nor ``sum``, weights are
    gathered from the weight memory. ``alone``: the ring has one node. ``relay``: even the first step of a gather
    passes on what came in; ``pass_on``: even its last step is passed on (both are for broadcasts). ``packed_state``:
    a word of state holds two elements. ``landing_gather`` is there with a weight codec only.
    """
    elements = longest_vector(config)
    tour = tour_layout(elements)
    return data.StructLayout(
        {
            "fused": 1,
            "sum": 1,
            "gather": 1,
            "alone": 1,
            "relay": 1,
            "pass_on": 1,
            "packed_state": 1,
            "rank": 8,
            "predecessor": 8,
            "successor": 8,
            "epoch": 8,
            "iteration": 16,
            "gradient_row": range(config.gradient_words // config.lanes),
            "weight_row": range(config.weight_words // config.lanes),
            "state_row": range(config.state_words // config.lanes),
            "plan": plan_layout(elements),
            "egress_scatter": tour,
            "egress_gather": tour,
            "ingress_scatter": tour,
            "ingress_gather": tour,
            "encode_scatter": tour,
            "own_scatter": tour,
            "own_gather": tour,
            **({"landing_gather": tour} if config.has_master else {}),
            "settings": settings_layout(),
        }
    )


class Sequencer(wiring.Component):
    """Directs the datapath through a command.

    Every output stream is that of a queue, with registered outputs, to which ``header`` and ``expected`` add fields
    that hold for the whole command, and the codec that follows from the phase.

    Parameters
    ----------
    config : NodeConfig

    Members
    -------
    start : In(1)
        Begins a command; ``setup`` must hold from then until ``busy`` is low.
    setup : In(setup_layout(config))
    busy : Out(1)
        High from the cycle after ``start`` until every header and record has been taken and every write is done.
    scattering : Out(1)
        The header taken last was one of a scatter-reduce, or the first will be.
    header : Out(stream of header_layout())
    expected : Out(stream of expected_layout())
    sent : Out(stream of Sent)
        Source of each payload.
    received : Out(stream of a bit for each of Received)
        Sinks of each payload.
    passed, decoded : Out(stream of Passed, Decoded)
        Source of each payload. These, ``summed``, ``sending_job`` and ``adding_job`` are there only where gradients
        are added in compressed form.
    summed : Out(stream of a bit for each of Summed)
        Sinks of each sum.
    sending_job, adding_job : Out(stream of job_layout)
        Reads of gradients to be encoded: for the first step of a segment, and for what is added to ingress.
    summing_job : Out(stream of job_layout)
        Reads of gradients to be encoded, in the order of sending. This and those down to ``residuals_written`` are
        there only where gradients are not added in compressed form.
    paired : Out(stream of 1 bit)
        Whether such gradients are added to ingress.
    coded, shared : Out(stream of a bit for each of Coded, Shared)
        Sinks of each sum that has been encoded, and of each segment that has been decoded.
    restore : Out(stream of 1 bit)
        Whether a sum that has been encoded comes to rest, decoded again.
    landed_from : Out(stream of Landed)
        Source of each sum that comes to rest.
    residual_job, residual_write_job : Out(stream of job_layout)
        Reads and writes of what encoding has lost; these and the next only where it loses something.
    residuals_written : In(1)
    gradient_job, weight_job : Out(stream of job_layout)
        Reads for the optimizer; the latter also of weights to be gathered.
    state_jobs : array of Out(stream of job_layout)
    bursts : Out(stream of burst_layout(2, segment))
        Commands of the optimizer, whose workers are the ring and the local gradient.
    landing_job, weight_write_job : Out(stream of job_layout)
        Writes of what came in on the ring, or through the weight codec, and of what the optimizer made.
    state_write_jobs : array of Out(stream of job_layout)
    landed, weights_written : In(1)
        High for a cycle when such a job is done.
    states_written : In(planes)
    restored : Out(stream of Restored)
        Source of each packet of encoded weights. This and those below are there with a weight codec only, and
        ``weight_write_job`` without one only.
    master_job, master_write_job : Out(stream of job_layout)
        Reads and writes of the optimizer, in place of those of weights.
    masters_written : In(1)
    """

    def __init__(self, *, config):
        self._config = config
        self._elements = longest_vector(config)
        lanes, segment, planes = config.lanes, config.segment, config.state_planes
        gradient_rows, weight_rows = config.gradient_words // lanes, config.weight_words // lanes
        gradient_job = stream.Signature(job_layout(gradient_rows, segment))
        weight_job = stream.Signature(job_layout(weight_rows, segment))
        state_job = stream.Signature(job_layout(config.state_words // lanes, segment))
        if config.has_master:
            masters = {
                "restored": Out(stream.Signature(range(len(Restored)))),
                "master_job": Out(state_job),
                "master_write_job": Out(state_job),
                "masters_written": In(1),
            }
        else:
            masters = {"weight_write_job": Out(weight_job), "weights_written": In(1)}
        if config.adds_compressed:
            sums = {
                "passed": Out(stream.Signature(range(len(Passed)))),
                "decoded": Out(stream.Signature(range(len(Decoded)))),
                "summed": Out(stream.Signature(len(Summed))),
                "sending_job": Out(gradient_job),
                "adding_job": Out(gradient_job),
            }
        else:
            sums = {
                "summing_job": Out(gradient_job),
                "paired": Out(stream.Signature(1)),
                "coded": Out(stream.Signature(len(Coded))),
                "shared": Out(stream.Signature(len(Shared))),
                "restore": Out(stream.Signature(1)),
                "landed_from": Out(stream.Signature(range(len(Landed)))),
            }
        if config.has_residual:
            sums.update(residual_job=Out(gradient_job), residual_write_job=Out(gradient_job), residuals_written=In(1))
        super().__init__(
            {
                "start": In(1),
                "setup": In(setup_layout(config)),
                "busy": Out(1),
                "scattering": Out(1),
                "header": Out(stream.Signature(header_layout())),
                "expected": Out(stream.Signature(expected_layout())),
                "sent": Out(stream.Signature(range(len(Sent)))),
                "received": Out(stream.Signature(len(Received))),
                **sums,
                "gradient_job": Out(gradient_job),
                "weight_job": Out(weight_job),
                "state_jobs": Out(state_job).array(planes),
                "bursts": Out(stream.Signature(burst_layout(2, segment))),
                "landing_job": Out(stream.Signature(job_layout(max(gradient_rows, weight_rows), segment))),
                "state_write_jobs": Out(state_job).array(planes),
                "landed": In(1),
                "states_written": In(planes),
                **masters,
            }
        )

    def elaborate(self, platform):
        m = Module()
        # Terms of `busy`: high while there is something that has not reached a memory or a ring port.
        self._pending = []
        self._direct_egress(m)
        self._direct_ingress(m)
        self._direct_encode(m)
        self._direct_own(m)
        m.d.comb += self.busy.eq(Cat(self._pending).any())
        return m

    def _walk(self, m, name, outputs):
        """Walk of a participant: its current record, and a fork of it to what each of them asks for."""
        elements, segment, setup = self._elements, self._config.segment, self.setup
        walk = Walk(elements=elements, segment=segment)
        fork = Fork(shape=record_layout(elements, segment), outputs=outputs)
        m.submodules[f"{name}_walk"] = walk
        m.submodules[f"{name}_fork"] = fork
        connect_stream(m, walk.o, fork.i)
        m.d.comb += [
            walk.start.eq(self.start),
            walk.plan.eq(setup.plan),
        ]
        if name != "landing":
            m.d.comb += walk.scatter.eq(setup[f"{name}_scatter"])
        if name != "encode":
            m.d.comb += walk.gather.eq(setup[f"{name}_gather"])
        self._pending.append(walk.busy)
        return fork.i.payload, fork

    def _queue(self, m, name, port, shape, payload):
        """Queue of what follows from a record."""
        m.submodules[name] = queue = Queue(shape=shape, depth=_AHEAD)
        m.d.comb += [queue.i.valid.eq(port.valid), port.ready.eq(queue.i.ready), queue.i.payload.eq(payload)]
        return queue

    def _route(self, m, name, port, route):
        sink = getattr(self, name)
        connect_stream(m, self._queue(m, f"{name}_routes", port, sink.payload.shape(), route).o, sink)

    def _job(self, m, name, port, sink, base, group, length, *, packed=0, done=None):
        """Queue of jobs of a reader, or of a writer that tells when one is done.

        A group takes up GROUP elements, or if it is packed half as many.
        """
        offset = group << (GROUP // self._config.lanes).bit_length() - 1
        row = base + Mux(packed, offset >> 1, offset)
        job = Signal(sink.payload.shape(), name=f"{name}_at")
        m.d.comb += [job.row.eq(row), job.count.eq(length)]
        queue = self._queue(m, name, port, job.shape(), job)
        connect_stream(m, queue.o, sink)
        if done is not None:
            unfinished = Signal(8, name=f"{name}_unfinished")
            m.d.sync += unfinished.eq(unfinished + (queue.i.valid & queue.i.ready) - done)
            self._pending.append(unfinished != 0)

    def _packets(self, m, name, port, at, sink):
        """Headers, or what is expected of them, but for where packets come from and go to.

        The queue holds what differs from one packet to the next; the phase of the one on offer is returned.
        """
        setup, given = self.setup, sink.payload
        shape = data.StructLayout({
            "phase": Phase, "block": len(at.block), "segment": len(at.segment), "length": len(at.length)})
        queue = self._queue(m, name, port, shape, Cat(at.phase, at.block, at.segment, at.length))
        number = Signal.like(given.sequence, name=f"{name}_sequence")
        with m.If(self.start):
            m.d.sync += number.eq(0)
        with m.Elif(sink.valid & sink.ready):
            m.d.sync += number.eq(number + 1)
        packet = queue.o.payload
        m.d.comb += [
            sink.valid.eq(queue.o.valid),
            queue.o.ready.eq(sink.ready),
            given.codec.eq(self._codec(packet.phase == Phase.SCATTER)),
            given.epoch.eq(setup.epoch),
            given.sequence.eq(number),
            given.iteration.eq(setup.iteration),
            given.block.eq(packet.block),
            given.segment.eq(packet.segment),
            given.length.eq(packet.length),
        ]
        self._pending.append(queue.level != 0)
        return packet.phase

    def _codec(self, scatter):
        gradients, weights, raw = (
            CODECS[name].code for name in (self._config.gradient_codec, self._config.weight_codec, RAW)
        )
        return Mux(scatter | self.setup.sum, gradients, Mux(self.setup.fused, weights, raw))

    def _direct_egress(self, m):
        setup = self.setup
        at, fork = self._walk(m, "egress", 2)
        scatter = at.phase == Phase.SCATTER
        m.d.comb += fork.enable.eq(Cat(1, at.length != 0))

        header = self.header.payload
        phase = self._packets(m, "headers", fork.o[0], at, self.header)
        m.d.comb += [
            header.type.eq(PacketType.DATA),
            header.source.eq(setup.rank),
            header.destination.eq(setup.successor),
        ]
        with m.If(self.start):
            m.d.sync += self.scattering.eq(setup.egress_scatter.steps != 0)
        with m.Elif(self.header.valid & self.header.ready):
            m.d.sync += self.scattering.eq(phase == Phase.SCATTER)

        first = Mux(scatter, Sent.ENCODER, Mux(setup.relay, Sent.PASSED, Sent.OWN))
        encoded = at.first if self._config.adds_compressed else at.first | scatter
        self._route(m, "sent", fork.o[1], Mux(encoded, first, Sent.PASSED))

    def _direct_ingress(self, m):
        setup = self.setup
        at, fork = self._walk(m, "ingress", 5 + self._config.adds_compressed)
        some = at.length != 0
        scatter = at.phase == Phase.SCATTER
        gather = ~scatter
        final = scatter & at.last  # here the block is summed to its end
        summed = scatter & ~(final & setup.fused)  # the last sum of a fused update is the optimizer's
        decoded = final | (gather & setup.sum)
        # With a weight codec, new weights land in an order of their own.
        landing = (gather & ~setup.fused if self._config.has_master else gather) | (final & setup.sum)
        passed = (scatter & ~final) | (gather & (~at.last | setup.pass_on))

        # A ring of one expects nothing and lands its own sums.
        packet = some & ~setup.alone
        if self._config.adds_compressed:
            m.d.comb += fork.enable.eq(
                Cat(~setup.alone, packet, packet & summed, some & decoded, some & landing, packet & passed)
            )
        else:
            comes_to_rest = decoded & setup.sum
            m.d.comb += fork.enable.eq(
                Cat(~setup.alone, packet, packet & (scatter | setup.sum), some & comes_to_rest, some & landing)
            )
        self._packets(m, "expectations", fork.o[0], at, self.expected)
        m.d.comb += self.expected.payload.source.eq(setup.predecessor)

        sinks = {
            Received.ADDER: summed if self._config.adds_compressed else 0,
            Received.DECODER: ~summed & decoded if self._config.adds_compressed else scatter | setup.sum,
            Received.ASSEMBLER: gather & ~setup.sum,
            Received.EGRESS: gather & passed,
        }
        self._route(m, "received", fork.o[1], Cat(sinks[sink] for sink in Received))
        if self._config.adds_compressed:
            self._direct_compressed(m, fork, gather, final)
        else:
            sinks = {Shared.ADDER: summed, Shared.OPTIMIZER: final & setup.fused, Shared.LANDING: gather}
            self._route(m, "shared", fork.o[2], Cat(sinks[sink] for sink in Shared))
            self._route(m, "landed_from", fork.o[3], Mux(scatter, Landed.OWN, Landed.INGRESS))
        base = Mux(setup.sum, setup.gradient_row, setup.weight_row)
        lands, group, length = fork.o[4], at.group, at.length
        if self._config.has_master:
            lands, group, length = self._direct_landing(m, lands, at)
        self._job(m, "landing_jobs", lands, self.landing_job, base, group, length, done=self.landed)

    def _direct_compressed(self, m, fork, gather, final):
        """Where compressed sums go, and what is decoded and passed on."""
        setup = self.setup
        sinks = {Summed.EGRESS: ~final, Summed.KEPT: final & setup.gather, Summed.DECODER: final}
        self._route(m, "summed", fork.o[2], Cat(sinks[sink] for sink in Summed))
        own = Mux(setup.alone, Decoded.ENCODER, Decoded.ADDER)
        self._route(m, "decoded", fork.o[3], Mux(final & setup.sum, own, Decoded.INGRESS))
        self._route(m, "passed", fork.o[5], Mux(gather, Passed.INGRESS, Passed.ADDER))

    def _direct_landing(self, m, others, other):
        """What lands after a weight codec, joined with what lands without one: where it comes from, its first group
        and its length. A command has only one of them."""
        setup = self.setup
        at, fork = self._walk(m, "landing", 2)
        m.d.comb += fork.enable.eq((at.length != 0).replicate(2))
        self._route(m, "restored", fork.o[1], Mux(at.first, Restored.OWN, Restored.INGRESS))
        lands = stream.Signature(0).create(path=("lands",))
        m.d.comb += [
            lands.valid.eq(Mux(setup.fused, fork.o[0].valid, others.valid)),
            fork.o[0].ready.eq(lands.ready & setup.fused),
            others.ready.eq(lands.ready & ~setup.fused),
        ]
        return lands, Mux(setup.fused, at.group, other.group), Mux(setup.fused, at.length, other.length)

    def _direct_encode(self, m):
        setup = self.setup
        if not self._config.adds_compressed:
            self._direct_recode(m)
            return
        at, fork = self._walk(m, "encode", 2)
        sent = at.first & ~setup.alone  # as it is; all others are added to what comes in
        m.d.comb += fork.enable.eq(Cat(sent, ~sent) & (at.length != 0).replicate(2))
        for name, port, sink in (
            ("sending_jobs", fork.o[0], self.sending_job),
            ("adding_jobs", fork.o[1], self.adding_job),
        ):
            self._job(m, name, port, sink, setup.gradient_row, at.group, at.length)

    def _direct_recode(self, m):
        """Sums that go through a codec, in the order of sending; those that stay come last of their segment."""
        setup, has_residual = self.setup, self._config.has_residual
        at, fork = self._walk(m, "encode", 4 + 2 * has_residual)
        own = at.last & setup.sum
        m.d.comb += fork.enable.eq((at.length != 0).replicate(4 + 2 * has_residual))
        where = setup.gradient_row, at.group, at.length
        self._job(m, "summing_jobs", fork.o[0], self.summing_job, *where)
        self._route(m, "paired", fork.o[1], ~at.first)
        sinks = {Coded.EGRESS: ~own, Coded.KEPT: own & setup.gather & ~setup.alone}
        self._route(m, "coded", fork.o[2], Cat(sinks[sink] for sink in Coded))
        self._route(m, "restore", fork.o[3], own)
        if has_residual:
            self._job(m, "residual_jobs", fork.o[4], self.residual_job, *where)
            self._job(
                m, "residual_write_jobs", fork.o[5], self.residual_write_job, *where, done=self.residuals_written
            )

    def _direct_own(self, m):
        setup = self.setup
        planes, has_master = self._config.state_planes, self._config.has_master
        at, fork = self._walk(m, "own", 4 + 2 * planes + has_master)
        update = (at.length != 0) & setup.fused
        used_planes = Signal(max(planes, 1))
        m.d.comb += used_planes.eq(planes_used(setup.settings.rule, planes))
        stateful = [update & used_planes[plane] for plane in range(planes) for _ in ("read", "write")]
        given = (at.length != 0) & ~setup.fused if has_master else at.length != 0
        m.d.comb += fork.enable.eq(Cat(given, update, update, update, stateful, [update] * has_master))

        self._job(m, "weight_jobs", fork.o[0], self.weight_job, setup.weight_row, at.group, at.length)
        self._job(m, "gradient_jobs", fork.o[1], self.gradient_job, setup.gradient_row, at.group, at.length)
        burst = Signal(burst_layout(2, self._config.segment))
        m.d.comb += [burst.count.eq(at.length), burst.active.eq(Cat(~setup.alone, 1))]
        connect_stream(m, self._queue(m, "burst_commands", fork.o[3], burst.shape(), burst).o, self.bursts)

        in_block = Signal.like(at.group)  # state memories hold the own block only
        words = Signal.like(at.length)
        m.d.comb += [
            in_block.eq(at.group - setup.own_scatter.start),
            words.eq(Mux(setup.packed_state, (at.length + 1) >> 1, at.length)),
        ]
        if has_master:
            where = setup.state_row, in_block, at.length
            self._job(m, "master_jobs", fork.o[4 + 2 * planes], self.master_job, *where)
            self._job(m, "master_write_jobs", fork.o[2], self.master_write_job, *where, done=self.masters_written)
        else:
            self._job(
                m, "weight_write_jobs", fork.o[2], self.weight_write_job, setup.weight_row, at.group, at.length,
                done=self.weights_written,
            )
        for plane in range(planes):
            reads, writes = fork.o[4 + 2 * plane], fork.o[5 + 2 * plane]
            where = setup.state_row, in_block, words
            self._job(m, f"state_jobs_{plane}", reads, self.state_jobs[plane], *where, packed=setup.packed_state)
            self._job(
                m, f"state_write_jobs_{plane}", writes, self.state_write_jobs[plane], *where,
                packed=setup.packed_state, done=self.states_written[plane],
            )
