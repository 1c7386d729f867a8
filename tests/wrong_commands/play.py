"""Run command lines in separate processes with limited memory and time, and record their outcomes."""

import contextlib
import dataclasses
import importlib
import os
import resource
import signal
import sys
import time
import traceback
from pathlib import Path

from sim.verilated.processes import status
from tests.wrong_commands.draw import Case, prepare

#: CPU seconds after which an error is too late, and after which a command counts as legal and is ended; seconds for
#: which a command may wait, and seconds that it may take to end.
SECONDS, LEGAL, WAITS, ENDS = 10.0, 12.0, 150.0, 60.0
#: Maximum bytes of address space, and maximum lines and characters of an error message.
MEMORY, LINES, LENGTH = 4 << 30, 3, 3000

_TICKS = os.sysconf("SC_CLK_TCK")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """Outcome of running a command line."""

    code: int  # exit code
    seconds: float  # processor time of all its processes
    legal: bool  # whether it was still running when it was stopped
    error: str  # standard error
    wrong: list[str]  # requirements that it violates


class Family:
    """A process and all its descendants, including those in other sessions. ``seconds`` is their total CPU time when
    last checked."""

    def __init__(self, process: int) -> None:
        self._process, self._seen, self.seconds = process, {process: ""}, 0.0

    def look(self) -> list[int]:
        """Return the IDs of the processes that are alive."""
        stats = {}
        for folder in Path("/proc").glob("[0-9]*"):
            if fields := status(int(folder.name)):
                stats[int(folder.name)] = fields
        grown = True
        while grown:
            new = {number for number, fields in stats.items() if number not in self._seen and (
                int(fields[1]) in self._seen or int(fields[3]) == self._process)}
            self._seen.update({number: stats[number][19] for number in new})
            grown = bool(new)
        self._seen[self._process] = stats.get(self._process, [""] * 20)[19]
        known = [number for number, began in self._seen.items() if number in stats and stats[number][19] == began]
        ticks = sum(int(field) for number in known for field in stats[number][11:15])
        self.seconds = max(self.seconds, ticks / _TICKS)
        return [number for number in known if stats[number][0] not in "ZX"]

    def kill(self) -> None:
        """Kill all processes that are alive."""
        for number in self.look():
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)


def _child(case: Case, folder: Path) -> None:
    """Run a command line in this process, and end the process."""
    code = 70
    try:
        os.setsid()
        os.chdir(folder)
        for number, name in ((0, os.devnull), (1, "stdout"), (2, "stderr")):
            os.dup2(os.open(name, os.O_RDWR | os.O_CREAT, 0o600), number)
        for name in ("TMPDIR", "HOME"):
            (folder / "home").mkdir(exist_ok=True)
            os.environ[name] = str(folder / "home")
        os.environ["GRADRING_CACHE"] = str(folder / "cache")
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        sys.stdin, sys.stdout, sys.stderr = (os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w"))
        sys.argv = [case.module, *case.words]
        if case.module == "gradring":
            from gradring.__main__ import main
            code = main() or 0
        else:
            code = importlib.import_module(case.module).main(list(case.words))
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        code = 1
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _verdict(case: Case, outcome: Outcome, printed: str) -> list[str]:
    """List the requirements that an outcome violates."""
    error, wrong = outcome.error.strip("\n"), []
    lines = [line for line in error.splitlines() if not line.startswith((" ", "usage:"))]  # no argparse help
    if "Traceback" in error + printed:
        wrong.append("a traceback")
    if "Warning" in error:
        wrong.append("a warning")
    if outcome.code < 0 or (outcome.code > 128 and not outcome.legal):
        wrong.append(f"ended by a signal: {outcome.code}")
    if outcome.code and not outcome.legal:
        if not error and (case.certain or not printed):
            wrong.append("no error")
        if error and not error.startswith("Usage:") and (len(lines) > LINES or len(error) > LENGTH
                                                         or "error: " not in error):
            wrong.append(f"an error of {len(lines)} lines and {len(error)} characters")
        if any(not (letter.isprintable() or letter == "\n") for letter in error):
            wrong.append("control characters")
        if outcome.seconds > SECONDS:
            wrong.append(f"an error after {outcome.seconds:.1f} s of work")
    if case.certain and (outcome.legal or not outcome.code):
        wrong.append("not refused")
    return wrong


def survivors(family: Family) -> int:
    """Kill the processes that are still running some time after the first one has ended; return their number."""
    limit = time.monotonic() + 3
    while family.look() and time.monotonic() < limit:
        time.sleep(0.05)
    left = len(family.look())
    family.kill()
    return left


def play(case: Case, folder: Path, *, work: float = LEGAL) -> Outcome:
    """Run a command line in an empty folder, with limited CPU time; return its outcome."""
    folder.mkdir(parents=True)
    prepare(folder)
    sys.stdout.flush()
    process = os.fork()
    if not process:
        _child(case, folder)
    begun, asked, family, wrong = time.monotonic(), 0.0, Family(process), []
    while True:
        ended, status, usage = os.wait4(process, os.WNOHANG)
        if ended:
            break
        time.sleep(0.02)
        now = time.monotonic()
        family.look()
        if not asked and (family.seconds > work or now > begun + WAITS):
            if family.seconds <= work:
                wrong.append(f"waits: {family.seconds:.1f} s of work in {WAITS:g} s")
            asked = now
            os.kill(process, signal.SIGTERM)
        if asked and now > asked + ENDS:
            wrong.append(f"not ended {ENDS:g} s after SIGTERM")
            os.kill(process, signal.SIGKILL)
            asked = now
    if left := survivors(family):
        wrong.append(f"{left} processes are left")
    outcome = Outcome(code=os.waitstatus_to_exitcode(status), legal=bool(asked), wrong=wrong,
                      seconds=max(family.seconds, usage.ru_utime + usage.ru_stime),
                      error=(folder / "stderr").read_text(errors="backslashreplace"))
    printed = (folder / "stdout").read_text(errors="backslashreplace")
    return dataclasses.replace(outcome, wrong=[*wrong, *_verdict(case, outcome, printed)])
