"""The lab `gradring lab memory`."""

from pathlib import Path
from typing import Annotated

from host.labs.kit import BUILD, Results
from host.labs.memory.report import Parts
from host.options import Option, command

__all__ = ["memory_lab"]


@command
def memory_lab(
    *, output: Annotated[Path, Option("Folder of memory.json.", shown_default="build/memory")] = BUILD / "memory",
) -> None:
    """Plan the memory of programs, and find out what to keep, to move and to compute again."""
    parts = Parts(output / "memory.json")
    results = Results(output, "memory.json", keep=("memory.json",) if parts.parts else ())
    with results.progress() as progress:
        for name in parts.complete():
            progress.stage(f"memory: {name}")
    results.show(*parts.tables(), *parts.lines())
    results.show_paths()
    results.end(f"memory: {failure}" for failure in parts.failures())
