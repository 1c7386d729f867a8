"""Integer sums, to which each node adds its own integers; complete sums are rounded once.

The node that owns a block completes its sums. In a fused update it rounds them for the optimizer; in other commands
it writes them back, and in an all-reduce it sends them as integers, which every node rounds in the same way.
"""

import enum
import functools
import operator

from amaranth.hdl import C, Cat, Module, Mux, Signal
from amaranth.lib import data, stream
from amaranth.lib.wiring import In, Out

from hdl.compression.registry import GRADIENT_CODECS
from hdl.features.reproducible.exponents import MAX_GROUPS, FieldReader
from hdl.features.reproducible.field_hash import HASH, SUM_HASH, HashGate, SingleFieldHash, SumHash, folded
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
from hdl.features.reproducible.stamped_queue import StampedQueue
from hdl.ring.parts.conditions import is_gather, is_sum
from hdl.ring.parts.part import Channel, Input, Instruction, Output, Part, PartDescription, has_infinite, job, taken
from hdl.streams.route import PacketDemux, PacketMux
from hdl.streams.stream import Queue, beat_layout, connect_stream, word_layout

__all__ = ["FieldsTo", "IntegerSum", "RoundedFrom", "TotalTo", "describe"]

_CHECKSUM_WORDS = 1


class FieldsTo(enum.IntEnum):
    """Destination of the exponents for a sum."""

    QUANTIZER = 0
    OWN = 1
    GATHERED = 2


class RoundedFrom(enum.IntEnum):
    """Source of the sums to round, and of their exponents."""

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


def _kept_layout():
    """Layout of the hash, segment and block of a complete sum, which are stored until the all-gather."""
    return data.StructLayout({"hash": SUM_HASH, "place": _place_layout()})


def _hash_layout():
    """Layout of a packet that consists of one hash."""
    return data.StructLayout({"hash": SUM_HASH, "last": 1})


def _join(m, sources, sink):
    """Connect the XOR of several hashes, which are taken together, to a sink."""
    there = Cat(source.valid for source in sources).all()
    m.d.comb += [
        sink.valid.eq(there),
        sink.payload.eq(functools.reduce(operator.xor, (source.payload for source in sources))),
        *(source.ready.eq(sink.ready & there) for source in sources),
    ]


def _rounded_from(record, setup):
    return is_gather(record)  # GATHERED in the all-gather, otherwise OWN


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
            # Number of groups in each packet of local gradients, and destinations of their exponents.
            Instruction("summed_groups", SUMS, groups, groups_in),
            Instruction("fields_to", SUMS, len(FieldsTo), _fields_to),
            # Whether a packet from the ring is added, and whether the sum is then complete.
            Instruction("kind", SUMS, kind_layout(), _kind),
            # Block and segment of each packet, for reports of wrong checksums.
            Instruction("summed_place", SUMS, _place_layout(), _place),
            # Destinations of each complete sum, with one bit for each member of TotalTo.
            Instruction("total_to", SUMS, len(TotalTo), _total_to, when=_is_last),
            # Number of groups in each packet of sums to round, and the sources of the sums and of their exponents.
            Instruction("rounded_groups", ROUNDED, groups, groups_in),
            Instruction("rounded_from", ROUNDED, range(len(RoundedFrom)), _rounded_from),
            Instruction("rounded_fields_from", ROUNDED, range(len(RoundedFrom)), _rounded_from),
            # Source of the hashes of the sums to round; block and segment of each packet, for reports of wrong
            # hashes.
            Instruction("rounded_hash_from", ROUNDED, range(len(RoundedFrom)), _rounded_from),
            Instruction("rounded_place", ROUNDED, _place_layout(), _place),
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

    Checksums of packets include a hash of the exponents (:mod:`hdl.features.reproducible.field_hash`), so nodes
    that use different exponents are detected. Hashes are compared again at the rounder: the node's own sums and all
    exponents must have the same hashes as in the adder, and gathered sums the hashes with which they arrived. The
    last row of a packet is held back until then, which takes no additional cycles, since the rounder's latency is
    longer, unless a packet has one or two words. Sums that leave for the all-gather are compared as well, but do
    not wait.
    """

    def __init__(self, *, config, description):
        self._width = GRADIENT_CODECS[config.gradients].width
        words = stream.Signature(word_layout())
        rows = stream.Signature(beat_layout(config.lanes))
        super().__init__(config, description, {
            # Packets from the ring with incomplete sums.
            "to_adder": In(words),
            # Packets from the ring with complete sums.
            "to_rounder": In(words),
            # Packets from the ring to be forwarded unchanged.
            "transit": In(words),
            # Agreed exponents for each sum.
            "agreed": In(words),
            # Sums to be sent.
            "encoded": Out(words),
            # Packets to be forwarded.
            "forwarded": Out(words),
            # Sums for the optimizer in a fused update.
            "finished": Out(rows),
            # Sums to write to the gradient memory, in commands other than a fused update.
            "write_back": Out(rows),
            # Complete sums of the node's own block, for the all-gather.
            "kept": Out(words),
        })

    def elaborate(self, platform):
        m = Module()
        config, setup, width = self._config, self.setup, self._width
        slices = 32 // width
        packet = config.segment // slices + _CHECKSUM_WORDS
        m.submodules.adder = adder = IntegerAdder(width=width)
        # Segments and blocks of packets still being checked; a packet takes at least two cycles.
        m.submodules.places = places = Queue(shape=_place_layout(), depth=adder.latency)
        m.submodules.fields_demux = fields = PacketDemux(outputs=len(FieldsTo))
        # One packet can wait for the link, and another for the adder, without stalling the adder.
        m.submodules.to_send = to_send = StampedQueue(depth=2 * packet)
        m.submodules.to_add = to_add = StampedQueue(depth=packet)
        connect_stream(m, self.fields_to, fields.route)
        connect_stream(m, self.agreed, fields.i)
        connect_stream(m, self.kind, adder.kind)
        hashes = stream.Signature(HASH).create()
        own, own_wrong = self._quantized(m, fields.o[FieldsTo.QUANTIZER], hashes)
        connect_stream(m, own, adder.a)
        connect_stream(m, self.to_adder, to_add.i)
        connect_stream(m, to_add.o, adder.b)
        connect_stream(m, adder.sent, to_send.i)
        connect_stream(m, to_send.o, self.encoded)
        connect_stream(m, self.transit, self.forwarded)
        # The last row of a packet of sums leaves only if its words and exponents are the same as when they left the
        # adder or arrived from the ring.
        m.submodules.gate = gate = HashGate(shape=beat_layout(slices))
        own_hash, gathered_hash = self._hashes(m, adder, hashes)
        sums, arrived, kept_wrong = self._complete(m, adder, places.o.payload)
        self._select_hash(m, gate.a, own=own_hash, gathered=(gathered_hash, arrived))
        rounded = self._rounded(m, sums, fields, gate)
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
            pulses.wrong_sum.eq(Cat(adder.received_wrong, adder.added_wrong, gate.wrong, kept_wrong.found, own_wrong,
                                    to_add.wrong, to_send.wrong).any()),
            # The sender is reported if a packet was wrong when it arrived, otherwise this node. If the exponents of
            # the two nodes differ, the fault may be in this node even if the sender is reported.
            pulses.wrong_sum_detail.eq(Cat(
                Mux(adder.received_wrong | adder.added_wrong, places.o.payload,
                    Mux(gate.wrong, self.rounded_place.payload,
                        # If a stored packet to add or to send was wrong, the segment and block of the next sum are
                        # reported.
                        Mux(kept_wrong.found, kept_wrong.place, self.summed_place.payload))),
                Mux(adder.received_wrong, setup.predecessor, setup.rank))),
            self.summed_place.ready.eq(taken(self.kind)),
            places.i.valid.eq(self.summed_place.ready),
            places.i.payload.eq(self.summed_place.payload),
            places.o.ready.eq(adder.checked),
            self.rounded_place.ready.eq(taken(gate.o) & gate.o.payload.last),
        ]
        return m

    def _quantized(self, m, agreed, hashes):
        """Read the local gradients, and form hashes of their exponents; return the gradients as integers, and
        whether the packet to be added has failed a check.
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
        # Fields are hashed as the quantizer takes them. The quantizer can hold beats of several packets, and the
        # adder holds one more packet; the hashes of all these packets may have to wait.
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
        """Return the node's integers with their parity, and whether the packet to be added has failed a check."""
        return integers, C(0, 1)

    def _hashes(self, m, adder, hashes):
        """Connect the hashes of exponents to the adder, and store them for sums that this node will round; return
        two streams: hashes of its own sums with their exponents, and hashes of the exponents of gathered sums.
        """
        # A packet takes at least two cycles in the adder, and at least one cycle in the rounder.
        waiting = adder.latency + Rounder.latency
        m.submodules.used_hashes = used = Queue(shape=SUM_HASH, depth=waiting)
        m.submodules.total_hashes = totals = Queue(shape=SUM_HASH, depth=waiting)
        # Hashes of exponents wait for the all-gather of the sums, which lags by one segment.
        m.submodules.gathered_hashes = gathered = Queue(shape=SUM_HASH, depth=self._gathered_packets)
        final = self.kind.payload.final
        own = stream.Signature(SUM_HASH).create()
        m.d.comb += [
            adder.hash.valid.eq(hashes.valid & gathered.i.ready),
            adder.hash.payload.eq(hashes.payload),
            hashes.ready.eq(adder.hash.ready & gathered.i.ready),
            used.i.valid.eq(taken(self.kind) & final),
            used.i.payload.eq(folded(hashes.payload)),
            totals.i.valid.eq(adder.checked & adder.complete),
            totals.i.payload.eq(adder.total_hash),
            gathered.i.valid.eq(taken(self.kind) & ~final & _is_rounded_everywhere(self.setup)),
            gathered.i.payload.eq(folded(hashes.payload)),
        ]
        _join(m, (used.o, totals.o), own)
        return own, gathered.o

    @property
    def _gathered_packets(self):
        """Number of packets whose exponents can wait for the all-gather of the sums."""
        return 4 * max(self._config.topology.max_nodes, 2)

    def _select_hash(self, m, sink, *, own, gathered):
        """Connect the expected hash of each packet to be rounded."""
        m.submodules.rounded_hash_mux = chosen = PacketMux(inputs=len(RoundedFrom), shape=_hash_layout())
        connect_stream(m, self.rounded_hash_from, chosen.route)
        for source, parts in ((RoundedFrom.OWN, (own,)), (RoundedFrom.GATHERED, gathered)):
            hashes = stream.Signature(SUM_HASH).create()
            _join(m, parts, hashes)
            port = chosen.i[source]
            m.d.comb += [port.valid.eq(hashes.valid), hashes.ready.eq(port.ready),
                         port.payload.hash.eq(hashes.payload), port.payload.last.eq(1)]
        m.d.comb += [sink.valid.eq(chosen.o.valid), chosen.o.ready.eq(sink.ready),
                     sink.payload.eq(chosen.o.payload.hash)]

    def _complete(self, m, adder, checked_place):
        """Send complete sums to the all-gather. Return all sums that this node rounds (its own and gathered ones),
        the hashes of gathered sums, and whether a sum that has already been sent was wrong.
        """
        config, width = self._config, self._width
        layout, words = integers_layout(width), config.segment * width // 32
        m.submodules.total_demux = totals = PacketDemux(outputs=len(TotalTo), shape=layout)
        m.submodules.rounded_mux = chosen = PacketMux(inputs=len(RoundedFrom), shape=layout)
        # The all-gather lags by one segment.
        m.submodules.kept_sums = kept = Queue(shape=word_layout(), depth=2 * words, block=True)
        m.submodules.arrived_hash = arrived = SumHash(depth=2)
        m.submodules.to_round = to_round = Queue(shape=word_layout(), depth=words, block=True)
        connect_stream(m, self.total_to, totals.route)
        connect_stream(m, self.rounded_from, chosen.route)
        connect_stream(m, adder.total, totals.i)
        connect_stream(m, totals.o[TotalTo.ROUNDER], chosen.i[RoundedFrom.OWN])
        own = totals.o[TotalTo.KEPT]
        m.d.comb += [kept.i.valid.eq(own.valid), own.ready.eq(kept.i.ready), kept.i.payload.last.eq(own.payload.last),
                     kept.i.payload.data.eq(codes_of(own.payload, width))]
        connect_stream(m, self.to_rounder, arrived.i)
        connect_stream(m, arrived.o, to_round.i)
        gathered, word = chosen.i[RoundedFrom.GATHERED], to_round.o.payload
        integers, flags = integers_of(m, word.data, width)
        m.d.comb += [gathered.valid.eq(to_round.o.valid), to_round.o.ready.eq(gathered.ready),
                     gathered.payload.eq(Cat(integers, flags, word.last))]
        return chosen.o, arrived.hash, self._compare_kept(m, kept.o, adder, checked_place)

    def _compare_kept(self, m, kept, adder, checked_place):
        """Send complete sums; return whether a sum has changed since the addition, with its segment and block."""
        m.submodules.kept_hash = sent = SumHash(depth=2)
        # Room for sums of two segments, and for the last segment of a command, which may be short.
        m.submodules.kept_hashes = expected = Queue(shape=_kept_layout(), depth=4)
        connect_stream(m, kept, sent.i)
        connect_stream(m, sent.o, self.kept)
        wrong = Signal(data.StructLayout({"found": 1, "place": _place_layout()}))
        both = sent.hash.valid & expected.o.valid
        m.d.comb += [
            expected.i.valid.eq(adder.checked & adder.complete & _is_rounded_everywhere(self.setup)),
            expected.i.payload.hash.eq(adder.total_hash),
            expected.i.payload.place.eq(checked_place),
            sent.hash.ready.eq(both),
            expected.o.ready.eq(both),
        ]
        m.d.sync += [wrong.found.eq(both & (sent.hash.payload != expected.o.payload.hash)),
                     wrong.place.eq(expected.o.payload.place)]
        return wrong

    def _rounded(self, m, sums, fields, gate):
        """Round complete sums, and return the rows that pass the gate. The gate also gets hashes of the sums and of
        their exponents.
        """
        config, slices = self._config, 32 // self._width
        words = field_words(config.segment)
        m.submodules.rounder = rounder = Rounder(width=self._width)
        m.submodules.rounded_fields = reader = FieldReader()
        m.submodules.rounded_fields_mux = chosen = PacketMux(inputs=len(RoundedFrom))
        # Exponents wait for the all-gather of the sums, which lags by one segment.
        for name, depth, sink, source in (
                ("own_fields", 4 * words, FieldsTo.OWN, RoundedFrom.OWN),
                ("gathered_fields", words * self._gathered_packets, FieldsTo.GATHERED, RoundedFrom.GATHERED)):
            m.submodules[name] = queue = Queue(shape=word_layout(), depth=max(depth, 4), block=depth > 32)
            connect_stream(m, fields.o[sink], queue.i)
            connect_stream(m, queue.o, chosen.i[source])
        connect_stream(m, self.rounded_fields_from, chosen.route)
        connect_stream(m, chosen.o, reader.i)
        connect_stream(m, self.rounded_groups, reader.groups)
        m.submodules.rounded_field_hash = field_hash = SingleFieldHash(depth=2, folds=True)
        m.submodules.rounded_hash = sum_hash = SumHash(depth=2, width=self._width)
        connect_stream(m, field_hash.o, rounder.fields)
        connect_stream(m, sums, sum_hash.i)
        connect_stream(m, sum_hash.o, rounder.i)
        m.d.comb += [
            field_hash.i.valid.eq(reader.o.valid),
            field_hash.i.payload.field.eq(reader.o.payload),
            field_hash.i.payload.last.eq(rounder.i.payload.last),
            reader.o.ready.eq(field_hash.i.ready),
            rounder.spare.eq(self.setup.spare),
        ]
        _join(m, (field_hash.hash, sum_hash.hash), gate.b)
        m.submodules.widener = widener = RowWidener(lanes=config.lanes, slice_lanes=slices)
        connect_stream(m, rounder.o, gate.i)
        connect_stream(m, gate.o, widener.i)
        return widener.o
