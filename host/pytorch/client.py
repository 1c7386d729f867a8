"""A rank's connection to the process that has the ring."""

import os
from multiprocessing.connection import Client, Connection
from typing import Any

from host.driver.diagnosis import RingError
from host.pytorch.messages import ADDRESS, Failed, Hello, Leave, Listen, Request, Save

__all__ = ["RingClient", "client", "wait_for_reason"]

_GONE = "The process that has the ring has ended: its own message says why"

_shared: list["RingClient"] = []


class RingClient:
    """Requests of one rank, each of which waits for its answer.

    Parameters
    ----------
    address : str
        Path of the server's socket.

    Members
    -------
    gloo : dict of str to tuple
        Calls and bytes of each collective that this rank has sent over gloo.
    """

    def __init__(self, address: str) -> None:
        self._connection: Connection | None = Client(address, "AF_UNIX")
        self._joined = False
        self.gloo: dict[str, tuple[int, int]] = {}

    @property
    def joined(self) -> bool:
        """Whether the rank has joined the group of all ranks."""
        return self._joined

    def join(self, rank: int, ranks: int, timeout: float) -> None:
        """Join the group of all ranks; a second time does nothing."""
        if not self._joined:
            self._exchange(Hello(rank=rank, ranks=ranks, timeout=timeout))
            self._joined = True

    def ask(self, request: Request | Save) -> Any:
        """Ask for an operation, and wait for its result.

        Raises
        ------
        RingError
            The operation has failed; all ranks have an error with the same text.
        """
        if not self._joined:
            raise RingError("Rank must join by init_process_group() before it can ask the ring for something",
                            cause=None, events=[])
        return self._exchange(request)

    def count(self, name: str, size: int) -> None:
        """Count a collective that goes over gloo, with its bytes."""
        calls, before = self.gloo.get(name, (0, 0))
        self.gloo[name] = (calls + 1, before + size)

    def fail(self, failure: Failed) -> RingError | None:
        """Say that this rank ends by an error; the error of all ranks, if that is another one."""
        try:
            self._exchange(failure)
        except RingError as error:
            return error
        return None

    def leave(self) -> None:
        """Say that there are no more requests; a second time does nothing."""
        if self._connection is None:
            return
        if self._joined:
            self._exchange(Leave(gloo=self.gloo))
        self._connection.close()
        self._connection = None

    def _exchange(self, message: Any) -> Any:
        if self._connection is None:
            raise RingError("Rank must ask the ring before it leaves", cause=None, events=[])
        try:
            self._connection.send(message)
            well, answer = self._connection.recv()
        except (EOFError, OSError):
            raise RingError(_GONE, cause=None, events=[]) from None
        if not well:
            raise RingError(answer, cause=None, events=[])
        return answer


def wait_for_reason(address: str) -> str:
    """Wait until the ranks cannot go on, or the server ends, and return the reason."""
    try:
        with Client(address, "AF_UNIX") as connection:
            connection.send(Listen())
            return str(connection.recv())
    except (EOFError, OSError):
        return _GONE


def client() -> RingClient:
    """The connection of this process.

    Raises
    ------
    RingError
        There is no ring, since the script was not started by the launcher.
    """
    if not _shared:
        address = os.environ.get(ADDRESS)
        if address is None:
            raise RingError("Script must be started by the launcher to have a ring: gradring launch -n 4 script.py",
                            cause=None, events=[])
        _shared.append(RingClient(address))
    return _shared[0]
