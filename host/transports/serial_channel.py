"""Packets of one node of a board, cut into frames and put together again: docs/serial.md has the protocol."""

import dataclasses
import itertools
from collections import deque
from collections.abc import Callable

import numpy as np

from host.driver.words import Words
from host.transports.link_counters import LinkCounters
from host.transports.serial_frame import Frame

__all__ = ["FRAME_WORDS", "WRAP", "Channel", "Piece"]

#: Payload words of the longest frame that is sent.
FRAME_WORDS = 64

#: Numbers of words are given modulo this in headers.
WRAP = 1 << 16

#: Bounds of the number of frames that may be on the way to a node.
_FEWEST_FRAMES, _MOST_FRAMES = 2.0, 32.0


@dataclasses.dataclass
class Piece:
    """Words of a request packet that go into one frame; ``start`` is the number of the first one."""

    start: int
    payload: bytes
    last: bool

    @property
    def end(self) -> int:
        return self.start + len(self.payload) // 4


class Channel:
    """Packets of one node in both directions. Numbers of words are counted here without wrapping.

    Parameters
    ----------
    number : int
        Number of the node on the board.
    clock : callable
        Seconds as they pass for the board.
    """

    def __init__(self, number: int, clock: Callable[[], float]):
        self.number = number
        self.clock = clock
        self.packets: deque[Words] = deque()
        self.nonce = 0
        self.opened = False
        self.begin(0)

    def begin(self, limit: int) -> None:
        """Begin anew, as after a frame of kind OPEN; ``limit`` is the number of words that the board has room for."""
        self.pieces: deque[Piece] = deque()  # not acknowledged
        self.sent = 0  # of those, how many were sent
        self.queued = 0  # words of all requests
        self.acknowledged = 0
        self.limit = limit
        self.frames = _MOST_FRAMES  # that may be on the way
        self.farthest = 0  # word up to which pieces were sent at least once
        self.expected = 0
        self.partial: list[bytes] = []
        self.owed = 0  # responses
        self.asked = False  # for a gap to be closed
        self.answer = False  # the board is to be told how far it has come
        self.again = False  # and to send the rest again
        self.progressed = self.clock()

    def queue(self, packet: Words) -> None:
        """Take a request packet to be sent."""
        data = packet.astype("<u4").tobytes()
        for start in range(0, len(data), 4 * FRAME_WORDS):
            payload = data[start:start + 4 * FRAME_WORDS]
            self.pieces.append(Piece(self.queued, payload, start + len(payload) == len(data)))
            self.queued += len(payload) // 4
        self.owed += 1

    @property
    def waiting(self) -> bool:
        """Whether something is still to come from the board."""
        return self.sent > 0 or self.owed > 0
    def take(self, frame: Frame, counters: LinkCounters) -> bool:
        """Take a frame of kind DATA from the board, count its gaps and repeats, and tell whether words have come
        through."""
        progress = False
        gone = (frame.acknowledged - self.acknowledged) % WRAP
        if 0 < gone <= self.farthest - self.acknowledged:
            self.acknowledged += gone
            progress = True
            while self.pieces and self.pieces[0].end <= self.acknowledged:
                self.pieces.popleft()
                self.sent = max(self.sent - 1, 0)
                self.frames = min(self.frames + 1 / self.frames, _MOST_FRAMES)
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
        """Send everything again that is not acknowledged; and, if something was lost, less at a time from here on."""
        if self.sent:
            self.frames = max(self.frames / 2, _FEWEST_FRAMES)
        self.sent = 0

    def allowed(self) -> list[Piece]:
        """Pieces that are to be sent and that the board has room for.

        After a loss everything behind it comes in vain, so on a bad line less is sent ahead.
        """
        rest = itertools.islice(self.pieces, self.sent, max(self.sent, int(self.frames)))
        return list(itertools.takewhile(lambda piece: piece.end <= self.limit, rest))

    def frame(self, piece: Piece | None) -> Frame:
        """The frame of a piece; without a piece, one that only answers and asks."""
        again = self.again
        self.answer = self.again = False
        return Frame(node=self.number, again=again, last=piece is not None and piece.last,
                     sequence=(self.farthest if piece is None else piece.start) % WRAP,
                     acknowledged=self.expected % WRAP, payload=b"" if piece is None else piece.payload)
