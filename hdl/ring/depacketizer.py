"""Depacketizer, which splits packets from the link into header, payload and CRC and checks them."""

import functools
import operator

from amaranth.hdl import Cat, Const, Module, Mux, ResetInserter, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.checksum import crc_after
from hdl.compression.length import LENGTH_BITS
from hdl.compression.registry import CODECS, RAW, ZERO_VALUE
from hdl.control.protocol import EventStatus
from hdl.ring.header import ADDED_WORDS, LONGEST_SEGMENT, PacketType, expected_layout, header_layout
from hdl.streams.stream import word_layout

__all__ = ["Depacketizer"]


class Depacketizer(wiring.Component):
    """Unpack packets, and pass on only the expected ones.

    A packet waits, with its first word offered, until an ``expected`` record is available and ``active`` is high. Its
    header is then compared with the record, which is taken with the third word, and payload words are passed on as
    they arrive: latency is :attr:`latency` cycles, throughput one word per cycle, without a bubble inside a packet or
    between packets. The exception is the last payload word, which is held until the CRC has been checked and is
    offered in the cycle of ``done``. A damaged packet therefore never completes in a downstream unit. Words pass
    through a register at ``i`` and one at ``payload``; ``i.ready`` depends combinationally on ``payload.ready``,
    ``active``, ``drain`` and ``expected.valid``; ``expected.ready`` on ``drain`` and ``payload.ready``.

    Some packets are processed as soon as ``active`` is high, even if no record is offered: packets of an older epoch
    (by the sign of the difference modulo 256) are dropped silently, and an ABORT packet of this epoch and tenant is
    rejected, as is a packet of one word.

    **Rejection.** Each packet is accepted or rejected at its end. If it is rejected, ``error`` is high for one cycle
    instead of ``done``, :attr:`latency` cycles after the packet's last word. The CRC is checked first: if it is
    wrong, the rest of the packet cannot be trusted, and this is the only fault for which even an old packet is
    rejected. An ABORT packet or stomped CRC comes next, followed by the first mismatch in the order of this list:

    =====================  ===========================================  ==============================================
    ``code``               cause                                        ``detail``, high half and low half
    =====================  ===========================================  ==============================================
    BAD_CRC                the CRC is neither correct nor stomped       as for the first mismatch, or else sequence
                                                                        number got, expected (0 if none is)
    PEER_ABORT             ABORT packet of this epoch, or stomped CRC   source; length field of the ABORT packet, or 0
    WRONG_SEQUENCE         a different epoch than expected              epoch got, expected
    WRONG_SOURCE           source                                       source got, expected
    WRONG_CODEC            neither DATA nor an ABORT of this epoch,     type, codec and tenant
                           a different codec or a different tenant      (``type | codec << 4 | tenant << 12``) got,
                                                                        expected
    WRONG_SEQUENCE         sequence number                              got, expected
    WRONG_BLOCK            segment                                      got, expected, with bit 15 set in both
    WRONG_LENGTH           length field                                 got, expected
    WRONG_COLLECTIVE       number of the collective                     got, expected
    WRONG_BLOCK            block                                        got, expected
    WRONG_LENGTH           too few or too many payload words, or one    units of the codec's length counter that were
                           that the codec's length counter finds wrong  still missing; 0xffff
    WRONG_LENGTH           the packet ends inside its header            0xffff; 0xffff
    =====================  ===========================================  ==============================================

    ``destination`` is ignored. After an error no word is taken until ``drain`` has been high or ``active`` has been
    low. While ``drain`` is high, whole packets are discarded, the word offered at ``payload`` is withdrawn, ``done``
    and ``error`` stay low, and no records are taken. A partly discarded packet is discarded to its end.

    **Limit.** Lengths, and the payload words or groups that are still missing, have 10 bits (``LENGTH_BITS``). A
    packet therefore has at most 1,023 elements and 1,023 payload words, including words in addition to the elements.

    Parameters
    ----------
    codecs : tuple of Codec, optional
        Codecs of packets that may be expected.
    segment : int
        Maximum number of elements of a packet. Raises ``ValueError`` if a payload could exceed the limit.
    extended : bool
        Whether records give a number of payload words in addition to the elements. A unit of all codecs is then a
        word.
    tenants : bool
        Whether packets belong to the tenant at the input ``tenant`` instead of tenant 0.

    Members
    -------
    i : In(stream of word_layout())
        Words from the ingress of the link.
    expected : In(stream of expected_layout(extended=extended))
        One record per packet.
    payload : Out(stream of word_layout())
        Words of accepted packets, with ``last`` on the last word of each packet. A packet of length 0 has no words.
    epoch : In(8)
        Epoch of this command; must be stable from the cycle before ``active`` rises.
    tenant : In(4), with ``tenants``
        Tenant of this command, with the same timing as ``epoch``.
    active : In(1)
        Level: a command is in progress.
    drain : In(1)
        Level: discards packets.
    accepted : Out(1)
        The header has matched: high in the cycle before the first payload word is offered, and never while a word of
        an earlier packet is offered.
    done : Out(1)
        An accepted packet ended with a correct CRC.
    error : Out(1)
    code : Out(8)
        Reason for the rejection, an :class:`~hdl.control.protocol.EventStatus`; valid with ``error``.
    detail : Out(32)
        Detail of the rejection; valid with ``error``.
    abort_seen : Out(1)
        An ABORT packet of this epoch has passed, either rejected or discarded.
    starved : Out(1)
        A word is needed, but none is available.
    clear : In(1)
        Level: clears all state, including the offered word; the next word is the first of a packet.
    """

    latency = 2

    def __init__(self, *, codecs=None, segment=LONGEST_SEGMENT, extended=False, tenants=False):
        self._codecs = (CODECS[RAW], CODECS[ZERO_VALUE]) if codecs is None else tuple(codecs)
        self._extended = extended
        words = max(codec.max_words(segment) for codec in self._codecs) + (max(ADDED_WORDS) if extended else 0)
        if max(segment, words) >= 1 << LENGTH_BITS:
            raise ValueError(f"Segment must have at most {(1 << LENGTH_BITS) - 1:,} elements and payload words, not "
                             f"{segment!r} and {words:,}: lower it")
        super().__init__({
            "i": In(stream.Signature(word_layout())),
            "expected": In(stream.Signature(expected_layout(extended=extended))),
            "payload": Out(stream.Signature(word_layout())),
            "epoch": In(8), **({"tenant": In(4)} if tenants else {}),
            "active": In(1), "drain": In(1),
            "accepted": Out(1), "done": Out(1), "error": Out(1), "code": Out(8), "detail": Out(32),
            "abort_seen": Out(1), "starved": Out(1), "clear": In(1),
        })
        self._tenant = self.tenant if tenants else Const(0, 4)

    def elaborate(self, platform):
        m = Module()
        expected = self.expected.payload
        extra = expected.extra if self._extended else Const(0)
        # One word waits in a register, already decoded as a packet's first word and as a mask, since decoding
        # depends on many bits of the word and drives a lot of logic.
        held = Signal(word_layout())
        occupied = Signal()
        fresh = Signal()  # the word arrived at the last clock edge
        older, older_fresh, older_held = Signal(), Signal(), Signal()
        aborting, aborting_fresh, aborting_held = Signal(), Signal(), Signal()
        sudden, sudden_fresh, sudden_held = Signal(), Signal(), Signal()  # the packet is `older` or `aborting`
        empty = Signal()
        word, ending = held.data, held.last
        header = Signal(header_layout())  # each field is valid in the cycle of the word that contains it
        first = Signal()  # the word is the first of a packet
        ready = Signal()
        take = Signal()
        room = Signal()
        mixed = Signal(32)  # the word XORed with the CRC of the preceding words
        begins = Signal()  # the incoming word is the first of a packet

        # State of the current packet or, while `finished`, of the packet that has just ended.
        outdated = Signal()
        by_abort = Signal()  # the packet is an ABORT packet of this epoch
        discarded = Signal()
        mismatch = Signal()
        mismatch_code = Signal(8)
        mismatch_detail = Signal(32)
        source = Signal(8)
        reason = Signal(LENGTH_BITS)
        wanted = Signal()
        finished = Signal()
        intact = Signal()
        stomped = Signal()
        halted = Signal()

        # Remaining payload. A record is stable for two cycles before the words of its packet are counted.
        counters = [codec.length_counter() for codec in self._codecs]
        expects = Cat(expected.codec == codec.code for codec in self._codecs)
        counted_by = Signal(len(counters))  # length counter used for the current packet, one-hot
        missing = Signal(LENGTH_BITS)  # number of units still missing; a word completes at most one
        unit_ends, wrong, final = Signal(), Signal(), Signal()
        in_payload = Signal()
        for number, counter in enumerate(counters):
            m.submodules[f"length_{number}"] = counter
            m.d.comb += [
                counter.length.eq(expected.length),
                counter.start.eq(~in_payload),
                counter.take.eq(take),
                counter.word.eq(word),
                counter.zero.eq(empty),
                counter.last.eq(missing == 1),
            ]
        units = _chosen(expects, [counter.units for counter in counters])
        m.d.comb += [
            unit_ends.eq(_chosen(counted_by, [counter.ends for counter in counters])),
            wrong.eq(_chosen(counted_by, [counter.wrong for counter in counters])),
        ]
        kept = Signal()  # the word in the output register waits for the packet to be checked

        def is_older(word):
            return (data.View(header_layout(), word.replicate(3)).epoch - self.epoch)[7]

        def is_abort(word):
            fields = data.View(header_layout(), word.replicate(3))
            return (fields.type == PacketType.ABORT) & (fields.tenant == self._tenant) & (fields.epoch == self.epoch)

        m.d.comb += [
            header.eq(word.replicate(3)),
            take.eq(occupied & ready),
            self.i.ready.eq(take | ~occupied),
            room.eq(self.payload.ready | ~self.payload.valid),
            begins.eq(Mux(occupied, ending, first)),
            wanted.eq(~(outdated | by_abort | discarded | mismatch)),
            self.starved.eq(~occupied & (~first | self.expected.valid)),
        ]
        m.d.sync += [self.accepted.eq(0), finished.eq(0)]
        with m.If(self.i.ready):
            m.d.sync += [
                occupied.eq(self.i.valid),
                held.eq(self.i.payload),
                empty.eq(self.i.payload.data == 0),
            ]
        with m.If(self.i.valid & self.i.ready):
            m.d.sync += mixed.eq(Mux(begins, 0xffffffff, crc_after(mixed)) ^ self.i.payload.data)
        # The epoch may change while a word waits. Both comparisons are made in every cycle, and the result is
        # selected afterwards, so that neither comparison has to wait for `i.ready`.
        m.d.sync += [
            fresh.eq(self.i.ready),
            older_fresh.eq(is_older(self.i.payload.data)),
            older_held.eq(is_older(word)),
            aborting_fresh.eq(is_abort(self.i.payload.data)),
            aborting_held.eq(is_abort(word)),
            sudden_fresh.eq(is_older(self.i.payload.data) | is_abort(self.i.payload.data)),
            sudden_held.eq(is_older(word) | is_abort(word)),
        ]
        m.d.comb += [
            older.eq(Mux(fresh, older_fresh, older_held)),
            aborting.eq(Mux(fresh, aborting_fresh, aborting_held)),
            sudden.eq(Mux(fresh, sudden_fresh, sudden_held)),
        ]
        with m.If(take):
            m.d.sync += [
                finished.eq(ending),
                intact.eq(~first & mixed.all()),
                stomped.eq(~first & ~mixed.any()),
            ]
        with m.If(self.payload.ready):
            m.d.sync += self.payload.valid.eq(0)

        def refuse(code, got, due):
            m.d.sync += [
                mismatch.eq(1),
                mismatch_code.eq(code.value),
                mismatch_detail[16:].eq(got),
                mismatch_detail[:16].eq(due),
            ]

        def check(*faults):
            """Reject the packet for its first fault; a fault is (condition, code, actual value, expected value)."""
            for number, (fault, *verdict) in enumerate(faults):
                with m.Elif(fault) if number else m.If(fault):
                    refuse(*verdict)

        def go_on(state):
            m.next = state
            with m.If(ending):
                m.next = "Word0"

        # Registers that are read only after their word has been taken are loaded as soon as the word is available.
        with m.FSM() as fsm:
            with m.State("Word0"):
                # After a damaged, unexpected or aborted packet, one cycle is reserved for the rejection.
                stop = halted | (finished & ~(intact & ~mismatch & ~by_abort))
                m.d.comb += [
                    first.eq(1),
                    ready.eq(self.drain | (self.active & ~stop & (sudden | ending | self.expected.valid))),
                ]
                m.d.sync += [
                    outdated.eq(older),
                    by_abort.eq(aborting),
                    discarded.eq(self.drain),
                    source.eq(header.source),
                    reason.eq(0),
                    mismatch.eq(0),
                    mismatch_detail.eq(0),
                ]
                coding, due_coding = word[:16], Cat(PacketType.DATA, expected.codec, self._tenant)
                with m.If(self.expected.valid & ~sudden & ~ending):
                    check(
                        (header.epoch != expected.epoch, EventStatus.WRONG_SEQUENCE, header.epoch, expected.epoch),
                        (header.source != expected.source, EventStatus.WRONG_SOURCE, header.source, expected.source),
                        (coding != due_coding, EventStatus.WRONG_CODEC, coding, due_coding),
                    )
                with m.If(take):
                    go_on("Word1")
            with m.State("Word1"):
                m.d.comb += ready.eq(1)
                with m.If(occupied):
                    due_sequence = Mux(self.expected.valid, expected.sequence, 0)
                    with m.If(~mismatch & ~ending):
                        m.d.sync += [mismatch_detail[16:].eq(header.sequence), mismatch_detail[:16].eq(due_sequence)]
                    with m.If(by_abort & ~ending):
                        m.d.sync += reason.eq(header.length)
                    with m.If(wanted):
                        check(
                            (ending, EventStatus.WRONG_LENGTH, 0xffff, 0xffff),
                            (header.sequence != expected.sequence,
                             EventStatus.WRONG_SEQUENCE, header.sequence, expected.sequence),
                            (header.segment != expected.segment,
                             EventStatus.WRONG_BLOCK, header.segment | 0x8000, expected.segment | 0x8000),
                            (header.length != expected.length,
                             EventStatus.WRONG_LENGTH, header.length, expected.length),
                        )
                    go_on("Word2")
            with m.State("Word2"):
                m.d.comb += ready.eq(room | ~wanted | self.drain)
                m.d.sync += [
                    counted_by.eq(expects),
                    missing.eq(units + extra),
                    kept.eq(0),
                ]
                with m.If(occupied & wanted):
                    check(
                        (ending, EventStatus.WRONG_LENGTH, 0xffff, 0xffff),
                        (header.collective != expected.collective,
                         EventStatus.WRONG_COLLECTIVE, header.collective, expected.collective),
                        (header.block != expected.block,
                         EventStatus.WRONG_BLOCK, header.block, expected.block),
                    )
                with m.If(take):
                    # A record is available, or this packet needs none.
                    m.d.comb += self.expected.ready.eq(~(outdated | by_abort | discarded | self.drain))
                    go_on("Skip")
                    belongs = (header.collective == expected.collective) & (header.block == expected.block)
                    with m.If(wanted & ~self.drain & ~ending & belongs):
                        m.d.sync += self.accepted.eq(1)
                        m.next = "Payload"
                        with m.If((expected.length == 0) & (extra == 0)):
                            m.next = "Trailer"
            with m.State("Payload"):
                m.d.comb += [
                    ready.eq(room | self.drain | discarded),
                    final.eq((missing == 1) & unit_ends),
                ]
                m.d.sync += kept.eq(final)
                with m.If(room):
                    m.d.sync += [
                        self.payload.payload.data.eq(word),
                        self.payload.payload.last.eq(final),
                        self.payload.valid.eq(occupied & ~(final | ending | wrong | discarded)),
                    ]
                with m.If(occupied & (ending | wrong)):
                    refuse(EventStatus.WRONG_LENGTH, missing, 0xffff)
                with m.If(take):
                    with m.If(unit_ends):
                        m.d.sync += missing.eq(missing - 1)
                    go_on("Payload")
                    with m.If(self.drain | discarded | wrong):
                        go_on("Skip")
                    with m.Elif(final & ~ending):
                        m.next = "Trailer"
            with m.State("Trailer"):
                m.d.comb += ready.eq(1)
                with m.If(occupied):
                    go_on("Skip")
                    with m.If(~ending):
                        refuse(EventStatus.WRONG_LENGTH, 0, 0xffff)
                    with m.Elif(kept & ~discarded & mixed.all()):
                        m.d.sync += self.payload.valid.eq(1)
            with m.State("Skip"):
                m.d.comb += ready.eq(1)
                with m.If(occupied):
                    go_on("Skip")

        m.d.comb += in_payload.eq(fsm.ongoing("Payload"))
        with m.If(~self.active):  # the command that had the error has ended
            m.d.sync += halted.eq(0)
        with m.Elif(self.error):
            m.d.sync += halted.eq(1)
        with m.If(self.drain):
            m.d.sync += [discarded.eq(1), halted.eq(0), self.payload.valid.eq(0)]

        # Accept or reject the packet.
        corrupt = ~intact & ~stomped
        by_peer = ~corrupt & (stomped | by_abort)
        m.d.comb += [
            self.done.eq(finished & ~self.drain & intact & wanted),
            self.error.eq(finished & ~self.drain & ~discarded & (corrupt | ~outdated & (by_peer | mismatch))),
            self.code.eq(Mux(corrupt, EventStatus.BAD_CRC.value,
                             Mux(by_peer, EventStatus.PEER_ABORT.value, mismatch_code))),
            self.detail.eq(Mux(by_peer, Cat(reason, Const(0, 16 - LENGTH_BITS), source), mismatch_detail)),
            self.abort_seen.eq(finished & intact & by_abort),
        ]
        return ResetInserter(self.clear)(m)


def _chosen(flags, values):
    """Return the value whose flag is set, or 0 if no flag is set."""
    return functools.reduce(operator.or_, (Mux(flag, value, 0) for flag, value in zip(flags, values, strict=True)))
