"""Sums of integers: each hop adds its own integers to a packet; complete sums are rounded once.

The node that owns a block completes its sums. In a fused update it rounds them for the optimizer; in other commands
it writes them back, and in an all-reduce it sends them as integers, which every node rounds in the same way.
"""

import enum

from amaranth.hdl import C, Cat, Module, Mux
from amaranth.lib import data, stream
from amaranth.lib.wiring import In, Out

from hdl.compression.registry import GRADIENT_CODECS
from hdl.features.reproducible.exponents import MAX_GROUPS, FieldReader
from hdl.features.reproducible.field_hash import HASH, FieldHash, HashGate, SingleFieldHash
from hdl.features.reproducible.integer_adder import IntegerAdder, kind_layout
from hdl.features.reproducible.layout import codes_of, integers_layout, integers_of
from hdl.features.reproducible.quantizer import Quantizer
from hdl.features.reproducible.rounder import Rounder
from hdl.features.reproducible.rows import RowNarrower, RowWidener
from hdl.features.reproducible.sequences import (
    ROUNDED,
    SUMS,
    field_words,
    groups_in,
    is_gathered_sum,
    is_partial_sum,
    mask,
)
from hdl.ring.parts.conditions import is_gather, is_sum
from hdl.ring.parts.part import Channel, Input, Instruction, Output, Part, PartDescription, has_infinite, job, taken
from hdl.streams.route import PacketDemux, PacketMux
from hdl.streams.stream import Queue, beat_layout, connect_stream, word_layout

__all__ = ["FieldsTo", "IntegerSum", "RoundedFrom", "TotalTo", "describe"]

_CHECKSUM_WORDS = 1


class FieldsTo(enum.IntEnum):
    """Destination of the exponents of a sum."""

    QUANTIZER = 0
    OWN = 1
    GATHERED = 2


class RoundedFrom(enum.IntEnum):
    """Source of sums that are rounded, and of their exponents."""

    OWN = 0
    GATHERED = 1


class TotalTo(enum.IntEnum):
    """Destination of a complete sum of the node's own block."""

    ROUNDER = 0
    KEPT = 1


def _is_rounded_everywhere(setup):
    return setup.sum & setup.gather & ~setup.alone


def _fields_to(record, setup):
    return mask(FieldsTo, {FieldsTo.QUANTIZER: 1, FieldsTo.OWN: record.last,
                           FieldsTo.GATHERED: ~record.last & _is_rounded_everywhere(setup)})


def _total_to(record, setup):
    return mask(TotalTo, {TotalTo.ROUNDER: 1, TotalTo.KEPT: _is_rounded_everywhere(setup)})


def _kind(record, setup):
    return {"paired": ~record.first, "final": record.last, "first": record.first}


def _place_layout():
    return data.StructLayout({"segment": 16, "block": 8})


def _place(record, setup):
    return {"segment": record.segment, "block": record.block}


def _used_layout():
    """Layout of the hash of a complete sum's exponents and of the sum's place, which are stored until rounding."""
    return data.StructLayout({"hash": HASH, "place": _place_layout()})


def _rounded_from(record, setup):
    return is_gather(record)  # OWN or GATHERED


def _is_last(record, setup):
    return record.last


def describe(config):
    """Return the part's :class:`~hdl.ring.parts.part.PartDescription`."""
    groups = range(MAX_GROUPS + 1)
    return PartDescription(
        name="sums",
        component=IntegerSum,
        instructions=(
            # Reads of the local gradients, in the order of the sums.
            job(config, "summing_job", SUMS, "gradients"),
            # Number of groups of each packet of local gradients, and destinations of their exponents.
            Instruction("summed_groups", SUMS, groups, groups_in),
            Instruction("fields_to", SUMS, len(FieldsTo), _fields_to),
            # Whether a packet from the ring is added, and whether the sum is then complete.
            Instruction("kind", SUMS, kind_layout(), _kind),
            # Block and segment of each packet, for reports of wrong checksums.
            Instruction("summed_place", SUMS, _place_layout(), _place),
            # Destinations of each complete sum, with one bit for each member of TotalTo.
            Instruction("total_to", SUMS, len(TotalTo), _total_to, when=_is_last),
            # Number of groups of each packet of sums that are rounded, and the source of sums and exponents.
            Instruction("rounded_groups", ROUNDED, groups, groups_in),
            Instruction("rounded_from", ROUNDED, range(len(RoundedFrom)), _rounded_from),
            Instruction("rounded_fields_from", ROUNDED, range(len(RoundedFrom)), _rounded_from),
        ),
        reads={"gradients": 1},
        inputs=(Input("to_adder", Channel.INGRESS, packets=is_partial_sum),
                Input("to_rounder", Channel.INGRESS, packets=is_gathered_sum),
                Input("transit", Channel.TRANSIT), Input("agreed", Channel.AGREED)),
        outputs=(
            Output("encoded", Channel.ENCODED),
            Output("forwarded", Channel.FORWARD),
            Output("finished", Channel.SUMS),
            Output("write_back", Channel.WRITE_BACK, during=is_sum),
            Output("kept", Channel.OWN, during=is_sum),
        ),
        pulses=("elements_encoded", "encodes", "compressed_adds", "decodes", "local_nan", "not_finite", "wrong_sum",
                "wrong_sum_detail"),
        encodes_all=True,
    )


class IntegerSum(Part):
    """Add local gradients to packets as integers, and round complete sums.

    All units work at the rate of the link: one word, of one or two integers, in a cycle.

    Checksums of packets include a hash of the exponents (:mod:`hdl.features.reproducible.field_hash`), so they show
    if nodes use different ones. The exponents with which a node rounds its own complete sums must have the same hash.
    """

    def __init__(self, *, config, description):
        self._width = GRADIENT_CODECS[config.gradients].width
        words = stream.Signature(word_layout())
        rows = stream.Signature(beat_layout(config.lanes))
        super().__init__(config, description, {
            # Packets with sums that are not complete.
            "to_adder": In(words),
            # Packets with complete sums.
            "to_rounder": In(words),
            # Packets that are forwarded unchanged.
            "transit": In(words),
            # Exponents of each sum.
            "agreed": In(words),
            # Sums to be sent.
            "encoded": Out(words),
            # Packets to be forwarded.
            "forwarded": Out(words),
            # Sums for the optimizer in a fused update.
            "finished": Out(rows),
            # Sums for the gradient memory in commands other than a fused update.
            "write_back": Out(rows),
            # Complete sums of the node's own block, for the gather.
            "kept": Out(words),
        })

    def elaborate(self, platform):
        m = Module()
        config, setup, width = self._config, self.setup, self._width
        slices = 32 // width
        packet = config.segment // slices + _CHECKSUM_WORDS
        m.submodules.adder = adder = IntegerAdder(width=width)
        # Places of the packets whose checks have not ended; a packet takes at least two cycles.
        m.submodules.places = places = Queue(shape=_place_layout(), depth=adder.latency)
        m.submodules.fields_demux = fields = PacketDemux(outputs=len(FieldsTo))
        # One packet can wait for the link without stalling the adder, and another for the adder.
        m.submodules.to_send = to_send = Queue(shape=word_layout(), depth=2 * packet, block=True)
        m.submodules.to_add = to_add = Queue(shape=word_layout(), depth=packet, block=True)
        connect_stream(m, self.fields_to, fields.route)
        connect_stream(m, self.agreed, fields.i)
        connect_stream(m, self.kind, adder.kind)
        own, own_wrong = self._quantized(m, fields.o[FieldsTo.QUANTIZER], adder.hash)
        connect_stream(m, own, adder.a)
        connect_stream(m, self.to_adder, to_add.i)
        connect_stream(m, to_add.o, adder.b)
        connect_stream(m, adder.sent, to_send.i)
        connect_stream(m, to_send.o, self.encoded)
        connect_stream(m, self.transit, self.forwarded)
        # Complete sums in the adder: a packet takes at least two cycles.
        m.submodules.used_hashes = used = Queue(shape=_used_layout(), depth=adder.latency)
        # The last word of a complete sum is rounded only if its exponents have the same hash as in the adder.
        m.submodules.gate = gate = HashGate(shape=integers_layout(width))
        m.d.comb += [
            used.i.valid.eq(taken(self.kind) & self.kind.payload.final),
            used.i.payload.hash.eq(adder.hash.payload),
            used.i.payload.place.eq(self.summed_place.payload),
            gate.a.valid.eq(used.o.valid),
            gate.a.payload.eq(used.o.payload.hash),
            used.o.ready.eq(gate.a.ready),
        ]
        rounded = self._rounded(m, self._complete(m, adder.total, gate), fields, gate)
        with m.If(setup.fused):
            connect_stream(m, rounded, self.finished)
        with m.Else():
            connect_stream(m, rounded, self.write_back)

        pulses = self.pulses
        added = taken(adder.a)
        m.d.comb += [
            pulses.encodes.eq(added & adder.a.payload.last),
            pulses.elements_encoded.eq(Mux(added, slices, 0)),
            pulses.compressed_adds.eq(taken(self.kind) & self.kind.payload.paired),
            pulses.decodes.eq(taken(rounded) & rounded.payload.last),
            pulses.not_finite.eq(setup.sum & taken(rounded) & has_infinite(rounded.payload)),
            pulses.wrong_sum.eq(adder.received_wrong | adder.added_wrong | gate.wrong | own_wrong),
            # The node in which the fault occurred: if a packet was wrong when it arrived, its sender. If exponents of
            # the two nodes differ, it may also be this node.
            pulses.wrong_sum_detail.eq(Cat(
                Mux(adder.received_wrong | adder.added_wrong, places.o.payload,
                    Mux(own_wrong, self.summed_place.payload, used.o.payload.place)),
                Mux(adder.received_wrong, setup.predecessor, setup.rank))),
            self.summed_place.ready.eq(taken(self.kind)),
            places.i.valid.eq(self.summed_place.ready),
            places.i.payload.eq(self.summed_place.payload),
            places.o.ready.eq(adder.checked),
        ]
        return m

    def _quantized(self, m, agreed, hashes):
        """Read the local gradients, and form hashes of their exponents; return their integers, and whether the packet
        to be added has failed a check.
        """
        m.submodules.narrower = narrower = RowNarrower(lanes=self._config.lanes, slice_lanes=32 // self._width)
        m.submodules.quantizer = quantizer = Quantizer(width=self._width)
        m.submodules.fields = fields = FieldReader()
        connect_stream(m, self.summed_groups, fields.groups)
        reader = self._read_gradients(m, self.summing_job)
        connect_stream(m, reader.o, narrower.i)
        connect_stream(m, narrower.o, quantizer.i)
        self._connect_fields(m, agreed, fields, quantizer, hashes)
        m.d.comb += [quantizer.spare.eq(self.setup.spare), self.pulses.local_nan.eq(reader.nan)]
        return self._own(m, quantizer.o)

    def _connect_fields(self, m, agreed, fields, quantizer, hashes):
        """Connect the exponent fields to the quantizer, and form their hashes."""
        # Fields are hashed as the quantizer takes them. It holds the beats of some packets, and the adder one packet.
        m.submodules.field_hash = field_hash = SingleFieldHash(depth=Quantizer.latency + 4)
        connect_stream(m, agreed, fields.i)
        connect_stream(m, field_hash.o, quantizer.fields)
        connect_stream(m, field_hash.hash, hashes)
        m.d.comb += [
            field_hash.i.valid.eq(fields.o.valid),
            field_hash.i.payload.field.eq(fields.o.payload),
            field_hash.i.payload.last.eq(quantizer.i.payload.last),
            fields.o.ready.eq(field_hash.i.ready),
        ]

    def _own(self, m, integers):
        """Integers of the node, and whether the packet to be added has failed a check."""
        return integers, C(0, 1)

    def _complete(self, m, total, gate):
        """Send complete sums to the gather, and return all sums to round: the node's own ones, through the gate, and
        gathered ones.
        """
        config, width = self._config, self._width
        layout, words = integers_layout(width), config.segment * width // 32
        m.submodules.total_demux = totals = PacketDemux(outputs=len(TotalTo), shape=layout)
        m.submodules.rounded_mux = chosen = PacketMux(inputs=len(RoundedFrom), shape=layout)
        # Sums are gathered one segment later.
        m.submodules.kept_sums = kept = Queue(shape=word_layout(), depth=2 * words, block=True)
        m.submodules.to_round = to_round = Queue(shape=word_layout(), depth=words, block=True)
        connect_stream(m, self.total_to, totals.route)
        connect_stream(m, self.rounded_from, chosen.route)
        connect_stream(m, total, totals.i)
        connect_stream(m, totals.o[TotalTo.ROUNDER], gate.i)
        connect_stream(m, gate.o, chosen.i[RoundedFrom.OWN])
        own = totals.o[TotalTo.KEPT]
        m.d.comb += [kept.i.valid.eq(own.valid), own.ready.eq(kept.i.ready), kept.i.payload.last.eq(own.payload.last),
                     kept.i.payload.data.eq(codes_of(own.payload, width))]
        connect_stream(m, kept.o, self.kept)
        connect_stream(m, self.to_rounder, to_round.i)
        gathered, word = chosen.i[RoundedFrom.GATHERED], to_round.o.payload
        integers, flags = integers_of(m, word.data, width)
        m.d.comb += [gathered.valid.eq(to_round.o.valid), to_round.o.ready.eq(gathered.ready),
                     gathered.payload.eq(Cat(integers, flags, word.last))]
        return chosen.o

    def _rounded(self, m, sums, fields, gate):
        """Round complete sums, and return rows; the gate receives hashes of the exponents of the node's own ones."""
        config, slices = self._config, 32 // self._width
        words = field_words(config.segment)
        m.submodules.rounder = rounder = Rounder(width=self._width)
        m.submodules.rounded_fields = reader = FieldReader()
        m.submodules.rounded_fields_mux = chosen = PacketMux(inputs=len(RoundedFrom))
        # Exponents of sums wait for the gather of these sums, which lags by one segment.
        several = 4 * words * max(config.topology.max_nodes, 2)
        for name, depth, sink, source in (("own_fields", 4 * words, FieldsTo.OWN, RoundedFrom.OWN),
                                          ("gathered_fields", several, FieldsTo.GATHERED, RoundedFrom.GATHERED)):
            m.submodules[name] = queue = Queue(shape=word_layout(), depth=max(depth, 4), block=depth > 32)
            connect_stream(m, fields.o[sink], queue.i)
            if source is RoundedFrom.OWN:
                # Its reader holds the fields of two packets that have not been compared.
                m.submodules.own_hash = own_hash = FieldHash(depth=2)
                connect_stream(m, queue.o, own_hash.i)
                connect_stream(m, own_hash.hash, gate.b)
                connect_stream(m, own_hash.o, chosen.i[source])
            else:
                connect_stream(m, queue.o, chosen.i[source])
        connect_stream(m, self.rounded_fields_from, chosen.route)
        connect_stream(m, chosen.o, reader.i)
        connect_stream(m, self.rounded_groups, reader.groups)
        connect_stream(m, reader.o, rounder.fields)
        connect_stream(m, sums, rounder.i)
        m.d.comb += rounder.spare.eq(self.setup.spare)
        m.submodules.widener = widener = RowWidener(lanes=config.lanes, slice_lanes=slices)
        connect_stream(m, rounder.o, widener.i)
        return widener.o
