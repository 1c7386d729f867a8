"""Golden model of packets: their words, and whether a packet is accepted."""

import dataclasses
import itertools
import zlib
from collections.abc import Iterable, Sequence

import numpy as np

from sim.golden.codecs import CODECS, Codec, Span, whole_words

__all__ = ["ABORT", "DATA", "Header", "Refusal", "Verdict", "checksum", "codec_of", "packet", "verdict"]

DATA, ABORT = 1, 2

STOMP = 0xFFFFFFFF


class Refusal:
    """Reasons for rejecting a packet, with the same numbers as the statuses of completion events."""

    WRONG_COLLECTIVE = 5
    WRONG_BLOCK = 6
    WRONG_LENGTH = 7
    BAD_CRC = 8
    WRONG_SEQUENCE = 9
    WRONG_SOURCE = 10
    WRONG_CODEC = 11
    PEER_ABORT = 12


@dataclasses.dataclass(frozen=True, kw_only=True)
class Header:
    """Header of a packet; docs/ring/packet.md describes the fields."""

    type: int = DATA
    codec: int = 0
    tenant: int = 0
    source: int = 0
    destination: int = 0
    epoch: int = 0
    sequence: int = 0
    collective: int = 0
    block: int = 0
    segment: int = 0
    length: int = 0

    def words(self) -> list[int]:
        """Encode the header as three words."""
        return [
            self.type | self.codec << 4 | self.tenant << 12 | self.source << 16 | self.epoch << 24,
            self.sequence | self.segment << 12 | self.length << 22,
            self.collective | self.block << 16 | self.destination << 24,
        ]

    @classmethod
    def parse(cls, words: Sequence[int]) -> "Header":
        """Parse the header in the first three words of a packet; missing words read as 0."""
        first, second, third = (*words[:3], 0, 0, 0)[:3]
        return cls(
            type=first & 0xF, codec=first >> 4 & 0xFF, tenant=first >> 12 & 0xF, source=first >> 16 & 0xFF,
            epoch=first >> 24, sequence=second & 0xFFF, segment=second >> 12 & 0x3FF, length=second >> 22,
            collective=third & 0xFFFF, block=third >> 16 & 0xFF, destination=third >> 24,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verdict:
    """Result of a receiver's checks of one packet.

    Parameters
    ----------
    code : int or None
        Reason for rejection, or None.
    detail : int or None
        Detail of the rejection.
    offered : tuple of int
        Payload words that were passed on; the last one has ``last`` set if ``complete``.
    complete : bool
        Whether the whole payload was passed on.
    done : bool
        Whether the packet was accepted.
    abort_seen : bool
        Whether the packet was an ABORT packet of this epoch.
    """

    code: int | None = None
    detail: int | None = None
    offered: tuple[int, ...] = ()
    complete: bool = False
    done: bool = False
    abort_seen: bool = False


def checksum(words: Iterable[int]) -> int:
    """CRC-32 of words, as computed by zlib over their little-endian bytes."""
    return zlib.crc32(np.fromiter(words, dtype="<u4").tobytes())


def packet(header: Header, payload: Sequence[int] = (), *, stomp: bool = False) -> list[int]:
    """Words of a packet; the last one is the CRC, which is inverted if the packet is stomped."""
    words = [*header.words(), *payload]
    return [*words, checksum(words) ^ (STOMP if stomp else 0)]


def codec_of(header: Header) -> Codec:
    """Return the codec of a packet's payload."""
    return next(codec for codec in CODECS.values() if codec.code == header.codec)


def _mismatch(body: Sequence[int], expected: Header) -> tuple[int, int, int] | None:
    """Find the first unexpected field of a (partial) header; return (code, got, expected)."""
    got = Header.parse(body)
    checks = [
        [
            (Refusal.WRONG_SEQUENCE, got.epoch, expected.epoch),
            (Refusal.WRONG_SOURCE, got.source, expected.source),
            (Refusal.WRONG_CODEC, got.type | got.codec << 4 | got.tenant << 12, DATA | expected.codec << 4),
        ],
        [
            (Refusal.WRONG_SEQUENCE, got.sequence, expected.sequence),
            (Refusal.WRONG_BLOCK, got.segment | 0x8000, expected.segment | 0x8000),
            (Refusal.WRONG_LENGTH, got.length, expected.length),
        ],
        [
            (Refusal.WRONG_COLLECTIVE, got.collective, expected.collective),
            (Refusal.WRONG_BLOCK, got.block, expected.block),
        ],
    ]
    for code, value, due in itertools.chain(*checks[: len(body)]):
        if value != due:
            return code, value, due
    return (Refusal.WRONG_LENGTH, 0xFFFF, 0xFFFF) if len(body) < 3 else None


def _span(header: Header, payload: Sequence[int], extra: int) -> Span:
    """Span of a packet with ``extra`` payload words in addition to its elements."""
    codec = codec_of(header)
    if not extra:
        return codec.span(payload, header.length)
    return whole_words(codec.max_words(header.length) + extra, len(payload))


def verdict(words: Sequence[int], expected: Header | None, *, epoch: int, extra: int = 0) -> Verdict:
    """Return the result of an active depacketizer's checks of a packet that it does not discard.

    Parameters
    ----------
    words : sequence of int
        All words of the packet, including its CRC.
    expected : Header or None
        Header that the packet is expected to have, if any; its type, tenant and destination are ignored.
    epoch : int
        The epoch of the command.
    extra : int
        Number of payload words that the expected packet has in addition to its elements: the exponents and the
        checksum of sums of integers. All packets of a command with such sums use codecs with a fixed number of words.
    """
    *body, trailer = words
    header = Header.parse(words)
    right = checksum(body)
    intact, stomped = bool(body) and trailer == right, bool(body) and trailer == right ^ STOMP
    older = (header.epoch - epoch) % 256 >= 128
    abort = header.type == ABORT and header.tenant == 0 and header.epoch == epoch

    offered: tuple[int, ...] = ()
    mismatch = None
    if body and expected is not None and not older and not abort:
        mismatch = _mismatch(body, expected)
        if mismatch is None:
            used, missing, overran = _span(header, body[3:], extra)
            kept = 1 if used and not missing else 0  # the last word is held back until the packet has been checked
            offered = tuple(body[3 : 3 + used - kept])
            if missing or overran or 3 + used != len(body):
                mismatch = (Refusal.WRONG_LENGTH, missing, 0xFFFF)

    if not intact and not stomped:
        got, due = 0, 0
        if mismatch is not None:
            _, got, due = mismatch
        elif len(body) >= 2:
            got, due = header.sequence, expected.sequence if expected is not None else 0
        return Verdict(code=Refusal.BAD_CRC, detail=got << 16 | due, offered=offered)
    if older:
        return Verdict()
    if abort or stomped:
        reason = header.length if abort and len(body) >= 2 else 0
        return Verdict(
            code=Refusal.PEER_ABORT, detail=header.source << 16 | reason, offered=offered, abort_seen=abort and intact
        )
    if mismatch is not None:
        code, got, due = mismatch
        return Verdict(code=code, detail=got << 16 | due, offered=offered)
    return Verdict(offered=tuple(body[3:]), complete=len(body) > 3, done=True)
