"""Golden models of messages between rank 0's host and all nodes, and of the gate to the host and the host port.

The models are cycle-accurate and mirror hdl/features/slots/messages.py; docs/ring/slots.md specifies the rules.
"""

import dataclasses
import functools
from collections.abc import Iterable
from typing import Any

__all__ = ["Beat", "Gate", "Header", "Inputs", "Outputs", "check_after", "check_of", "message", "packet"]

_TYPE, _OPCODE, _RESPONSE = 3, 0x40, 0x80
_WORDS, _KEPT = 64, 4

#: A packet word, and whether it is the last one.
Beat = tuple[int, int]


@dataclasses.dataclass(frozen=True)
class Header:
    """Header of a message: its first word."""

    destination: int = 0
    source: int = 0
    count: int = 0
    number: int = 0
    begin: int = 0
    end: int = 0
    response: int = 0

    @property
    def word(self) -> int:
        return (_TYPE | self.destination << 4 | self.source << 8 | self.count << 12 | self.number << 19
                | self.begin << 22 | self.end << 23 | (_OPCODE | self.response * _RESPONSE) << 24)

    @classmethod
    def parse(cls, word: int) -> "Header":
        return cls(word >> 4 & 15, word >> 8 & 15, word >> 12 & 127, word >> 19 & 7, word >> 22 & 1, word >> 23 & 1,
                   word >> 31)


def _step(total: int) -> int:
    """Compute the next check state bit by bit from ``total``, the sum of the previous state and a word."""
    taps = [(27 * n + 30 & 31, 3 * n + 23 & 31, *((12,) if n == 0 else ())) for n in range(32)]
    return sum((sum(total >> tap for tap in places) & 1) << n for n, places in enumerate(taps))


#: Contribution of each byte of the sum (of a state and a word) to the new state.
_STEPS = [[_step(byte << low) for byte in range(256)] for low in (0, 8, 16, 24)]


def check_after(check: int, word: int) -> int:
    """Update the state of a message's check with one more word."""
    total = check ^ word
    return (_STEPS[0][total & 255] ^ _STEPS[1][total >> 8 & 255] ^ _STEPS[2][total >> 16 & 255]
            ^ _STEPS[3][total >> 24])


def check_of(words: Iterable[int]) -> int:
    """Check word to append to a message's words."""
    return functools.reduce(check_after, words, 0)


def packet(header: Header, payload: Iterable[int] = ()) -> list[Beat]:
    """Words of a message as exchanged between the gate and the packet path."""
    words = [header.word, *payload]
    return [(word, int(n == len(words) - 1)) for n, word in enumerate(words)]


def message(header: Header, payload: Iterable[int] = ()) -> list[Beat]:
    """Words of a message as sent in a slot."""
    words = [header.word, *payload]
    return [*((word, 0) for word in words), (check_of(words), 1)]


@dataclasses.dataclass(frozen=True)
class Inputs:
    """Inputs of a message gate in one cycle; a stream offers a word or None."""

    rank: int = 0
    host: Beat | None = None
    port: Beat | None = None
    heard: Beat | None = None
    host_ready: int = 1
    port_ready: int = 1
    message_ready: int = 1
    reset_link: int = 0


@dataclasses.dataclass(frozen=True)
class Outputs:
    """Outputs of a message gate in the same cycle as its inputs."""

    host: Beat | None
    port: Beat | None
    message: Beat | None
    takes_host: int
    takes_port: int


@dataclasses.dataclass(frozen=True)
class _State:
    #: Valid messages; words of an incoming message and its ``check`` so far; and a message that ended in the
    #: previous cycle, which is dropped if ``refused`` because the buffer was full.
    kept: tuple[tuple[Beat, ...], ...] = ()
    coming: tuple[Beat, ...] = ()
    check: int = 0
    ended: tuple[Beat, ...] | None = None
    refused: bool = False
    #: Position of the word being read in the oldest message, and the header while its words are sent.
    place: int | None = None
    header: Header | None = None
    #: Whether the port is handling a request from the host, and whether more of its words follow (``entering``).
    local: bool = False
    entering: bool = False
    #: Whether the port is handling a request from messages, and whether more messages follow (``open``).
    remote: bool = False
    open: bool = False
    due: int = 0  # expected number of the next message
    responding: bool = False  # whether a response to the host has started
    owes: bool = False  # whether an empty message must be sent as an answer
    words: tuple[int, ...] = ()  # sent words of an unfinished message
    held: bool = False  # whether the rest of an answer is waiting or, at rank 0, the host's packet is dropped
    fresh: bool = True  # whether no part of an answer has been sent yet


class Gate:
    """Message gate of a node."""

    def __init__(self) -> None:
        self.state = _State()

    def _offers(self, at: Inputs) -> bool:
        """Whether the host is offering the first word of a message."""
        return not at.rank and at.host is not None and at.host[0] & 15 == _TYPE and at.host[0] >> 24 == _OPCODE

    def _enters(self, at: Inputs) -> bool:
        """Whether the port can accept the host's words in this cycle."""
        s = self.state
        message = not at.rank and (s.held or bool(s.words) or self._offers(at))
        return s.entering or not (s.local or s.remote or message)

    def _head(self) -> Header | None:
        """Header of the oldest message before the message is accepted or dropped, or None."""
        s = self.state
        return Header.parse(s.kept[0][0][0]) if s.place == 0 and s.header is None else None

    def _read(self, at: Inputs) -> Beat | None:
        """Message word offered to the port or, at rank 0, to the host."""
        s, head = self.state, self._head()
        if s.place is None or (s.header is None and not (at.rank and head and head.count and head.begin and s.open)):
            return None
        word, last = s.kept[0][s.place]
        if s.header is None:
            return word, 1  # ``last`` ends the open request, since a new one begins
        return word, int(last or bool(at.rank and s.place == s.header.count and s.header.end))

    def _make(self, at: Inputs) -> int | None:
        """Message word that the gate offers to the packet path."""
        s, source = self.state, at.port if at.rank else at.host
        if at.reset_link:
            return None
        if s.words:
            return source[0] if source else None
        if at.rank:
            answers = at.port is not None and s.remote and not s.held
            header = Header(source=at.rank, begin=int(s.fresh and not s.owes), response=1)
            return header.word if s.owes or answers else None
        return source[0] if source and self._offers(at) and not s.entering and not s.held else None

    def _ends(self, at: Inputs) -> bool:
        """Whether the offered word is the last one of the message."""
        s, source = self.state, at.port if at.rank else at.host
        if not s.words and at.rank:
            return s.owes
        return bool(source and source[1]) or len(s.words) == _WORDS

    def look(self, at: Inputs) -> Outputs:
        """Outputs of the gate in a cycle with the given inputs."""
        s, read, enters, made = self.state, self._read(at), self._enters(at), self._make(at)
        makes = not at.reset_link and at.message_ready  # whether a word from the source would be accepted
        to_host = None if at.rank else read
        if at.rank:
            takes_host = enters and at.port_ready
        else:
            takes_host = ((enters and at.port_ready) or (s.held and not s.words)
                          or (makes and not s.entering and not s.held and bool(s.words or self._offers(at))))
        return Outputs(
            host=to_host or (None if s.remote else at.port), port=at.host if enters else read if at.rank else None,
            message=None if made is None else (made, int(self._ends(at))), takes_host=int(takes_host),
            takes_port=int(bool(s.words) and makes if s.remote else at.host_ready and to_host is None))

    def step(self, at: Inputs) -> None:
        """Simulate one cycle of the gate."""
        s, out = self.state, self.look(at)
        new: dict[str, Any] = {}
        if self._enters(at) and at.host and at.port_ready:
            new |= {"entering": not at.host[1], "local": True}
        if at.port and out.takes_port and not s.remote:
            new["responding"] = not at.port[1]
            if at.port[1]:
                new["local"] = False
        new |= self._step_reader(at)
        new |= self._step_maker(at, out)
        new |= self._step_store(at, new)
        self.state = dataclasses.replace(s, **new)

    def _step_reader(self, at: Inputs) -> dict[str, Any]:
        s, head = self.state, self._head()
        done = {"place": None, "header": None, "kept": s.kept[1:]}
        if s.place is None:
            return {"place": 0} if s.kept else {}
        if s.header is not None:
            if not (at.port_ready if at.rank else at.host_ready):
                return {}
            if not s.kept[0][s.place][1] and not (at.rank and s.place == s.header.count):
                return {"place": s.place + 1}
            read = self._read(at)
            more = bool(at.rank and read and not read[1])
            return {**done, "open": more, "owes": more}
        assert head is not None
        released = {"held": False} if at.rank and (head.begin or not head.count) else {}
        if not at.rank:
            starts, drops = not s.responding and at.port is None, False
        elif not head.count:
            starts, drops = False, True
        elif head.begin:
            starts, drops = not (s.remote or s.local or s.entering or at.host), False
            if s.open and at.port_ready:
                released["open"] = False
        else:
            drops = not (s.open and head.number == s.due)
            starts = not drops and not s.owes
        if starts:
            return {**released, "header": head, "place": int(at.rank > 0), "remote": at.rank > 0,
                    "due": (head.number + 1) % 8}
        return {**released, **(done if drops else {})}

    def _step_maker(self, at: Inputs, out: Outputs) -> dict[str, Any]:
        s, source = self.state, at.port if at.rank else at.host
        if at.reset_link and s.words:
            return {"words": (), "held": True, "fresh": False}
        if not at.rank and s.held and not s.words:
            return {"held": False} if at.host and at.host[1] else {}
        if not out.message or not at.message_ready:
            return {}
        word, last = out.message
        words = () if last else (*s.words, word)
        if not s.words:
            return {"words": words, **({"owes": False} if at.rank else {})}
        if source and source[1]:
            return {"words": words, "remote": False, "fresh": True}
        return {"words": words, **({"held": True, "fresh": False} if last else {})}

    def _step_store(self, at: Inputs, new: dict[str, Any]) -> dict[str, Any]:
        s = self.state
        changes: dict[str, Any] = {"ended": None}
        if s.ended is not None and not s.check and not s.refused:
            changes["kept"] = (*new.get("kept", s.kept), s.ended)
        if at.heard:
            coming = (*s.coming, at.heard)
            changes |= {"check": check_after(s.check, at.heard[0]), "refused": s.refused or len(s.kept) == _KEPT,
                        "coming": () if at.heard[1] else coming, "ended": coming if at.heard[1] else None}
        if s.ended is not None:
            changes |= {"check": 0, "refused": False}
        if at.reset_link:
            changes |= {"coming": (), "check": 0, "ended": None, "refused": False}
        return changes
