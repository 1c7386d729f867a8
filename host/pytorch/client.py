"""Connection of a rank to its ring: to the launcher, which owns a simulated ring, or to a ring in software."""

import contextlib
import functools
import os
import queue
import threading
from concurrent.futures import Future
from typing import Any

from host.driver.diagnosis import RingError
from host.pytorch.connection import Connection
from host.pytorch.messages import (
    ADDRESS,
    KEEPS,
    MESSAGES,
    RING,
    SOFTWARE,
    Answer,
    Failed,
    Hello,
    Leave,
    Listen,
    Request,
    Save,
)
from host.sockets.connections import Client
from host.sockets.format import MessageError

__all__ = ["GONE", "RingClient", "client", "launcher", "wait_for_reason"]

#: Message of an error for which the launcher gives no reason.
GONE = "The process that has the ring has ended: its own message says why"
#: Number of attempts to send the first message. A rank that was stopped for a while may be too slow for the server.
_ATTEMPTS = 3


class RingClient(Connection):
    """Client of one rank, which sends requests to the socket at ``address``, each after the previous answer."""

    one_machine = True

    @property
    def keeps(self) -> bool:
        """Whether nodes keep back parts of gradients, as the launcher says."""
        return os.environ.get(KEEPS) == "1"

    def __init__(self, address: str) -> None:
        super().__init__()
        self._address = address
        self._connection: Client | None = None
        self._left = False
        self._backends: set[str] = set()
        self._messages: queue.SimpleQueue[tuple[Any, Future[Any]]] | None = None

    @property
    def joined(self) -> bool:
        """Whether this rank has joined the group of all ranks."""
        return RING in self._backends

    def join(self, rank: int, ranks: int, timeout: float, *, backend: str = RING) -> None:
        """Join the group of all ranks over a backend; repeated calls with the same backend have no effect."""
        if backend not in self._backends:
            self._call(Hello(rank=rank, ranks=ranks, timeout=timeout, backend=backend))
            self._backends.add(backend)

    def begin(self, request: Request | Save) -> "Future[Any]":
        """Request an operation; return a future for its result. Raises ``RingError`` before :meth:`join`."""
        self._check_joined()
        if self._messages is None:
            self._messages = queue.SimpleQueue()
            threading.Thread(target=self._send_all, args=(self._messages,), daemon=True).start()
        return self._post(request, self._messages)

    def ask(self, request: Request | Save) -> Any:
        """Request an operation and wait for its result; a failure raises the same ``RingError`` on all ranks."""
        self._check_joined()
        return self._call(request)

    def fail(self, failure: Failed) -> RingError | None:
        """Report that this rank ends with an error. If all ranks receive a different error, return that error."""
        with contextlib.closing(RingClient(self._address)) as connection:  # the main one may be busy
            try:
                connection._exchange(failure)
            except RingError as error:
                return error
        return None

    def leave(self) -> None:
        """Report that this rank has no more requests; repeated calls have no effect."""
        if self._left:
            return
        if self._backends:
            self._call(Leave(gloo=self.gloo, seconds=self.seconds))
        self.close()
        self._left = True

    def close(self) -> None:
        """Close the connection to the launcher."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _check_joined(self) -> None:
        if not self.joined:
            raise RingError("Rank must join by init_process_group() before it can ask the ring for something",
                            cause=None, events=[])

    def _call(self, message: Any) -> Any:
        """Send a message after all earlier messages and wait for its answer."""
        return self._exchange(message) if self._messages is None else self._post(message, self._messages).result()

    def _post(self, message: Any, messages: "queue.SimpleQueue[tuple[Any, Future[Any]]]") -> "Future[Any]":
        """Send a message in the thread that sent the earlier messages; return a future for the answer."""
        answer: Future[Any] = Future()
        messages.put((message, answer))
        return answer

    def _send_all(self, messages: "queue.SimpleQueue[tuple[Any, Future[Any]]]") -> None:
        while True:
            message, answer = messages.get()
            try:
                result = self._exchange(message)
            except Exception as error:
                answer.set_exception(error)
            else:
                answer.set_result(result)

    def _exchange(self, message: Any) -> Any:
        if self._left:
            raise RingError("Rank must ask the ring before it leaves", cause=None, events=[])
        for attempt in range(_ATTEMPTS):
            try:
                if self._connection is None:
                    self._connection = Client(self._address, MESSAGES)
                self._connection.send(message)
                answer = self._connection.receive()
                break
            except (EOFError, OSError):
                if self._backends or attempt == _ATTEMPTS - 1:
                    raise RingError(GONE, cause=None, events=[]) from None
                self.close()
            except MessageError as error:
                raise RingError(str(error), cause=None, events=[]) from None
        if not isinstance(answer, Answer) or not answer.well:
            raise RingError(str(getattr(answer, "value", answer)), cause=None, events=[])
        return answer.value


def wait_for_reason(address: str) -> str | None:
    """Wait until the ranks cannot continue. Return the reason, or None if the server ends without giving one."""
    for _ in range(_ATTEMPTS):
        try:
            connection = Client(address, MESSAGES)
        except OSError:
            return None
        with contextlib.suppress(EOFError, OSError, MessageError), contextlib.closing(connection):
            connection.send(Listen())
            return str(connection.receive().value)
    return None


@functools.cache
def launcher() -> RingClient:
    """Return this process's connection to its launcher; raise ``RingError`` if no launcher started the process."""
    address = os.environ.get(ADDRESS)
    if address is None:
        raise RingError("Script must be started by the launcher to have a ring: gradring launch -n 4 script.py",
                        cause=None, events=[])
    return RingClient(address)


@functools.cache
def client() -> Connection:
    """Return this process's connection to its launcher, or to a ring in software, with or without a launcher."""
    launched = ADDRESS in os.environ
    if launched and os.environ.get(SOFTWARE) != "1":
        return launcher()
    from host.pytorch.software.client import SoftwareClient, codecs_of_environment
    from host.pytorch.software.launched import LaunchedClient

    codecs = codecs_of_environment()
    return LaunchedClient(launcher(), **codecs) if launched else SoftwareClient(**codecs)
