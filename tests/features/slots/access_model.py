"""Golden models of hdl/features/slots/access.py and place.py, based on docs/ring/slots.md."""

import dataclasses

_ONCE, _WORDS = (6, 7, 9, 10), 8
_PLACE, _PERIOD = 13, 1024

#: A packet word as (word, last).
Beat = tuple[int, int]


@dataclasses.dataclass(frozen=True)
class Answered:
    """Outputs in a cycle: word to the port, word of the answer, and whether a word is accepted from each side."""

    port: Beat | None
    answer: Beat | None
    takes: int
    takes_port: int


class AnswerCache:
    """Keep the answer to the most recent request, in case the request is repeated.

    ``kept`` is that answer, and ``latest`` is the opcode and tag of its request. ``phase`` is "request" for one cycle
    while a request is examined, and then "words" or "answer". ``drops`` is set for a repeated request.
    """

    def __init__(self) -> None:
        self.phase, self.latest, self.drops = "request", 0, False
        self.kept: list[Beat] | None = None
        self.answer: list[Beat] | None = None  # words of the current answer so far, if the answer must be kept
        self.place = 0

    def look(self, *, word: Beat | None, port: Beat | None, port_ready: int, ready: int, direct: int) -> Answered:
        """Compute the outputs in a cycle from its inputs."""
        passes, plays = self.phase == "words", self.drops and self.phase == "answer"
        answer = None if self.drops else port
        if plays:
            assert self.kept is not None
            answer = self.kept[self.place]
        return Answered(port=word if passes and not self.drops else None, answer=answer,
                        takes=int(passes and (self.drops or port_ready)), takes_port=int(ready and not self.drops))

    def step(self, *, word: Beat | None, port: Beat | None, port_ready: int, ready: int, direct: int) -> None:
        out = self.look(word=word, port=port, port_ready=port_ready, ready=ready, direct=direct)
        if self.phase == "request":
            self.place, self.drops = 0, False
            if word is not None:
                self.drops = self.kept is not None and not direct and word[0] >> 16 == self.latest
                if not self.drops:
                    self.latest, self.kept = word[0] >> 16, None
                    self.answer = [] if word[0] >> 24 in _ONCE else None
                self.phase = "words"
        elif self.phase == "words" and word is not None and out.takes and word[1]:
            self.phase = "answer"
        elif self.phase == "answer" and out.answer is not None and ready:
            self.place += 1
            if not self.drops and self.answer is not None:
                self.answer = [*self.answer, out.answer] if len(self.answer) < _WORDS else None
            if out.answer[1]:
                if not self.drops:
                    self.kept = self.answer
                self.phase = "request"


def place_word(rank: int, size: int) -> int:
    return _PLACE | rank << 12 | size << 16


class PositionRelay:
    """Model of the relay for node positions, which start at rank 0; ``o`` is the word that is offered."""

    def __init__(self) -> None:
        self.heard = (0, 0)
        self.before = (0, 0)
        self.o: int | None = None
        self.next: tuple[int, int] | None = None  # position that the relay sends next
        self.last = (0, 0)
        self.waited, self.home = 0, False

    def place(self, given: tuple[int, int]) -> tuple[int, int]:
        """Rank and size that apply to the node: either as given, or as received from rank 0."""
        return given if not self.heard[1] or (given[0] == 0 and given[1] > 1) else self.heard

    def step(self, *, word: int | None, ready: int, given: tuple[int, int]) -> None:
        master, position = given[0] == 0 and given[1] > 1, self.place(given)
        came = None
        if word is not None and word == place_word(word >> 12 & 15, word >> 16 & 31):
            came = (word >> 12 & 15, word >> 16 & 31)
        if ready or self.o is None:
            self.o = None if self.next is None else place_word(self.next[0], position[1])
            self.next = None
        if master:
            if came is not None and came[1] == given[1]:
                self.home, returned = True, not self.home
            else:
                returned = False
            if self.waited == 0 and not (self.home and not returned):
                self.next = (1, position[1])
            self.waited = (self.waited + 1) % _PERIOD
        elif came is not None:
            self.heard, self.next = came, ((came[0] + 1) % 16, came[1])
        if position != self.before:
            self.home, self.waited = False, 0
        self.before = position
