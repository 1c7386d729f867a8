"""Calls of a party in another process: results, errors, and messages that do not come."""

import re
import threading
import time

import pytest

from host.migration.ledger import Entry, Ledger
from host.migration.migrate import MigrationError
from host.migration.parties import RemoteLedger, serve

KEY = b"key of tenants"


@pytest.fixture
def served(tmp_path):
    """A ledger at a socket."""
    ledger, address = Ledger(tmp_path / "ledger.json"), tmp_path / "socket"
    ledger.commit(Entry("here", 3))
    threading.Thread(target=serve, args=(ledger, address), kwargs={"key": KEY}, daemon=True).start()
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
        with pytest.raises(MigrationError, match=rf"^ledger: {name} has failed: ValueError: call must be one of "
                                                 rf"commit, read, not '{name}'$"):
            remote.call(name)
    assert remote.read() == Entry("there", 4)
    remote.close()
    assert remote.read() == Entry("there", 4)  # which connects anew
    remote.close()


def test_lost_messages(served):
    """A request that is lost does nothing, an answer that is lost has done it; the next call is answered."""
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
