"""A mutation run on a tree with one small unit: all outcomes of mutants, and stored results."""

import json
import shutil
import textwrap
from pathlib import Path

import pytest

from tests.mutation import equivalents, report, results
from tests.mutation.__main__ import MutationError, chosen_targets
from tests.mutation.mutants import find
from tests.mutation.report import Row
from tests.mutation.targets import TARGETS
from tests.mutation.workers import Worker

TREE = Path(__file__).resolve().parents[2]

UNIT = textwrap.dedent('''\
    from amaranth.hdl import Module
    from amaranth.lib import wiring
    from amaranth.lib.wiring import In, Out


    class Both(wiring.Component):
        a: In(4)
        b: In(4)
        o: Out(4)

        def elaborate(self, platform):
            m = Module()
            m.d.comb += self.o.eq(self.a & self.b | 0)
            return m
    ''')

TARGET = textwrap.dedent('''\
    import dataclasses


    @dataclasses.dataclass(frozen=True)
    class Target:
        file: str
        units: object
        tests: tuple
        first: dict
        rest: bool = True


    def _both():
        from hdl.both import Both
        return {"both": Both()}


    TARGETS = {"hdl/both.py": Target("hdl/both.py", _both, ("tests/test_both.py",), {"both": ("test_last",)})}
    ''')

TESTS = textwrap.dedent('''\
    from amaranth.sim import Simulator

    from hdl.both import Both


    def result(a, b):
        unit, found = Both(), []
        simulator = Simulator(unit)

        async def bench(ctx):
            ctx.set(unit.a, a)
            ctx.set(unit.b, b)
            found.append(ctx.get(unit.o))

        simulator.add_testbench(bench)
        simulator.run()
        return found[0]


    def test_first():
        assert result(3, 7) == 3


    def test_last():
        assert result(5, 15) == 5
    ''')


@pytest.fixture(scope="module")
def worker(tmp_path_factory):
    tree = tmp_path_factory.mktemp("tree")
    for name in ("hdl", "boards", "host", "tests/mutation"):
        (tree / name).mkdir(parents=True)
    shutil.copytree(TREE / "sim", tree / "sim", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("constraints.txt", "hdl/__init__.py"):
        shutil.copyfile(TREE / name, tree / name)
    (tree / "pyproject.toml").write_text('[tool.pytest.ini_options]\npythonpath = ["."]\n'
                                         'addopts = "--import-mode=importlib"\n')
    (tree / "hdl/both.py").write_text(UNIT)
    (tree / "tests/test_both.py").write_text(TESTS)
    shutil.copyfile(TREE / "tests/mutation/server.py", tree / "tests/mutation/server.py")
    (tree / "tests/mutation/targets.py").write_text(TARGET)
    with Worker(tree, tmp_path_factory.mktemp("copy")) as worker:
        yield worker


def run(worker, old="", new="", *, expected=None, cpu=30):
    request = {"target": "hdl/both.py", "expected": expected or {}, "cpu": cpu, "wall": 60}
    return worker.run(request, file="hdl/both.py", source=UNIT.replace(old, new) if old else UNIT)


def test_what_becomes_of_a_mutant(worker):
    base = run(worker)
    assert (base["status"], base["passed"]) == ("survived", 2)
    expected = base["gateware"]
    assert set(expected) == {"both"}
    # As 5 & 15 equals 5 | 0, the first test does not detect the mutant. The test that does will then run first.
    killed = run(worker, "self.a & self.b", "self.a | self.b", expected=expected)
    assert (killed["status"], killed["test"]) == ("killed", "tests/test_both.py::test_last")
    other = run(worker, "self.a & self.b", "self.a & 5", expected=expected)
    assert (other["status"], other["test"]) == ("killed", "tests/test_both.py::test_first")
    survivor = run(worker, "self.a & self.b", "self.a", expected=expected)
    assert survivor["status"] == "survived"
    assert run(worker, "m = Module()", "m = (Module())", expected=expected)["status"] == "same"
    invalid = run(worker, "self.b | 0", "self.c | 0", expected=expected)
    assert (invalid["status"], invalid["test"]) == ("invalid", "AttributeError")
    endless = run(worker, "m = Module()", "m = Module()\n        while True: pass", expected=expected, cpu=1)
    assert endless["status"] == "timeout"
    # Mutants do not change the worker's copy of the tree.
    assert (worker.folder / "hdl/both.py").read_text() == UNIT
    assert run(worker, expected=expected)["status"] == "same"


# --- tests of the list of equivalent mutants

ENTRY = '[[mutant]]\nfile = "hdl/both.py"\nbefore = "m.d.comb += self.o.eq(self.a & self.b | 0)"\n'
AFTER = 'after = "m.d.comb += self.o.eq((self.a & self.b))"\n'


def listed(tmp_path, text):
    path = tmp_path / "equivalent.toml"
    path.write_text(text)
    return equivalents.match(equivalents.load(path), {"hdl/both.py": find(UNIT)})


def test_equivalents_are_found(tmp_path):
    ((file, mutant), entry), = listed(tmp_path, ENTRY + AFTER + 'reason = "0 is neutral"\n').items()
    assert (file, mutant.kind, entry.reason) == ("hdl/both.py", "operand", "0 is neutral")


@pytest.mark.parametrize(("text", "message"), [
    (ENTRY + 'after = "x"\nreason = "r"\n', "No place of hdl/both.py is any more what equivalent.toml lists"),
    (ENTRY + AFTER + 'reason = "r"\noccurrence = 2\n', "No place of hdl/both.py is any more"),
    (ENTRY + AFTER, "Entry 1 of equivalent.toml must have file, before, after and reason"),
    (ENTRY + AFTER + 'reason = " "\n', "Entry 1 of equivalent.toml must give a reason"),
    ((ENTRY + AFTER + 'reason = "r"\n') * 2, "Entry 2 of equivalent.toml must be there once"),
])
def test_errors_of_the_list(tmp_path, text, message):
    with pytest.raises(equivalents.EquivalentError, match=message):
        listed(tmp_path, text)


def test_the_list_fits_the_tree():
    entries = equivalents.load()
    equivalents.match(entries, {file: find((TREE / file).read_text()) for file in {entry.file for entry in entries}})
    assert {entry.file for entry in entries} <= set(TARGETS)


# --- tests of stored results and reports


def test_results_depend_on_all_that_is_imported(tmp_path):
    for name, text in {"hdl/a.py": "from hdl.b import x\n", "hdl/b.py": "import hdl.c\n", "hdl/c.py": "",
                       "hdl/other.py": "", "tests/test_a.py": "from hdl import a\n"}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    files = results.dependencies(tmp_path, ["tests/test_a.py"])
    assert [str(file.relative_to(tmp_path)) for file in files] == [
        "hdl/a.py", "hdl/b.py", "hdl/c.py", "tests/test_a.py"]
    before = results.digest(tmp_path, files)
    assert results.digest(tmp_path, files, "more") != before
    (tmp_path / "hdl/c.py").write_text("# changed\n")
    assert results.digest(tmp_path, files) != before


def test_store(tmp_path):
    store = results.Store(tmp_path / "results")
    assert store.get("key") is None
    store.put("key", {"status": "killed"})
    assert results.Store(tmp_path / "results").get("key") == {"status": "killed"}
    (tmp_path / "results/key.json").write_text('{"status"')
    assert store.get("key") is None


def test_targets():
    assert [target.file for target in chosen_targets("")] == list(TARGETS)
    assert {target.file for target in chosen_targets("hdl/masking/, hdl/ring/link.py")} == {
        "hdl/masking/comparator.py", "hdl/masking/generator.py", "hdl/masking/multiplexer.py", "hdl/ring/link.py"}
    with pytest.raises(MutationError, match=r"^Files must be some of .*, not 'hdl/mask'$"):
        chosen_targets("hdl/mask")
    for target in TARGETS.values():
        for test in (target.file, *target.tests):
            assert (TREE / test).exists(), test


def test_report(tmp_path):
    rows = [Row("hdl/a.py", n, "mux", "before", "after", 1, status)
            for n, status in enumerate(["killed", "killed", "timeout", "survived", "same", "invalid", "equivalent"])]
    assert report.score(rows) == 0.75
    assert report.score(rows[4:]) is None
    assert report.survivors(rows) == ["hdl/a.py:3: mux\n  - before\n  + after"]
    report.write(rows, {"seed": 1}, tmp_path / "mutate/mutate.json")
    written = json.loads((tmp_path / "mutate/mutate.json").read_text())
    assert written["score"] == written["files"]["hdl/a.py"]["score"] == 0.75
    assert written["files"]["hdl/a.py"]["killed"] == 2
    assert len(written["mutants"]) == 7
