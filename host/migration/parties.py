"""Parties of a migration in separate processes, and proxies for them.

Source, target and ledger each serve calls on a socket (:func:`serve`). The tenant's process uses proxies for them, so
that :func:`host.migration.migrate.migrate` and :func:`~host.migration.migrate.settle` follow the same steps as within
one process.

Both ends first prove that they have the key, with an HMAC of random numbers from both ends. A call is then a request
and an answer, in the :mod:`format <host.sockets.format>` of all sockets. A party answers several tenants, one call at
a time. A tenant that is silent, sends invalid bytes or has a different key is disconnected, and delays no other
tenant. If a party does not answer, because its process has died or a message was lost, the call fails with a
``MigrationError``, and the next call connects again. A party completes the call of a tenant that has died.
"""

import dataclasses
import functools
import hmac
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from host.migration.migrate import Entry, Ledger, MigrationError
from host.sockets.connections import Client, Ended, Limits, Peer, Server
from host.sockets.format import MessageError, Registry

if TYPE_CHECKING:
    from host.migration.site import Site

__all__ = ["MESSAGES", "Party", "RemoteLedger", "RemoteSite", "serve"]

#: Seconds that a party may take for a call.
PATIENCE = 300.0

#: Seconds between checks of connections.
_LOOK = 0.5

#: Limits for tenants: a proof may take long on a busy machine, and a silent tenant delays no other tenant.
_LIMITS = Limits(first_seconds=30.0)

#: Number of bytes in a random number.
_DRAWN = 32

#: Function that decides whether a message is lost, given the party, the call, and whether the message is an answer.
Loss = Callable[[str, str, bool], bool]

#: A party; its ``calls`` are the names of the methods and properties that tenants may call.
Party: TypeAlias = "Ledger | Site"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Challenge:
    """First message of a party: a random number."""

    drawn: bytes


@dataclasses.dataclass(frozen=True, kw_only=True)
class Proof:
    """Proof of the key: an HMAC of the random numbers of both ends; a tenant's proof includes its own number."""

    drawn: bytes
    mac: bytes


@dataclasses.dataclass(frozen=True, kw_only=True)
class Call:
    """A call of a party's method, or a read of a property."""

    name: str
    arguments: tuple[Any, ...]
    options: dict[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answer:
    """Result of a call, or the text of its error."""

    well: bool
    value: Any


MESSAGES = Registry(Challenge, Proof, Call, Answer, Entry)
"""All messages, and the classes used in their fields."""


def _mac(key: bytes, role: str, party: bytes, tenant: bytes) -> bytes:
    """HMAC that proves to the other end that this end has the key."""
    return hmac.digest(key, role.encode() + party + tenant, "sha256")


def serve(party: Party, address: Path, *, key: bytes, limits: Limits | None = None) -> None:
    """Answer the calls of tenants that have the key, indefinitely.

    An existing socket at the address is replaced; a file of any other kind is kept, and raises an ``OSError``.
    """
    if address.is_socket():
        address.unlink()
    server = Server(address, MESSAGES, limits=_LIMITS if limits is None else limits, greet=_challenge)
    try:
        while True:
            for peer, message in server.poll(_LOOK):
                if not isinstance(message, Ended) and peer.ended is None:
                    _receive(party, peer, message, key)
    finally:
        server.close()


def _challenge(peer: Peer) -> None:
    peer.owner = secrets.token_bytes(_DRAWN)
    peer.send(Challenge(drawn=peer.owner))


def _receive(party: Party, peer: Peer, message: Any, key: bytes) -> None:
    """Answer a tenant, or close its connection."""
    if isinstance(message, Call) and peer.admitted:
        answer = _answer(party, message)
        try:
            peer.send(answer)
        except MessageError as error:
            peer.send(Answer(well=False, value=str(error)))
    elif isinstance(message, Proof) and not peer.admitted and hmac.compare_digest(
            message.mac, _mac(key, "tenant", peer.owner, message.drawn)):
        peer.admitted = True
        peer.send(Proof(drawn=b"", mac=_mac(key, "party", peer.owner, message.drawn)))
    else:
        peer.close("must have the key of the party")


def _answer(party: Party, call: Call) -> Answer:
    """Carry out a call, and return its result or the text of its error."""
    try:
        if call.name not in party.calls:
            raise ValueError(f"call must be one of {', '.join(sorted(party.calls))}, not {call.name!r}")
        attribute = getattr(party, call.name)
        return Answer(well=True, value=attribute(*call.arguments, **call.options) if callable(attribute)
                      else attribute)
    except Exception as error:  # the process continues after any error, which the tenant receives
        return Answer(well=False, value=f"{type(error).__name__}: {error}")


class _Remote:
    """Proxy for a party: calls of methods, and reads of properties, are forwarded to the party."""

    properties: frozenset[str] = frozenset()

    def __init__(self, name: str, address: Path, *, key: bytes, lost: Loss = lambda party, call, answer: False):
        self.name = name
        self._address, self._key, self._lost = address, key, lost
        self._connection: Client | None = None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return self.call(name) if name in self.properties else functools.partial(self.call, name)

    def call(self, what: str, *arguments: Any, **options: Any) -> Any:
        """Make a call, and wait for its result.

        Raises ``MigrationError`` if the party does not answer, or if the call has failed at the party.
        """
        try:
            connection = self._connected()
            if self._lost(self.name, what, False):
                raise TimeoutError("the request was lost")
            connection.send(Call(name=what, arguments=arguments, options=options), seconds=PATIENCE)
            answer = connection.receive(seconds=PATIENCE)
            if self._lost(self.name, what, True):
                raise TimeoutError("the answer was lost")
            if not isinstance(answer, Answer):
                raise MessageError(f"Answer must be one of a call, not {type(answer).__name__}")
        except (OSError, EOFError, MessageError) as error:
            self.close()
            raise MigrationError(f"{self.name} has not answered to {what}: {error}") from None
        if not answer.well:
            raise MigrationError(f"{self.name}: {what} has failed: {answer.value}")
        return answer.value

    def _connected(self) -> Client:
        """Return the connection; if there is none, connect, and let both ends prove that they have the key."""
        if self._connection is not None:
            return self._connection
        self._connection = connection = Client(self._address, MESSAGES)
        challenge, drawn = connection.receive(seconds=PATIENCE), secrets.token_bytes(_DRAWN)
        if not isinstance(challenge, Challenge):
            raise MessageError(f"First message must be a challenge, not {type(challenge).__name__}")
        connection.send(Proof(drawn=drawn, mac=_mac(self._key, "tenant", challenge.drawn, drawn)), seconds=PATIENCE)
        proof = connection.receive(seconds=PATIENCE)
        if not isinstance(proof, Proof) or not hmac.compare_digest(
                proof.mac, _mac(self._key, "party", challenge.drawn, drawn)):
            raise MessageError("Party must have the key of the tenant")
        return connection

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class RemoteLedger(_Remote):
    """Proxy of a :class:`~host.migration.migrate.Ledger`."""


class RemoteSite(_Remote):
    """Proxy of a :class:`~host.migration.site.Site`."""

    properties = frozenset({"running", "cycles", "live_words"})
