"""Inject faults into ranks and connections, each in a run of its own, and check how the run ends."""

import contextlib
import dataclasses
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from host.pytorch.messages import MESSAGES, Hello
from sim.verilated.processes import is_alive

ROOT = Path(__file__).parents[2]

#: Times in seconds: until late ranks are named, until the run ends, additional time on a busy machine, and the limit
#: of a run without faults.
SLOW, TIMEOUT, SLACK, WHOLE = 0.5, 3.0, 20.0, 240.0

#: Number of sums in a run, and number of the last sum in which a fault may occur.
SUMS, AMID = 60, 40

_LATE = rf"error: Ranks? [\d, and]+ must ask for a sum of [\d,]+ elements within {TIMEOUT:g} seconds, as "
_HALF = rf"error: Rank \d+ must send the whole of a message within {TIMEOUT + 1:g} seconds$"
_STOPPED = rf"error: Rank \d+ must run, and has been stopped by a signal for {TIMEOUT:g} seconds: "

#: Variants of each kind of fault, each with the expected error: an empty text if the run succeeds, and None if the
#: launcher itself is killed.
KINDS = {
    "stop": {"rank stopped": f"({_LATE}|{_STOPPED})", "all stopped": f"({_LATE}|{_STOPPED}|{_HALF})"},
    "kill": {"rank killed": r"error: Rank \d+ has ended by signal SIGKILL; the others cannot go on without it$",
             "launcher killed": None},
    "garbage": {"random bytes": "", "http": "",
                "own garbage": r"error: Rank \d+ must send messages of this format: Frame must begin with b'grad', "},
    "half message": {"half hello": "", "half head": "", "own half": _LATE},
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """A fault, and the run in which it occurs."""

    kind: str  # key of :data:`KINDS`
    way: str  # variant of this kind
    ranks: int
    rank: int  # the affected rank
    step: int  # index of the sum during which the fault happens
    delay: float  # seconds from the beginning of that sum
    seed: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """Outcome of a run with a fault."""

    code: int  # exit code of the launcher
    seconds: float  # time from the fault to the end of the launcher and all ranks
    wrong: list[str]  # requirements that the run violates
    text: str  # everything that the run printed


def plan(faults, *, ranks, seed):
    """Plan ``faults`` cases for each kind of fault and number of ranks, cycling through the variants of the kind."""
    generator = random.Random(seed)
    return [Case(kind=kind, way=list(KINDS[kind])[number % len(KINDS[kind])], ranks=count,
                 rank=generator.randrange(count), step=generator.randrange(AMID),
                 delay=generator.choice([0, generator.uniform(0, 0.05)]), seed=generator.randrange(1 << 30))
            for count in ranks for kind in KINDS for number in range(faults)]


def _await(condition, seconds):
    limit = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > limit:
            return False
        time.sleep(0.005)
    return True


def _strike(case, launcher, ranks, address):
    """Inject the fault, unless the rank itself injects it. Return a connection if one must stay open."""
    generator = random.Random(case.seed)
    match case.way:
        case "rank stopped":
            os.kill(ranks[case.rank], signal.SIGSTOP)
        case "all stopped":
            for rank in ranks:
                os.kill(rank, signal.SIGSTOP)
        case "rank killed":
            os.kill(ranks[case.rank], signal.SIGKILL)
        case "launcher killed":
            if case.seed % 2:  # stop a rank too, so that it cannot notice the launcher's end
                os.kill(ranks[case.rank], signal.SIGSTOP)
            launcher.kill()
        case "random bytes" | "http" | "half hello" | "half head":
            hello = MESSAGES.encode(Hello(rank=case.rank, ranks=case.ranks, timeout=9.0))
            connection = socket.socket(socket.AF_UNIX)
            connection.connect(address)
            connection.sendall({"random bytes": generator.randbytes(100), "http": b"GET / HTTP/1.1\r\n\r\n",
                                "half hello": hello[:generator.randrange(24, len(hello))],
                                "half head": hello[:generator.randrange(1, 24)]}[case.way])
            return connection
    return None


def play(case, folder):
    """Run a case in an empty folder, and return its outcome."""
    temporary = folder / "tmp"
    temporary.mkdir(parents=True)
    with (folder / "printed").open("wb") as printed:
        launcher = subprocess.Popen(
            [sys.executable, "-m", "tests.launch_faults.launcher", str(case.ranks), str(SLOW), str(TIMEOUT),
             str(ROOT / "tests/launch_faults/script.py"), str(folder), str(SUMS), case.way, str(case.rank),
             str(case.step), str(case.seed)],
            cwd=ROOT, env={**os.environ, "TMPDIR": str(temporary), "PYTHONPATH": str(ROOT)}, stdout=printed,
            stderr=printed)
    files = [folder / f"{rank}.pid" for rank in range(case.ranks)]
    connection = None
    try:
        _await(lambda: (folder / "amid").exists() or launcher.poll() is not None, 240)
        assert (folder / "amid").exists(), (case, (folder / "printed").read_text())
        ranks = [int(file.read_text()) for file in files]
        address, = temporary.glob("*/ring")
        time.sleep(case.delay)
        begun = time.monotonic()
        connection = _strike(case, launcher, ranks, str(address))
        wrong = []
        limit = WHOLE if KINDS[case.kind][case.way] == "" else TIMEOUT + SLACK
        if not _await(lambda: launcher.poll() is not None, limit):
            wrong.append(f"launcher has not ended {limit:g} seconds after the fault")
        if not _await(lambda: not any(map(is_alive, ranks)), SLACK):
            wrong.append("ranks are left")
        seconds = time.monotonic() - begun
    finally:
        launcher.kill()
        launcher.wait()
        for file in files:
            with contextlib.suppress(OSError):
                os.kill(int(file.read_text()), signal.SIGKILL)
        if connection is not None:
            connection.close()
    text = (folder / "printed").read_text()
    return Outcome(code=launcher.returncode, seconds=seconds, text=text,
                   wrong=wrong + _judge(case, launcher.returncode, text, temporary))


def _judge(case, code, text, temporary):
    """Return all violated requirements, after all processes have ended."""
    wrong, lines = [], text.splitlines()
    expected = KINDS[case.kind][case.way]
    if "Traceback" in text:
        wrong.append("a traceback")
    if expected is None:
        if code != -signal.SIGKILL:
            wrong.append(f"exit code {code}")
        _start(temporary)
    elif code != (1 if expected else 0):
        wrong.append(f"exit code {code}")
    elif expected and (not re.match(expected, lines[-1]) or text.count("error: ") != 1):
        wrong.append("another error, or one more than once")
    if case.way == "rank stopped" and not re.search(rf"\brank {case.rank}\b", text):
        wrong.append("the rank was not named")
    if left := [path.name for path in temporary.iterdir()]:
        wrong.append(f"left: {left}")
    return wrong


def _start(temporary):
    """Create a launcher's folder, as a second launcher does when it starts in the same temporary folder."""
    code = "from host.sockets.folder import socket_folder\nwith socket_folder(): pass"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, env={**os.environ, "TMPDIR": str(temporary)}, check=True)
