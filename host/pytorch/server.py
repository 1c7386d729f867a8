"""The side of the ranks' requests that has the ring.

Requests come over a Unix socket, one connection per rank. An operation is done when every rank has asked for it. A
rank that has ended, or that asks for something else than the others, is an error that all ranks are given, with one
text.
"""

import contextlib
import dataclasses
import os
import selectors
import socket
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from host.driver.diagnosis import RingError
from host.driver.errors import DeviceError
from host.jobs.job import JobError
from host.pytorch.jobs import Jobs
from host.pytorch.messages import Failed, Hello, Leave, Listen, Request, Save
from host.pytorch.watch import WatchedJobs

__all__ = ["Patience", "RingServer"]

#: Seconds for which the reason is waited for, when a rank has closed its connection.
_REASON = 1.0

#: Seconds for which another cause is waited for, when a rank has failed by what may be another one's fault.
_CAUSE = 0.5

#: Errors of an operation after which the ring serves nobody; others than these and ValueError are faults of the
#: program, and end it. A ValueError is about a request that was refused, before nodes were given anything.
_FATAL = (RingError, DeviceError, JobError, OSError)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Patience:
    """Time for which ranks that ask wait for others that do not.

    Parameters
    ----------
    slow : float
        Seconds after which the ranks that are missing are named.
    timeout : float
        Seconds after which the operation has failed; more than ``slow``, and less than the timeout of the ranks'
        process group.
    """

    slow: float = 10.0
    timeout: float = 600.0

    def __post_init__(self) -> None:
        if not 0 < self.slow < self.timeout:
            raise ValueError(f"Slow ranks must be named after more than 0 seconds and before the timeout of "
                             f"{self.timeout:g}, not after {self.slow!r}")

    def check(self, group: float) -> None:
        """Raise ``ValueError`` unless a process group waits longer than the ring does."""
        if group <= self.timeout:
            raise ValueError(f"Timeout of init_process_group must exceed the ring's {self.timeout:g} seconds, since "
                             f"the error of the ring is the one that names its cause, not be {group:g}: give "
                             f"gradring launch a smaller --timeout")


def _numbers(ranks: list[int]) -> str:
    """Names of ranks in a sentence."""
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


class RingServer:
    """Connections of all ranks, and the jobs that they ask for.

    Parameters
    ----------
    address : Path
        Path of the socket.
    ranks : int
    jobs : Jobs
    patience : Patience
    say : callable
        Called with a line about a rank that is slow.

    Members
    -------
    error : str, optional
        Reason for which no more requests are served.
    slow : list of int
        How often each rank was named as slow.
    gloo : dict of str to tuple
        Calls and bytes of each collective that has gone over gloo, of the ranks that have left.
    """

    def __init__(self, address: Path, *, ranks: int, jobs: Jobs | WatchedJobs, patience: Patience,
                 say: Callable[[str], None] = lambda text: None) -> None:
        self._ranks, self._jobs, self._patience, self._say = ranks, jobs, patience, say
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(os.fspath(address))
        self._socket.listen(2 * ranks)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._socket, selectors.EVENT_READ)
        self._connections: dict[int, Connection] = {}
        self._left: set[int] = set()
        self._lost: dict[int, float] = {}
        self._failed: dict[int, tuple[float, Failed, Connection]] = {}
        self._asked: dict[int, Request] = {}
        self._serving: list[int] = []
        self._listeners: list[Connection] = []
        self._lock = threading.Lock()
        self._since = 0.0
        self._named = False
        self.error: str | None = None
        self.slow = [0] * ranks
        self.gloo: dict[str, tuple[int, int]] = {}

    def close(self) -> None:
        """Close all connections."""
        for connection in self._connections.values():
            connection.close()
        self._selector.close()
        self._socket.close()

    def poll(self, timeout: float) -> None:
        """Serve what comes within some seconds at the most."""
        for key, _ in self._selector.select(timeout):
            if key.fileobj is self._socket:
                accepted, _ = self._socket.accept()
                connection = Connection(accepted.detach())
                self._selector.register(connection, selectors.EVENT_READ, data=[])
            else:
                self._receive(key.fileobj, key.data)  # type: ignore[arg-type]
        for rank, since in self._lost.items():
            if time.monotonic() - since > _REASON:
                self.fail(f"Rank {rank} has ended; the others cannot go on without it")
        self._blame()
        self._serve()

    def fail(self, reason: str) -> None:
        """Give all ranks an error, now or when they ask again."""
        with self._lock:
            self._tell(reason)
        for rank in list(self._asked):
            del self._asked[rank]
            self._answer(rank, (False, self.error))

    def ended(self, rank: int, reason: str) -> None:
        """Take in that a rank has ended, and why; the others cannot go on, unless it had left."""
        if rank not in self._left and self._connections:
            self.fail(f"Rank {rank} has ended, {reason}; the others cannot go on without it")

    def interrupt(self, reason: str) -> None:
        """Give an error to all ranks whose operation is being done, in another thread than that of :meth:`poll`."""
        with self._lock:
            self._tell(reason)
            for rank in self._serving:
                self._answer(rank, (False, self.error))
            self._serving = []

    def _tell(self, reason: str) -> None:
        """Note the reason for which ranks cannot go on, unless there is one, and tell those that listen."""
        if self.error is None:
            self.error = reason
        for connection in self._listeners:
            _send(connection, self.error)
        self._listeners = []

    def _blame(self) -> None:
        """Answer ranks that have failed. The first one is the reason, unless another rank may be its cause: that
        one's end is known soon."""
        for rank, (since, failure, connection) in sorted(self._failed.items(), key=lambda item: item[1][0]):
            own = failure.own or (time.monotonic() - since > _CAUSE and not self._lost)
            if self.error is None and not own:
                continue
            del self._failed[rank]
            if self.error is None:
                self.fail(f"Rank {rank} has ended by {failure.error}; the others cannot go on without it")
                _send(connection, (True, None))
            else:
                _send(connection, (False, self.error))

    def _receive(self, connection: Connection, owner: list[int]) -> None:
        """Take a message; ``owner`` has the rank of the connection, when that is known."""
        try:
            message = connection.recv()
        except (EOFError, OSError):
            self._selector.unregister(connection)
            connection.close()
            if owner and owner[0] in self._connections:
                del self._connections[owner[0]]
                if owner[0] not in self._left:
                    self._lost[owner[0]] = time.monotonic()
            return
        if isinstance(message, Hello):
            self._greet(connection, owner, message)
        elif isinstance(message, Listen):
            self._listeners.append(connection)
            if self.error is not None:
                self.fail(self.error)
        elif isinstance(message, Failed):
            self._failed[message.rank] = time.monotonic(), message, connection
        elif isinstance(message, Leave):
            self._left.add(owner[0])
            for name, (calls, size) in message.gloo.items():
                before = self.gloo.get(name, (0, 0))
                self.gloo[name] = (before[0] + calls, before[1] + size)
            self._answer(owner[0], (True, None))
        elif isinstance(message, Save):
            self._try([owner[0]], lambda: self._jobs.save(message))
        else:
            if not self._asked:
                self._since, self._named = time.monotonic(), False
            self._asked[owner[0]] = message
            if self.error is not None:
                self.fail(self.error)

    def _greet(self, connection: Connection, owner: list[int], message: Hello) -> None:
        try:
            if message.ranks != self._ranks or not 0 <= message.rank < self._ranks:
                raise ValueError(f"Process group of the ring must have all {self._ranks} ranks, not {message.ranks}")
            if message.rank in self._connections:
                raise ValueError(f"Rank {message.rank} must join the ring once")
            self._patience.check(message.timeout)
        except ValueError as error:
            self.fail(str(error))
            _send(connection, (False, str(error)))
            return
        owner.append(message.rank)
        self._connections[message.rank] = connection
        self._answer(message.rank, (True, None))

    def _answer(self, rank: int, answer: tuple[bool, Any]) -> None:
        if rank in self._connections:
            _send(self._connections[rank], answer)

    def _try(self, ranks: list[int], action: Callable[[], Any]) -> None:
        """Give ranks the result of an action, or its error, unless it is interrupted."""
        self._serving = ranks
        fatal = False
        try:
            answer = True, action()
        except ValueError as error:
            answer = False, str(error)
        except _FATAL as error:
            fatal, answer = True, (False, str(error))
        with self._lock:
            if fatal:
                self._tell(answer[1])
            for rank in self._serving:
                self._answer(rank, answer)
            self._serving = []

    def _serve(self) -> None:
        """Do the operation that all ranks have asked for; or name those that have not."""
        if not self._asked:
            return
        missing = [rank for rank in range(self._ranks) if rank not in self._asked]
        first = self._asked[min(self._asked)]
        if gone := [rank for rank in missing if rank in self._left]:
            self.fail(f"{_numbers(gone).capitalize()} {'has' if len(gone) == 1 else 'have'} left, and "
                      f"{_numbers(sorted(self._asked))} {'waits' if len(self._asked) == 1 else 'wait'} for "
                      f"{first.title}")
        elif other := [rank for rank, one in sorted(self._asked.items())
                       if type(one) is not type(first) or one.title != first.title]:
            self.fail(f"Rank {other[0]} asks for {self._asked[other[0]].title}, and rank {min(self._asked)} for "
                      f"{first.title}: all ranks must ask for the same in the same order")
        elif not missing:
            requests = [self._asked.pop(rank) for rank in range(self._ranks)]
            self._try(list(range(self._ranks)), lambda: self._jobs.answer(requests))
        else:
            self._wait(missing, first)

    def _wait(self, missing: list[int], first: Request) -> None:
        """Name ranks that are late, and give up in the end."""
        waited = time.monotonic() - self._since
        others = _numbers(sorted(self._asked))
        if waited > self._patience.timeout:
            self.fail(f"{_numbers(missing).capitalize()} must ask for {first.title} within "
                      f"{self._patience.timeout:g} seconds, as {others} did: look for what holds "
                      f"{'it' if len(missing) == 1 else 'them'} up, or give gradring launch a longer --timeout")
        elif waited > self._patience.slow and not self._named:
            self._named = True
            for rank in missing:
                self.slow[rank] += 1
            self._say(f"{others} {'has' if len(self._asked) == 1 else 'have'} waited {waited:.1f} s for "
                      f"{_numbers(missing)}, for {first.title}")


def _send(connection: Connection, answer: Any) -> None:
    """Send an answer to a rank, which may have ended by now."""
    with contextlib.suppress(OSError):
        connection.send(answer)
