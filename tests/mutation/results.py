"""Store of results, each keyed by a digest of everything on which the result depends."""

import ast
import functools
import hashlib
import json
import platform
from collections.abc import Iterable
from pathlib import Path
from typing import Any

#: Packages of this tree. The versions of all other packages are pinned.
_OURS = ("hdl", "sim", "boards", "host", "tests")
#: Files on which results depend in addition to Python modules, since they are compiled or read.
_OTHERS = ("sim/verilated/*.cpp", "sim/verilated/*.h", "sim/verilated/features/*/*.h", "constraints.txt",
           "pyproject.toml", "tests/conftest.py")


def dependencies(tree: Path, files: Iterable[str]) -> list[Path]:
    """Return the paths of files, and of all modules of the tree that they import, directly or indirectly."""
    paths: set[Path] = set()
    waiting = [tree / file for file in files]
    while waiting:
        path = waiting.pop()
        if path not in paths:
            paths.add(path)
            waiting += _imported(tree, path)
    for pattern in _OTHERS:
        paths.update(tree.glob(pattern))
    return sorted(paths)


@functools.cache
def _imported(tree: Path, path: Path) -> list[Path]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    paths = [tree / f"{name.replace('.', '/')}.py" for name in names if name.partition(".")[0] in _OURS]
    return [path for path in paths if path.exists()]


def digest(tree: Path, files: Iterable[Path], *more: str) -> str:
    """Digest of the names and contents of files, the version of Python, and additional strings."""
    state = hashlib.sha256(platform.python_version().encode())
    for part in (*more, *(part for file in files for part in (str(file.relative_to(tree)), file.read_text()))):
        encoded = part.encode()
        state.update(len(encoded).to_bytes(8, "little") + encoded)
    return state.hexdigest()[:32]


class Store:
    """Store of results on disk, one JSON file per result, in a folder that is created if missing."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder

    def get(self, key: str) -> dict[str, Any] | None:
        try:
            result: dict[str, Any] = json.loads((self._folder / f"{key}.json").read_text())
        except (FileNotFoundError, json.JSONDecodeError):  # interrupted runs may leave such files
            return None
        return result

    def put(self, key: str, result: dict[str, Any]) -> None:
        fresh = self._folder / f".{key}"
        fresh.write_text(json.dumps(result))
        fresh.rename(self._folder / f"{key}.json")
