"""Server for requests from ranks, in the process that owns the ring.

Requests arrive over a Unix socket, with one connection per rank. An operation is carried out once every rank has
requested it. If a rank ends or requests something different, all ranks receive the same error. A connection that does
not start like a rank's is closed without affecting the rest.
"""

import dataclasses
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from host.driver.diagnosis import RingError
from host.driver.errors import DeviceError
from host.jobs.job import JobError
from host.options import COUNT, Section, option
from host.printable import printable
from host.pytorch.jobs import Operations, WatchedJobs
from host.pytorch.messages import (
    MESSAGES,
    RING,
    Answer,
    Asked,
    Failed,
    Hello,
    Leave,
    Listen,
    Request,
    Save,
    difference_text,
)
from host.sockets.connections import Ended, Limits, Peer, Server

__all__ = ["Patience", "RingServer", "by_name"]

#: Seconds to wait for a reason after a rank closes its connection.
_REASON = 1.0
#: Seconds to wait for the actual cause after a rank fails with an error that another rank may have caused.
_CAUSE = 0.5
#: Errors of an operation with a message for the user. A ValueError means that a request was rejected before nodes
#: received any values. After any other error, the ring stops serving requests.
_NAMED = (RingError, DeviceError, JobError, OSError)
#: Maximum length of a rank's error text in a reported reason.
_MAX_TEXT = 500
#: Maximum number of connections from unknown peers: this factor times (number of ranks + 4).
_UNKNOWN = 4
#: Seconds added to a message's timeout, so that the waiting ranks time out first, with a clearer error.
_LATER = 1.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Patience(Section):
    """Options for how long ranks that have sent a request wait for the remaining ranks."""

    timeout: float = option(
        600.0, help="Seconds that ranks wait for the others; must be less than the timeout of init_process_group.",
        minimum=0, maximum=COUNT)
    slow: float = option(10.0, help="Seconds of waiting after which the late ranks are reported.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.slow < self.timeout:
            raise ValueError(f"Slow ranks must be named after more than 0 seconds and before the timeout of "
                             f"{self.timeout:g}, not after {self.slow!r}")


def by_name(backend: str) -> str:
    """Return the error text, with a remedy, for scripts that request a different backend by name."""
    return f"the script asked for {backend} by name: leave the name out, or say {RING}"


def _numbers(ranks: list[int]) -> str:
    """Format ranks as names in a sentence."""
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


class RingServer:
    """Server that holds the connections of all ranks and executes the jobs that they request. ``say`` is called with
    lines about slow ranks and closed connections."""

    def __init__(self, address: Path, *, ranks: int, jobs: Operations | WatchedJobs, patience: Patience,
                 say: Callable[[str], None] = lambda text: None) -> None:
        self._ranks, self._jobs, self._patience, self._say = ranks, jobs, patience, say
        self._server = Server(address, MESSAGES, limits=Limits(unknown=_UNKNOWN * (ranks + 4),
                                                               seconds=patience.timeout + _LATER))
        self._advice = "give gradring launch a longer --timeout"
        self._connections: dict[int, Peer] = {}
        self._left: set[int] = set()
        self._lost: dict[int, float] = {}
        self._failed: dict[int, tuple[float, Failed, Peer]] = {}
        self._asked: dict[int, Request] = {}
        self._serving: list[int] = []
        self._listeners: list[Peer] = []
        self._lock = threading.Lock()
        self._stopped: dict[int, tuple[float, bool]] = {}
        self._since = 0.0
        self._named = False
        self.error: str | None = None  # reason why requests are no longer served, or None
        self.slow = [0] * ranks  # how often each rank was reported as slow
        # For each gloo collective of ranks that have left: calls, bytes, and calls that add floating-point numbers.
        self.gloo: dict[str, tuple[int, int, int]] = {}
        # Backends of the groups of all ranks that each rank has joined: the ring, and backends requested by name.
        self.backends: dict[int, list[str]] = {}
        self.seconds = 0.0  # longest time of ranks that have left, in operations since they were last announced
        self.begun = 0  # number of ranks that have started to run the script
        self.since = time.monotonic()  # time when the server or, later, the last rank started

    def close(self) -> None:
        """Close the server and all its connections."""
        self._server.close()

    def poll(self, timeout: float) -> None:
        """Serve messages that arrive within ``timeout`` seconds."""
        for peer, message in self._server.poll(timeout):
            if isinstance(message, Ended):
                self._end(peer, message)
            elif peer.ended is None:
                self._receive(peer, message)
        for rank, since in self._lost.items():
            if time.monotonic() - since > _REASON:
                self.fail(f"Rank {rank} has ended; the others cannot go on without it")
        self._blame()
        self._serve()

    def fail(self, reason: str) -> None:
        """Send an error to every rank, now or in response to its next request."""
        with self._lock:
            self._note(reason)
        for rank in list(self._asked):
            del self._asked[rank]
            self._answer(rank, Answer(well=False, value=self.error))

    def ended(self, rank: int, reason: str) -> None:
        """Record that a rank has ended, and why. The other ranks fail unless that rank had left properly."""
        if rank not in self._left and any(RING in self.backends[other] for other in self._connections):
            self.fail(f"Rank {rank} has ended, {reason}; the others cannot go on without it")

    def stopped(self, ranks: Sequence[int]) -> None:
        """Record the ranks that are stopped by a signal; called periodically. They count as slow even if no ring
        operation is pending, because other ranks may wait for them in gloo."""
        now = time.monotonic()
        self._stopped = {rank: self._stopped.get(rank, (now, False)) for rank in ranks}
        if self._asked:  # the pending operation will report slow ranks
            return
        for rank, (since, named) in list(self._stopped.items()):
            if now - since > self._patience.timeout:
                self.fail(f"Rank {rank} must run, and has been stopped by a signal for {self._patience.timeout:g} "
                          f"seconds: continue it by SIGCONT, or {self._advice}")
            elif now - since > self._patience.slow and not named:
                self._stopped[rank] = since, True
                self.slow[rank] += 1
                self._say(f"rank {rank} has been stopped by a signal for {now - since:.1f} s")

    def interrupt(self, reason: str) -> None:
        """Send an error to all ranks of the current operation. Called in a different thread than :meth:`poll`."""
        with self._lock:
            self._note(reason)
            for rank in self._serving:
                self._answer(rank, Answer(well=False, value=self.error))
            self._serving = []

    def _note(self, reason: str) -> None:
        """Record the first reason why ranks cannot continue, and send it to the listening ranks."""
        if self.error is None:
            self.error = printable(reason)
        for peer in self._listeners:
            peer.send(Answer(well=False, value=self.error))
        self._listeners = []

    def _blame(self) -> None:
        """Answer failed ranks. The first failure is reported as the reason; if another rank may have caused it, wait
        a short time for the actual cause."""
        for rank, (since, failure, peer) in sorted(self._failed.items(), key=lambda item: item[1][0]):
            own = failure.own or (time.monotonic() - since > _CAUSE and not self._lost)
            if self.error is None and not own:
                continue
            del self._failed[rank]
            if self.error is not None:
                peer.send(Answer(well=False, value=self.error))
                continue
            self.fail(f"Rank {rank} has ended by {failure.error[:_MAX_TEXT]}; the others cannot go on without it")
            peer.send(Answer(well=True))

    def _end(self, peer: Peer, end: Ended) -> None:
        """Handle the end of a rank's connection."""
        rank = peer.owner
        if rank is None or self._connections.get(rank) is not peer:
            if end.reason and not peer.admitted:
                self._say(f"a connection to the ring was closed, since it is not that of a rank: it "
                          f"{printable(end.reason)}")
            return
        del self._connections[rank]
        if end.reason:
            self.fail(f"Rank {rank} {end.reason}")
        elif rank not in self._left:
            self._lost[rank] = time.monotonic()

    def _receive(self, peer: Peer, message: Any) -> None:
        """Process a message. The owner of a connection is its rank, once that is known."""
        rank = peer.owner
        if isinstance(message, Hello) and (rank is None or (
                rank == message.rank and message.backend not in self.backends[rank])):
            self._greet(peer, message)
        elif isinstance(message, Listen) and not peer.admitted:
            peer.admitted = True
            self._listeners.append(peer)
            self.begun, self.since = self.begun + 1, time.monotonic()
            if self.error is not None:
                self.fail(self.error)
        elif isinstance(message, Failed) and message.rank < self._ranks:
            peer.admitted = True
            self._failed[message.rank if rank is None else rank] = time.monotonic(), message, peer
        elif rank is None or rank in self._asked or not isinstance(message, Leave | Save | Request):
            peer.close(f"must send a message that can come here, not {type(message).__name__}")
        elif isinstance(message, Leave):
            self._left.add(rank)
            self.seconds = max(self.seconds, message.seconds)
            for name, counts in message.gloo.items():
                before = self.gloo.get(name, (0, 0, 0))
                calls, size, sums = (old + new for old, new in zip(before, counts, strict=True))
                self.gloo[name] = calls, size, sums
            self._answer(rank, Answer(well=True))
        elif isinstance(message, Save):
            self._try([rank], lambda: self._jobs.save(message))
        else:
            if not self._asked:
                self._since, self._named = time.monotonic(), False
            self._asked[rank] = message
            if self.error is not None:
                self.fail(self.error)

    def _greet(self, peer: Peer, message: Hello) -> None:
        """Add a rank to the group of all ranks. The ring's timeout is limited to the group's gloo timeout."""
        reason = None
        if not 0 <= message.rank < self._ranks or (message.backend == RING and message.ranks != self._ranks):
            reason = f"Process group of the ring must have all {self._ranks} ranks, not {message.ranks}"
        elif self._connections.get(message.rank, peer) is not peer:
            reason = f"Rank {message.rank} must join the ring once"
        elif message.timeout <= 0:
            reason = f"Timeout of init_process_group must be above 0 seconds, not {message.timeout:g}"
        peer.admitted = True
        if reason is not None:
            self.fail(reason)
            peer.send(Answer(well=False, value=reason))
            return
        if message.timeout <= self._patience.timeout:
            self._patience = Patience(timeout=message.timeout, slow=min(self._patience.slow, message.timeout / 2))
            self._advice = "give init_process_group a longer timeout"
            self._server.limits = dataclasses.replace(self._server.limits, seconds=message.timeout + _LATER)
        peer.owner = message.rank
        self._connections[message.rank] = peer
        if message.backend != RING and not any(message.backend in names for names in self.backends.values()):
            self._say(printable(by_name(message.backend)))
        self.backends.setdefault(message.rank, []).append(message.backend)
        self._answer(message.rank, Answer(well=True))

    def _answer(self, rank: int, answer: Answer) -> None:
        if rank in self._connections:
            self._connections[rank].send(answer)

    def _try(self, ranks: list[int], action: Callable[[], Any]) -> None:
        """Send the result of an action, or its error, to some ranks, unless the action is interrupted."""
        self._serving = ranks
        fatal = True
        try:
            frame, reason = MESSAGES.encode(Answer(well=True, value=action())), ""
        except _NAMED as error:
            reason = str(error)
        except ValueError as error:
            fatal, reason = False, str(error)
        except Exception as error:  # report any error to the ranks, so that the launcher ends properly
            reason = f"{type(error).__name__}: {error}"
        with self._lock:
            if reason:
                frame = MESSAGES.encode(Answer(well=False, value=printable(reason)))
                if fatal:
                    self._note(reason)
            for rank in self._serving:
                if rank in self._connections:
                    self._connections[rank].post(frame)
            self._serving = []

    def _serve(self) -> None:
        """Execute the operation if all ranks have requested it; otherwise report the ranks that have not."""
        if not self._asked:
            return
        missing = [rank for rank in range(self._ranks) if rank not in self._asked]
        first = self._asked[min(self._asked)]
        if gone := [rank for rank in missing if rank in self._left]:
            self.fail(f"{_numbers(gone).capitalize()} {'has' if len(gone) == 1 else 'have'} left, and "
                      f"{_numbers(sorted(self._asked))} {'waits' if len(self._asked) == 1 else 'wait'} for "
                      f"{first.title}")
        elif other := [request for _, request in sorted(self._asked.items())
                       if (type(request), request.title, request.made) != (type(first), first.title, first.made)]:
            self.fail(self._difference(first, other[0]))
        elif not missing:
            requests = [self._asked.pop(rank) for rank in range(self._ranks)]
            self._try(list(range(self._ranks)), lambda: self._jobs.answer(requests))
        else:
            self._wait(missing, first)

    def _difference(self, first: Request, other: Request) -> str:
        """Return a sentence about two requests that disagree."""
        ranks = {id(request): rank for rank, request in self._asked.items()}
        return difference_text(*(Asked(ranks[id(request)], request.title,
                                       None if request.made is None else str(request.made))
                                 for request in (first, other)))

    def _wait(self, missing: list[int], first: Request) -> None:
        """Report slow ranks, and fail after the timeout."""
        waited = time.monotonic() - self._since
        waiting = _numbers(sorted(self._asked))
        if waited > self._patience.timeout:
            self.fail(f"{_numbers(missing).capitalize()} must ask for {first.title} within "
                      f"{self._patience.timeout:g} seconds, as {waiting} did: look for what holds "
                      f"{'it' if len(missing) == 1 else 'them'} up, or {self._advice}")
        elif waited > self._patience.slow and not self._named:
            self._named = True
            for rank in missing:
                self.slow[rank] += 1
            self._say(printable(f"{waiting} {'has' if len(self._asked) == 1 else 'have'} waited {waited:.1f} s for "
                                f"{_numbers(missing)}, for {first.title}"))
