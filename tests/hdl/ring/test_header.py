"""Header words of a packet: hdl/ring/header.py."""

import dataclasses

from hdl.ring.header import LONGEST_SEGMENT, MAX_SEGMENTS, expected_layout, header_layout, packet_words
from sim.golden.packet import Header
from tests.hdl.ring.packets import header_bits
from tests.refusals import refuses


def test_header_words():
    header = Header(type=1, codec=0xA1, tenant=0xB, source=0x23, destination=0x45, epoch=0x67, sequence=0x89A,
                    collective=0xCDEF, block=0x12, segment=0x345, length=0x278)
    assert header_bits(header) == sum(word << 32 * n for n, word in enumerate(header.words()))


def test_no_field_is_in_two_words():
    """Fields fill exactly three words, no field straddles two words, and expected fields have equal widths."""
    fields = {name: (field.offset, field.width) for name, field in header_layout()}
    assert sum(width for _, width in fields.values()) == header_layout().size == 96
    assert all(offset // 32 == (offset + width - 1) // 32 for offset, width in fields.values())
    assert {name: dict(header_layout())[name].width for name, _ in expected_layout()} == {
        name: field.width for name, field in expected_layout()}


def test_a_segment_of_256_can_be_said():
    fields = dict(header_layout())
    assert 256 < LONGEST_SEGMENT < 1 << fields["length"].width
    assert 1 << fields["segment"].width == MAX_SEGMENTS
    assert {name: fields[name].width for name in ("codec", "tenant", "sequence")} == {
        "codec": 8, "tenant": 4, "sequence": 12}
    header = dataclasses.replace(Header(), segment=1023, length=512)
    assert Header.parse(header.words()) == header


def test_packet_words():
    assert packet_words(256) == 268
    assert packet_words(33) == 39
    for segment in (0, 1024, 256.0):
        refuses(f"Segment must be between 1 and 1023 elements, not {segment}", packet_words, segment)
