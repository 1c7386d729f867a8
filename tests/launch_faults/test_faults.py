"""Inject each fault of a rank or a connection once: the run ends by itself, with a one-line cause."""

import re

from tests.launch_faults.play import KINDS, Case, plan, play


def played(folder, kind, way, *, seed=1):
    outcome = play(Case(kind=kind, way=way, ranks=2, rank=1, step=5, delay=0.01, seed=seed), folder)
    print(outcome.text)
    assert not outcome.wrong, outcome
    return outcome


def test_stopped_rank(tmp_path):
    """A rank that a signal has stopped is named once, and the run ends at the time-out."""
    text = played(tmp_path / "run", "stop", "rank stopped").text
    assert re.search(r"rank 0 has waited \S+ s for rank 1, |rank 1 has been stopped by a signal for", text)
    assert text.count("error: ") == 1


def test_half_message(tmp_path):
    """If a rank or an unknown connection sends half a message, other ranks wait no longer than the time-out."""
    played(tmp_path / "own", "half message", "own half")
    played(tmp_path / "other", "half message", "half hello")


def test_random_bytes(tmp_path):
    """A connection that sends 100 random bytes is closed, without any other effect."""
    text = played(tmp_path / "run", "garbage", "random bytes").text
    assert re.fullmatch(r"a connection to the ring was closed, since it is not that of a rank: it must send messages "
                        r"of this format: Frame must begin with b'grad', not .*\n", text)


def test_killed_launcher(tmp_path):
    """After a launcher is killed, no process is left, even if ranks were stopped; the next launcher removes its
    folder."""
    played(tmp_path / "run", "kill", "launcher killed")


def test_plan():
    """The plan contains each variant of each kind for each number of ranks."""
    cases = plan(20, ranks=[2, 4], seed=0)
    assert {(case.kind, case.way, case.ranks) for case in cases} == {
        (kind, way, ranks) for kind, ways in KINDS.items() for way in ways for ranks in (2, 4)}
    assert len(cases) == 2 * 20 * len(KINDS)
    assert all(case.rank < case.ranks for case in cases)
