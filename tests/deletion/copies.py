"""Make copies of the tree without a feature, its dependants, and the tests and labs that need it."""

import ast
import compileall
import functools
import os
import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from hdl.registry import FEATURES, feature

ROOT = Path(__file__).parents[2]

#: Folders with one subfolder per feature.
TREES = ("hdl/features", "sim/golden/features", "sim/arithmetic/features", "host/features", "sim/verilated/features",
         "tests/features", "tests/host/features")
#: Folders of programs that use the packages; a program is removed if it imports a missing module.
_PROGRAMS = ("tests/", "host/labs/", "sim/bench/")


def dependants(name: str) -> tuple[str, ...]:
    """Return a feature and all features that depend on it, in registry order."""
    names = {name}
    while more := {other for other, entry in FEATURES.items() if other not in names
                   and names & {*entry.uses, *feature(other).requires}}:
        names |= more
    return tuple(other for other in FEATURES if other in names)


@functools.cache
def files() -> tuple[str, ...]:
    """List the files of the tree that git tracks or would add."""
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True,
                            text=True, check=True)
    return tuple(path for path in listed.stdout.split("\n") if path and (ROOT / path).is_file())


def _module(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _is_typing(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def imported(text: str) -> set[str]:
    """Return the modules, and names in modules, that a source text imports at module level."""
    names: set[str] = set()
    waiting: list[ast.AST] = [ast.parse(text)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) and not _is_typing(node):
            waiting += ast.iter_child_nodes(node)
    return names


@functools.cache
def imports() -> dict[str, frozenset[str]]:
    """Return the imports of each Python file in the tree, keyed by path."""
    return {path: frozenset(imported((ROOT / path).read_text(encoding="utf-8"))) for path in files()
            if path.endswith(".py")}


@functools.cache
def pages() -> dict[str, str]:
    """Map each page to the feature that owns the first source file mentioned in its first paragraph."""
    heads = {path: (ROOT / path).read_text(encoding="utf-8").split("\n\n")[1] for path in files()
             if path.startswith("docs/") and path.endswith(".md")}
    sources = {path: re.search(r"`(?:hdl|sim|host)/[\w/]+", head) for path, head in heads.items()}
    return {path: source[0].split("/features/")[1].split("/")[0] for path, source in sources.items()
            if source and "/features/" in source[0]}


def removed(names: Iterable[str]) -> set[str]:
    """Return the files to remove with some features: their own files and pages, and all files that import them."""
    names = tuple(names)
    folders = tuple(f"{tree}/{name}/" for tree in TREES for name in names)
    gone = {path for path in files() if path.startswith(folders)}
    gone |= {path for path, feature in pages().items() if feature in names}
    modules = {_module(path) for path in gone if path.endswith(".py")}
    programs = {path: used for path, used in imports().items() if path.startswith(_PROGRAMS) and path not in gone}
    while more := {path for path, used in programs.items() if used & modules}:
        gone |= more
        modules |= set(map(_module, more))
        programs = {path: used for path, used in programs.items() if path not in more}
    return gone


def registry_without(text: str, names: Iterable[str]) -> str:
    """Return the source of the registry without the entries of some features."""
    table = next(node.value for node in ast.parse(text).body if isinstance(node, ast.AnnAssign)
                 and isinstance(node.target, ast.Name) and node.target.id == "FEATURES")
    assert isinstance(table, ast.Dict)
    lines = text.split("\n")
    for key, value in reversed(list(zip(table.keys, table.values, strict=True))):
        if isinstance(key, ast.Constant) and key.value in names:
            del lines[key.lineno - 1:value.end_lineno]
    return "\n".join(lines)


def compile_all() -> None:
    """Compile all modules to bytecode once, so that copies can share it."""
    for tree in sorted({path.split("/")[0] for path in files() if path.endswith(".py") and "/" in path}):
        compileall.compile_dir(ROOT / tree, quiet=2)


def make(folder: Path, names: Iterable[str]) -> set[str]:
    """Copy the tree and its bytecode without some features; return the files left out."""
    names = tuple(names)
    gone = removed(names)
    for path in files():
        if path in gone:
            continue
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / path, target)
        if path.endswith(".py"):
            for code in (ROOT / path).parent.glob(f"__pycache__/{Path(path).stem}.cpython-*.pyc"):
                (target.parent / "__pycache__").mkdir(exist_ok=True)
                os.link(code, target.parent / "__pycache__" / code.name)
    registry = folder / "hdl/registry.py"
    text = registry.read_text(encoding="utf-8")
    registry.unlink()
    registry.write_text(registry_without(text, names), encoding="utf-8")
    return gone
