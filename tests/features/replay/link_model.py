"""Cycle-accurate golden model of both ends of a link with retransmission, as in docs/ring/link.md.

The attributes of an end are its outputs in the current cycle; ``step`` applies the cycle's inputs and advances.
"""

import collections
import dataclasses

from tests.features.replay.check_model import word_check
from tests.features.replay.line_model import MESSAGE, Listener, Message, Speaker

#: Word numbers are counted modulo NUMBERS.
NUMBERS = 1024
_RESTART, _START = 1, 14


@dataclasses.dataclass(frozen=True)
class Word:
    """Values of the forward wires in one cycle."""

    valid: int = 0
    data: int = 0
    last: int = 0
    kind: int = 0
    check: int = 0


def restart_word(number: int, id: int, start: int) -> Word:
    """RESTART or START word, which only the two ends of a link use and which has no number of its own."""
    data = (_START if start else _RESTART) | number << 4 | id << 14
    return Word(1, data, 1, 1, word_check(data, 1, 1, 0))


class Transmitter:
    #: Latency from the first START to the first bit of its answer, in cycles, over wires without delay.
    ENDS = 35
    #: Number of cycles without progress, in addition to the round trip of the wires, before a restart is sent.
    PATIENCE = 4 * MESSAGE + 5
    #: Number of cycles, in addition to ENDS, after which a START is repeated: the first START, and any later one.
    START_AGAIN = (255, 1023)

    def __init__(self, *, segments: int, rows: int = 512, window: int = 255, ports: int = 1) -> None:
        self.segments, self.rows, self.window, self.ports = segments, rows, window, ports
        self.id = self._other_id = 0
        self.reset()

    def reset(self) -> None:
        """Clear all state except the ids of the latest restarts, like a link reset."""
        self._spent = 0  # number of packets that have been started
        self.word = Word()
        self.fresh = self.repeated = self.restarted = 0
        self.write = self.send = self.highest = self.acknowledged = 0
        self.kept: dict[int, Word] = {}  # stored words, keyed by memory row
        self._announced = 0  # field `expect` of the latest message
        self._open = True  # whether the window could hold two more words in the previous cycle
        self._first = True
        self._given = 0  # number of packets known to have left the receiver
        self._confirmed = False  # whether the receiver has confirmed the latest restart
        self._holds = False  # whether words wait for the confirmation of a restart that the receiver did not request
        self.started = False
        # The first restart is a START. It is sent immediately or, with two ports, once a word is waiting.
        self._restart_due = self._asked = self.ports == 1
        self._timer = self._again = 0
        self.at = 0
        self._at_rest = False  # in the previous cycle, nothing was in flight and the other port was selected
        self._round = 0
        self._base = 0  # number with which the link transmits word 0 of the window
        self._other = (0, 0, False, 0)  # base, given, started and round of the link at the other port
        self._listener = Listener()
        # The message received in the previous cycle, if it is plausible, and whether its number is at least the
        # number in the message before it.
        self._heard: tuple[Message, bool] | None = None
        # The word fetched in the previous cycle, with its flags (fresh, repeated, restarted).
        self._fetched: tuple[Word, tuple[int, int, int]] | None = None

    @property
    def delay(self) -> int:
        """One-way latency of the wires, in cycles."""
        return self._round // 2

    @property
    def credits(self) -> int:
        """Number of packets that may still be started."""
        return max(self.segments - (self._spent - self._given) % 16, 0)

    @property
    def home(self) -> int:
        """Whether all words have arrived and all credits have been returned."""
        return int(self.settled() and self.credits == self.segments)

    @property
    def flying(self) -> int:
        """Number of words sent but not acknowledged."""
        return (self.highest - self.acknowledged) % NUMBERS

    def ready(self, control: bool, reset_link: int = 0, port: int = 0) -> tuple[int, int]:
        """Whether a packet word and a control word would be accepted, given whether a control word is offered."""
        room = int((self.write - self.acknowledged) % NUMBERS != self.rows and port == self.at)
        return (1, 1) if reset_link else (int(room and not control), room)

    def settled(self) -> int:
        """Whether all words have been acknowledged."""
        return int(self.write == self.acknowledged)

    def step(self, *, word: tuple[int, int] | None = None, control: int | None = None, line: int = 0,
             reset_link: int = 0, port: int = 0) -> None:
        """Advance one cycle, given the offered words, the bit on the return line, and the selected port."""
        if reset_link:
            self.reset()
            return
        enters, control_enters = self.ready(control is not None, port=port)
        leaves = bool(port != self.at and self._at_rest and not self._restart_due
                      and (self._confirmed or not self.started))
        self._at_rest = bool(port != self.at and self.home and not self._restart_due and self._fetched is None
                             and not self.word.valid and self.send == self.write)
        waits = not self.settled()
        sends, new = self._fetch()
        complete, marked, heard = self._listener.complete, self._listener.marked, self._heard
        message = None if complete is None else Message.parse(complete)
        lost = complete is not None and not self.started and (
            message is None or not self._asked or message.id != self.id)
        begins = complete is not None and not self.started and not lost
        self._heard = None
        if message is not None:
            message = dataclasses.replace(message, expect=(message.expect - self._base) % NUMBERS)
            if (message.expect - self.acknowledged) % NUMBERS <= self.flying:
                self._heard = message, (message.expect - self._announced) % NUMBERS < 256
        self._listener.step(line, lost, leaves)
        idle = self.acknowledged == self.highest and self._confirmed
        restarting = self._restart_due
        self._open = self.flying < self.window - 1

        # Once the link has started, a message takes effect one cycle after its check.
        demanded, news, target = False, False, self.acknowledged
        if heard is not None and self.started:
            said, forward = heard
            latest = said.id == self.id
            demanded = latest and bool(said.recover)
            confirms = latest and not said.recover and not self._confirmed
            news = said.expect != self._announced or confirms
            self._confirmed |= confirms
            self._holds &= not confirms
            self._given = said.given
            if demanded:
                target = said.expect
            # Words are released when two consecutive messages have reported their arrival.
            if forward:
                self.acknowledged = self._announced
            self._announced = said.expect

        if control is not None and control_enters:
            self._keep(Word(1, control, 0, 1))
        elif word is not None and enters:
            self._keep(Word(1, word[0], word[1], 0))
            self._spent = (self._spent + self._first) % 16
            self._first = bool(word[1])
        self.highest = (self.highest + new) % NUMBERS
        self.send = (self.send + sends) % NUMBERS

        self._restart_due = False
        self._timer += 1
        if not self.started:
            if marked:
                self._round = self._timer
            if begins:
                self.started = self._confirmed = True
                self._timer = -self.PATIENCE
            elif restarting:
                self._timer = -self.ENDS
            elif not self._asked:
                self._asked = self._restart_due = waits
            elif self._timer > self.START_AGAIN[self._again]:
                self._again, self._restart_due = 1, True
        elif demanded or self._timer > self._round:
            self._restart_due, self._confirmed, self._timer = True, False, -self.PATIENCE
            # Successive restarts that the receiver did not request have the same id, so that a restart still in
            # flight is not taken for a later one.
            self.id = (self.id + int(demanded or not self._holds)) % 4
            self._holds = not demanded
            self.send = target
        elif news or idle:
            self._timer = -self.PATIENCE
        if leaves:
            self._leave()

    def _leave(self) -> None:
        here = (self._base + self.write) % NUMBERS, self._given, self.started, self._round
        (self._base, self._given, self.started, self._round), self._other = self._other, here
        self.id, self._other_id = self._other_id, self.id
        self._spent = self._given
        self.at = 1 - self.at
        self.write = self.send = self.highest = self.acknowledged = self._announced = 0
        self._open, self._heard = True, None
        self._confirmed = self._asked = self.started
        self._restart_due = False

    def _keep(self, word: Word) -> None:
        self.kept[self.write % self.rows] = word
        self.write = (self.write + 1) % NUMBERS

    def _fetch(self) -> tuple[int, int]:
        """Move words to the output through two registers; return the numbers of fetched and of new words."""
        self.fresh = self.repeated = self.restarted = 0
        self.word = dataclasses.replace(self.word, valid=0)
        if self._fetched is not None:
            self.word, (self.fresh, self.repeated, self.restarted) = self._fetched
        self._fetched = None
        if self._restart_due:
            if not self.started:
                self.id = (self.id + 1) % 4
            number = (self.send + self._base) % NUMBERS
            self._fetched = restart_word(number, self.id, int(not self.started)), (0, 0, int(self.started))
            return 0, 0
        again, opened = self.send != self.highest, self._open
        if not self.started or self._holds or self.send == self.write or not (again or opened):
            return 0, 0
        kept = self.kept[self.send % self.rows]
        check = word_check(kept.data, kept.last, kept.kind, self.send + self._base)
        self._fetched = dataclasses.replace(kept, check=check), (int(not again), int(again), 0)
        return 1, int(not again)


class Receiver:
    #: Latency from a word's entry into the queue until the word is offered, in cycles.
    QUEUE = 3

    def __init__(self, *, segments: int, packet_words: int) -> None:
        self.segments, self.packet_words = segments, packet_words
        self.reset()

    def reset(self) -> None:
        self.held: collections.deque[tuple[int, int, int]] = collections.deque()  # data, last, cycle of the offer
        self._cycle = 0
        self.control: int | None = None
        self.packets = self.overrun = self.failed = self.arrived = self.ended = 0
        self.expect = self.number = 0
        self.given = self.id = 0
        self.recover = True  # whether the receiver waits for a START
        self._word = Word()
        self._position = 0
        self._dropping = False
        self._speaker = Speaker()

    @property
    def line(self) -> int:
        return self._speaker.line

    @property
    def o(self) -> tuple[int, int] | None:
        """Packet word that is offered, as (data, last), or None."""
        return self.held[0][:2] if self.held and self.held[0][2] <= self._cycle else None

    def step(self, *, word: Word, ready: int, control_ready: int = 1, reset_link: int = 0) -> None:
        """Advance one cycle, given the word on the wires and whether the outputs are ready."""
        if reset_link:
            self.reset()
            return
        arrived, self._word = self._word, word
        now = Message(self.expect, self.given, self.id, int(self.recover))
        leaves = self.o is not None and ready and self.held[0][1]
        if self.o is not None and ready:
            self.held.popleft()
        if self.control is not None and control_ready:
            self.control = None

        self.failed = self.arrived = self.ended = 0
        start, enters = False, 0
        if arrived.valid:
            restart = self._restart(arrived)
            if restart is not None:
                number, id, start = restart
                start = start and not (self._speaker.active and id == self.id)
                self.number, self.id, self.recover = number, id, False
            elif not self.recover and self._is_next(arrived):
                if self.number == self.expect:
                    self.expect = (self.expect + 1) % NUMBERS
                    if arrived.kind:
                        self.control = arrived.data
                    else:
                        self.arrived, self.ended = 1, arrived.last
                        enters = self._enter(arrived)
                self.number = (self.number + 1) % NUMBERS
            elif not self.recover:
                self.recover, self.failed = True, 1
        self.packets += enters - leaves
        self.given = (self.given + leaves) % 16
        self._speaker.step(now, bool(start))
        self._cycle += 1

    def _restart(self, word: Word) -> tuple[int, int, bool] | None:
        """Decode a RESTART or START as (number, id, start); return None if the word is neither or is implausible."""
        start = word.data & 15 == _START
        number, id = word.data >> 4 & 1023, word.data >> 14 & 3
        if word != restart_word(number, id, start):
            return None
        known = (self.expect - number) % NUMBERS < 256 and (start or self._speaker.active)
        return (number, id, start) if known else None

    def _is_next(self, word: Word) -> bool:
        """Whether a word is intact, has the expected number and can be stored."""
        if word.check != word_check(word.data, word.last, word.kind, self.number):
            return False
        if word.kind and word.last:
            return False  # the word is a RESTART or START
        return not (word.kind and self.number == self.expect and self.control is not None)

    def _enter(self, word: Word) -> int:
        """Store a packet word; return whether it starts a packet."""
        first = self._position == 0 and not self._dropping
        starts = first and self.packets != self.segments
        stored = not self._dropping and (starts or self._position != 0)
        final = self._position == self.packet_words - 1
        if stored:
            self.held.append((word.data, word.last or int(final), self._cycle + self.QUEUE))
        if not self._dropping and (not stored or (final and not word.last)):
            self.overrun = 1
        self._position = 0 if word.last else (self._position + 1) % (1 << (self.packet_words - 1).bit_length())
        self._dropping = not word.last and (self._dropping or not stored or final)
        return int(starts)
