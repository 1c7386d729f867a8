"""Packets: their header and checksum, putting them together and taking them apart.

A packet is three header words, the payload words, and the CRC-32 of all words before it, on which ``last`` is set.
The CRC is that of zlib over the words as little-endian bytes. A sender that has to give up in the middle of a packet
ends it with the bitwise inverse of the right CRC: the packet is *stomped*.
"""

import collections
import contextlib
import itertools

from amaranth.hdl import Cat, Const, Module, Mux, ResetInserter, Signal
from amaranth.lib import data, enum, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.compression.codecs import TableCodec, count_words
from hdl.control.protocol import EventStatus
from hdl.streams.stream import word_layout

__all__ = [
    "HEADER_WORDS", "OVERHEAD_WORDS", "Codec", "Depacketizer", "PacketType", "Packetizer", "crc_after",
    "expected_layout", "header_layout", "packet_words",
]

HEADER_WORDS = 3
"""Words of a header."""

OVERHEAD_WORDS = HEADER_WORDS + 1
"""Words of a packet without payload: its header and its CRC."""

_POLYNOMIAL = 0xEDB88320  # CRC-32 of IEEE 802.3, reflected


class PacketType(enum.Enum, shape=4):
    """What a packet is for."""

    DATA = 1
    """A segment of a block."""
    ABORT = 2
    """The sender has given up its command."""


class Codec(enum.Enum, shape=4):
    """How the payload of a packet is coded."""

    RAW = 0
    """One word per element."""
    ZERO_VALUE = 1
    """Per group of 32 elements a mask word, then the elements that are not zero."""
    BF16 = 2
    """This and those below: weights or gradients, as :mod:`hdl.compression.codecs` has it."""
    MX9 = 3
    MX6 = 4
    MX4 = 5
    BFP8 = 6
    MXINT8 = 7
    MXFP8_E4M3 = 8
    MXFP8_E5M2 = 9
    MXFP6_E2M3 = 10
    MXFP6_E3M2 = 11
    MXFP4_E2M1 = 12
    TABLE32 = 13
    CENTROID16 = 14
    CENTROID64 = 15


def header_layout():
    """The header words, first word lowest.

    ``length`` counts elements. In an ABORT packet, which has no payload, it is free for the reason.
    """
    return data.StructLayout({
        "type": PacketType, "codec": Codec, "source": 8, "destination": 8, "epoch": 8,
        "sequence": 16, "iteration": 16,
        "block": 8, "segment": 12, "length": 12,
    })


def expected_layout():
    """What the header of a DATA packet has to say for the packet to be accepted."""
    return data.StructLayout({
        "codec": Codec, "source": 8, "epoch": 8,
        "sequence": 16, "iteration": 16,
        "block": 8, "segment": 12, "length": 12,
    })


def packet_words(segment):
    """Words of the longest packet that holds ``segment`` elements: zero-value coded, without a zero."""
    if not isinstance(segment, int) or not 1 <= segment < 1 << 12:
        raise ValueError(f"Segment must be between 1 and 4095 elements, not {segment!r}")
    return OVERHEAD_WORDS + segment + (segment + 31) // 32


def crc_after(mixed, bits=32):
    """The CRC register after one more word, of ``mixed`` = register ^ word: each bit is a parity of some of its bits.

    This is the bit-serial CRC unrolled over the ``bits`` of a word, least significant bit first.
    """
    columns = []
    for position in range(32):
        column = 1 << position
        for _ in range(bits):
            column = (column >> 1) ^ (_POLYNOMIAL if column & 1 else 0)
        columns.append(column)
    parities = [{n for n in range(32) if columns[n] >> bit & 1} for bit in range(32)]
    # The exclusive-or that most parities have in common becomes a term of its own, as long as there is one: a third
    # of the LUTs less than without.
    terms = list(mixed)
    while True:
        pairs = collections.Counter(pair for parity in parities for pair in itertools.combinations(sorted(parity), 2))
        pair, count = max(pairs.items(), key=lambda item: (item[1], item[0]))
        if count < 2:
            break
        for parity in parities:
            if parity.issuperset(pair):
                parity -= set(pair)
                parity.add(len(terms))
        terms.append(terms[pair[0]] ^ terms[pair[1]])
    return Cat(Cat(terms[n] for n in sorted(parity)).xor() for parity in parities)


class Packetizer(wiring.Component):
    """Makes packets: header, payload, CRC.

    Latency is :attr:`latency` cycle from a header to its first word and from a payload word to itself; throughput is
    one word per cycle, without a bubble inside a packet or between packets. ``o`` is a register; ``header.ready`` and
    ``payload.ready`` depend combinationally on ``o.ready``, ``may_start`` and ``give_up``.

    A packet starts only in a cycle in which ``may_start`` is high. The packet of a header of length 0 has no payload;
    otherwise the payload is as long as its stream says, whatever the header's length.

    While ``give_up`` is high, everything offered at ``header`` and ``payload`` is dropped. A packet in progress is
    stomped at once, then one ABORT packet is sent, when ``may_start`` allows. ``aborted`` then is high until
    ``give_up`` is low again, which it must not be before.

    Members
    -------
    header : In(stream of header_layout())
        One per packet, taken with its third word.
    payload : In(stream of word_layout())
    o : Out(stream of word_layout())
    may_start : In(1)
        The link can take a whole packet.
    give_up : In(1)
        Level: gives up what is being sent.
    abort_header : In(header_layout())
        Header of the ABORT packet; must hold while ``give_up`` is high.
    aborted : Out(1)
        Level: the ABORT packet is on its way.
    stalled : Out(1)
        A packet waits for ``may_start``.
    idle : Out(1)
        No packet is in progress, and ``o`` is empty.
    clear : In(1)
        Level: forgets everything, the word on offer included.
    """

    latency = 1

    header: In(stream.Signature(header_layout()))
    payload: In(stream.Signature(word_layout()))
    o: Out(stream.Signature(word_layout()))
    may_start: In(1)
    give_up: In(1)
    abort_header: In(header_layout())
    aborted: Out(1)
    stalled: Out(1)
    idle: Out(1)
    clear: In(1)

    def elaborate(self, platform):
        m = Module()
        starting = Signal()  # no packet is in progress
        aborting = Signal()  # the packet in progress is the ABORT packet
        stomp = Signal()
        room = Signal()
        stage = Signal()  # a word of header or payload enters the output register
        ends = Signal()  # the CRC does
        word = Signal(32)
        fields = Signal(96)
        mixed = Signal(32)  # the word in the output register, and the CRC of those before it
        crc = Signal(32)  # of all these

        m.d.comb += [
            crc.eq(crc_after(mixed)),
            room.eq(self.o.ready | ~self.o.valid),
            stomp.eq(self.give_up & ~aborting & ~starting),
            fields.eq(Mux(Mux(starting, self.give_up, aborting),
                          self.abort_header.as_value(), self.header.payload.as_value())),
        ]
        with m.If(room):
            m.d.sync += self.o.valid.eq(stage | ends)
        with m.If(stage | ends):
            m.d.sync += [
                self.o.payload.data.eq(Mux(ends, crc ^ (~stomp).replicate(32), word)),
                self.o.payload.last.eq(ends),
                mixed.eq(Mux(starting, 0xffffffff, crc) ^ word),
            ]
        with m.If(self.give_up):
            m.d.comb += [self.header.ready.eq(1), self.payload.ready.eq(1)]

        @contextlib.contextmanager
        def unless_stomped():
            with m.If(stomp):
                with m.If(room):
                    m.d.comb += ends.eq(1)
                    m.next = "Word0"
            with m.Else():
                yield

        with m.FSM():
            with m.State("Word0"):
                wanted = self.give_up | self.header.valid
                m.d.comb += [
                    starting.eq(1),
                    word.eq(fields[:32]),
                    stage.eq(wanted & self.may_start & room),
                    self.stalled.eq(wanted & ~self.may_start),
                    self.idle.eq(~self.o.valid),
                ]
                with m.If(stage):
                    m.d.sync += aborting.eq(self.give_up)
                    m.next = "Word1"
            with m.State("Word1"), unless_stomped():
                m.d.comb += [word.eq(fields[32:64]), stage.eq(room)]
                with m.If(stage):
                    m.next = "Word2"
            with m.State("Word2"), unless_stomped():
                m.d.comb += [word.eq(fields[64:]), stage.eq(room)]
                with m.If(stage):
                    with m.If(~aborting):
                        m.d.comb += self.header.ready.eq(1)
                    m.next = "Payload"
                    with m.If(aborting | (self.header.payload.length == 0)):
                        m.next = "Trailer"
            with m.State("Payload"), unless_stomped():
                m.d.comb += [word.eq(self.payload.payload.data), stage.eq(self.payload.valid & room)]
                with m.If(room):
                    m.d.comb += self.payload.ready.eq(1)
                with m.If(stage & self.payload.payload.last):
                    m.next = "Trailer"
            with m.State("Trailer"), unless_stomped():
                with m.If(room):
                    m.d.comb += ends.eq(1)
                    m.next = "Word0"
                    with m.If(aborting):
                        m.next = "Aborted"
            with m.State("Aborted"):
                m.d.comb += self.aborted.eq(1)
                with m.If(~self.give_up):
                    m.next = "Word0"
        return ResetInserter(self.clear)(m)


class Depacketizer(wiring.Component):
    """Takes packets apart, and gives on only what was expected.

    A packet waits at its first word until an ``expected`` record is offered and ``active`` is high. Its header is
    then held against the record, which is taken with the third word, and payload words are given on as they come:
    latency is :attr:`latency` cycles, throughput one word per cycle, without a bubble inside a packet or between
    packets. The exception is the last payload word, which is kept until the CRC has been checked and is offered in
    the cycle of ``done``. So nothing downstream ever completes on a damaged packet. Words pass a register at ``i``
    and one at ``payload``; ``i.ready`` depends combinationally on ``payload.ready``, ``active``, ``drain`` and
    ``expected.valid``; ``expected.ready`` on ``drain`` and ``payload.ready``.

    Some packets are dealt with although no record is offered, as soon as ``active`` is high: those of an older epoch
    (by the sign of the difference modulo 256) are dropped silently, an ABORT packet of this epoch is refused, and so
    is a lone word.

    **Refusal.** Every verdict falls at the end of the packet, one per packet: ``error`` is high for one cycle,
    :attr:`latency` cycles after the packet's last word, in place of ``done``. The CRC comes first: if it is wrong,
    nothing else in the packet can be believed, and this is the only fault for which an old packet is refused as well.
    Then comes the ABORT packet or stomped CRC; then the first mismatch, in the order in which they are listed here:

    =====================  ===========================================  ==============================================
    ``code``               cause                                        ``detail``, high half and low half
    =====================  ===========================================  ==============================================
    BAD_CRC                the CRC is neither right nor stomped         as for the first mismatch, or else sequence
                                                                        number got, expected (0 if none is)
    PEER_ABORT             ABORT packet of this epoch, or stomped CRC   source; length field of the ABORT packet, or 0
    WRONG_SEQUENCE         another epoch than expected                  epoch got, expected
    WRONG_SOURCE           source                                       source got, expected
    WRONG_CODEC            neither DATA nor an ABORT of this epoch,     type and codec (``type | codec << 4``) got,
                           or another codec                             expected
    WRONG_SEQUENCE         sequence number                              got, expected
    WRONG_ITERATION        iteration                                    got, expected
    WRONG_BLOCK            block                                        got, expected
    WRONG_BLOCK            segment                                      got, expected, with bit 15 set in both
    WRONG_LENGTH           length field                                 got, expected
    WRONG_LENGTH           too few or too many payload words, or a      elements (RAW), groups (ZERO_VALUE) or words
                           mask bit beyond the length, or exponents     (of tables: groups) that were still missing;
                           of a table that do not ascend                0xffff
    WRONG_LENGTH           the packet ends inside its header            0xffff; 0xffff
    =====================  ===========================================  ==============================================

    ``destination`` is not looked at. After an error nothing is taken until ``drain`` has been high or ``active`` low.
    While ``drain`` is high, whole packets are discarded, the word on offer at ``payload`` is withdrawn, ``done`` and
    ``error`` stay low, and records are not taken. A packet of which a part was discarded is discarded to its end.

    Parameters
    ----------
    codec : one of WEIGHT_CODECS
        That of packets which are neither RAW nor ZERO_VALUE, or None. No other may be expected.
    second : tuple of Codec and one of WEIGHT_CODECS, optional
        But this one, with its number.

    Members
    -------
    i : In(stream of word_layout())
        From the ingress of the link.
    expected : In(stream of expected_layout())
        One record per packet.
    payload : Out(stream of word_layout())
        The words of accepted packets; ``last`` on the last word of each. A packet of length 0 gives none.
    epoch : In(8)
        The epoch of this command; must hold from the cycle before ``active`` rises.
    active : In(1)
        Level: a command is being carried out.
    drain : In(1)
        Level: discards packets.
    accepted : Out(1)
        The header has matched: comes in the cycle before the first payload word is offered, and never while a word of
        an earlier packet is.
    done : Out(1)
        An accepted packet has ended with a right CRC.
    error : Out(1)
    code : Out(8)
        Why, an :class:`~hdl.control.protocol.EventStatus`; valid with ``error``.
    detail : Out(32)
        Valid with ``error``.
    abort_seen : Out(1)
        An ABORT packet of this epoch has passed, whether refused or discarded.
    starved : Out(1)
        A word is needed and not there.
    clear : In(1)
        Level: forgets everything, the word on offer included, and takes the next word for the first of a packet.
    """

    latency = 2

    i: In(stream.Signature(word_layout()))
    expected: In(stream.Signature(expected_layout()))
    payload: Out(stream.Signature(word_layout()))
    epoch: In(8)
    active: In(1)
    drain: In(1)
    accepted: Out(1)
    done: Out(1)
    error: Out(1)
    code: Out(8)
    detail: Out(32)
    abort_seen: Out(1)
    starved: Out(1)
    clear: In(1)

    def __init__(self, *, codec=None, second=None):
        self._codec = codec
        self._second = second
        super().__init__()

    def elaborate(self, platform):
        m = Module()
        expected = self.expected.payload
        # One word waits in a register, together with what it would mean as the first of a packet or as a mask: this
        # depends on many of its bits, and much depends on it.
        held = Signal(word_layout())
        occupied = Signal()
        fresh = Signal()  # the word has come with the last edge
        older, older_fresh, older_held = Signal(), Signal(), Signal()
        aborting, aborting_fresh, aborting_held = Signal(), Signal(), Signal()
        sudden, sudden_fresh, sudden_held = Signal(), Signal(), Signal()  # one of these two
        empty = Signal()
        word, ending = held.data, held.last
        header = Signal(header_layout())  # each field is valid in the cycle of its word
        first = Signal()  # the word is the first of a packet
        ready = Signal()
        take = Signal()
        room = Signal()
        mixed = Signal(32)  # the word, and the CRC of those before it
        begins = Signal()  # the word that comes is the first of a packet

        # What is known of the packet in progress, or, while `finished`, of the one that has just ended.
        outdated = Signal()
        by_abort = Signal()  # it is an ABORT packet of this epoch
        discarded = Signal()
        mismatch = Signal()
        mismatch_code = Signal(8)
        mismatch_detail = Signal(32)
        source = Signal(8)
        reason = Signal(12)
        wanted = Signal()
        finished = Signal()
        intact = Signal()
        stomped = Signal()
        halted = Signal()

        # The payload that is still to come. A record stands for two cycles before its packet's words are counted.
        units = (header.length + 31) >> 5
        has_tables = isinstance(self._codec, TableCodec)
        if self._second is not None or not (self._codec is None or has_tables):
            grouped = expected.codec == Codec.ZERO_VALUE
            lengths = [] if self._codec is None or has_tables else [count_words(self._codec, expected.length)]
            if self._second is not None:
                number, second = self._second
                length = count_words(second, expected.length)
                lengths = [Mux(expected.codec == number, length, lengths[0]) if lengths else length]
                if has_tables:
                    grouped = expected.codec != number
            coded = Signal(12)
            m.d.sync += coded.eq(lengths[0])
            units = Mux(grouped, units, coded)
        codec = Signal(Codec)
        missing = Signal(12)  # elements of a RAW packet, groups of one with masks or a table, words of any other
        beyond = Signal(32)  # bits of the last mask that lie beyond the length
        values = Signal(range(33))  # of the current group
        final = Signal()
        if has_tables:
            # Of a packet with a table: the word is one of the table, or the first of a group of so many.
            tabling, opening, disordered = Signal(), Signal(), Signal()
            group_words = Signal(range(33))
        kept = Signal()  # the word in the output register waits for the verdict

        def is_older(word):
            return (data.View(header_layout(), word.replicate(3)).epoch - self.epoch)[7]

        def is_abort(word):
            fields = data.View(header_layout(), word.replicate(3))
            return (fields.type == PacketType.ABORT) & (fields.epoch == self.epoch)

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
        # The epoch may change while a word waits. Both comparisons are made in every cycle and chosen from
        # afterwards, so that neither has to wait for `i.ready`.
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
            """Refuse with the first fault that applies: (whether, code, got, due) each."""
            for number, (fault, *verdict) in enumerate(faults):
                with m.Elif(fault) if number else m.If(fault):
                    refuse(*verdict)

        def go_on(state):
            m.next = state
            with m.If(ending):
                m.next = "Word0"

        if has_tables:
            in_payload = Signal()
            tabled = self._elaborate_table(m, word, take, in_payload, tabling, disordered, group_words)
            m.d.comb += opening.eq(tabled & ~tabling & (values == 0))

        # Registers are written as soon as their word is there, where nothing depends on them before it is taken.
        with m.FSM() as fsm:
            with m.State("Word0"):
                # After anything but a good packet a cycle is left for the verdict.
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
                coding, due_coding = word[:8], Cat(PacketType.DATA, expected.codec)
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
                        m.d.sync += mismatch_detail.eq(Cat(due_sequence, header.sequence))
                    with m.If(wanted):
                        check(
                            (ending, EventStatus.WRONG_LENGTH, 0xffff, 0xffff),
                            (header.sequence != expected.sequence,
                             EventStatus.WRONG_SEQUENCE, header.sequence, expected.sequence),
                            (header.iteration != expected.iteration,
                             EventStatus.WRONG_ITERATION, header.iteration, expected.iteration),
                        )
                    go_on("Word2")
            with m.State("Word2"):
                tail = header.length[:5]
                m.d.comb += ready.eq(room | ~wanted | self.drain)
                m.d.sync += [
                    codec.eq(expected.codec),
                    missing.eq(Mux(expected.codec == Codec.RAW, header.length, units)),
                    beyond.eq(Cat((tail != 0) & (tail <= n) for n in range(32))),
                    values.eq(0),
                    kept.eq(0),
                ]
                with m.If(by_abort & ~ending):
                    m.d.sync += reason.eq(header.length)
                with m.If(occupied & wanted):
                    check(
                        (ending, EventStatus.WRONG_LENGTH, 0xffff, 0xffff),
                        (header.block != expected.block,
                         EventStatus.WRONG_BLOCK, header.block, expected.block),
                        (header.segment != expected.segment,
                         EventStatus.WRONG_BLOCK, header.segment | 0x8000, expected.segment | 0x8000),
                        (header.length != expected.length,
                         EventStatus.WRONG_LENGTH, header.length, expected.length),
                    )
                with m.If(take):
                    # A record is there unless the packet is one of those that do not need it.
                    m.d.comb += self.expected.ready.eq(~(outdated | by_abort | discarded | self.drain))
                    go_on("Skip")
                    with m.If(wanted & ~self.drain & ~ending & (word == expected.as_value()[-32:])):
                        m.d.sync += self.accepted.eq(1)
                        m.next = "Payload"
                        with m.If(header.length == 0):
                            m.next = "Trailer"
            with m.State("Payload"):
                masked = (codec == Codec.ZERO_VALUE) & (values == 0)  # the word is a mask
                group_ends = Mux(masked, empty, values <= 1)
                overrun = masked & (missing == 1) & (word & beyond).any()
                following = values - (values != 0)
                if has_tables:
                    group_ends = group_ends & ~tabling & ~opening
                    overrun = overrun | (tabling & disordered)
                    following = Mux(opening, group_words - 1, following)
                m.d.comb += [
                    ready.eq(room | self.drain | discarded),
                    final.eq((missing == 1) & group_ends),
                ]
                m.d.sync += kept.eq(final)
                with m.If(room):
                    m.d.sync += [
                        self.payload.payload.data.eq(word),
                        self.payload.payload.last.eq(final),
                        self.payload.valid.eq(occupied & ~(final | ending | overrun | discarded)),
                    ]
                with m.If(occupied & (ending | overrun)):
                    refuse(EventStatus.WRONG_LENGTH, missing, 0xffff)
                with m.If(take):
                    m.d.sync += values.eq(Mux(masked, _population(word), following))
                    with m.If(group_ends):
                        m.d.sync += missing.eq(missing - 1)
                    go_on("Payload")
                    with m.If(self.drain | discarded | overrun):
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

        if has_tables:
            m.d.comb += in_payload.eq(fsm.ongoing("Payload"))
        with m.If(~self.active):  # the command that the error has ended is over
            m.d.sync += halted.eq(0)
        with m.Elif(self.error):
            m.d.sync += halted.eq(1)
        with m.If(self.drain):
            m.d.sync += [discarded.eq(1), halted.eq(0), self.payload.valid.eq(0)]

        # The verdict.
        corrupt = ~intact & ~stomped
        by_peer = ~corrupt & (stomped | by_abort)
        m.d.comb += [
            self.done.eq(finished & ~self.drain & intact & wanted),
            self.error.eq(finished & ~self.drain & ~discarded & (corrupt | ~outdated & (by_peer | mismatch))),
            self.code.eq(Mux(corrupt, EventStatus.BAD_CRC.value,
                             Mux(by_peer, EventStatus.PEER_ABORT.value, mismatch_code))),
            self.detail.eq(Mux(by_peer, Cat(reason, Const(0, 4), source), mismatch_detail)),
            self.abort_seen.eq(finished & intact & by_abort),
        ]
        return ResetInserter(self.clear)(m)

    def _elaborate_table(self, m, word, take, in_payload, tabling, disordered, group_words):
        """Read the table of exponents in front of a packet's codes, which tells of how many words a group is.

        Returns
        -------
        Value
            The packet has a table.
        """
        table = self._codec.table
        tabled = Signal()
        begun = Signal()  # a word of the table has been taken
        latest = Signal(8)  # the last byte of that
        last_index = Signal(8)  # exponents before this word, and in the end the number of the last one
        parts = [word[8 * place:8 * place + 8] for place in range(4)]
        same, falls = Signal(4), Signal(4)
        for place, (part, before) in enumerate(zip(parts, [latest, *parts], strict=False)):
            known = 1 if place else begun
            m.d.comb += [same[place].eq(known & (part == before)), falls[place].eq(known & (part < before))]
        ends = same.any()
        count = Mux(same[0], 0, Mux(same[1], 1, Mux(same[2], 2, 3)))
        m.d.comb += [
            disordered.eq(Cat(falls[place] & ~same[:place].any() for place in range(4)).any()),
            group_words.eq(1 + table.mantissa_bits + sum(last_index[place:].any() for place in range(8))),
        ]
        with m.If(~in_payload):
            due = self.expected.payload.codec
            others = [Codec.RAW, Codec.ZERO_VALUE, *([] if self._second is None else self._second[:1])]
            has_table = ~Cat(due == other for other in others).any()
            m.d.sync += [tabled.eq(has_table), tabling.eq(has_table), begun.eq(0), last_index.eq(0)]
        with m.Elif(take & tabling):
            m.d.sync += [begun.eq(1), latest.eq(parts[3]), tabling.eq(~ends)]
            m.d.sync += last_index.eq(Mux(ends, last_index + count - 1, last_index + 4))
        return tabled


def _population(bits):
    """Number of ones, by a balanced tree of adders."""
    if len(bits) == 1:
        return bits
    half = len(bits) // 2
    return _population(bits[:half]) + _population(bits[half:])
