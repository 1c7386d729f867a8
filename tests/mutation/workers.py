"""Workers, each with a copy of the tree and a process that runs mutants in it."""

import fcntl
import itertools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

_COPIED = ("hdl", "sim", "boards", "host", "tests", "pyproject.toml", "constraints.txt")
#: Names of cache folders that tests fill, and prefix of the cache entries that all builds share.
_BUILT, _SHARED = ("regression", "verilated", "verilog", "formal"), "runtime-"


class Worker:
    """A copy of the tree and the process that runs mutants in it.

    The working tree is never touched. The copy is in the first subfolder of ``folder`` that no other run uses, and
    keeps earlier builds; cache entries built only by mutants are removed.
    """

    def __init__(self, tree: Path, folder: Path) -> None:
        self.folder = folder = self._claim(folder)
        for name in _COPIED:
            source, target = tree / name, folder / name
            if source.is_file():
                shutil.copyfile(source, target)
                continue
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        self._log = (folder / "server.log").open("w")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.mutation.server"], cwd=folder, stdin=subprocess.PIPE,
            env={**os.environ, "GRADRING_CACHE": str(folder.resolve() / "cache")}, stdout=subprocess.PIPE,
            stderr=self._log, text=True)

    def _claim(self, parent: Path) -> Path:
        for number in itertools.count():
            folder = parent / f"tree-{number}"
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = (folder / "lock").open("w")
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self._lock.close()
            else:
                break
        return folder

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.terminate()
        self._process.communicate()
        self._log.close()
        self._lock.close()

    def run(self, request: dict[str, Any], *, file: str, source: str, keep: bool = False) -> dict[str, Any]:
        """Run the tests with one version of a file and return the answer. ``keep`` means that the source is
        unchanged. If a test fails, the answer includes the end of the log.
        """
        path, before = self.folder / file, self._built()
        original = path.read_text()
        try:
            self._write(path, source)
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            print(json.dumps({**request, "log": "trial.log"}), file=self._process.stdin, flush=True)
            line = self._process.stdout.readline()
            if not line:
                raise RuntimeError(f"The process that runs mutants has ended; see {self._log.name}")
            answer: dict[str, Any] = json.loads(line)
            answer["log"] = (self.folder / "trial.log").read_text(errors="replace")[-4000:]
        finally:
            self._write(path, original)
            if not keep:
                for entry in self._built() - before:
                    if _SHARED not in entry.name:
                        shutil.rmtree(entry, ignore_errors=True)
        return answer

    def _built(self) -> set[Path]:
        return {entry for name in _BUILT for entry in (self.folder / "cache" / name).glob("*")}

    @staticmethod
    def _write(path: Path, text: str) -> None:
        """Write a source file, and remove the bytecode that Python has cached for a file of this timestamp and
        size."""
        path.write_text(text)
        for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
            compiled.unlink()
