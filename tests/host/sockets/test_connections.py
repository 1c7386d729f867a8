"""Connections to a server: limits on size, time and number, and peers that do not read."""

import socket
import threading
import time

import numpy as np
import pytest

from host.pytorch.messages import MESSAGES, AllReduce, Answer, Listen
from host.sockets.connections import MAX_PATH, Client, Ended, Limits, Server
from host.sockets.format import MessageError
from tests.refusals import refuses

LIMITS = Limits(unknown=3, first_seconds=0.3, first_bytes=200, seconds=0.3, message_bytes=5_000_000)
LISTEN = MESSAGES.encode(Listen())


@pytest.fixture
def server(tmp_path):
    server = Server(tmp_path / "socket", MESSAGES, limits=LIMITS)
    yield server
    server.close()


@pytest.fixture
def connect(tmp_path, server):
    """Function that opens connections, which are closed when the test ends."""
    made = []

    def make(data=b""):
        made.append(socket.socket(socket.AF_UNIX))
        made[-1].connect(str(tmp_path / "socket"))
        made[-1].sendall(data)
        return made[-1]

    yield make
    for connection in made:
        connection.close()


def polled(server, seconds=5.0, *, until=None):
    """Poll at least once, until the time is over or an event of the given class arrives; return all events."""
    events, limit = server.poll(0.02), time.monotonic() + seconds
    while time.monotonic() < limit:
        if until is not None and any(isinstance(message, until) for _, message in events):
            break
        events += server.poll(0.02)
    return events


def admitted(server, connect):
    connection = connect(LISTEN)
    (peer, message), = polled(server, until=Listen)
    assert message == Listen()
    peer.admitted = True
    return connection, peer


def test_pieces(server, connect):
    """A message may arrive byte by byte, and several messages may arrive together."""
    connection, peer = admitted(server, connect)
    frame = MESSAGES.encode(AllReduce(values=np.arange(3, dtype=np.float32)))
    for byte in frame[:-1]:
        connection.sendall(bytes([byte]))
        assert server.poll(0) == []
    connection.sendall(frame[-1:] + LISTEN + LISTEN + frame[:9])
    events = polled(server, 0.1)
    assert [type(message) for _, message in events] == [AllReduce, Listen, Listen]
    assert {sender for sender, _ in events} == {peer}


def test_first_message_alone(server, connect):
    """If a peer is not admitted yet, its messages are read one at a time. After its connection is closed, no more
    messages are read."""
    connect(LISTEN * 3)
    (peer, _), = polled(server, until=Listen)
    assert [message for _, message in server.poll(0)] == [Listen()]
    peer.close("is not wanted")
    assert polled(server, until=Ended) == [(peer, Ended("is not wanted"))]


@pytest.mark.parametrize(("data", "reason"), [
    (b"", "must send its first message within 0.3 seconds"),
    (LISTEN[:20], "must send its first message within 0.3 seconds"),
    (b"g", "must send its first message within 0.3 seconds"),
    (b"GET", "must send messages of this format: Frame must begin with b'grad', not b'GET'"),
    (MESSAGES.encode(Answer(well=True, value="x" * 300)),
     "must send messages of this format: Message must have at most 200 bytes, not 376"),
    (LISTEN[:-1] + b"x", "must send messages of this format: Frame must have the CRC of its bytes: it was damaged"),
], ids=["silent", "half", "one byte", "http", "long", "damaged"])
def test_unknown(server, connect, data, reason):
    connection = connect(data)
    (_, end), = polled(server, until=Ended)
    assert end == Ended(reason)
    assert connection.recv(1) == b""


def test_many(server, connect):
    """If too many peers have not been admitted yet, the connections of the oldest ones are closed."""
    connections = [connect() for _ in range(5)]
    events = polled(server, 0.1)
    assert [end.reason for _, end in events] == ["must send its first message before others come"] * 2
    for connection in connections[:2]:
        assert connection.recv(1) == b""
    connections[4].sendall(LISTEN)
    assert any(message == Listen() for _, message in polled(server, until=Listen))


def test_half(server, connect):
    """An admitted peer may be silent, but must complete each message that it begins."""
    connection, peer = admitted(server, connect)
    assert polled(server, 0.5) == []
    connection.sendall(LISTEN[:9])
    begun = time.monotonic()
    assert polled(server, until=Ended) == [(peer, Ended("must send the whole of a message within 0.3 seconds"))]
    assert time.monotonic() - begun >= 0.3


def test_time_without_polls(server, connect):
    """A peer's time limit does not include time in which the server does not poll."""
    connection, _ = admitted(server, connect)
    connection.sendall(LISTEN[:9])
    assert server.poll(0.1) == []
    time.sleep(0.5)
    connection.sendall(LISTEN[9:])
    assert [message for _, message in polled(server, until=Listen)] == [Listen()]


def test_unread_answer(server, connect):
    """A peer that does not read its answer does not block other peers, and is closed after its time limit."""
    slow, peer = admitted(server, connect)
    quick, other = admitted(server, connect)
    slow.sendall(LISTEN)
    begun = time.monotonic()
    peer.send(Answer(well=True, value=np.zeros(500_000, np.float32)))
    other.send(Answer(well=True))
    assert time.monotonic() - begun < 5
    assert quick.recv(1000) == MESSAGES.encode(Answer(well=True))
    assert polled(server, until=Ended) == [(peer, Ended("must read its answer within 0.3 seconds"))]
    peer.send(Answer(well=True))  # no effect, because the peer has been closed
    other.send(Answer(well=True))
    assert quick.recv(1000)


def test_large_messages(tmp_path):
    """Messages that are too large for one socket call pass in both directions."""
    server = Server(tmp_path / "socket", MESSAGES, limits=Limits(first_bytes=1 << 24))
    values = np.arange(1_000_000, dtype=np.float32)
    ended = threading.Event()

    def serve():
        while not ended.is_set():
            for peer, message in server.poll(0.02):
                if isinstance(message, AllReduce):
                    peer.admitted = True
                    peer.send(Answer(well=True, value=message.values * 2))

    thread = threading.Thread(target=serve)
    thread.start()
    client = Client(tmp_path / "socket", MESSAGES)
    for _ in range(3):
        client.send(AllReduce(values=values), seconds=30)
        np.testing.assert_array_equal(client.receive(seconds=30).value, values * 2)
    refuses("no answer in 0.1 seconds", client.receive, seconds=0.1, error=TimeoutError)
    ended.set()
    thread.join()
    server.close()
    refuses("the connection has ended", client.receive, seconds=30, error=EOFError)
    client.close()


def test_message_that_does_not_fit(server, connect):
    _, peer = admitted(server, connect)
    with pytest.raises(MessageError):
        peer.send(Answer(well=True, value={1, 2}))
    assert peer.ended is None


def test_long_path(tmp_path):
    path = tmp_path / ("x" * MAX_PATH)
    with pytest.raises(OSError, match=rf"Path of a socket must have at most {MAX_PATH} bytes, not \d+: {path}$"):
        Server(path, MESSAGES)
