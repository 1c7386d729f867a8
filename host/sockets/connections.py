"""Socket endpoints for messages: a client, which waits, and a server, which never blocks.

A server has one thread. It buffers bytes from a peer until a message is complete, and bytes for a peer until they are
read. A peer that does not complete a message or read its answer is disconnected after a time limit, without delaying
other peers. Until the user of the server admits a peer, the peer's messages must be short, and the first must arrive
within seconds. The number of unadmitted peers is limited.
"""

import contextlib
import dataclasses
import errno
import os
import selectors
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from host.sockets.format import MessageError, Registry, length_of

__all__ = ["MAX_MESSAGE", "MAX_PATH", "Client", "Ended", "Limits", "Peer", "Server"]

#: Maximum length of a message, in bytes.
MAX_MESSAGE = 1 << 30

#: Number of bytes to read at a time, and maximum number to read from a peer before other peers are served.
_CHUNK, _SHARE = 1 << 18, 1 << 22

MAX_PATH = 103
"""Maximum length of a socket's path in bytes, on any system."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits that a server sets for its peers."""

    unknown: int = 64  # maximum number of unadmitted peers; another peer disconnects the oldest
    first_seconds: float = 5.0  # time limit in seconds for a peer's first message
    first_bytes: int = 1 << 16  # maximum length of a message from an unadmitted peer
    seconds: float = 30.0  # seconds in which an admitted peer must complete or read a message
    message_bytes: int = MAX_MESSAGE  # maximum length of a message from an admitted peer


def _take_frame(inbox: bytearray, longest: int) -> bytes | None:
    """Take the next frame from ``inbox``, or return None if it is incomplete; raise ``MessageError`` if invalid."""
    length = length_of(inbox)
    if length is None:
        return None
    if length > longest:
        raise MessageError(f"Message must have at most {longest:,} bytes, not {length:,}")
    if len(inbox) < length:
        return None
    frame = memoryview(inbox)[:length].tobytes()
    del inbox[:length]
    return frame


class Client:
    """Client end of a socket; the address is the path of the server's socket.

    Raises ``OSError`` if no server listens at the address.
    """

    def __init__(self, address: str | Path, registry: Registry) -> None:
        self._registry, self._inbox = registry, bytearray()
        self._socket = socket.socket(socket.AF_UNIX)
        try:
            self._socket.connect(os.fspath(address))
        except BaseException:
            self._socket.close()
            raise

    def send(self, message: Any, *, seconds: float | None = None) -> None:
        """Send a message.

        Raises ``MessageError`` without sending anything if a value does not match its field, and ``OSError`` if the
        server has ended or does not read the message in time.
        """
        frame = self._registry.encode(message)
        self._socket.settimeout(seconds)
        self._socket.sendall(frame)

    def receive(self, *, seconds: float | None = None) -> Any:
        """Receive the server's next message.

        Raises ``MessageError`` if the server has sent anything else, and ``EOFError`` or ``OSError`` if it has ended
        or does not send a complete message in time.
        """
        limit = None if seconds is None else time.monotonic() + seconds
        while (frame := _take_frame(self._inbox, MAX_MESSAGE)) is None:
            if limit is not None and (left := limit - time.monotonic()) <= 0:
                raise TimeoutError(f"no answer in {seconds:g} seconds")
            self._socket.settimeout(None if limit is None else left)
            try:
                data = self._socket.recv(_CHUNK)
            except TimeoutError:
                continue
            if not data:
                raise EOFError("the connection has ended")
            self._inbox += data
        return self._registry.decode(frame)

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()


@dataclasses.dataclass(frozen=True)
class Ended:
    """Describes why a peer's connection has ended."""

    # the rule that the peer has violated, as the end of a sentence; empty if the peer has closed the connection
    reason: str = ""


class Peer:
    """The server's end of a connection to a peer."""

    def __init__(self, connection: socket.socket, server: "Server") -> None:
        self._connection, self._server = connection, server
        self._inbox, self._outbox = bytearray(), bytearray()
        self._opened = server.clock()
        self._began: float | None = None
        self._answered: float | None = None
        self.admitted = False  # whether the server's user has admitted the peer, which raises its limits
        self.holds = False  # whether bytes after a message must wait until the server's user has handled the message
        self.ended: Ended | None = None  # reason for the end of the connection; None while it is open
        self.owner: Any = None  # data attached by the server's user

    def send(self, message: Any) -> None:
        """Queue a message for the peer; raises ``MessageError`` if a value does not match its field."""
        self.post(self._server.registry.encode(message))

    def post(self, frame: bytes) -> None:
        """Queue an encoded message for the peer."""
        if self.ended is None:
            self._outbox += frame
            self.write()

    def close(self, reason: str = "") -> None:
        """Close the connection."""
        if self.ended is None:
            self.ended = Ended(reason)
            self._server.forget(self, self._connection)
            self._connection.close()

    def write(self) -> None:
        """Send the bytes that the peer can accept now."""
        try:
            with contextlib.suppress(BlockingIOError, InterruptedError):
                while self._outbox:
                    del self._outbox[:self._connection.send(memoryview(self._outbox)[:_CHUNK].tobytes())]
        except OSError:
            self.close()
            return
        if not self._outbox:
            self._answered = None
        elif self._answered is None:
            self._answered = self._server.clock()
        self._server.want(self._connection, self, writes=bool(self._outbox))

    def read(self) -> list[Any]:
        """Read the messages that are now complete; invalid bytes close the connection."""
        messages: list[Any] = []
        size = 0
        try:
            with contextlib.suppress(BlockingIOError, InterruptedError):
                while size < _SHARE and not self.holds and self.ended is None:
                    data = self._connection.recv(_CHUNK)
                    if not data:
                        self.close()
                        break
                    size += len(data)
                    self._inbox += data
                    messages += self.take()
        except OSError:
            self.close()
        return messages

    def take(self) -> list[Any]:
        """Take complete messages from the buffer, but only one before admission, which changes the limits."""
        messages: list[Any] = []
        limits = self._server.limits
        before = len(self._inbox)
        self.holds = False
        try:
            while not self.holds and (frame := _take_frame(
                    self._inbox, limits.message_bytes if self.admitted else limits.first_bytes)):
                messages.append(self._server.registry.decode(frame))
                self.holds = not self.admitted and len(self._inbox) > 0
        except MessageError as error:
            self.close(f"must send messages of this format: {error}")
        if not self._inbox:
            self._began = None
        elif messages or self._began is None or not before:
            self._began = self._server.clock()
        return messages

    def expire(self, now: float) -> None:
        """Close the connection if a time limit has expired."""
        limits = self._server.limits
        if not self.admitted and now - self._opened > limits.first_seconds:
            self.close(f"must send its first message within {limits.first_seconds:g} seconds")
        elif self._began is not None and now - self._began > limits.seconds:
            self.close(f"must send the whole of a message within {limits.seconds:g} seconds")
        elif self._answered is not None and now - self._answered > limits.seconds:
            self.close(f"must read its answer within {limits.seconds:g} seconds")


class Server:
    """Server socket at a path, with its peers; ``greet`` is called for each new peer.

    Raises ``OSError`` if the path is too long or the socket cannot be created.
    """

    def __init__(self, address: Path, registry: Registry, *, limits: Limits | None = None,
                 greet: Callable[[Peer], None] = lambda peer: None) -> None:
        self.registry, self.limits, self._greet = registry, Limits() if limits is None else limits, greet
        self._peers: list[Peer] = []
        self._gone: list[Peer] = []
        self._attended, self._polling = 0.0, 0.0
        if len(os.fsencode(address)) > MAX_PATH:
            raise OSError(errno.ENAMETOOLONG, f"Path of a socket must have at most {MAX_PATH} bytes, not "
                                              f"{len(os.fsencode(address))}: {address}")
        self._socket = socket.socket(socket.AF_UNIX)
        try:
            self._socket.bind(os.fspath(address))
            self._socket.listen(128)
            self._socket.setblocking(False)
        except BaseException:
            self._socket.close()
            raise
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._socket, selectors.EVENT_READ)

    def clock(self) -> float:
        """Number of seconds that the server has spent in :meth:`poll`. Only these count towards time limits."""
        return self._attended + (time.monotonic() - self._polling if self._polling else 0.0)

    def poll(self, timeout: float) -> list[tuple[Peer, Any]]:
        """Return messages that arrive within ``timeout`` seconds, and :class:`Ended` for each ended connection."""
        self._polling = time.monotonic()
        try:
            return self._poll(timeout)
        finally:
            self._attended, self._polling = self.clock(), 0.0

    def _poll(self, timeout: float) -> list[tuple[Peer, Any]]:
        holding = [peer for peer in self._peers if peer.holds]
        events = [(peer, message) for peer in holding for message in peer.take()]
        for key, mask in self._selector.select(0 if holding else timeout):
            peer = key.data
            if peer is None:
                self._accept()
            elif peer.ended is None and mask & selectors.EVENT_WRITE:
                peer.write()
            elif peer.ended is None:
                events += [(peer, message) for message in peer.read()]
        now = self.clock()
        for peer in list(self._peers):
            peer.expire(now)
        gone, self._gone = self._gone, []
        return events + [(peer, peer.ended) for peer in gone]

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._socket.accept()
                connection.setblocking(False)
                peer = Peer(connection, self)
                self._peers.append(peer)
                self._selector.register(connection, selectors.EVENT_READ, data=peer)
                unknown = [known for known in self._peers if not known.admitted]
                if len(unknown) > self.limits.unknown:
                    unknown[0].close("must send its first message before others come")
                self._greet(peer)

    def want(self, connection: socket.socket, peer: Peer, *, writes: bool) -> None:
        """Wait until the peer can be written to (``writes``) or else read from. While bytes for a peer are waiting,
        nothing is read from it."""
        events = selectors.EVENT_WRITE if writes else selectors.EVENT_READ
        if self._selector.get_key(connection).events != events:
            self._selector.modify(connection, events, data=peer)

    def forget(self, peer: Peer, connection: socket.socket) -> None:
        """Remove a disconnected peer from the list."""
        self._peers.remove(peer)
        self._gone.append(peer)
        self._selector.unregister(connection)

    def close(self) -> None:
        """Close all connections."""
        for peer in list(self._peers):
            peer.close()
        self._selector.close()
        self._socket.close()
