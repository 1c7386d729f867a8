import dataclasses
import zlib

import numpy as np
import pytest

from sim.golden.codecs import CODECS
from sim.golden.packet import ABORT, DATA, Header, Refusal, Verdict, checksum, codec_of, packet, verdict

EPOCH = 5
RAW, ZERO_VALUE = 0, 1
HEADER = Header(source=4, destination=1, epoch=EPOCH, sequence=77, collective=9, block=2, segment=3, length=3)
PAYLOAD = (0xDEAD_BEEF, 0, 0xFFFF_FFFF)


def changed(**fields):
    return dataclasses.replace(HEADER, **fields)


def flipped(words, *bits):
    """Flip bits of a packet, numbered from its start."""
    words = list(words)
    for bit in bits:
        words[bit // 32] ^= 1 << bit % 32
    return words


# --- tests of words


def test_header_by_hand():
    header = Header(type=1, codec=0x81, tenant=0xA, source=0x23, destination=0x45, epoch=0x67, sequence=0x89A,
                    collective=0xCDEF, block=0x12, segment=0x345, length=0x278)
    assert header.words() == [0x6723A811, 0x278 << 22 | 0x34589A, 0x4512CDEF]
    assert Header().words() == [1, 0, 0]


@pytest.mark.parametrize(("field", "word", "low", "width"), [
    ("type", 0, 0, 4), ("codec", 0, 4, 8), ("tenant", 0, 12, 4), ("source", 0, 16, 8), ("epoch", 0, 24, 8),
    ("sequence", 1, 0, 12), ("segment", 1, 12, 10), ("length", 1, 22, 10), ("collective", 2, 0, 16),
    ("block", 2, 16, 8), ("destination", 2, 24, 8)])
def test_fields(field, word, low, width):
    """Each field has its position in the header, both if all other bits are zeros and if they are ones."""
    value = (1 << width) - 1
    alone = Header(**{"type": 0, field: value})
    assert alone.words() == [value << low if index == word else 0 for index in range(3)]
    assert Header.parse(alone.words()) == alone
    rest = [0xFFFF_FFFF ^ (value << low if index == word else 0) for index in range(3)]
    assert getattr(Header.parse(rest), field) == 0
    assert Header.parse(rest).words() == rest


def test_parse():
    """Any three words form a header. Missing words count as zero, and additional words are ignored."""
    generator = np.random.default_rng(1)
    for words in generator.integers(0, 1 << 32, (200, 3)).tolist():
        assert Header.parse(words).words() == words
        assert Header.parse([*words, 0xFFFF_FFFF]).words() == words
        assert Header.parse(words[:2]).words() == [*words[:2], 0]
        assert Header.parse(words[:1]).words() == [words[0], 0, 0]
    assert Header.parse([]) == Header(type=0)


def test_checksum():
    """The published check value of CRC-32 is for nine bytes; two words contain the first eight of them."""
    assert zlib.crc32(b"123456789") == 0xCBF43926
    assert checksum([0x34333231, 0x38373635]) == zlib.crc32(b"12345678") == 0x9AE0DAAF
    assert checksum([]) == 0
    assert checksum(iter([1])) == zlib.crc32(bytes([1, 0, 0, 0]))


def bit_by_bit(words):
    """Compute CRC-32 from its polynomial, starting with the lowest bit of the lowest byte."""
    state = 0xFFFF_FFFF
    for word in words:
        for bit in range(32):
            feedback = (state ^ word >> bit) & 1
            state = state >> 1 ^ (0xEDB8_8320 if feedback else 0)
    return state ^ 0xFFFF_FFFF


def test_packets():
    generator = np.random.default_rng(2)
    for count in (0, 1, 3, 40):
        payload = generator.integers(0, 1 << 32, count).tolist()
        header = changed(length=count)
        words = packet(header, payload)
        assert words[:-1] == [*header.words(), *payload]
        assert words[-1] == bit_by_bit(words[:-1])
        assert words[-1] == zlib.crc32(b"".join(word.to_bytes(4, "little") for word in words[:-1]))
        assert packet(header, payload, stomp=True) == [*words[:-1], words[-1] ^ 0xFFFF_FFFF]


def test_numbers():
    """The numbers of types, codecs and statuses are the same as in the protocol."""
    assert (DATA, ABORT) == (1, 2)
    names = {codec: name for name, codec in CODECS.items()}
    assert {number: names[codec_of(Header(codec=number))] for number in range(16)} == {
        RAW: "raw", ZERO_VALUE: "zero_value",
        2: "bf16", 3: "mx9", 4: "mx6", 5: "mx4", 6: "bfp8", 7: "mxint8", 8: "mxfp8_e4m3", 9: "mxfp8_e5m2",
        10: "mxfp6_e2m3", 11: "mxfp6_e3m2", 12: "mxfp4_e2m1", 13: "table32", 14: "centroid16", 15: "centroid64"}


# --- tests of valid packets


def test_accepted():
    """The whole payload of a valid packet is output, for any destination and any expected record type."""
    due = Verdict(offered=PAYLOAD, complete=True, done=True)
    for expected in (HEADER, changed(destination=200), changed(type=ABORT)):
        assert verdict(packet(HEADER, PAYLOAD), expected, epoch=EPOCH) == due
    assert verdict(packet(changed(destination=99), PAYLOAD), HEADER, epoch=EPOCH) == due
    # If there are no elements, nothing is output.
    empty = changed(length=0)
    assert verdict(packet(empty), empty, epoch=EPOCH) == Verdict(done=True)


def test_accepted_zero_value():
    """In zero_value, 40 elements are a mask and its values, then a mask for the last eight elements and its
    values."""
    header = changed(codec=ZERO_VALUE, length=40)
    payload = (0x8000_0001, 11, 12, 0x80, 13)
    for words in (payload, (0, 0), (0xFFFF_FFFF, *range(32), 0xFF, *range(8))):
        assert verdict(packet(header, words), header, epoch=EPOCH) == Verdict(
            offered=words, complete=True, done=True)


@pytest.mark.parametrize(("codec", "length", "words"), [
    (2, 7, 4), (3, 17, 9), (5, 256, 32), (12, 32, 5), (14, 33, 8), (15, 1, 6)])
def test_accepted_codes(codec, length, words):
    """A payload with the format's number of words is accepted with any contents; one word more or less is
    rejected."""
    header, payload = changed(codec=codec, length=length), tuple(range(1, words + 1))
    assert verdict(packet(header, payload), header, epoch=EPOCH) == Verdict(offered=payload, complete=True, done=True)
    assert verdict(packet(header, payload[:-1]), header, epoch=EPOCH) == Verdict(
        code=Refusal.WRONG_LENGTH, detail=1 << 16 | 0xFFFF, offered=payload[:-1])
    assert verdict(packet(header, (*payload, 9)), header, epoch=EPOCH) == Verdict(
        code=Refusal.WRONG_LENGTH, detail=0xFFFF, offered=payload[:-1])


@pytest.mark.parametrize(("codec", "length", "words", "extra"), [
    (0, 3, 3, 1), (0, 0, 0, 4), (2, 7, 4, 2), (20, 3, 3, 1), (20, 40, 40, 3), (22, 3, 2, 5), (22, 0, 0, 1)])
def test_additional_words(codec, length, words, extra):
    """A packet may have the expected number of words in addition to its elements, even if it has no elements."""
    header, payload = changed(codec=codec, length=length), tuple(range(1, words + extra + 1))
    options = {"epoch": EPOCH, "extra": extra}
    assert verdict(packet(header, payload), header, **options) == Verdict(offered=payload, complete=True, done=True)
    assert verdict(packet(header, payload[:-1]), header, **options) == Verdict(
        code=Refusal.WRONG_LENGTH, detail=1 << 16 | 0xFFFF, offered=payload[:-1])
    assert verdict(packet(header, payload[extra:]), header, **options) == Verdict(
        code=Refusal.WRONG_LENGTH, detail=extra << 16 | 0xFFFF, offered=payload[extra:])
    for other in ((*payload, 9), (*payload, 9, 9)):
        assert verdict(packet(header, other), header, **options) == Verdict(
            code=Refusal.WRONG_LENGTH, detail=0xFFFF, offered=payload[:-1])


# --- tests of rejections


@pytest.mark.parametrize(("field", "got", "code", "detail"), [
    ("epoch", 6, Refusal.WRONG_SEQUENCE, 6 << 16 | 5), ("source", 7, Refusal.WRONG_SOURCE, 7 << 16 | 4),
    ("type", 3, Refusal.WRONG_CODEC, 0x03 << 16 | 0x01), ("codec", 1, Refusal.WRONG_CODEC, 0x11 << 16 | 0x01),
    ("codec", 12, Refusal.WRONG_CODEC, 0xC1 << 16 | 0x01), ("sequence", 76, Refusal.WRONG_SEQUENCE, 76 << 16 | 77),
    ("collective", 0x8001, Refusal.WRONG_COLLECTIVE, 0x8001 << 16 | 9),
    ("block", 3, Refusal.WRONG_BLOCK, 3 << 16 | 2),
    ("segment", 0x3FF, Refusal.WRONG_BLOCK, 0x83FF << 16 | 0x8003),
    ("length", 4, Refusal.WRONG_LENGTH, 4 << 16 | 3)])
def test_mismatches(field, got, code, detail):
    """A packet with a wrong CRC, or with any field that does not match, is rejected, and none of its payload is
    output."""
    words = packet(changed(**{field: got}), PAYLOAD)
    assert verdict(words, HEADER, epoch=EPOCH) == Verdict(code=code, detail=detail)
    assert verdict(flipped(words, 32 * 6), HEADER, epoch=EPOCH) == Verdict(code=Refusal.BAD_CRC, detail=detail)
    # A stomped packet is reported as PEER_ABORT, because the node that sent it reports the error itself.
    stomped = packet(changed(**{field: got}), PAYLOAD, stomp=True)
    source = 7 if field == "source" else 4
    assert verdict(stomped, HEADER, epoch=EPOCH) == Verdict(code=Refusal.PEER_ABORT, detail=source << 16)


def test_order_of_mismatches():
    """If several fields do not match, the first of them in the order of checks is reported."""
    wrong = {"epoch": 6, "source": 7, "codec": 1, "tenant": 1, "sequence": 1, "segment": 1, "length": 1,
             "collective": 1, "block": 1}
    codes = []
    while wrong:
        codes.append(verdict(packet(changed(**wrong), PAYLOAD), HEADER, epoch=EPOCH).code)
        wrong.pop(next(iter(wrong)))
    assert codes == [Refusal.WRONG_SEQUENCE, Refusal.WRONG_SOURCE, Refusal.WRONG_CODEC, Refusal.WRONG_CODEC,
                     Refusal.WRONG_SEQUENCE, Refusal.WRONG_BLOCK, Refusal.WRONG_LENGTH, Refusal.WRONG_COLLECTIVE,
                     Refusal.WRONG_BLOCK]


def test_lengths():
    """The number of elements missing in a RAW payload is reported. If there are too many, the last word is not
    output."""
    for count in range(3):
        assert verdict(packet(HEADER, PAYLOAD[:count]), HEADER, epoch=EPOCH) == Verdict(
            code=Refusal.WRONG_LENGTH, detail=3 - count << 16 | 0xFFFF, offered=PAYLOAD[:count])
    assert verdict(packet(HEADER, (*PAYLOAD, 1)), HEADER, epoch=EPOCH) == Verdict(
        code=Refusal.WRONG_LENGTH, detail=0xFFFF, offered=PAYLOAD[:2])


@pytest.mark.parametrize(("payload", "missing", "offered"), [
    ((), 2, 0), ((3,), 2, 1), ((3, 11), 2, 2), ((3, 11, 12), 1, 3), ((0,), 1, 1), ((3, 11, 12, 1), 1, 4),
    ((3, 11, 12, 0, 0), 0, 3), ((3, 11, 12, 0x100, 13), 1, 3), ((0, 0x8000_0000), 1, 1)])
def test_lengths_of_zero_value(payload, missing, offered):
    """The number of missing groups is reported; a mask with a bit beyond the last of 40 elements is not output."""
    header = changed(codec=ZERO_VALUE, length=40)
    assert verdict(packet(header, payload), header, epoch=EPOCH) == Verdict(
        code=Refusal.WRONG_LENGTH, detail=missing << 16 | 0xFFFF, offered=payload[:offered])


@pytest.mark.parametrize("count", [1, 2])
def test_ends_in_its_header(count):
    words = HEADER.words()[:count]
    sealed = [*words, checksum(words)]
    assert verdict(sealed, HEADER, epoch=EPOCH) == Verdict(code=Refusal.WRONG_LENGTH, detail=0xFFFF_FFFF)


def test_a_word_alone_is_no_packet():
    """A single word is not a packet, even though the CRC of no words is 0."""
    for word in (0, 0xFFFF_FFFF, 0x0500_0001):
        assert verdict([word], None, epoch=EPOCH) == Verdict(code=Refusal.BAD_CRC, detail=0)


def test_aborts():
    """ABORT packets are accepted whether or not a packet is expected. Their length field contains the reason."""
    abort = Header(type=ABORT, source=2, epoch=EPOCH, length=8)
    for expected in (None, HEADER):
        assert verdict(packet(abort), expected, epoch=EPOCH) == Verdict(
            code=Refusal.PEER_ABORT, detail=2 << 16 | 8, abort_seen=True)
        # A stomped ABORT packet does not count as an ABORT packet.
        assert verdict(packet(abort, stomp=True), expected, epoch=EPOCH) == Verdict(
            code=Refusal.PEER_ABORT, detail=2 << 16 | 8)


def test_older_epochs():
    """Undamaged packets of the previous 128 epochs (mod 256), stomped or not, are dropped without an error."""
    for age in range(1, 256):
        for older in (packet(changed(epoch=(EPOCH - age) % 256), PAYLOAD, stomp=stomp) for stomp in (False, True)):
            got = verdict(older, HEADER, epoch=EPOCH)
            assert (got == Verdict()) == (age <= 128), age
    words = packet(changed(epoch=EPOCH - 1), PAYLOAD)
    assert verdict(flipped(words, 100), HEADER, epoch=EPOCH) == Verdict(code=Refusal.BAD_CRC, detail=77 << 16 | 77)


def test_every_bit_counts():
    """If any one or two bits are flipped, the CRC is wrong, and the last word is never output."""
    words = packet(HEADER, PAYLOAD)
    bits = 32 * len(words)
    pairs = [(bit, (bit + step) % bits) for bit in range(bits) for step in (1, 5, 37)]
    for flips in [*((bit,) for bit in range(bits)), *pairs]:
        for expected in (HEADER, None):
            got = verdict(flipped(words, *flips), expected, epoch=EPOCH)
            assert got.code == Refusal.BAD_CRC, flips
            assert not got.done
            assert not got.complete
            assert len(got.offered) < 3
    assert verdict(flipped(words, 100), None, epoch=EPOCH).detail == 77 << 16
