"""``make features``: lint, import, elaborate, train and collect tests in copies without a feature."""

import dataclasses
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from hdl.choices import choice_error
from hdl.registry import FEATURES
from tests.deletion.copies import ROOT, compile_all, dependants, make

#: Programs that must succeed in a copy, run one after another.
_CHECKS = (("ruff", ["-m", "ruff", "check", "--quiet", "."]),
           ("import-linter", ["-c", "from importlinter.cli import lint_imports_command; lint_imports_command()",
                              "--no-cache"]))


@dataclasses.dataclass(frozen=True)
class Deletion:
    """A copy without a feature, and the results of its checks."""

    names: tuple[str, ...]  # features that are missing from the copy
    files: int  # number of files that are missing from the copy
    elsewhere: int  # number of missing tests and labs outside the features' folders
    result: dict[str, Any]  # result of the probe that runs in the copy

    @property
    def line(self) -> str:
        """One-line summary of a copy without a feature."""
        result = self.result
        return (f"without {', '.join(self.names)}: {self.files} files fewer, {self.elsewhere} of them elsewhere; "
                f"{result['modules']} modules, {result['collected']:,} tests, {result['refusals']} refusals")


def _run(arguments: list[str], folder: Path) -> str:
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment = {**own, "PYTHONPATH": str(folder), "PYTHONWARNINGS": "ignore"}
    done = subprocess.run([sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True,
                          check=False, timeout=600)
    if done.returncode:
        raise RuntimeError(f"{done.stdout[-6000:]}{done.stderr[-3000:]}")
    return done.stdout


def delete(name: str) -> Deletion:
    """Make a copy without a feature and check it.

    Raises
    ------
    RuntimeError
        The copy does not lint, import, elaborate, train or collect; the message contains the end of the output.
    """
    names = dependants(name)
    with tempfile.TemporaryDirectory(dir=ROOT / "build") as temporary:
        folder = Path(temporary)
        gone = make(folder, names)
        for _, arguments in _CHECKS:
            _run(arguments, folder)
        result = json.loads(_run(["-m", "tests.deletion.probe", *names], folder).rsplit("\n", 2)[-2])
    elsewhere = [path for path in gone if not any(f"/{other}/" in path for other in names)]
    return Deletion(names, len(gone), len(elsewhere), result)


def main(names: Annotated[list[str] | None, typer.Argument(
        metavar="[NAME]...", help="Features to delete. [default: all]")] = None) -> None:
    """Delete each feature in a separate copy, and check the copy."""
    for name in names or ():
        if name not in FEATURES:
            raise typer.BadParameter(choice_error("Feature", FEATURES, name))
    (ROOT / "build").mkdir(exist_ok=True)
    compile_all()
    wrong = 0
    for name in names or FEATURES:
        try:
            print(f"{name}: {delete(name).line}", flush=True)
        except RuntimeError as error:
            wrong += 1
            print(f"{name}: WRONG\n{error}", flush=True)
    times = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    print(f"processor time: {sum(each.ru_utime + each.ru_stime for each in times) / 60:.1f} minutes")
    if wrong:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
