"""Detection of ranks that do not call init_process_group()."""

import os
import re
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from host.pytorch.launch import Arrivals, starters
from host.pytorch.messages import ADDRESS
from host.pytorch.server import Patience
from tests.host.pytorch.commands import SCRIPTS, launch


class Server:
    """Stub of the launcher's server, which only some ranks have joined."""

    error = None

    def __init__(self, *joined, begun, since):
        self.backends, self.reasons = {rank: ["gradring"] for rank in joined}, []
        self.begun, self.since = begun, since

    def fail(self, reason):
        self.reasons.append(reason)


def watched(*codes, joined=(), waited, begun=None):
    """Check processes with the given exit codes two times; return the printed lines and the reasons for ending the
    run."""
    begun = len(codes) if begun is None else begun
    said, server = [], Server(*joined, begun=begun, since=time.monotonic() - waited)
    processes = [SimpleNamespace(pid=-1, poll=lambda code=code: code) for code in codes]
    arrivals = Arrivals(server, processes, Patience(slow=10, timeout=600), said.append)
    for _ in range(2):
        arrivals.look()
    return said, server.reasons


@pytest.mark.parametrize(("case", "who"), [
    ({"joined": ()}, "a rank"),
    ({"joined": (0, 2)}, "rank 1"),
    ({"joined": (1,)}, "rank 0, rank 2"),
])
def test_awaited(case, who):
    """After one timeout, gradring launch prints a line; after a second one, it ends the run."""
    assert watched(None, None, None, waited=5, **case) == ([], [])
    said, reasons = watched(None, None, None, waited=11, **case)
    assert [re.sub(r"1\d\.\d s", "… s", line) for line in said] == [
        f"gradring launch has waited … s for {who} in init_process_group()"]
    assert not reasons
    said, reasons = watched(None, None, None, waited=601, **case)
    assert not said
    assert reasons[0] == (f"{who[0].upper()}{who[1:]} must call init_process_group() within 600 seconds: give "
                          f"gradring launch a longer --timeout")


def test_not_awaited():
    """Ranks are not reported if they have joined, have ended, or are still importing PyTorch."""
    assert watched(None, None, begun=1, waited=65) == ([], [])
    assert watched(None, None, begun=1, waited=71) != ([], [])
    assert watched(None, None, joined=(0, 1), waited=1000) == ([], [])
    assert watched(0, None, joined=(1,), waited=1000) == ([], [])


@pytest.mark.parametrize(("word", "way"), [
    ("torchrun", "torchrun"), ("torch.distributed.run", "torchrun"),
    ("multiprocessing.spawn", "torch.multiprocessing.spawn"), ("multiprocessing.forkserver", "multiprocessing"),
    ("multiprocessing.resource_tracker", None), ("worker", None)])
def test_starters(word, way):
    """Processes that start ranks are recognized by their command line, if they have the environment of a rank."""
    begun = [subprocess.Popen([sys.executable, "-S", "-c", "input()", word], stdin=subprocess.PIPE,
                              env={**os.environ, **environment}) for environment in ({ADDRESS: "x"}, {})]
    try:
        limit = time.monotonic() + 30
        while starters([os.getpid()]) != ({} if way is None else {begun[0].pid: way}):
            assert time.monotonic() < limit
            time.sleep(0.02)
        assert not starters([])
    finally:
        for process in begun:
            process.communicate(b"\n", timeout=30)


def test_own_ranks(tmp_path):
    """If a script starts ranks by itself, the error says so; the run and its processes end within the time limit."""
    begun = time.monotonic()
    printed, errors = launch("-n", 1, "--slow", 3, "--timeout", 20, "--output", tmp_path / "output",
                             SCRIPTS / "own_ranks.py", tmp_path / "begun", expect=1)
    cause = ("the script starts processes of its own by torch.multiprocessing.spawn, and the ranks are there "
             "already: call the function of a rank directly")
    assert f"s for a rank in init_process_group(): {cause}\n" in printed
    assert errors.rstrip().splitlines()[-1] == (f"error: A rank must call init_process_group() within 20 seconds: "
                                                f"{cause}, or give gradring launch a longer --timeout")
    assert (tmp_path / "begun").exists()
    assert time.monotonic() - begun < 120
