"""Processor time of tests by folder, including the programs they run.

Wall-clock time depends on the machine's load; processor time shows the cost of a test. The table is printed after
pytest's summary; ``build/tests.json`` contains the time of each file, and of each test that takes a second or more.
"""

import collections
import json
import resource
from pathlib import Path

import pytest

from sim import simulations

#: Name of the test property in which a worker reports the test's time to the main process.
_PROPERTY = "processor_seconds"
_REPORT = Path("build") / "tests.json"
_LONG = 1.0

_tests: dict[str, float] = {}


def _used() -> float:
    """Seconds used so far by this process, its child processes that have ended, and cocotb's simulation process."""
    return simulations.seconds() + sum(usage.ru_utime + usage.ru_stime
               for usage in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item, nextitem):
    item.stash[_BEGUN] = _used()
    return (yield)


_BEGUN = pytest.StashKey[float]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item, nextitem):
    try:
        return (yield)
    finally:
        item.user_properties.append((_PROPERTY, _used() - item.stash[_BEGUN]))


def pytest_runtest_logreport(report):
    if report.when == "teardown":
        _tests[report.nodeid] = sum(value for name, value in report.user_properties if name == _PROPERTY)


def pytest_terminal_summary(terminalreporter):
    if not _tests:
        return
    folders, files = collections.Counter(), collections.Counter()
    for name, seconds in _tests.items():
        file = name.partition("::")[0]
        files[file] += seconds
        folders[str(Path(file).parent)] += seconds
    terminalreporter.section("processor time")
    for folder, seconds in folders.most_common():
        terminalreporter.write_line(f"{seconds:9.1f} s  {folder}")
    total = sum(folders.values())
    terminalreporter.write_line(f"{total:9.1f} s  in all, {total / 60:.1f} minutes")
    _REPORT.parent.mkdir(exist_ok=True)
    _REPORT.write_text(json.dumps({
        "schema": "gradring.tests.1",
        "seconds": total,
        "folders": dict(folders.most_common()),
        "files": dict(files.most_common()),
        "tests": dict(collections.Counter({name: s for name, s in _tests.items() if s >= _LONG}).most_common()),
    }, indent=1) + "\n")
