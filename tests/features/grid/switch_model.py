"""Golden model of the switch between a node's ports and its links, cycle by cycle.

A link's wires are represented as two tuples: the forward wires, starting with ``valid``, and the return wires.
"""

import dataclasses
from collections.abc import Sequence

#: Possible sources of an output port; BYPASS + n forwards the words received on port n.
OFF, ENGINE, BYPASS = range(3)

Wires = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Setting:
    """Switch setting: the source of each sending port, and whether the node listens to each receiving port."""

    sources: tuple[int, int] = (OFF, OFF)
    listens: tuple[bool, bool] = (False, False)

    def passes(self, port: int) -> int | None:
        """Sending port that forwards the words received on ``port``, or None."""
        return next((other for other in range(2) if self.sources[other] == BYPASS + port), None)


class LinkSwitch:
    def __init__(self, forward: int, back: int) -> None:
        self.words: list[Wires] = [(0,) * forward, (0,) * forward]
        self.answers: list[Wires] = [(0,) * back, (0,) * back]

    def received(self, setting: Setting, words: Sequence[Wires]) -> list[Wires]:
        """Forward wires that both receivers see in this cycle, given the wires at the receiving ports."""
        return [(word[0] & (setting.listens[port] and setting.passes(port) is None), *word[1:])
                for port, word in enumerate(words)]

    def answered(self, setting: Setting, port: int, answers: Sequence[Wires]) -> Wires:
        """Return the wires that the transmitter sees in this cycle if it sends through ``port``."""
        return answers[port] if setting.sources[port] == ENGINE else (0,) * len(answers[port])

    def tick(self, setting: Setting, port: int, words: Sequence[Wires], answers: Sequence[Wires], sent: Wires,
             returned: Sequence[Wires]) -> None:
        nothing = (0,) * len(sent)
        for sink, source in enumerate(setting.sources):
            word = nothing
            if source >= BYPASS:
                word = words[source - BYPASS]
            elif source == ENGINE and port == sink:
                word = sent
            self.words[sink] = word if word[0] else (0, *self.words[sink][1:])
        for receives in range(2):
            passed = setting.passes(receives)
            if passed is not None:
                self.answers[receives] = answers[passed]
            elif setting.listens[receives]:
                self.answers[receives] = returned[receives]
            else:
                self.answers[receives] = (0,) * len(returned[receives])
