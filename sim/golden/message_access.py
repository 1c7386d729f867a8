"""Golden models of what a node with messages has beside their gate, cycle by cycle: the keeper of answers, and the
relay of places.

Mirrors hdl/ring/slots/access.py and place.py; docs/ring/messages.md has the rules.
"""

import dataclasses

__all__ = ["AnswerKeeper", "Answered", "PlaceRelay", "place_word"]

_ONCE, _WORDS = (6, 7, 9, 10), 8
_PLACE, _PERIOD = 13, 1024

#: A word of a packet, and whether it is the last.
Beat = tuple[int, int]


@dataclasses.dataclass(frozen=True)
class Answered:
    """What goes out in a cycle: words to the port and of the answer, and whether requests and the port's words are
    taken."""

    port: Beat | None
    answer: Beat | None
    takes: int
    takes_port: int


class AnswerKeeper:
    """Keep the answer to the latest request, for the case that it comes again.

    ``kept`` is that answer, with opcode and tag of its request. ``phase`` is what comes next: the first word of a
    request, more of its words, its answer; or, of one that has come again, its words, or the answer that is kept.
    """

    def __init__(self) -> None:
        self.phase, self.latest = "request", 0
        self.kept: list[Beat] | None = None
        self.answer: list[Beat] | None = None  # as far as it has come, if it is to be kept
        self.place = 0

    def _drops(self, word: Beat | None, direct: int) -> bool:
        again = self.kept is not None and not direct and word is not None and word[0] >> 16 == self.latest
        return self.phase == "again" or (self.phase == "request" and again)

    def look(self, *, word: Beat | None, port: Beat | None, port_ready: int, ready: int, direct: int) -> Answered:
        """Outputs in a cycle with these inputs."""
        drops, plays = self._drops(word, direct), self.phase == "play"
        assert not plays or self.kept is not None
        return Answered(port=None if drops else word,
                        answer=self.kept[self.place] if plays and self.kept is not None else port,
                        takes=int(drops or port_ready), takes_port=int(ready and not plays))

    def step(self, *, word: Beat | None, port: Beat | None, port_ready: int, ready: int, direct: int) -> None:
        """One cycle."""
        out = self.look(word=word, port=port, port_ready=port_ready, ready=ready, direct=direct)
        taken = word if out.takes else None
        if self.phase == "request" and taken is not None:
            drops, self.place = self._drops(word, direct), 0
            if not drops:
                self.latest, self.kept = taken[0] >> 16, None
                self.answer = [] if taken[0] >> 24 in _ONCE else None
            self.phase = ("play" if drops else "answer") if taken[1] else ("again" if drops else "words")
        elif self.phase in ("words", "again") and taken is not None and taken[1]:
            self.phase = "answer" if self.phase == "words" else "play"
        elif self.phase == "answer" and port is not None and out.takes_port:
            if self.answer is not None:
                self.answer = [*self.answer, port] if len(self.answer) < _WORDS else None
            if port[1]:
                self.kept, self.phase = self.answer, "request"
        elif self.phase == "play" and ready:
            assert out.answer is not None
            self.place += 1
            if out.answer[1]:
                self.phase = "request"


def place_word(rank: int, size: int) -> int:
    """PLACE for the node of a rank."""
    return _PLACE | rank << 12 | size << 16


class PlaceRelay:
    """Tell places from rank 0 on: ``o`` is the word that is offered."""

    def __init__(self) -> None:
        self.heard = (0, 0)
        self.before = (0, 0)
        self.o: int | None = None
        self.next: tuple[int, int] | None = None  # place that is to be told
        self.last = (0, 0)
        self.waited, self.home = 0, False

    def place(self, given: tuple[int, int]) -> tuple[int, int]:
        """Rank and size that the node has."""
        return given if not self.heard[1] or (given[0] == 0 and given[1] > 1) else self.heard

    def step(self, *, word: int | None, ready: int, given: tuple[int, int]) -> None:
        """One cycle."""
        master, place = given[0] == 0 and given[1] > 1, self.place(given)
        came = None
        if word is not None and word == place_word(word >> 12 & 15, word >> 16 & 31) and word >> 16 & 31 > 1:
            came = (word >> 12 & 15, word >> 16 & 31)
        if ready or self.o is None:
            self.o = None if self.next is None else place_word(self.next[0], place[1])
            self.next = None
        if master:
            if came == (given[1] % 16, given[1]):
                self.home, returned = True, not self.home
            else:
                returned = False
            if self.waited == 0 and not (self.home and not returned):
                self.next = (1, place[1])
            self.waited = (self.waited + 1) % _PERIOD
        elif came is not None:
            self.heard, self.next = came, ((came[0] + 1) % 16, came[1])
        if place != self.before:
            self.home, self.waited = False, 0
        self.before = place
