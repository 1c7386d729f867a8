"""Frames of the serial link, as bytes: docs/serial.md."""

import dataclasses
import re
import zlib
from typing import Any

from hdl.serial.frame import ESCAPE, FLAG, INVERTED, FrameKind, header_layout
from host.driver.words import fields, places

__all__ = ["BAUD", "Frame", "FrameDecoder"]

#: Bits per second of a serial port, unless another number is asked for.
BAUD = 3_000_000

_FIELDS = places(header_layout())
_OVERHEAD = 12  # bytes of header and CRC
_ESCAPED = re.compile(b"%c+([^%c])" % (ESCAPE, ESCAPE), re.DOTALL)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Frame:
    """One frame; docs/serial.md explains the fields.

    Parameters
    ----------
    payload : bytes
        Words, little-endian.
    """

    kind: FrameKind = FrameKind.DATA
    last: bool = False
    again: bool = False
    node: int = 0
    reply: bool = False
    sequence: int = 0
    acknowledged: int = 0
    limit: int = 0
    payload: bytes = b""

    def encode(self) -> bytes:
        """The bytes on the wire, flag included."""
        values = {**vars(self), "kind": self.kind.value, "length": len(self.payload) // 4}
        bits = sum(int(values[name]) << offset for name, (offset, _) in _FIELDS.items())
        body: bytes = bits.to_bytes(8, "little") + self.payload
        body += zlib.crc32(body).to_bytes(4, "little")
        for special in (ESCAPE, FLAG):
            body = body.replace(bytes([special]), bytes([ESCAPE, special ^ INVERTED]))
        return bytes([FLAG]) + body

    @classmethod
    def decode(cls, body: bytes) -> "Frame":
        """The frame of the bytes between flag and CRC, without escapes; ``ValueError`` if it is of no kind."""
        bits = int.from_bytes(body[:8], "little")
        values: dict[str, Any] = {**fields(_FIELDS, bits)}
        del values["length"]
        values.update(kind=FrameKind(values["kind"]), last=bool(values["last"]), again=bool(values["again"]),
                      reply=bool(values["reply"]))
        return cls(**values, payload=body[8:])


class FrameDecoder:
    """Decoder that finds frames in bytes, and counts damaged ones.

    Members
    -------
    crc_errors : int
        Frames with a wrong CRC.
    resyncs : int
        Frames that ended in the middle.
    """

    def __init__(self) -> None:
        self.crc_errors = 0
        self.resyncs = 0
        self._begun: bytes | None = None  # of a frame, what has come behind its flag

    def feed(self, data: bytes) -> list[Frame]:
        """The whole frames among the bytes so far, which are not given again."""
        first, *others = data.split(bytes([FLAG]))
        frames = []
        if self._begun is not None:
            self._begun += first
            frames += self._end()
        for part in others:
            if self._begun and self._begun.strip(bytes([ESCAPE])):
                self.resyncs += 1
            self._begun = part
            frames += self._end()
        return frames

    def _end(self) -> list[Frame]:
        """The frame that has begun, if all of it is there."""
        assert self._begun is not None
        body = _ESCAPED.sub(lambda match: bytes([match[1][0] ^ INVERTED]), self._begun.rstrip(bytes([ESCAPE])))
        if len(body) < _OVERHEAD:
            return []
        offset, width = _FIELDS["length"]
        size = _OVERHEAD + 4 * (int.from_bytes(body[:4], "little") >> offset & (1 << width) - 1)
        if len(body) < size:
            return []
        self._begun = None
        if zlib.crc32(body[:size - 4]) != int.from_bytes(body[size - 4:size], "little"):
            self.crc_errors += 1
            return []
        try:
            return [Frame.decode(body[:size - 4])]
        except ValueError:
            return []
