"""Host's end of a serial link: encoding of frames, division of packets, errors, counters and timeouts.

docs/serial.md describes the protocol.
"""

import dataclasses
import itertools
import re
import zlib
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from hdl.serial.frame import ESCAPE, FLAG, INVERTED, FrameKind, header_layout
from host.driver.errors import DeviceError
from host.driver.words import Words, fields, places

__all__ = ["BAUD", "FRAME_WORDS", "LONGEST", "WRAP", "BoardResetError", "Channel", "Frame", "FrameDecoder",
           "LinkCounters", "LinkError", "LinkLostError", "Patience", "Piece"]


class LinkError(DeviceError):
    """Raised if the link to the board does not work."""


class LinkLostError(LinkError):
    """Raised if the serial port is lost or the board no longer answers."""


class BoardResetError(LinkError):
    """Raised if the board no longer knows this link: it was reset, or another program has opened it."""


@dataclasses.dataclass(kw_only=True)
class LinkCounters:
    """Event counters at the host's end of a link."""
    # frames with correct CRCs, including repeated frames
    frames_sent: int = 0
    frames_received: int = 0
    retries: int = 0  # frames sent again because the board did not receive them
    requests: int = 0  # requests to the board to send frames again
    timeouts: int = 0  # retransmissions because the board did not answer in time
    polls: int = 0  # requests to confirm that the board is alive, sent when a response takes long
    # damaged frames, as counted by :class:`~host.transports.serial_link.FrameDecoder`
    crc_errors: int = 0
    resyncs: int = 0
    gaps: int = 0  # frames that arrived too early, because an earlier frame was lost
    repeats: int = 0  # frames that arrived more than once
    reconnects: int = 0  # number of times that a lost port was reopened


#: Initial timeout in seconds, until the response times of the board are known.
_FIRST = 0.25
#: Minimum and maximum of the retransmission timeout in seconds.
_SHORTEST, LONGEST = 0.05, 0.5
#: Maximum seconds between checks of the port; longer intervals do not count as silence of the board.
_AWAY = 0.1


class Patience:
    """Retransmission timeout, derived from the mean and deviation of earlier waits, as in TCP (RFC 6298).

    The board acknowledges every frame, so a wait is the time since its last frame, regardless of the number of frames
    in transit. Time when the host does not check the port is not counted.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._mean: float | None = None
        self._deviation = 0.0
        self._usual = _FIRST
        self._longer = 1.0
        self._heard = self._asked = self._looked = self._clock()

    def look(self) -> None:
        """Record the time at which the host polls the port; long gaps between polls do not count as silence."""
        now = self._clock()
        away = now - self._looked
        self._looked = now
        if away > _AWAY:
            self._heard += away
            self._asked += away

    def begin(self) -> None:
        """Start the timer for the board's next answer."""
        self._heard = self._asked = self._looked = self._clock()

    def hear(self) -> None:
        """Record that a frame has arrived."""
        now = self._clock()
        if self._longer == 1:
            seconds = now - self._heard
            if self._mean is None:
                self._mean, self._deviation = seconds, seconds / 2
            self._deviation += (abs(seconds - self._mean) - self._deviation) / 4
            self._mean += (seconds - self._mean) / 8
            self._usual = min(max(2 * self._mean + 4 * self._deviation, _SHORTEST), LONGEST)
        self._heard = self._asked = now

    def progress(self) -> None:
        """Record that the arrived frame contained new words."""
        self._longer = 1.0

    def ends(self) -> bool:
        """Return whether the timeout has expired. If it has, the next timeout is longer."""
        now = self._clock()
        if now - self._asked <= self._usual * self._longer:
            return False
        self._asked = now
        self._longer = min(2 * self._longer, LONGEST / self._usual)
        return True

    @property
    def silence(self) -> float:
        """Return the seconds since the last frame from the board."""
        return self._clock() - self._heard


#: Default bit rate of a serial port, per second.
BAUD = 3_000_000

_FIELDS = places(header_layout())
_OVERHEAD = 12  # bytes of header and CRC
_ESCAPED = re.compile(b"%c+([^%c])" % (ESCAPE, ESCAPE), re.DOTALL)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Frame:
    """A frame of the serial link. docs/serial.md describes the fields."""

    kind: FrameKind = FrameKind.DATA
    last: bool = False
    again: bool = False
    node: int = 0
    reply: bool = False
    sequence: int = 0
    acknowledged: int = 0
    limit: int = 0
    payload: bytes = b""  # words of the payload, little-endian

    def encode(self) -> bytes:
        """Encode the frame as bytes on the wire, with its flag."""
        values = {**vars(self), "kind": self.kind.value, "length": len(self.payload) // 4}
        bits = sum(int(values[name]) << offset for name, (offset, _) in _FIELDS.items())
        body: bytes = bits.to_bytes(8, "little") + self.payload
        body += zlib.crc32(body).to_bytes(4, "little")
        for special in (ESCAPE, FLAG):
            body = body.replace(bytes([special]), bytes([ESCAPE, special ^ INVERTED]))
        return bytes([FLAG]) + body

    @classmethod
    def decode(cls, body: bytes) -> "Frame":
        """Decode the unescaped bytes between flag and CRC; raises ``ValueError`` for an unknown kind."""
        values: dict[str, Any] = {**fields(_FIELDS, int.from_bytes(body[:8], "little"))}
        del values["length"]
        flags = {name: bool(values[name]) for name in ("last", "again", "reply")}
        return cls(**{**values, **flags, "kind": FrameKind(values["kind"])}, payload=body[8:])


class FrameDecoder:
    """Decoder that finds frames in a byte stream and counts damaged frames."""

    def __init__(self) -> None:
        self.crc_errors = 0  # frames with a wrong CRC
        self.resyncs = 0  # frames that ended prematurely
        self._begun: bytes | None = None  # bytes of an incomplete frame, after its flag

    def feed(self, data: bytes) -> list[Frame]:
        """Process bytes and return the frames completed by them."""
        first, *rest = data.split(bytes([FLAG]))
        frames = []
        if self._begun is not None:
            self._begun += first
            frames += self._end()
        for part in rest:
            if self._begun and self._begun.strip(bytes([ESCAPE])):
                self.resyncs += 1
            self._begun = part
            frames += self._end()
        return frames

    def _end(self) -> list[Frame]:
        """Finish the current frame; return it if it is valid."""
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


#: Maximum number of payload words in a frame that the host sends.
FRAME_WORDS = 64

#: Modulus at which word numbers in frame headers wrap.
WRAP = 1 << 16

#: Minimum and maximum of the limit on frames in transit to a node.
_FEWEST_FRAMES, _MAX_FRAMES = 2.0, 32.0


@dataclasses.dataclass
class Piece:
    """Part of a request packet that fits in one frame; ``start`` is the number of its first word."""

    start: int
    payload: bytes
    last: bool

    @property
    def end(self) -> int:
        return self.start + len(self.payload) // 4


class Channel:
    """Packets to and from the node with this ``number`` on the board. Word numbers do not wrap here."""

    def __init__(self, number: int, clock: Callable[[], float]):
        self.number = number
        self.clock = clock
        self.packets: deque[Words] = deque()
        self.nonce = 0
        self.opened = False
        self.begin(0)

    def begin(self, limit: int) -> None:
        """Reset the channel, as after an OPEN frame; the board has space for ``limit`` words."""
        self.pieces: deque[Piece] = deque()  # pieces that have not been acknowledged yet
        self.sent = 0  # number of ``pieces`` sent so far
        self.queued = 0  # number of words in all requests so far
        self.acknowledged = 0
        self.limit = limit
        self.frames = _MAX_FRAMES  # maximum number of frames in transit
        self.farthest = 0  # end of the words that were sent at least once
        self.expected = 0
        self.partial: list[bytes] = []
        self.owed = 0  # number of outstanding responses
        self.asked = False  # whether the board has been asked to fill a gap
        self.answer = False  # whether an acknowledgement is due
        self.again = False  # whether the next acknowledgement asks the board to resend missing words
        self.progressed = self.clock()

    def queue(self, packet: Words) -> None:
        """Accept a request packet for sending."""
        data = packet.astype("<u4").tobytes()
        for start in range(0, len(data), 4 * FRAME_WORDS):
            payload = data[start:start + 4 * FRAME_WORDS]
            self.pieces.append(Piece(self.queued, payload, start + len(payload) == len(data)))
            self.queued += len(payload) // 4
        self.owed += 1

    @property
    def waiting(self) -> bool:
        """Whether an acknowledgement or a response is outstanding."""
        return self.sent > 0 or self.owed > 0

    def take(self, frame: Frame, counters: LinkCounters) -> bool:
        """Process a DATA frame from the board and count gaps and repeats; return whether new words have arrived in
        either direction."""
        progress = False
        gone = (frame.acknowledged - self.acknowledged) % WRAP
        if 0 < gone <= self.farthest - self.acknowledged:
            self.acknowledged += gone
            progress = True
            while self.pieces and self.pieces[0].end <= self.acknowledged:
                self.pieces.popleft()
                self.sent = max(self.sent - 1, 0)
                self.frames = min(self.frames + 1 / self.frames, _MAX_FRAMES)
        room = (frame.limit - self.acknowledged) % WRAP
        if room < WRAP // 2:
            self.limit = max(self.limit, self.acknowledged + room)
        if frame.again:
            self.go_back()
        if frame.payload:
            ahead = (frame.sequence - self.expected) % WRAP
            self.answer = True
            if ahead == 0:
                self._deliver(frame)
                progress = True
            elif ahead >= WRAP // 2:
                counters.repeats += 1
            else:
                counters.gaps += 1
                self.again |= not self.asked
                self.asked = True
        if progress:
            self.progressed = self.clock()
        return progress

    def _deliver(self, frame: Frame) -> None:
        self.expected += len(frame.payload) // 4
        self.asked = False
        self.partial.append(frame.payload)
        if frame.last:
            self.packets.append(np.frombuffer(b"".join(self.partial), "<u4").astype(np.uint32))
            self.partial = []
            self.owed -= 1

    def go_back(self) -> None:
        """Send all unacknowledged words again. After a loss, fewer words are sent at a time."""
        if self.sent:
            self.frames = max(self.frames / 2, _FEWEST_FRAMES)
        self.sent = 0

    def allowed(self) -> list[Piece]:
        """Return the pieces to send now: only a few on a bad line, where a loss wastes all subsequent pieces."""
        rest = itertools.islice(self.pieces, self.sent, max(self.sent, int(self.frames)))
        return list(itertools.takewhile(lambda piece: piece.end <= self.limit, rest))

    def frame(self, piece: Piece | None) -> Frame:
        """Create the frame for a piece, or an acknowledgement if ``piece`` is None."""
        again = self.again
        self.answer = self.again = False
        return Frame(node=self.number, again=again, last=piece is not None and piece.last,
                     sequence=(self.farthest if piece is None else piece.start) % WRAP,
                     acknowledged=self.expected % WRAP, payload=b"" if piece is None else piece.payload)
