"""Layout of the repository: only tests/ depends on tests/, and the Makefile has little more than targets."""

import ast
import re
import subprocess
from pathlib import Path

from host.make.targets import targets

ROOT = Path(__file__).parents[1]


def files(*suffixes):
    names = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [ROOT / name for name in names.splitlines() if name.endswith(suffixes) and (ROOT / name).is_file()]


def test_nothing_needs_tests():
    for path in files(".py"):
        if path.is_relative_to(ROOT / "tests"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            names = ([alias.name for alias in node.names] if isinstance(node, ast.Import)
                     else [node.module or ""] if isinstance(node, ast.ImportFrom)
                     else [node.value] if isinstance(node, ast.Constant) and isinstance(node.value, str) else [])
            imported = [name for name in names if name == "tests" or name.startswith("tests.")]
            assert not imported, f"{path}:{node.lineno}"


def test_targets():
    """The Makefile declares exactly the targets of host/make, and contains little else."""
    text = (ROOT / "Makefile").read_text()
    assert len(text.splitlines()) <= 120
    declared = re.search(r"^override targets := (.*)$", text.replace("\\\n", " "), re.MULTILINE)[1].split()
    assert sorted(declared) == sorted(targets())


def test_amaranth_options():
    """Amaranth options are on the first line of a file, with nothing else on this line; Amaranth ignores them
    elsewhere."""
    named = [(path, text.splitlines()) for path in files(".py") if "# amaranth:" in (text := path.read_text())]
    lines = [(path, number, line) for path, text in named for number, line in enumerate(text, start=1)
             if line.startswith("# amaranth:")]
    assert lines
    for path, number, line in lines:
        assert number == 1, path
        assert re.fullmatch(r"# amaranth: \w+=(yes|no)", line), path
