"""The time after which words that nobody has acknowledged are sent again."""

from collections.abc import Callable

__all__ = ["LONGEST", "Patience"]

#: Seconds without an answer after which words are sent again, until the board's own pace is known.
_FIRST = 0.25
#: Bounds of that time, in seconds.
_SHORTEST, LONGEST = 0.05, 0.5
#: Seconds between two looks at the port that nobody can blame the board for.
_AWAY = 0.1


class Patience:
    """Choice of the time to wait for the board before words are sent again.

    The board acknowledges every frame, so the time since the last frame from it counts, however much is on the way:
    its mean and deviation, as in TCP (RFC 6298). Time in which nobody looked at the port does not count.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._mean: float | None = None
        self._deviation = 0.0
        self._usual = _FIRST
        self._longer = 1.0
        self._heard = self._asked = self._looked = self._clock()

    def look(self) -> None:
        """Note that the port is looked at."""
        now = self._clock()
        away = now - self._looked
        self._looked = now
        if away > _AWAY:
            self._heard += away
            self._asked += away

    def begin(self) -> None:
        """Begin to wait for the board."""
        self._heard = self._asked = self._looked = self._clock()

    def hear(self) -> None:
        """Note that a frame has come."""
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
        """Note that words have come through."""
        self._longer = 1.0

    def ends(self) -> bool:
        """Whether it is time to ask again; if so, the next time is later."""
        now = self._clock()
        if now - self._asked <= self._usual * self._longer:
            return False
        self._asked = now
        self._longer = min(2 * self._longer, LONGEST / self._usual)
        return True

    @property
    def silence(self) -> float:
        """Seconds since the last frame."""
        return self._clock() - self._heard
