"""Calls to parties of a migration in other processes: results, errors and lost messages."""

import contextlib
import pickle
import random
import re
import socket
import threading
import time

import pytest

from host.migration.migrate import Entry, Ledger, MigrationError
from host.migration.parties import MESSAGES, Call, Challenge, Proof, RemoteLedger, serve
from host.sockets.connections import Limits, Server
from tests.host.sockets.values import value
from tests.refusals import refuses

KEY = b"key of tenants"


@pytest.fixture
def served(tmp_path):
    """Serve a ledger at a socket."""
    ledger, address = Ledger(tmp_path / "ledger.json"), tmp_path / "socket"
    ledger.commit(Entry("here", 3))
    threading.Thread(target=serve, args=(ledger, address),
                     kwargs={"key": KEY, "limits": Limits(first_seconds=4)}, daemon=True).start()
    while not address.exists():
        time.sleep(0.001)
    return ledger, address


def test_calls(served):
    ledger, address = served
    remote = RemoteLedger("ledger", address, key=KEY)
    assert remote.read() == Entry("here", 3)
    remote.commit(Entry("there", 4))
    assert ledger.read() == remote.read() == Entry("there", 4)
    with pytest.raises(MigrationError, match=r"^ledger: commit has failed: TypeError: "):
        remote.call("commit", "nothing")
    for name in ("write", "__class__", "_path", "calls"):
        refuses(f"ledger: {name} has failed: ValueError: call must be one of commit, read, not '{name}'", remote.call,
                name, error=MigrationError)
    assert remote.read() == Entry("there", 4)
    remote.close()
    assert remote.read() == Entry("there", 4)  # opens a new connection
    remote.close()


def test_lost_messages(served):
    """If a call's request is lost, the call has no effect; if its answer is lost, the call has run. The next call
    works."""
    ledger, address = served
    lost = []
    remote = RemoteLedger("ledger", address, key=KEY, lost=lambda *message: message in lost)
    for answer, word, owner in ((False, "request", "here"), (True, "answer", "there")):
        lost[:] = [("ledger", "commit", answer)]
        with pytest.raises(MigrationError, match=rf"^ledger has not answered to commit: the {word} was lost$"):
            remote.commit(Entry("there", 4))
        assert ledger.read().owner == owner == remote.read().owner
    remote.close()


def test_nobody(served, tmp_path):
    _, address = served
    with pytest.raises(MigrationError, match=r"^ledger has not answered to read: "):
        RemoteLedger("ledger", tmp_path / "other", key=KEY).read()
    with pytest.raises(MigrationError, match=r"^ledger has not answered to read: "):
        RemoteLedger("ledger", address, key=b"another key").read()
    remote = RemoteLedger("ledger", address, key=KEY)
    assert re.fullmatch("here|there", remote.read().owner)
    remote.close()


def raw(address):
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(str(address))
    connection.settimeout(20)
    return connection


def test_tenants_at_once(served):
    """Several tenants can make calls in alternation, even while other connections are idle."""
    _, address = served
    silent = [raw(address) for _ in range(5)]
    tenants = [RemoteLedger("ledger", address, key=KEY) for _ in range(3)]
    for number in range(4):
        for tenant in tenants:
            tenant.commit(Entry("there", number))
        assert [tenant.read().sequence for tenant in tenants] == [number] * 3
    for end in (*silent, *tenants):
        end.close()


def frames(registry):
    """Return frames that are invalid, that need the key, or that are incomplete."""
    call = registry.encode(Call(name="commit", arguments=(Entry("thief", 9),), options={}))
    wrong = registry.encode(Proof(drawn=b"1" * 32, mac=b"2" * 32))
    generator = random.Random(8)
    pickled = pickle.dumps(("commit", (Entry("thief", 9),), {}))
    return {"random": generator.randbytes(100), "pickle": pickled, "call": call, "wrong proof": wrong,
            "wrong, then a call": wrong + call, "entry": registry.encode(Entry("thief", 9)),
            "long": b"grad\0\1\0\0" + b"\xff" * 16, "http": b"GET / HTTP/1.1\r\n\r\n", "half": wrong[:40]}


@pytest.mark.parametrize("kind", frames(MESSAGES))
def test_other_bytes(served, kind):
    """Invalid data from a tenant closes only that tenant's connection."""
    ledger, address = served
    remote = RemoteLedger("ledger", address, key=KEY)
    remote.read()
    other = raw(address)
    assert len(other.recv(1000)) > 32  # the server's challenge
    other.sendall(frames(MESSAGES)[kind])
    if kind == "half":
        assert remote.read() == Entry("here", 3)  # the server waits for the other bytes meanwhile
    with contextlib.suppress(ConnectionResetError):
        assert other.recv(1000) == b""
    other.close()
    assert remote.read() == ledger.read() == Entry("here", 3)
    remote.close()


def test_random_calls(served):
    """Whatever messages and values a tenant with the key sends, each of them leads to a result or an error."""
    _, address = served
    generator = random.Random(9)
    for _ in range(100):
        remote = RemoteLedger("ledger", address, key=KEY)
        with contextlib.suppress(MigrationError):
            remote.call(generator.choice(["read", "commit", "x", ""]), *[value(generator) for _ in range(2)])
        with contextlib.suppress(OSError):
            remote._connection and remote._connection._socket.sendall(generator.randbytes(50))
        remote.close()
    remote = RemoteLedger("ledger", address, key=KEY)
    remote.commit(Entry("here", 4))
    assert remote.read() == Entry("here", 4)
    remote.close()


def test_impostor(tmp_path):
    """A tenant rejects a party that does not have the key."""
    address = tmp_path / "socket"
    server = Server(address, MESSAGES, greet=lambda peer: peer.send(Challenge(drawn=b"3" * 32)))

    def answer():
        for _ in range(100):
            for peer, message in server.poll(0.1):
                if isinstance(message, Proof):
                    peer.send(Proof(drawn=b"", mac=message.mac))
                    return

    thread = threading.Thread(target=answer)
    thread.start()
    with pytest.raises(MigrationError, match=r"^ledger has not answered to read: Party must have the key of the "):
        RemoteLedger("ledger", address, key=KEY).read()
    thread.join()
    server.close()


def test_file_at_the_address(tmp_path):
    """If there is a regular file at the address of the socket, it is not removed."""
    address = tmp_path / "file"
    address.write_text("kept")
    with pytest.raises(OSError, match=r"in use"):
        serve(Ledger(tmp_path / "ledger.json"), address, key=KEY)
    assert address.read_text() == "kept"
