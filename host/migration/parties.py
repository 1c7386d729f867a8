"""Parties of a migration in processes of their own.

Source, target and ledger serve their calls at a socket each (:func:`serve`). The tenant's process has proxies of
them, and gives them to :func:`host.migration.migrate.migrate` and :func:`~host.migration.migrate.settle`: the steps
are those of a migration within one process.

A call is two messages, a request and an answer. A party that does not answer, because its process has died or a
message was lost, makes the call fail with a ``MigrationError``; the next call connects anew. A party that was doing
something for a tenant that has died does it to its end, and then listens to the next one.
"""

import contextlib
from collections.abc import Callable
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

from host.migration.ledger import Entry
from host.migration.migrate import MigrationError

__all__ = ["RemoteLedger", "RemoteSite", "serve"]

#: Seconds that a party has for a call.
PATIENCE = 300.0

#: Decides whether a message is lost, by the party, the call and whether it is an answer.
Loss = Callable[[str, str, bool], bool]


def serve(party: object, address: Path, *, key: bytes) -> None:
    """Answer calls of one tenant after the other, for ever.

    Parameters
    ----------
    party : Site or Ledger
    address : Path
        Socket, which is made anew.
    key : bytes
        Key that tenants must have.
    """
    address.unlink(missing_ok=True)
    with Listener(str(address), "AF_UNIX", authkey=key) as listener:
        while True:
            with contextlib.suppress(OSError, EOFError, AuthenticationError), listener.accept() as connection:
                while True:
                    name, arguments, options = connection.recv()
                    connection.send(_answer(party, name, arguments, options))


def _answer(party: object, name: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> tuple[bool, Any]:
    """Result of a call, or the text of its error."""
    try:
        found = getattr(party, name)
        return True, found(*arguments, **options) if callable(found) else found
    except Exception as error:  # the process goes on, and the tenant has the error
        return False, f"{type(error).__name__}: {error}"


class _Remote:
    """Proxy of a party.

    Parameters
    ----------
    name : str
    address : Path
    key : bytes
    lost : callable
        Whether a message is lost.
    """

    def __init__(self, name: str, address: Path, *, key: bytes, lost: Loss = lambda party, call, answer: False):
        self.name = name
        self._address, self._key, self._lost = address, key, lost
        self._connection: Connection[Any, Any] | None = None

    def call(self, what: str, *arguments: Any, **options: Any) -> Any:
        """Make a call, and wait for its result.

        Raises
        ------
        MigrationError
            The party does not answer, or the call has failed there.
        """
        try:
            if self._connection is None:
                self._connection = Client(str(self._address), "AF_UNIX", authkey=self._key)
            if self._lost(self.name, what, False):
                raise TimeoutError("the request was lost")
            self._connection.send((what, arguments, options))
            if not self._connection.poll(PATIENCE):
                raise TimeoutError(f"no answer in {PATIENCE:.0f} seconds")
            well, found = self._connection.recv()
            if self._lost(self.name, what, True):
                raise TimeoutError("the answer was lost")
        except (OSError, EOFError, AuthenticationError) as error:
            self.close()
            raise MigrationError(f"{self.name} has not answered to {what}: {error}") from None
        if not well:
            raise MigrationError(f"{self.name}: {what} has failed: {found}")
        return found

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class RemoteLedger(_Remote):
    """Proxy of a :class:`~host.migration.ledger.Ledger`."""

    def read(self) -> Entry:
        found: Entry = self.call("read")
        return found

    def commit(self, entry: Entry) -> None:
        self.call("commit", entry)


class RemoteSite(_Remote):
    """Proxy of a :class:`~host.migration.site.Site`."""

    @property
    def running(self) -> bool:
        return bool(self.call("running"))

    @property
    def cycles(self) -> int:
        return int(self.call("cycles"))

    @property
    def live_words(self) -> int:
        return int(self.call("live_words"))

    def freeze(self) -> None:
        self.call("freeze")

    def capture(self, *, nonce: str, sequence: int) -> bytes:
        return bytes(self.call("capture", nonce=nonce, sequence=sequence))

    def reserve(self) -> str:
        return str(self.call("reserve"))

    def load(self, data: bytes, *, seen: int) -> None:
        self.call("load", data, seen=seen)

    def read_back(self) -> None:
        self.call("read_back")

    def keep(self, data: bytes) -> None:
        self.call("keep", data)

    def start(self) -> None:
        self.call("start")

    def go_on(self) -> None:
        self.call("go_on")

    def scrub(self) -> None:
        self.call("scrub")
