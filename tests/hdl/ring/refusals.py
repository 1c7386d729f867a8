"""Packets that a depacketizer must reject, and the reasons."""

import dataclasses

from sim.golden.codecs import CODECS
from sim.golden.packet import ABORT, Header, Refusal, checksum, packet
from tests.hdl.ring.packets import (
    EPOCH,
    GOOD,
    HEADER,
    LONG_HEADER,
    PAYLOAD,
    RAW,
    RAW_HEADER,
    TABLE,
    ZERO_VALUE,
    Extended,
    corrupted,
    resealed,
)
from tests.present import needs

needs("mx", "table")

#: Faults by name, each as (words, expected header, code, detail).
REFUSED = {
    **{
        f"wrong_{name}": (packet(dataclasses.replace(HEADER, **{name: got}), PAYLOAD), HEADER, code, detail)
        for name, got, code, detail in [
            ("epoch", 6, Refusal.WRONG_SEQUENCE, 6 << 16 | 5),
            ("source", 5, Refusal.WRONG_SOURCE, 5 << 16 | 4),
            ("codec", RAW, Refusal.WRONG_CODEC, 0x01 << 16 | 0x11),
            ("type", 7, Refusal.WRONG_CODEC, 0x17 << 16 | 0x11),
            ("tenant", 3, Refusal.WRONG_CODEC, 0x3011 << 16 | 0x11),
            ("sequence", 78, Refusal.WRONG_SEQUENCE, 78 << 16 | 77),
            ("collective", 999, Refusal.WRONG_COLLECTIVE, 999 << 16 | 1000),
            ("block", 2, Refusal.WRONG_BLOCK, 2 << 16 | 3),
            ("segment", 10, Refusal.WRONG_BLOCK, 0x800A << 16 | 0x8009),
            ("length", 41, Refusal.WRONG_LENGTH, 41 << 16 | 40),
        ]
    },
    "wrong_everything": (packet(Header(epoch=EPOCH), ()), HEADER, Refusal.WRONG_SOURCE, 4),
    "crc_of_trailer": (corrupted(GOOD, 9, 31), HEADER, Refusal.BAD_CRC, 77 << 16 | 77),
    "crc_of_payload": (corrupted(GOOD, 5, 0), HEADER, Refusal.BAD_CRC, 77 << 16 | 77),
    "crc_of_mask": (corrupted(GOOD, 3, 3), HEADER, Refusal.BAD_CRC, 1 << 16 | 0xFFFF),
    "crc_of_header": (corrupted(GOOD, 1, 0), HEADER, Refusal.BAD_CRC, 76 << 16 | 77),
    "crc_of_old_epoch": (corrupted(GOOD, 0, 24), HEADER, Refusal.BAD_CRC, 77 << 16 | 77),
    "crc_of_abort": (corrupted(packet(Header(type=ABORT, epoch=EPOCH, sequence=1)), 2, 8), None,
                     Refusal.BAD_CRC, 1 << 16),
    "stomped": (packet(HEADER, PAYLOAD, stomp=True), HEADER, Refusal.PEER_ABORT, 4 << 16),
    "stomped_early": (packet(HEADER, PAYLOAD[:2], stomp=True), HEADER, Refusal.PEER_ABORT, 4 << 16),
    "stomped_in_header": ([HEADER.words()[0], checksum(HEADER.words()[:1]) ^ 0xFFFFFFFF], HEADER,
                          Refusal.PEER_ABORT, 4 << 16),
    "abort": (packet(Header(type=ABORT, source=2, epoch=EPOCH, length=8)), None, Refusal.PEER_ABORT, 2 << 16 | 8),
    "abort_when_expecting": (packet(Header(type=ABORT, source=2, epoch=EPOCH)), HEADER, Refusal.PEER_ABORT, 2 << 16),
    "abort_of_another_tenant": (packet(Header(type=ABORT, tenant=2, source=4, epoch=EPOCH)), HEADER,
                                Refusal.WRONG_CODEC, 0x2002 << 16 | 0x11),
    "lone_word": ([0], None, Refusal.BAD_CRC, 0),
    "lone_inverse": ([0xFFFFFFFF], None, Refusal.BAD_CRC, 0),
    "short_of_many": (packet(LONG_HEADER, range(6)), LONG_HEADER, Refusal.WRONG_LENGTH, 1017 << 16 | 0xFFFF),
    "short_of_128": (packet(dataclasses.replace(LONG_HEADER, length=128), range(127)),
                     dataclasses.replace(LONG_HEADER, length=128), Refusal.WRONG_LENGTH, 1 << 16 | 0xFFFF),
    "short_of_many_groups": (packet(dataclasses.replace(LONG_HEADER, codec=ZERO_VALUE), (0, 0)),
                             dataclasses.replace(LONG_HEADER, codec=ZERO_VALUE), Refusal.WRONG_LENGTH,
                             30 << 16 | 0xFFFF),
    "short_raw": (resealed(packet(RAW_HEADER, (1, 2))), RAW_HEADER, Refusal.WRONG_LENGTH, 1 << 16 | 0xFFFF),
    "long_raw": (packet(RAW_HEADER, (1, 2, 3, 4)), RAW_HEADER, Refusal.WRONG_LENGTH, 0xFFFF),
    "no_payload": (packet(RAW_HEADER), RAW_HEADER, Refusal.WRONG_LENGTH, 3 << 16 | 0xFFFF),
    "unwanted_payload": (packet(dataclasses.replace(HEADER, length=0), [0]), dataclasses.replace(HEADER, length=0),
                         Refusal.WRONG_LENGTH, 0xFFFF),
    "short_values": (packet(HEADER, PAYLOAD[:-1]), HEADER, Refusal.WRONG_LENGTH, 1 << 16 | 0xFFFF),
    "missing_group": (packet(HEADER, PAYLOAD[:3]), HEADER, Refusal.WRONG_LENGTH, 1 << 16 | 0xFFFF),
    "cut_in_first_group": (packet(HEADER, PAYLOAD[:2]), HEADER, Refusal.WRONG_LENGTH, 2 << 16 | 0xFFFF),
    "extra_group": (packet(HEADER, (*PAYLOAD, 0)), HEADER, Refusal.WRONG_LENGTH, 0xFFFF),
    "mask_beyond_length": (resealed(GOOD, w6=0x101), HEADER, Refusal.WRONG_LENGTH, 1 << 16 | 0xFFFF),
    "only_header_of_two": (resealed(GOOD[:3]), HEADER, Refusal.WRONG_LENGTH, 0xFFFFFFFF),
    "only_header_of_one": (resealed(GOOD[:2]), HEADER, Refusal.WRONG_LENGTH, 0xFFFFFFFF),
}

CODED_HEADER = dataclasses.replace(HEADER, codec=CODECS["mx9"].code, length=40)  # payload: three blocks in 13.5 words
CODED_PAYLOAD = tuple(range(100, 114))
CODED_REFUSED = {
    "other_codec": (packet(dataclasses.replace(CODED_HEADER, codec=CODECS["mx6"].code), CODED_PAYLOAD), CODED_HEADER,
                    Refusal.WRONG_CODEC, 0x41 << 16 | 0x31),
    "raw": (packet(dataclasses.replace(CODED_HEADER, codec=RAW), range(40)), CODED_HEADER,
            Refusal.WRONG_CODEC, 0x01 << 16 | 0x31),
    "instead_of_raw": (packet(dataclasses.replace(CODED_HEADER, length=3), (1, 2, 3, 4, 5)), RAW_HEADER,
                       Refusal.WRONG_CODEC, 0x31 << 16 | 0x01),
    "short": (packet(CODED_HEADER, CODED_PAYLOAD[:-1]), CODED_HEADER, Refusal.WRONG_LENGTH, 1 << 16 | 0xFFFF),
    "shorter": (packet(CODED_HEADER, CODED_PAYLOAD[:4]), CODED_HEADER, Refusal.WRONG_LENGTH, 10 << 16 | 0xFFFF),
    "long": (packet(CODED_HEADER, (*CODED_PAYLOAD, 0)), CODED_HEADER, Refusal.WRONG_LENGTH, 0xFFFF),
    "length": (packet(dataclasses.replace(CODED_HEADER, length=41), CODED_PAYLOAD), CODED_HEADER,
               Refusal.WRONG_LENGTH, 41 << 16 | 40),
}


# A payload with a table of three exponents in one word, and two groups of 8-bit codes.
TABLE_HEADER = dataclasses.replace(HEADER, codec=TABLE, length=40)
TABLE_PAYLOAD = (0x60_60_50_40, *range(100, 116))
# A table of seven exponents; its second word repeats the last exponent to mark the end.
LONG_TABLE = (0x43_42_41_40, 0x60_60_51_50)
TABLE_REFUSED = {
    "short": (packet(TABLE_HEADER, TABLE_PAYLOAD[:-1]), TABLE_HEADER, Refusal.WRONG_LENGTH, 1 << 16 | 0xFFFF),
    "shorter": (packet(TABLE_HEADER, TABLE_PAYLOAD[:8]), TABLE_HEADER, Refusal.WRONG_LENGTH, 2 << 16 | 0xFFFF),
    "only_table": (packet(TABLE_HEADER, TABLE_PAYLOAD[:1]), TABLE_HEADER, Refusal.WRONG_LENGTH, 2 << 16 | 0xFFFF),
    "no_end_of_table": (packet(TABLE_HEADER, LONG_TABLE[:1]), TABLE_HEADER, Refusal.WRONG_LENGTH, 2 << 16 | 0xFFFF),
    "long": (packet(TABLE_HEADER, (*TABLE_PAYLOAD, 0)), TABLE_HEADER, Refusal.WRONG_LENGTH, 0xFFFF),
    "wider_codes": (packet(TABLE_HEADER, (*LONG_TABLE, *range(17))), TABLE_HEADER, Refusal.WRONG_LENGTH,
                    1 << 16 | 0xFFFF),
    "disorder": (packet(TABLE_HEADER, (0x60_60_40_50, *range(16))), TABLE_HEADER, Refusal.WRONG_LENGTH,
                 2 << 16 | 0xFFFF),
    "disorder_between_words": (packet(TABLE_HEADER, (0x43_42_41_40, 0x60_60_51_42, *range(18))), TABLE_HEADER,
                               Refusal.WRONG_LENGTH, 2 << 16 | 0xFFFF),
    "length": (packet(dataclasses.replace(TABLE_HEADER, length=32), TABLE_PAYLOAD[:9]), TABLE_HEADER,
               Refusal.WRONG_LENGTH, 32 << 16 | 40),
}

# A packet of three elements and two extra words, and a packet with extra words but no elements.
EXTENDED_HEADER = Extended(**dataclasses.asdict(RAW_HEADER), extra=2)
EXTENDED_PAYLOAD = (1, 2, 3, 4, 5)
EXTENDED = packet(EXTENDED_HEADER, EXTENDED_PAYLOAD)
ONLY_EXTRA = dataclasses.replace(EXTENDED_HEADER, length=0, extra=7)
NO_WORDS = dataclasses.replace(EXTENDED_HEADER, length=0, extra=0)
EXTENDED_REFUSED = {
    **{f"{count}_words": (packet(EXTENDED_HEADER, range(count)), EXTENDED_HEADER, Refusal.WRONG_LENGTH,
                          max(5 - count, 0) << 16 | 0xFFFF) for count in (0, 1, 2, 3, 4, 6, 8)},
    **{f"{count}_words_without_elements": (packet(ONLY_EXTRA, range(count)), ONLY_EXTRA, Refusal.WRONG_LENGTH,
                                           max(7 - count, 0) << 16 | 0xFFFF) for count in (0, 1, 6, 8)},
    "unwanted_word": (packet(NO_WORDS, [0]), NO_WORDS, Refusal.WRONG_LENGTH, 0xFFFF),
    "other_length": (packet(dataclasses.replace(EXTENDED_HEADER, length=5), EXTENDED_PAYLOAD), EXTENDED_HEADER,
                     Refusal.WRONG_LENGTH, 5 << 16 | 3),
    "crc_of_element": (corrupted(EXTENDED, 3, 0), EXTENDED_HEADER, Refusal.BAD_CRC, 77 << 16 | 77),
    "crc_of_extra_word": (corrupted(EXTENDED, 7, 31), EXTENDED_HEADER, Refusal.BAD_CRC, 77 << 16 | 77),
    "crc_of_trailer": (corrupted(EXTENDED, 8, 0), EXTENDED_HEADER, Refusal.BAD_CRC, 77 << 16 | 77),
    "crc_without_elements": (corrupted(packet(ONLY_EXTRA, range(7)), 9, 1), ONLY_EXTRA, Refusal.BAD_CRC,
                             77 << 16 | 77),
    "crc_of_short": (corrupted(packet(EXTENDED_HEADER, range(4)), 5, 9), EXTENDED_HEADER, Refusal.BAD_CRC,
                     1 << 16 | 0xFFFF),
    "stomped": (packet(EXTENDED_HEADER, EXTENDED_PAYLOAD, stomp=True), EXTENDED_HEADER, Refusal.PEER_ABORT, 4 << 16),
    "stomped_early": (packet(ONLY_EXTRA, range(2), stomp=True), ONLY_EXTRA, Refusal.PEER_ABORT, 4 << 16),
}

#: For each codec: a table of faulty packets, and the header and payload of a valid packet.
REFUSALS = {"zero_value": (REFUSED, HEADER, PAYLOAD), "mx9": (CODED_REFUSED, CODED_HEADER, CODED_PAYLOAD),
            "table32": (TABLE_REFUSED, TABLE_HEADER, TABLE_PAYLOAD),
            "extended": (EXTENDED_REFUSED, EXTENDED_HEADER, EXTENDED_PAYLOAD)}
