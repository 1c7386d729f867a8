"""Cycle-accurate golden model of both ends of a link's return line, :mod:`hdl.features.replay.line`."""

import dataclasses

from tests.features.replay.check_model import crc8

#: Number of bits in a message, and in the gap that precedes the first message.
MESSAGE = 30
#: Position in a message of the bit that reports whether the receiver waits for a restart.
_RECOVER = 21


@dataclasses.dataclass(frozen=True)
class Message:
    expect: int = 0
    given: int = 0
    id: int = 0
    recover: int = 0

    def fields(self) -> list[int]:
        """Bits 1 to 21 of the message, which follow the start bit."""
        value = self.expect | self.given << 10 | (self.given ^ 15) << 14 | self.id << 18 | self.recover << 20
        return [value >> n & 1 for n in range(21)]

    def bits(self) -> list[int]:
        """All bits of the message in transmission order."""
        bits = [1, *self.fields()]
        check = crc8(bits)
        return bits + [check >> n & 1 for n in range(7, -1, -1)]

    @classmethod
    def parse(cls, bits: list[int]) -> "Message | None":
        """Decode the 30 bits of a message; return None if it is damaged."""
        value = sum(bit << n for n, bit in enumerate(bits[1:22]))
        count = value >> 10 & 15
        if not bits[0] or crc8(bits) or value >> 14 & 15 != count ^ 15:
            return None
        return cls(value & 1023, count, value >> 18 & 3, value >> 20)


class Speaker:
    """Receiver's end of the return line: silent until started, then sends a gap and an endless sequence of messages.
    """

    def __init__(self) -> None:
        self.line = 0
        self._bits: list[int] | None = None
        self._sent: list[int] = []

    @property
    def active(self) -> bool:
        return self._bits is not None

    def step(self, now: Message, start: bool) -> None:
        """Advance one cycle; a message holds the state at its start, except ``recover``, which is sampled later."""
        if self._bits is None:
            self.line = 0
        elif self._bits:
            self.line = self._bits.pop(0)
        else:
            if len(self._sent) == MESSAGE:
                self._sent = []
            if not self._sent:
                self._message = now
            if len(self._sent) == _RECOVER:
                self._message = dataclasses.replace(self._message, recover=now.recover)
            self.line = self._message.bits()[len(self._sent)]
            self._sent.append(self.line)
        if start:
            self._bits, self._sent = [0] * MESSAGE, []


class Listener:
    """Transmitter's end of the return line: aligns to the first message after a gap and stays aligned."""

    def __init__(self) -> None:
        self.complete: list[int] | None = None
        self.marked = False
        self._zeros = 0
        self._bits: list[int] | None = None  # bits of the current message, or None while unaligned
        self._whole = True  # whether this line carried all bits of the current message
        self._other: int | None = None  # position in the message on the line of the other port

    def step(self, line: int, lost: bool, swap: bool = False) -> None:
        """Advance one cycle; ``lost`` reports a misaligned message, and ``swap`` switches to the other line."""
        if self._other is not None:
            self._other = (self._other + 1) % MESSAGE
        self._step(line, lost)
        if swap:
            here = None if self._bits is None else len(self._bits)
            self._bits, self._whole = (None, True) if self._other is None else ([0] * self._other, False)
            self._other, self._zeros = here, 0
            self.complete, self.marked = None, False

    def _step(self, line: int, lost: bool) -> None:
        self.complete, self.marked = None, False
        if lost:
            self._bits, self._zeros = None, 0
        elif self._bits is not None:
            self._bits.append(line)
            if len(self._bits) == MESSAGE:
                self.complete = self._bits if self._whole else None
                self._bits, self._whole = [], True
        elif not line:
            self._zeros = min(self._zeros + 1, MESSAGE)
        else:
            if self._zeros == MESSAGE:
                self._bits, self.marked = [1], True
            self._zeros = 0
