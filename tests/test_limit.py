"""Time limit of a test run: tests/limit.py."""

import itertools
import subprocess
import sys
from pathlib import Path

import pytest

from tests import limit

NAMES = [*(f"tests/a.py::test_many[{case}]" for case in range(20)), "tests/a.py::test_one",
         *(f"tests/b.py::TestB::test_few[{case}]" for case in range(3)), *(f"{name}::x" for name in limit.LARGE)]
_ROOT = Path(limit.__file__).parents[1]


def test_first_cases():
    """One case of each test is chosen, except for large tests; the choice depends only on the commit."""
    first = limit.first_cases(NAMES, "1")
    assert sorted(name.partition("[")[0] for name in first) == [
        "tests/a.py::test_many", "tests/a.py::test_one", "tests/b.py::TestB::test_few"]
    assert limit.first_cases(NAMES, "1") == first
    assert len(set().union(*(limit.first_cases(NAMES, str(seed)) for seed in range(200)))) == 24


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_order(workers):
    """The order contains every test once, and each worker starts with first cases."""
    order = limit.arranged(NAMES, "1", workers)
    assert sorted(order) == list(range(len(NAMES)))
    first = limit.first_cases(NAMES, "1")
    assert NAMES[order[0]] in first
    assert sum((NAMES[number] in first) and (NAMES[following] not in first)
               for number, following in itertools.pairwise(order)) == workers
    assert limit.arranged(NAMES, "2", workers) != order


def test_rows_name_tests():
    """Each entry of ``limit.LARGE`` is the beginning of a test's name."""
    for beginning in limit.LARGE:
        file, *names = beginning.split("::")
        assert (_ROOT / file).exists(), file
        assert all(name in (_ROOT / file).read_text() for name in names), beginning


@pytest.mark.parametrize("workers", [[], ["-n", "2"]])
def test_run(tmp_path, workers):
    """After the time limit, all test processes run only first cases. Without a limit, all tests run."""
    file = tmp_path / "test_cases.py"
    file.write_text("import pytest\n\n@pytest.mark.parametrize('n', range(9))\ndef test_many(n):\n    pass\n\n"
                    "def test_one():\n    pass\n")

    def run(*arguments):
        return subprocess.run([sys.executable, "-m", "pytest", "-p", "tests.limit", "-p", "no:cacheprovider", "-q",
                               "--rootdir", tmp_path, *workers, *arguments, file], cwd=_ROOT, capture_output=True,
                              text=True, check=False).stdout

    limited = run("--minutes", "1e-9")
    assert "2 passed, 8 skipped" in limited
    assert "SKIPPED [8]" in run("--minutes", "1e-9", "-rs")
    assert "10 passed" in run()
