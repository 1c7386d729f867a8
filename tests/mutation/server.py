"""Server that runs mutants one after another, each in a fork with numpy and pytest already loaded.

It runs in a copy of the tree, as ``python -m tests.mutation.server``, and does not import hdl/ or sim/ itself. It
reads requests, one JSON object per line, ``{"target", "expected", "cpu", "wall", "log"}``, and writes answers.
"""

import contextlib
import gc
import hashlib
import json
import os
import resource
import select
import signal
import sys
import time
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import amaranth.back.rtlil
import cocotb_tools.check_results
import cocotb_tools.runner
import numpy
import pytest

from tests.mutation.targets import TARGETS, Target

LOADED = (amaranth, cocotb_tools.check_results, cocotb_tools.runner, numpy)


class Tests:
    """Pytest plugin that orders tests and records the first failure.

    Tests with a name that starts with an item of ``first`` run first; all other tests run only if ``rest`` is set.
    """

    def __init__(self, first: Iterable[str], rest: bool) -> None:
        self._first, self._rest = tuple(first), rest
        self.failed: str | None = None
        self.passed = 0

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        def place(item: Any) -> int:
            return next((n for n, name in enumerate(self._first) if item.name.startswith(name)), len(self._first))

        items[:] = [item for item in sorted(items, key=place) if self._rest or place(item) < len(self._first)]

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed and self.failed is None:
            self.failed = report.nodeid
        self.passed += report.passed and report.when == "call"


def gateware(target: str) -> dict[str, str]:
    """Return the digest of the gateware of each unit of a target, keyed by the unit's name."""
    gc.disable()  # elaboration creates many long-lived objects
    parts = {name: hashlib.sha256(amaranth.back.rtlil.convert(unit, name="unit", emit_src=False).encode()).hexdigest()
             for name, unit in TARGETS[target].units().items()}
    gc.enable()
    return parts


def run_tests(target: Target, changed: list[str]) -> tuple[int, Tests]:
    """Run a target's tests up to the first failure, beginning with the tests of units that have changed."""
    from sim.verilated import build

    # Rings run for only about ten thousand cycles, so optimizing their code would take longer than it saves.
    build._FAST = ("-O1",)
    build.FLAGS = (*build._COMPILE, *build._FAST, *build._SLOW, *build._ONCE)
    order = [*changed, *(name for name in target.first if name not in changed)]
    tests = Tests((test for name in order for test in target.first.get(name, ())), target.rest)
    code = pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--no-header", *target.tests],
                       plugins=[tests])
    return int(code), tests


def trial(request: dict[str, Any]) -> dict[str, Any]:
    """Elaborate the units and, if their digests have changed, run the tests. This is called in a forked process.

    The answer's ``status`` is "invalid", "same", "survived" or "killed".
    """
    begun = time.monotonic()
    target, expected = TARGETS[request["target"]], request["expected"]
    try:
        digests = gateware(target.file)
    except Exception as error:  # mutants may raise any error, both in constructors and in Amaranth
        print(traceback.format_exc(), flush=True)
        return {"status": "invalid", "test": type(error).__name__}
    if digests == expected:
        return {"status": "same"}
    code, tests = run_tests(target, [name for name in digests if digests[name] != expected.get(name)])
    seconds = time.monotonic() - begun
    if code == pytest.ExitCode.OK:
        return {"status": "survived", "gateware": digests, "seconds": seconds, "passed": tests.passed}
    if tests.failed is not None:
        return {"status": "killed", "seconds": seconds, "test": tests.failed}
    # No test has run, because pytest could not collect any.
    return {"status": "invalid", "test": f"pytest has ended with {code}"}


def fork(request: dict[str, Any]) -> dict[str, Any]:
    """Run a trial in a process group of its own, and kill the group at the time limit."""
    begun = time.monotonic()
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        with contextlib.suppress(BaseException):
            os.setsid()
            os.close(reading)
            # If a simulation never ends, it keeps one process busy until the limit of CPU time.
            resource.setrlimit(resource.RLIMIT_CPU, (request["cpu"], request["cpu"] + 1))
            log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(log, 1)
            os.dup2(log, 2)
            os.write(writing, json.dumps(trial(request)).encode())
            sys.stdout.flush()
        os._exit(0)
    os.close(writing)
    ready, _, _ = select.select([reading], [], [], request["wall"])
    answer = os.read(reading, 1 << 16) if ready else b""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    os.close(reading)
    _, code, usage = os.wait4(child, 0)
    result: dict[str, Any]
    if answer:
        result = json.loads(answer)
    elif ready and os.WIFSIGNALED(code) and os.WTERMSIG(code) not in (signal.SIGXCPU, signal.SIGKILL):
        result = {"status": "killed", "test": f"signal {os.WTERMSIG(code)}"}
    else:
        result = {"status": "timeout"}
    result.setdefault("seconds", time.monotonic() - begun)
    result["cpu"] = usage.ru_utime + usage.ru_stime
    return result


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        request = json.loads(line)
        Path(request["log"]).parent.mkdir(parents=True, exist_ok=True)
        print(json.dumps(fork(request)), file=answers, flush=True)


if __name__ == "__main__":
    main()
