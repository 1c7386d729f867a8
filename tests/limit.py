"""Time limit of a test run: ``pytest --minutes 50``, or ``make test MINUTES=50``.

A limited run begins with one case of each test, which depends on the commit. The remaining cases follow file by file,
in an order that also depends on the commit. Tests that have not started when the time is up are skipped, unless they
are first cases, so a fast machine runs everything and a slow one runs a different subset for each commit. Tests in
:data:`LARGE` are never first cases.
"""

import collections
import random
import subprocess
import time
from pathlib import Path

import pytest

__all__ = ["LARGE", "arranged", "first_cases"]

#: Name prefixes of tests that build a ring for only themselves, or take at least a minute.
LARGE = (
    "tests/known_answers",
    "tests/pairs",
    "tests/partition",
    "tests/programs",
    "tests/test_examples.py",
    "tests/test_wheel.py",
    "tests/torch_scripts",
    "tests/host/jobs/test_job.py",
    "tests/host/labs/migrate/test_command.py",
    "tests/host/training/test_checkpoint.py",
    "tests/tenants/test_hostile.py",
    "tests/hdl/test_node.py::test_a_ring_under_cocotb",
    "tests/host/pytorch/test_launch.py::test_step_that_one_rank_skips",
    "tests/host/pytorch/test_launch.py::test_what_is_true_at_each_pass",
    "tests/host/features/slots/test_slot_jobs.py",
    "tests/host/features/slots/test_slots.py",
    "tests/host/test_cli.py::TestWave",
    "tests/host/features/grid/test_node_waits.py",
    "tests/host/features/quorum/test_updates.py::test_switch_out",
    "tests/host/features/quorum/test_updates.py::test_none_would_be_left",
    "tests/host/features/slots/test_message_nodes.py",
    "tests/tenants/test_moves.py",
    "tests/features/replay/test_receiver_proof.py",
    "tests/features/slots/test_slot_proofs.py",
    "tests/features/slots/test_table_proofs.py",
    "tests/features/slots/test_job_proofs.py",
)


def first_cases(names: list[str], seed: str) -> set[str]:
    """Choose one random case of each test, leaving out tests in :data:`LARGE`."""
    cases = collections.defaultdict(list)
    for name in names:
        if not name.startswith(LARGE):
            cases[name.partition("[")[0]].append(name)
    return {random.Random(f"{seed} {test}").choice(members) for test, members in cases.items()}


def arranged(names: list[str], seed: str, workers: int) -> list[int]:
    """Order of tests, by index, in a limited run: each worker gets some first cases, and then other cases by file."""
    first = first_cases(names, seed)
    begin = [number for number, name in enumerate(names) if name in first]
    files = list(dict.fromkeys(name.partition("::")[0] for name in names))
    positions = {file: number for number, file in enumerate(random.Random(seed).sample(files, len(files)))}
    follow = sorted((number for number, name in enumerate(names) if name not in first),
                    key=lambda number: positions[names[number].partition("::")[0]])

    def part(numbers: list[int], worker: int) -> list[int]:
        return numbers[len(numbers) * worker // workers:len(numbers) * (worker + 1) // workers]

    return [number for worker in range(workers) for numbers in (begin, follow) for number in part(numbers, worker)]


def _commit() -> str:
    """Commit of this clone, or an empty string outside of a clone."""
    try:
        done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=Path(__file__).parent, capture_output=True, text=True,
                              check=False)
    except OSError:
        return ""
    return done.stdout.strip()


def pytest_addoption(parser):
    parser.addoption("--minutes", type=float, default=0.0,
                     help="minutes after which only the first case of each test may begin; 0 for no limit")


#: Seed of the order of tests, start time of the run, and names of first cases, which ignore the time limit.
_SEED, _BEGUN, _FIRST = pytest.StashKey[str](), pytest.StashKey[float](), pytest.StashKey[set[str]]()


def pytest_configure(config):
    if not config.option.minutes:
        return
    controller = getattr(config, "workerinput", {})
    config.stash[_SEED] = controller["seed"] if controller else _commit()
    config.stash[_BEGUN] = controller["begun"] if controller else time.time()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node):
    if node.config.option.minutes:
        node.workerinput |= {"seed": node.config.stash[_SEED], "begun": node.config.stash[_BEGUN]}


def pytest_report_header(config):
    minutes = config.option.minutes
    return [f"limit: {minutes:g} minutes, order drawn by commit {config.stash[_SEED][:12]}"] if minutes else []


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    if config.option.minutes:
        names = [item.nodeid for item in items]
        config.stash[_FIRST] = first_cases(names, config.stash[_SEED])
        workers = getattr(config, "workerinput", {}).get("workercount", 1)
        items[:] = [items[number] for number in arranged(names, config.stash[_SEED], workers)]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    minutes = item.config.option.minutes
    if minutes and time.time() > item.config.stash[_BEGUN] + 60 * minutes and (
            item.nodeid not in item.config.stash[_FIRST]):
        pytest.skip("The time is over: make test without MINUTES runs every case")
