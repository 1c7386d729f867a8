"""Run the parties of a migration in separate processes, and access them through proxies.

Source, target and ledger each serve calls on a socket (:func:`serve`). The tenant's process accesses them through
proxies, so :func:`host.migration.migrate.migrate` and :func:`~host.migration.migrate.settle` follow the same steps as
within one process.

Both ends first prove that they hold the key, using an HMAC of random numbers drawn by both. Each call then consists
of a request and an answer, in the :mod:`format <host.sockets.format>` shared by all sockets. A party serves several
tenants, one call at a time. A tenant that is silent, sends invalid bytes or has a wrong key is disconnected without
delaying other tenants. If a party does not answer (it died, or a message was lost), the call fails with a
``MigrationError``, and the next call reconnects. A party completes a call even if the tenant that made it has died.
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

#: Time limit for a call of a party, in seconds.
PATIENCE = 300.0

#: Seconds between checks of the connections to tenants.
_LOOK = 0.5

#: Time limits for tenants. The first one is long, since a proof may take long on a busy machine.
_LIMITS = Limits(first_seconds=30.0)

#: Number of bytes in a random number that proves possession of the key.
_DRAWN = 32

#: Test function that decides whether a message is lost, given the party, the call, and whether it is an answer.
Loss = Callable[[str, str, bool], bool]

#: A party of a migration. Its ``calls`` attribute lists the methods and properties that tenants may access.
Party: TypeAlias = "Ledger | Site"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Challenge:
    """First message from a party, containing a random number."""

    drawn: bytes


@dataclasses.dataclass(frozen=True, kw_only=True)
class Proof:
    """Proof of possessing the key: an HMAC of both ends' random numbers, and the tenant's own number."""

    drawn: bytes
    mac: bytes


@dataclasses.dataclass(frozen=True, kw_only=True)
class Call:
    """Message that calls a method of a party, or reads one of its properties."""

    name: str
    arguments: tuple[Any, ...]
    options: dict[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answer:
    """Message with the result of a call, or with the text of the error that the call raised."""

    well: bool
    value: Any


MESSAGES = Registry(Challenge, Proof, Call, Answer, Entry)
"""All messages, and the classes used in their fields."""


def _mac(key: bytes, role: str, party: bytes, tenant: bytes) -> bytes:
    """Compute the HMAC that proves to the other end that this end holds the key."""
    return hmac.digest(key, role.encode() + party + tenant, "sha256")


def serve(party: Party, address: Path, *, key: bytes, limits: Limits | None = None) -> None:
    """Serve the calls of tenants that hold the key; never returns.

    An existing socket at this address is replaced; any other file is kept, and raises an ``OSError``.
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
    """Answer a tenant's message, or close the connection if the tenant has not proved that it holds the key."""
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
    """Execute a call, and return its result or its error message."""
    try:
        if call.name not in party.calls:
            raise ValueError(f"call must be one of {', '.join(sorted(party.calls))}, not {call.name!r}")
        attribute = getattr(party, call.name)
        return Answer(well=True, value=attribute(*call.arguments, **call.options) if callable(attribute)
                      else attribute)
    except Exception as error:  # Any error is reported to the tenant, and the party continues to serve.
        return Answer(well=False, value=f"{type(error).__name__}: {error}")


class _Remote:
    """Proxy that forwards method calls and property accesses to a party."""

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
        """Call a method of the party and wait for the result.

        Raises ``MigrationError`` if the party does not answer, or if the call fails there.
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
        """Return the connection to the party. If there is none, connect and authenticate both ends."""
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
        """Close the connection to the party."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class RemoteLedger(_Remote):
    """Proxy for a :class:`~host.migration.migrate.Ledger`."""


class RemoteSite(_Remote):
    """Proxy for a :class:`~host.migration.site.Site`."""

    properties = frozenset({"running", "cycles", "live_words"})
