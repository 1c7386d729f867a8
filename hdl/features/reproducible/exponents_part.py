"""Part of the datapath with which nodes agree on the groups' exponents while earlier segments are summed.

Packets begin with the exponents of a later segment (:mod:`hdl.features.reproducible.order`). In the scatter-reduce,
these are the maxima over the nodes passed so far. The owner of a block forms the maximum over all nodes, and the
all-gather distributes it.
"""

import enum

from amaranth.hdl import Module, Mux
from amaranth.lib import stream
from amaranth.lib.wiring import In, Out

from hdl.features.reproducible.exponents import ExponentScan, FieldMaximum
from hdl.features.reproducible.order import ORDER
from hdl.features.reproducible.prefix import PrefixCutter, PrefixJoiner, prefix_layout
from hdl.features.reproducible.sequences import SUMS, field_words, has_ahead, has_payload, mask
from hdl.group import GROUP
from hdl.memory import job_layout
from hdl.ring.parts.conditions import has_elements, is_gather, is_scatter
from hdl.ring.parts.part import Channel, Instruction, Output, Part, PartDescription
from hdl.ring.sequences import EGRESS, INGRESS
from hdl.streams.route import PacketDemux, PacketMux
from hdl.streams.stream import Queue, connect_stream, word_layout

__all__ = ["AgreedFrom", "CutTo", "Exponents", "JoinedFrom", "MaximumTo", "describe"]


class MaximumTo(enum.IntEnum):
    """Destination of the maxima of exponents, which include this node's exponents."""

    SENT = 0
    OWN = 1
    AGREED = 2


class CutTo(enum.IntEnum):
    """Destination of the exponents in a packet from the ring."""

    MAXIMUM = 0
    FORWARD = 1
    AGREED = 2


class JoinedFrom(enum.IntEnum):
    """Source of the exponents of a packet to send."""

    MAXIMUM = 0
    OWN = 1
    FORWARD = 2


class AgreedFrom(enum.IntEnum):
    """Source of the agreed exponents for the next sums."""

    OWN = 0
    GATHERED = 1


def _parts_of(record, setup):
    return {"words": field_words(record.ahead), "rest": has_elements(record)}


def _is_on_ring(record, setup):
    return ~setup.alone


def _cut_to(record, setup):
    return mask(CutTo, {CutTo.MAXIMUM: is_scatter(record), CutTo.FORWARD: is_gather(record) & ~record.last,
                        CutTo.AGREED: is_gather(record)})


def _joined_from(record, setup):
    return Mux(is_scatter(record), JoinedFrom.MAXIMUM, Mux(record.first, JoinedFrom.OWN, JoinedFrom.FORWARD))


def _maximum_to(record, setup):
    return mask(MaximumTo, {MaximumTo.SENT: ~record.last, MaximumTo.OWN: record.last & ~setup.alone,
                            MaximumTo.AGREED: record.last})


def _agreed_from(record, setup):
    # A node has the agreed exponents of its own block already. It gathers the exponents of all other blocks, in the
    # order of the sums.
    return ~record.last


def _added_words(record, setup):
    # A checksum follows the integers of a packet in the scatter-reduce.
    return field_words(record.ahead) + (is_scatter(record) & has_elements(record))


def _scan_job(config):
    shift = (GROUP // config.lanes).bit_length() - 1

    def payload(record, setup):
        return {"row": setup.gradient_row + (record.ahead_place << shift), "count": record.ahead}

    shape = job_layout(config.memory_map["gradients"].words // config.lanes, config.segment)
    return Instruction("scan_job", SUMS, shape, payload, present=has_ahead)


def describe(config):
    """Return the part's :class:`~hdl.ring.parts.part.PartDescription`."""
    return PartDescription(
        name="exponents",
        component=Exponents,
        instructions=(
            # Reads of the local gradients, in the order of the sums, but ahead of them.
            _scan_job(config),
            # Whether a packet from the ring has exponents for the same segment.
            Instruction("compared", SUMS, 1, lambda record, setup: ~record.first, present=has_ahead),
            # Destinations of the maxima, with one bit for each member of MaximumTo.
            Instruction("maximum_to", SUMS, len(MaximumTo), _maximum_to, present=has_ahead),
            # Source of the exponents of each sum.
            Instruction("agreed_from", SUMS, range(len(AgreedFrom)), _agreed_from),
            # Exponents and elements of each packet from the ring, and destinations of the exponents.
            Instruction("cut", INGRESS, prefix_layout(), _parts_of, when=_is_on_ring, present=has_payload),
            Instruction("cut_to", INGRESS, len(CutTo), _cut_to, when=_is_on_ring, present=has_ahead),
            # Exponents and elements of each packet to send, and the source of the exponents.
            Instruction("join", EGRESS, prefix_layout(), _parts_of, present=has_payload),
            Instruction("joined_from", EGRESS, range(len(JoinedFrom)), _joined_from, present=has_ahead),
        ),
        reads={"gradients": 1},
        ahead=("gradients",),
        outputs=(Output("agreed", Channel.AGREED),),
        order=ORDER,
        added_words=_added_words,
    )


class Exponents(Part):
    """Exchange exponents with the other nodes, and pass the maxima to the units that form and round sums.

    Exponents of a segment are gathered while the segment before it is summed. The queue of gathered exponents has
    room for two segments of all blocks, so a packet never waits for it.
    """

    def __init__(self, *, config, description):
        words = stream.Signature(word_layout())
        super().__init__(config, description, {
            # Payloads from the ring: as they arrive, and after the exponents have been removed.
            "arrived": In(words),
            "passed": Out(words),
            # Payloads to the ring: before and after exponents are put in front of them.
            "sent": In(words),
            "completed": Out(words),
            # Exponents of each sum, in the order of the sums.
            "agreed": Out(words),
        })

    def elaborate(self, platform):
        m = Module()
        config = self._config
        words = field_words(config.segment)  # words of exponents in a packet
        m.submodules.scanned = scanned = Queue(shape=word_layout(), depth=4 * words)
        m.submodules.maximum = maximum = FieldMaximum()
        m.submodules.maximum_demux = maxima = PacketDemux(outputs=len(MaximumTo))
        m.submodules.cutter = cutter = PrefixCutter()
        m.submodules.cut_demux = cut = PacketDemux(outputs=len(CutTo))
        m.submodules.joiner = joiner = PrefixJoiner()
        m.submodules.joined_mux = joined = PacketMux(inputs=len(JoinedFrom))
        m.submodules.agreed_mux = agreed = PacketMux(inputs=len(AgreedFrom))
        queues = {}
        several = 4 * words * max(config.topology.max_nodes, 2)
        for name, depth in (("compared", 2 * words), ("maxima", 2 * words), ("own", 4 * words),
                            ("forward", 2 * words), ("own_agreed", 4 * words), ("gathered", several)):
            m.submodules[f"{name}_queue"] = queues[name] = Queue(
                shape=word_layout(), depth=max(depth, 4), block=depth > 32)

        for name, sink in (("compared", maximum.paired), ("maximum_to", maxima.route), ("cut", cutter.cut),
                           ("cut_to", cut.route), ("join", joiner.join), ("joined_from", joined.route),
                           ("agreed_from", agreed.route)):
            connect_stream(m, getattr(self, name), sink)
        for source, sink in (
                (self.arrived, cutter.i), (cutter.rest, self.passed), (cutter.prefix, cut.i),
                (cut.o[CutTo.MAXIMUM], queues["compared"].i), (cut.o[CutTo.FORWARD], queues["forward"].i),
                (cut.o[CutTo.AGREED], queues["gathered"].i),
                (self._scan(m), scanned.i), (scanned.o, maximum.a), (queues["compared"].o, maximum.b),
                (maximum.o, maxima.i), (maxima.o[MaximumTo.SENT], queues["maxima"].i),
                (maxima.o[MaximumTo.OWN], queues["own"].i), (maxima.o[MaximumTo.AGREED], queues["own_agreed"].i),
                (queues["maxima"].o, joined.i[JoinedFrom.MAXIMUM]), (queues["own"].o, joined.i[JoinedFrom.OWN]),
                (queues["forward"].o, joined.i[JoinedFrom.FORWARD]), (joined.o, joiner.prefix),
                (self.sent, joiner.rest), (joiner.o, self.completed),
                (queues["own_agreed"].o, agreed.i[AgreedFrom.OWN]),
                (queues["gathered"].o, agreed.i[AgreedFrom.GATHERED]), (agreed.o, self.agreed)):
            connect_stream(m, source, sink)
        return m

    def _scan(self, m):
        """Read the local gradients and return their exponents."""
        m.submodules.scan = scan = ExponentScan(lanes=self._config.lanes)
        connect_stream(m, self._read_gradients(m, self.scan_job).o, scan.i)
        return scan.o
