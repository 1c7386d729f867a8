"""Server for the requests of ranks: disagreement, slow ranks, ranks that end, and time-outs."""

import re
import time

import numpy as np
import pytest

from host.driver.diagnosis import RingError
from host.pytorch.client import RingClient, launcher
from host.pytorch.messages import ADDRESS, MESSAGES, AllReduce, Answer, Buffers, Failed, Hello, Leave, Open, Save
from host.pytorch.server import Patience
from host.sockets.connections import Client
from host.training.optimizers import SGD
from tests.host.pytorch.ranks import serving
from tests.refusals import refuses

RANKS = 3


class Sums:
    def __init__(self):
        self.asked = 0

    def answer(self, requests):
        self.asked += 1
        if isinstance(requests[0], Open):
            if requests[0].optimizers:
                raise RingError("Node 1 is broken", cause=1, events=[])
            raise ValueError("There can be no such job")
        return sum(request.values for request in requests)

    def save(self, request):
        return {"job": request.job}


@pytest.fixture
def ranks(tmp_path):
    with serving(tmp_path, Sums(), ranks=RANKS) as served:
        yield served


def ones(count=4, *, value=1):
    return AllReduce(values=np.full(count, value, np.float32))


def same_error(answers):
    """Return the text of the errors that several ranks got, which must be the same."""
    assert all(isinstance(answer, RingError) for answer in answers), answers
    text, = {str(answer) for answer in answers}
    return text


def test_sum(ranks):
    for count in (4, 100_000):
        for answer in ranks.ask(ones(count), ones(count, value=2), ones(count, value=4)):
            np.testing.assert_array_equal(answer, np.full(count, 7, np.float32))


def test_state_of_one_rank(ranks):
    """One rank may request the state of a job while other ranks wait for a sum."""
    waiting = [ranks.pool.submit(ranks.clients[rank].ask, ones()) for rank in (0, 1)]
    assert ranks.clients[2].ask(Save(job=5)) == {"job": 5}
    ranks.clients[2].ask(ones())
    for future in waiting:
        assert future.result(10)[0] == 3


def test_refused_request(ranks):
    """A request that is rejected is an error on all ranks, which may make more requests afterwards."""
    assert same_error(ranks.ask(*[Open(lengths=(10,))] * RANKS)) == "There can be no such job"
    assert ranks.ask(*[ones()] * RANKS)[0][0] == 3


def test_broken_ring(ranks):
    """After the ring has failed, all further requests of all ranks fail."""
    assert same_error(ranks.ask(*[Open(lengths=(10,), optimizers=(SGD(0.1),))] * RANKS)) == "Node 1 is broken"
    assert same_error(ranks.ask(*[ones()] * RANKS)) == "Node 1 is broken"


@pytest.mark.parametrize(("other", "text"), [
    (ones(5), "Rank 1 asks for a sum of 5 elements, and rank 0 for a sum of 4 elements"),
    (Open(lengths=(4,)), "Rank 1 asks for a job of 4 elements with sums alone, and rank 0 for a sum of 4 elements"),
    (AllReduce(values=np.zeros(4, np.float32), job=0, begin=32),
     "Rank 1 asks for a sum of 4 elements from element 32 on of job 0, and rank 0 for a sum of 4 elements"),
    (AllReduce(values=np.ones(4, np.float32), group=2),
     "Rank 1 asks for a sum of 4 elements in group 2, and rank 0 for a sum of 4 elements"),
    (Buffers(), "Rank 1 asks for the buffers of a module, and rank 0 for a sum of 4 elements"),
])
def test_disagreement(ranks, other, text):
    error = same_error(ranks.ask(ones(), other, ones()))
    order = "all ranks must ask for the same in the same order"
    # The server may compare the requests of ranks 1 and 2 in either order.
    assert error in (f"{text}: {order}", f"Rank 2 asks for {ones().title}, and rank 1 for {other.title}: {order}")


def test_rank_that_leaves(ranks):
    ranks.clients[1].leave()
    ranks.clients[1].leave()
    error = same_error(ranks.ask(ones(), None, ones()))
    assert re.fullmatch(r"Rank 1 has left, and (rank [02] waits|ranks 0 and 2 wait) for a sum of 4 elements", error)


def test_rank_that_ends(ranks):
    """If a rank ends, all other ranks get the reason within two seconds, and all later requests get it too."""
    waiting = [ranks.pool.submit(ranks.clients[rank].ask, ones()) for rank in (0, 2)]
    time.sleep(0.1)
    begun = time.monotonic()
    ranks.clients[1].close()
    answers = [future.exception(10) for future in waiting]
    assert time.monotonic() - begun < 2
    assert same_error(answers) == "Rank 1 has ended; the others cannot go on without it"
    assert same_error(ranks.ask(ones(), None, ones())) == "Rank 1 has ended; the others cannot go on without it"


def test_server_that_ends(tmp_path):
    with serving(tmp_path, Sums(), ranks=RANKS) as ranks:
        waiting = ranks.pool.submit(ranks.clients[0].ask, ones())
        time.sleep(0.1)
    refuses("The process that has the ring has ended: its own message says why", waiting.result, 10, error=RingError)


def test_failure(ranks):
    """If several ranks fail, the first rank with an error of its own is named as the cause, even of errors reported
    earlier."""
    waiting = ranks.pool.submit(ranks.clients[0].ask, ones())
    borrowed = ranks.pool.submit(ranks.clients[2].fail, Failed(rank=2, error="RuntimeError: closed", own=False))
    time.sleep(0.1)
    assert ranks.clients[1].fail(Failed(rank=1, error="KeyError: 'a'", own=True)) is None
    answers = [waiting.exception(10), borrowed.result(10)]
    assert same_error(answers) == "Rank 1 has ended by KeyError: 'a'; the others cannot go on without it"
    assert ranks.server.error == str(answers[0])


def test_failure_alone(ranks):
    """If only one rank reports an error, it is named as the cause, even if another rank may have caused the error."""
    waiting = ranks.pool.submit(ranks.clients[0].ask, ones())
    assert ranks.clients[2].fail(Failed(rank=2, error="RuntimeError: shapes", own=False)) is None
    assert same_error([waiting.exception(10)]) == (
        "Rank 2 has ended by RuntimeError: shapes; the others cannot go on without it")


def test_timeout(tmp_path):
    with serving(tmp_path, Sums(), ranks=RANKS, patience=Patience(slow=0.1, timeout=0.3)) as ranks:
        error = same_error(ranks.ask(ones(), None, None))
        assert error.startswith("Ranks 1 and 2 must ask for a sum of 4 elements within 0.3 seconds, as rank 0 did: ")
        assert re.fullmatch(r"rank 0 has waited 0\.\d s for ranks 1 and 2, for a sum of 4 elements", ranks.said[0])


@pytest.mark.parametrize(("hello", "text"), [
    (Hello(rank=0, ranks=2, timeout=1800), "Process group of the ring must have all 3 ranks, not 2"),
    (Hello(rank=0, ranks=3, timeout=0), "Timeout of init_process_group must be above 0 seconds, not 0"),
])
def test_refused(tmp_path, hello, text):
    with serving(tmp_path, Sums(), ranks=RANKS, join=False) as ranks, \
            pytest.raises(RingError, match=f"^{text}"):
        ranks.clients[0].join(hello.rank, hello.ranks, hello.timeout)


def test_twice(tmp_path):
    with serving(tmp_path, Sums(), ranks=RANKS, join=False) as ranks:
        ranks.clients[0].join(0, 3, 1800)
        ranks.clients[0].join(0, 3, 1800)
        refuses("Rank 0 must join the ring once", ranks.clients[1].join, 0, 3, 1800, error=RingError)


def test_patience():
    for slow in (0, 600, -1):
        with pytest.raises(ValueError, match=r"^Slow ranks must be named after more than 0 seconds and before the "):
            Patience(slow=slow)


def test_client(monkeypatch, tmp_path):
    monkeypatch.delenv(ADDRESS, raising=False)
    with pytest.raises(RingError, match=r"^Script must be started by the launcher to have a ring: gradring launch "):
        launcher()
    with serving(tmp_path, Sums(), ranks=1, join=False):
        alone = RingClient(str(tmp_path / "ring"))
        with pytest.raises(RingError, match=r"^Rank must join by init_process_group\(\) before it can ask"):
            alone.ask(ones())
        alone.leave()
        with pytest.raises(RingError, match=r"^Rank must join|^Rank must ask the ring before it leaves$"):
            alone.join(0, 1, 1800)


def test_short_timeout_of_a_group(tmp_path):
    """If a process group has a shorter timeout than the ring, it takes effect, and the cause is named."""
    with serving(tmp_path, Sums(), ranks=RANKS, join=False) as ranks:
        for rank, client in enumerate(ranks.clients):
            client.join(rank, RANKS, 0.4 if rank == 2 else 1800)
        begun = time.monotonic()
        text = same_error(ranks.ask(ones(), None, None))
        assert time.monotonic() - begun < 10  # shorter than the ring's timeout of 40
        assert text == ("Ranks 1 and 2 must ask for a sum of 4 elements within 0.4 seconds, as rank 0 did: look for "
                        "what holds them up, or give init_process_group a longer timeout")
        assert re.match(r"rank 0 has waited 0\.\d s for ranks 1 and 2, ", ranks.said[0])


def test_escaped(ranks):
    """Text that a rank sends cannot move the terminal's cursor or change its colors."""
    waiting = ranks.pool.submit(ranks.clients[0].ask, ones())
    assert ranks.clients[1].fail(Failed(rank=1, error="KeyError: '\x1b[2J\r\n\x07'" + "x" * 1000,
                                          own=True)) is None
    text = same_error([waiting.exception(10)])
    assert text.startswith("Rank 1 has ended by KeyError: '\\x1b[2J\\r\\n\\x07'xxx")
    assert text.endswith("xxx; the others cannot go on without it")
    assert len(text) < 600


class Broken:
    """Stub of jobs in which every request leads to an internal error."""

    def answer(self, requests):
        raise KeyError(139775748446144)

    def save(self, request):
        return {"set": {1, 2}}


def test_fault_of_the_launcher(tmp_path):
    """An unexpected error in the server is reported to all ranks, and the server continues to answer."""
    with serving(tmp_path, Broken(), ranks=RANKS) as ranks:
        with pytest.raises(RingError, match=r"^Values of a message must be of the kinds that it can have, not set$"):
            ranks.clients[0].ask(Save(job=0))
        assert ranks.server.error is None
        assert same_error(ranks.ask(*[ones()] * RANKS)) == "KeyError: 139775748446144"
        assert ranks.server.error == "KeyError: 139775748446144"


def test_wrong_request(ranks):
    """A request with values of the wrong type is rejected on the rank itself, without any effect on other ranks."""
    with pytest.raises(RingError, match=r"^values of AllReduce must be an array of float32 in 1 dimension, not "):
        ranks.clients[0].ask(AllReduce(values=np.ones(4)))
    assert ranks.ask(*[ones()] * RANKS)[0][0] == 3


def send(ranks, data):
    ranks.clients[1]._connection._socket.sendall(data)


@pytest.mark.parametrize(("data", "text"), [
    (b"\x80\x05K\x01." * 20, "Rank 1 must send messages of this format: Frame must begin with b'grad', not "),
    (MESSAGES.encode(Hello(rank=1, ranks=3, timeout=9.0)), "Rank 1 must send a message that can come here, not Hel"),
    (MESSAGES.encode(Answer(well=True)), "Rank 1 must send a message that can come here, not Answer"),
    (MESSAGES.encode(Failed(rank=3, error="", own=True)) * 2, "Rank 1 must send a message that can come here, not F"),
    (MESSAGES.encode(ones()) * 2, "Rank 1 must send a message that can come here, not AllReduce"),
], ids=["pickle", "hello", "answer", "failure of another rank", "two requests"])
def test_other_bytes_of_a_rank(ranks, data, text):
    """A rank that sends invalid data ends the run, and the error names the rank and the reason."""
    waiting = ranks.pool.submit(ranks.clients[0].ask, ones())
    send(ranks, data)
    assert same_error([waiting.exception(10)]).startswith(text)


@pytest.mark.parametrize("message", [ones(), Leave(gloo={}), Save(job=0), Answer(well=True), Failed(rank=3, error="",
                                                                                                   own=True)],
                         ids=lambda message: type(message).__name__)
def test_other_messages_first(ranks, tmp_path, message):
    """If the first message on a connection is invalid, only that connection is closed."""
    other = Client(tmp_path / "ring", MESSAGES)
    other.send(message)
    with pytest.raises(EOFError):
        other.receive(seconds=10)
    other.close()
    assert ranks.ask(*[ones()] * RANKS)[0][0] == 3
    assert ranks.said == [f"a connection to the ring was closed, since it is not that of a rank: it must send a "
                          f"message that can come here, not {type(message).__name__}"]


def test_rank_that_does_not_read(tmp_path):
    """A rank that does not read its answer does not block other ranks; the next operation names it."""
    with serving(tmp_path, Sums(), ranks=2, patience=Patience(slow=0.3, timeout=1.5)) as ranks:
        request = ones(1_000_000)
        ranks.clients[1]._connection.send(request)
        assert ranks.clients[0].ask(request)[0] == 2
        with pytest.raises(RingError, match=r"^Rank 1 must (ask for a sum of 4 elements|read its answer) within "):
            ranks.clients[0].ask(ones())


def test_stopped(tmp_path):
    """Ranks stopped by a signal are reported even if no other rank waits for them. If they stay stopped, the run
    ends."""
    with serving(tmp_path, Sums(), ranks=RANKS, patience=Patience(slow=0.2, timeout=2)) as ranks:
        ranks.server.stopped([1])
        time.sleep(0.3)
        for now in ([1], [1], [0, 1], [0]):
            ranks.server.stopped(now)
        assert len(ranks.said) == 1
        assert re.fullmatch(r"rank 1 has been stopped by a signal for \d\.\d s", ranks.said[0])
        assert ranks.server.slow == [0, 1, 0]
        ranks.server.stopped([0, 1])
        assert ranks.server.error is None
        time.sleep(2.1)
        ranks.server.stopped([1])
        assert ranks.server.error.startswith("Rank 1 must run, and has been stopped by a signal for 2 seconds: ")
